//! Tests of connections that are established, rejected, used and disconnected, and of calls that fail.

use std::ffi::{c_int, c_void};
use std::ptr;

use rdmacm::abi::*;
use verbs_abi::*;

use crate::common::*;
use crate::scenes::{announced_listener, client_with_qp, play, play_under_loss, port};

#[test]
fn two_processes_connect_talk_and_part() {
    play("talk/server", "talk/client");
}

#[test]
fn lost_messages_are_repeated() {
    for _ in 0..4 {
        play_under_loss("talk/server", "talk/client");
    }
}

pub(crate) fn talk_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.listen_id, listener);
    begins_with(&request.private_data, 56, b"may I?");
    assert_eq!(
        (
            request.conn.responder_resources,
            request.conn.initiator_depth
        ),
        (3, 2),
        "as seen from the other side"
    );
    let id = request.id;
    create_qp(id);
    let mut answer = param(b"please");
    ok!(rdma_accept(id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    // SAFETY: a live id with a queue pair.
    unsafe {
        let mut buffer = Buffer::new((*id).pd);
        buffer.memory[..5].copy_from_slice(b"hello");
        buffer.post_send((*id).qp, 5, None);
        assert_eq!(completion((*id).send_cq).status, IBV_WC_SUCCESS);
        buffer.free();
    }
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    ok!(rdma_disconnect(id));
    channel.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
    destroy(id);
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn talk_client(_: &mut Stage) {
    let (channel, id) = client_with_qp();
    // SAFETY: a live id with a queue pair.
    let buffer = unsafe {
        let buffer = Buffer::new((*id).pd);
        buffer.post_recv((*id).qp);
        buffer
    };
    let mut asked = param(b"may I?");
    asked.responder_resources = 2;
    asked.initiator_depth = 3;
    ok!(rdma_connect(id, &raw mut asked));
    let established = channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    begins_with(&established.private_data, 196, b"please");
    // SAFETY: a live id with a queue pair.
    let wc = completion(unsafe { (*id).recv_cq });
    assert_eq!((wc.status, wc.byte_len), (IBV_WC_SUCCESS, 5));
    assert_eq!(&buffer.memory[..5], b"hello");
    assert!(!channel.is_readable());
    ok!(rdma_disconnect(id));
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    buffer.free();
    destroy(id);
    channel.destroy();
}

#[test]
fn a_refusal_brings_its_reason_and_its_words() {
    play("refuse/server", "refuse/client");
}

pub(crate) fn refuse_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let words = b"not today";
    ok!(rdma_reject(request.id, words.as_ptr().cast(), 9));
    fails!(libc::EINVAL, rdma_reject(request.id, ptr::null(), 0));
    ok!(rdma_destroy_id(request.id));
    // A request whose id is destroyed is rejected as well.
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    ok!(rdma_destroy_id(request.id));
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn refuse_client(_: &mut Stage) {
    let channel = Channel::new();
    let port = port();
    for words in [&b"not today"[..], b""] {
        let id = resolved(&channel, RDMA_PS_TCP, &port);
        create_qp(id);
        let mut asked = param(b"");
        ok!(rdma_connect(id, &raw mut asked));
        let refused = channel.expect(RDMA_CM_EVENT_REJECTED);
        assert_eq!(refused.status, 28);
        begins_with(&refused.private_data, 148, words);
        destroy(id);
    }
    channel.destroy();
}

/// A queued request moves with its listener, and so do the later events of the connection.
#[test]
fn requests_move_with_their_listener() {
    play("moved/server", "moved/client");
}

pub(crate) fn moved_server(stage: &mut Stage) {
    let first = Channel::new();
    let (listener, port) = listener(&first, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
    while !first.is_readable() {
        std::thread::yield_now();
    }
    let second = Channel::new();
    ok!(rdma_migrate_id(listener, second.0));
    assert!(!first.is_readable());
    let id = second.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    create_qp(id);
    let mut answer = param(b"");
    ok!(rdma_accept(id, &raw mut answer));
    second.expect(RDMA_CM_EVENT_ESTABLISHED);
    second.expect(RDMA_CM_EVENT_DISCONNECTED);
    assert!(!first.is_readable());
    destroy(id);
    ok!(rdma_destroy_id(listener));
    first.destroy();
    second.destroy();
}

pub(crate) fn moved_client(_: &mut Stage) {
    let (channel, id) = client_with_qp();
    let mut asked = param(b"");
    ok!(rdma_connect(id, &raw mut asked));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    ok!(rdma_disconnect(id));
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
    channel.destroy();
}

#[test]
fn where_nobody_listens_the_service_is_unknown() {
    let scene = Scene::new("roce");
    scene.start("nobody/client").done();
}

pub(crate) fn nobody_client(_: &mut Stage) {
    let channel = Channel::new();
    for (ps, event, status) in [
        (RDMA_PS_TCP, RDMA_CM_EVENT_REJECTED, 8),
        (RDMA_PS_UDP, RDMA_CM_EVENT_UNREACHABLE, 1),
    ] {
        let id = resolved(&channel, ps, "7");
        create_qp(id);
        let mut asked = param(b"");
        ok!(rdma_connect(id, &raw mut asked));
        assert_eq!(channel.expect(event).status, status);
        destroy(id);
    }
    // The address does not belong to this host.
    let id = channel.id(RDMA_PS_TCP);
    let mut far = sockaddr("192.0.2.1:1");
    ok!(rdma_resolve_addr(
        id,
        ptr::null_mut(),
        as_sockaddr(&mut far),
        100
    ));
    let error = channel.expect(RDMA_CM_EVENT_ADDR_ERROR);
    assert_eq!(error.status, -libc::EHOSTUNREACH);
    ok!(rdma_destroy_id(id));
    let id = channel.id(RDMA_PS_TCP);
    fails!(
        libc::EADDRNOTAVAIL,
        rdma_bind_addr(id, as_sockaddr(&mut far))
    );
    ok!(rdma_destroy_id(id));
    channel.destroy();
}

#[test]
fn calls_out_of_order_are_refused_and_channels_say_what_is_there() {
    Scene::new("roce").start("states").done();
}

pub(crate) fn states(_: &mut Stage) {
    let channel = Channel::new();
    let null: *mut c_void = ptr::null_mut();
    fails!(
        libc::EINVAL,
        rdma_create_id(channel.0, null.cast(), null, RDMA_PS_TCP)
    );
    let mut id = ptr::null_mut();
    fails!(
        libc::EINVAL,
        rdma_create_id(channel.0, &raw mut id, null, 99)
    );
    fails!(libc::EINVAL, rdma_destroy_id(ptr::null_mut()));
    fails!(libc::EINVAL, rdma_get_cm_event(channel.0, ptr::null_mut()));
    fails!(libc::EINVAL, rdma_ack_cm_event(ptr::null_mut()));

    let id = channel.id(RDMA_PS_TCP);
    let mut asked = param(b"");
    fails!(libc::EINVAL, rdma_bind_addr(id, ptr::null_mut()));
    fails!(libc::EINVAL, rdma_resolve_route(id, 1));
    fails!(libc::EINVAL, rdma_connect(id, &raw mut asked));
    fails!(libc::EINVAL, rdma_accept(id, &raw mut asked));
    fails!(libc::EINVAL, rdma_disconnect(id));
    fails!(libc::EINVAL, rdma_establish(id));
    let mut attr = qp_init_attr(IBV_QPT_RC);
    fails!(
        libc::EINVAL,
        rdma_create_qp(id, ptr::null_mut(), &raw mut attr)
    );

    // A channel with O_NONBLOCK fails with EAGAIN if it is empty, and is readable exactly while it has an event.
    channel.set_nonblocking();
    let mut event = ptr::null_mut();
    fails!(libc::EAGAIN, rdma_get_cm_event(channel.0, &raw mut event));
    assert!(!channel.is_readable());
    let mut here = sockaddr("127.0.0.1:9");
    ok!(rdma_resolve_addr(
        id,
        ptr::null_mut(),
        as_sockaddr(&mut here),
        1
    ));
    assert!(channel.is_readable());
    // Queued events move with their id.
    let other = Channel::new();
    ok!(rdma_migrate_id(id, other.0));
    assert!(!channel.is_readable() && other.is_readable());
    other.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    assert!(!other.is_readable());
    fails!(libc::EINVAL, rdma_bind_addr(id, as_sockaddr(&mut here)));
    ok!(rdma_resolve_route(id, 1));
    // Queued events are removed with their id.
    ok!(rdma_destroy_id(id));
    assert!(!other.is_readable());

    // Options.
    let id = channel.id(RDMA_PS_TCP);
    let mut one: c_int = 1;
    let one = (&raw mut one).cast();
    ok!(rdma_set_option(
        id,
        RDMA_OPTION_ID,
        RDMA_OPTION_ID_REUSEADDR,
        one,
        4
    ));
    ok!(rdma_set_option(
        id,
        RDMA_OPTION_ID,
        RDMA_OPTION_ID_AFONLY,
        one,
        4
    ));
    ok!(rdma_set_option(
        id,
        RDMA_OPTION_ID,
        RDMA_OPTION_ID_TOS,
        one,
        1
    ));
    ok!(rdma_set_option(
        id,
        RDMA_OPTION_ID,
        RDMA_OPTION_ID_ACK_TIMEOUT,
        one,
        1
    ));
    fails!(
        libc::EINVAL,
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, one, 4)
    );
    fails!(libc::ENOSYS, rdma_set_option(id, 7, 7, one, 4));

    // The private data does not fit.
    let long = [1; 57];
    ok!(rdma_resolve_addr(
        id,
        ptr::null_mut(),
        as_sockaddr(&mut here),
        1
    ));
    ok!(rdma_resolve_route(id, 1));
    create_qp(id);
    let mut asked = param(&long);
    fails!(libc::EINVAL, rdma_connect(id, &raw mut asked));
    asked.private_data_len = 56;
    ok!(rdma_connect(id, &raw mut asked));
    destroy(id);

    // Two listeners cannot share a port.
    let (first, port) = listener(&channel, RDMA_PS_TCP, 1);
    let second = channel.id(RDMA_PS_TCP);
    let mut same = sockaddr(&format!("127.0.0.1:{port}"));
    fails!(
        libc::EADDRNOTAVAIL,
        rdma_bind_addr(second, as_sockaddr(&mut same))
    );
    ok!(rdma_destroy_id(first));
    ok!(rdma_bind_addr(second, as_sockaddr(&mut same)));
    ok!(rdma_destroy_id(second));
    channel.destroy();
    other.destroy();
}
