//! Tests of datagram services, synchronous calls, queue pairs that ids do not own, and many clients.

use std::ffi::{CString, c_int, c_void};
use std::ptr;

use rdmacm::abi::*;
use verbs_abi::*;

use crate::common::*;
use crate::scenes::{announced_listener, play, port};

// Datagram services.

#[test]
fn a_datagram_service_is_looked_up_and_reached() {
    play("lookup/server", "lookup/client");
}

pub(crate) fn lookup_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_UDP, 0);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    begins_with(&request.private_data, 180, b"where?");
    create_qp(request.id);
    // SAFETY: a live id with a queue pair.
    unsafe {
        let id = &*request.id;
        let buffer = Buffer::new(id.pd);
        buffer.post_recv(id.qp);
        let mut answer = param(b"here");
        answer.qp_num = (*id.qp).qp_num;
        ok!(rdma_accept(request.id, &raw mut answer));
        let wc = completion(id.recv_cq);
        assert_eq!((wc.status, wc.byte_len), (IBV_WC_SUCCESS, 45));
        assert_eq!(&buffer.memory[40..45], b"there");
        buffer.free();
    }
    destroy(request.id);
    // Datagrams have no connection, so the next event is the next request.
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    ok!(rdma_reject(request.id, ptr::null(), 0));
    destroy(request.id);
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn lookup_client(_: &mut Stage) {
    let channel = Channel::new();
    let port = port();
    let id = resolved(&channel, RDMA_PS_UDP, &port);
    create_qp(id);
    let mut asked = param(b"where?");
    ok!(rdma_connect(id, &raw mut asked));
    let mut found = channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    begins_with(&found.private_data, 136, b"here");
    assert_eq!(found.ud.qkey, RDMA_UDP_QKEY);
    // SAFETY: a live id with a queue pair.
    unsafe {
        let mut buffer = Buffer::new((*id).pd);
        buffer.memory[..5].copy_from_slice(b"there");
        send_datagram(id, &mut found, &buffer);
        buffer.free();
    }
    destroy(id);
    let id = resolved(&channel, RDMA_PS_UDP, &port);
    let mut asked = param(b"");
    ok!(rdma_connect(id, &raw mut asked));
    assert_eq!(channel.expect(RDMA_CM_EVENT_UNREACHABLE).status, 2);
    destroy(id);
    channel.destroy();
}

// Multicast groups.

#[test]
fn a_group_that_was_left_makes_no_event() {
    Scene::new("roce").start("left").done();
}

pub(crate) fn left(_: &mut Stage) {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_UDP);
    let mut here = sockaddr("127.0.0.1:0");
    ok!(rdma_bind_addr(id, as_sockaddr(&mut here)));
    create_qp(id);
    channel.set_nonblocking();
    let mut groups = [sockaddr("239.1.1.1:0"), sockaddr("239.1.1.2:0")];
    let contexts: [*mut c_void; 2] = [1, 2].map(ptr::without_provenance_mut);
    for (group, context) in groups.iter_mut().zip(contexts) {
        ok!(rdma_join_multicast(id, as_sockaddr(group), context));
    }
    ok!(rdma_leave_multicast(id, as_sockaddr(&mut groups[0])));
    let joined = channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN);
    assert_eq!(joined.ud.private_data, contexts[1].cast_const());
    let mut event = ptr::null_mut();
    fails!(libc::EAGAIN, rdma_get_cm_event(channel.0, &raw mut event));
    assert!(!channel.is_readable());
    ok!(rdma_leave_multicast(id, as_sockaddr(&mut groups[1])));
    destroy(id);
    channel.destroy();
}

// Synchronous calls.

#[test]
fn synchronous_endpoints_connect_and_part() {
    play("sync/server", "sync/client");
}

fn addrinfo(port: &str, flags: c_int) -> *mut rdma_addrinfo {
    let host = CString::new(network::own_address().to_string()).expect("text");
    let mut hints = rdma_addrinfo::zeroed();
    hints.ai_flags = flags;
    hints.ai_port_space = RDMA_PS_TCP.cast_signed();
    let port = std::ffi::CString::new(port).expect("no zero in it");
    let mut res = ptr::null_mut();
    ok!(rdma_getaddrinfo(
        host.as_ptr(),
        port.as_ptr(),
        &raw const hints,
        &raw mut res
    ));
    res
}

pub(crate) fn sync_server(stage: &mut Stage) {
    let res = addrinfo("0", RAI_PASSIVE);
    let mut attr = qp_init_attr(IBV_QPT_RC);
    let mut listener = ptr::null_mut();
    ok!(rdma_create_ep(
        &raw mut listener,
        res,
        ptr::null_mut(),
        &raw mut attr
    ));
    // SAFETY: the result came from `rdma_getaddrinfo` above.
    unsafe { rdma_freeaddrinfo(res) };
    ok!(rdma_listen(listener, 0));
    // SAFETY: a live id.
    stage.say(&u16::from_be(unsafe { rdma_get_src_port(listener) }).to_string());
    let mut id = ptr::null_mut();
    ok!(rdma_get_request(listener, &raw mut id));
    // SAFETY: live ids; the id keeps the event.
    unsafe {
        assert!(!(*id).qp.is_null());
        let conn = (*(*id).event).param.conn;
        assert_eq!(conn.private_data_len, 56);
        assert_eq!(*conn.private_data.cast::<u8>(), b'x');
        ok!(rdma_accept(id, ptr::null_mut()));
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_ESTABLISHED);
        let mut buffer = Buffer::new((*id).pd);
        buffer.memory[0] = 42;
        buffer.post_send((*id).qp, 1, None);
        assert_eq!(completion((*id).send_cq).status, IBV_WC_SUCCESS);
        ok!(rdma_disconnect(id));
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_DISCONNECTED);
        // A second call has no effect.
        ok!(rdma_disconnect(id));
        buffer.free();
        rdma_destroy_ep(id);
        rdma_destroy_ep(listener);
    }
}

pub(crate) fn sync_client(_: &mut Stage) {
    let res = addrinfo(&port(), 0);
    let mut attr = qp_init_attr(IBV_QPT_RC);
    let mut id = ptr::null_mut();
    ok!(rdma_create_ep(
        &raw mut id,
        res,
        ptr::null_mut(),
        &raw mut attr
    ));
    // SAFETY: the result came from `rdma_getaddrinfo` above; the ids are live.
    unsafe {
        rdma_freeaddrinfo(res);
        let buffer = Buffer::new((*id).pd);
        buffer.post_recv((*id).qp);
        let mut asked = param(b"x");
        ok!(rdma_connect(id, &raw mut asked));
        assert_eq!(completion((*id).recv_cq).status, IBV_WC_SUCCESS);
        assert_eq!(buffer.memory[0], 42);
        ok!(rdma_disconnect(id));
        buffer.free();
        rdma_destroy_ep(id);
    }
}

// Queue pairs that ids do not own.

#[test]
fn programs_may_connect_queue_pairs_of_their_own() {
    play("own_qp/server", "own_qp/client");
}

struct OwnQp {
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

impl OwnQp {
    fn new(id: *mut rdma_cm_id) -> Self {
        let verbs = softnic::symbols();
        // SAFETY: a live id that is bound to a device.
        unsafe {
            let cq = (verbs.ibv_create_cq)((*id).verbs, 16, ptr::null_mut(), ptr::null_mut(), 0);
            let mut attr = qp_init_attr(IBV_QPT_RC);
            attr.send_cq = cq;
            attr.recv_cq = cq;
            let qp = (verbs.ibv_create_qp)((*id).pd, &raw mut attr);
            assert!(!qp.is_null());
            Self { cq, qp }
        }
    }

    fn goes_to(&self, id: *mut rdma_cm_id, states: &[ibv_qp_state]) {
        for &state in states {
            let mut attr = ibv_qp_attr::zeroed();
            attr.qp_state = state;
            let mut mask = 0;
            ok!(rdma_init_qp_attr(id, &raw mut attr, &raw mut mask));
            ok!((softnic::symbols().ibv_modify_qp)(
                self.qp,
                &raw mut attr,
                mask
            ));
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    fn destroy(self) {
        ok!((softnic::symbols().ibv_destroy_qp)(self.qp));
        ok!((softnic::symbols().ibv_destroy_cq)(self.cq));
    }
}

pub(crate) fn own_qp_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let qp = OwnQp::new(request.id);
    qp.goes_to(request.id, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]);
    let mut answer = param(b"");
    answer.qp_num = qp.number();
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    // SAFETY: a live id.
    unsafe {
        let buffer = Buffer::new((*request.id).pd);
        buffer.post_send(qp.qp, 1, None);
        assert_eq!(completion(qp.cq).status, IBV_WC_SUCCESS);
        buffer.free();
    }
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    qp.destroy();
    destroy(request.id);
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn own_qp_client(_: &mut Stage) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    fails!(libc::EINVAL, rdma_connect(id, ptr::null_mut()));
    let qp = OwnQp::new(id);
    qp.goes_to(id, &[IBV_QPS_INIT]);
    // SAFETY: a live id.
    let buffer = Buffer::new(unsafe { (*id).pd });
    buffer.post_recv(qp.qp);
    let mut asked = param(b"");
    asked.qp_num = qp.number();
    ok!(rdma_connect(id, &raw mut asked));
    channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    qp.goes_to(id, &[IBV_QPS_RTR, IBV_QPS_RTS]);
    ok!(rdma_establish(id));
    assert_eq!(completion(qp.cq).status, IBV_WC_SUCCESS);
    ok!(rdma_disconnect(id));
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    buffer.free();
    qp.destroy();
    destroy(id);
    channel.destroy();
}

/// A client that disconnects after the reply, instead of sending the RTU, rejects the reply.
#[test]
fn a_client_may_disconnect_before_it_is_ready() {
    let scene = Scene::new("roce").with(network::LOSS, "0");
    let mut server = scene.start("early/server");
    let mut client = scene.start("early/client");
    client.say(&server.hear());
    server.done();
    client.say("end");
    client.done();
}

pub(crate) fn early_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let mut answer = param(b"");
    answer.qp_num = 5;
    ok!(rdma_accept(request.id, &raw mut answer));
    // Without a message of the client, the server would get UNREACHABLE after a minute.
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);
    ok!(rdma_destroy_id(request.id));
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn early_client(stage: &mut Stage) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    let mut asked = param(b"");
    asked.qp_num = 77;
    ok!(rdma_connect(id, &raw mut asked));
    channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    ok!(rdma_disconnect(id));
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(stage.hear(), "end");
    ok!(rdma_destroy_id(id));
    channel.destroy();
}

/// By packets: a client that gives up before the reply does not know the communication id of its listener.
#[test]
fn a_listener_hears_of_clients_that_give_up_before_its_reply() {
    for way in ["destroy", "exit"] {
        let scene = Scene::new("roce").with(network::LOSS, "0");
        let mut server = scene.start("giving_up/server");
        let mut client = scene.start("giving_up/client");
        client.say(&server.hear());
        assert_eq!(server.hear(), "asked");
        client.say(way);
        client.done();
        server.done();
    }
}

pub(crate) fn giving_up_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    stage.say("asked");
    let rejected = channel.expect(RDMA_CM_EVENT_REJECTED);
    // The reason code for a timeout.
    assert_eq!((rejected.id, rejected.status), (request.id, 4));
    let mut answer = param(b"");
    fails!(libc::EINVAL, rdma_accept(request.id, &raw mut answer));
    ok!(rdma_destroy_id(request.id));
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn giving_up_client(stage: &mut Stage) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    let mut asked = param(b"");
    asked.qp_num = 77;
    ok!(rdma_connect(id, &raw mut asked));
    if stage.hear() == "destroy" {
        ok!(rdma_destroy_id(id));
        channel.destroy();
    }
}

// Many clients.

const CROWD: usize = 200;
const SEATS: c_int = 150;

#[test]
fn a_full_backlog_refuses_and_nobody_is_lost() {
    let scene = Scene::new("roce");
    let mut server = scene.start("crowd/server");
    let mut client = scene.start("crowd/client");
    client.say(&server.hear());
    assert_eq!(client.hear(), "asked");
    server.say("serve");
    // The clients must not disconnect before the server has received the last connection.
    assert_eq!(server.hear(), "all are here");
    client.say("part");
    client.done();
    server.done();
    assert_eq!(scene.ports(), [""; 0]);
}

pub(crate) fn crowd_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (listener, port) = listener(&channel, RDMA_PS_TCP, SEATS);
    stage.say(&port.to_string());
    assert_eq!(stage.hear(), "serve");
    let mut ids = Vec::new();
    for _ in 0..SEATS {
        let id = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
        create_qp(id);
        ids.push(id);
    }
    for &id in &ids {
        let mut answer = param(b"");
        ok!(rdma_accept(id, &raw mut answer));
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    }
    stage.say("all are here");
    for _ in 0..SEATS {
        channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    }
    ids.into_iter().for_each(destroy);
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn crowd_client(stage: &mut Stage) {
    let channel = Channel::new();
    let port = port();
    let ids: Vec<_> = (0..CROWD)
        .map(|_| {
            let id = resolved(&channel, RDMA_PS_TCP, &port);
            create_qp(id);
            id
        })
        .collect();
    for &id in &ids {
        let mut asked = param(b"");
        ok!(rdma_connect(id, &raw mut asked));
    }
    let seats = usize::try_from(SEATS).expect("positive");
    for _ in seats..CROWD {
        channel.expect(RDMA_CM_EVENT_REJECTED);
    }
    stage.say("asked");
    for _ in 0..seats {
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    }
    assert_eq!(stage.hear(), "part");
    ids.into_iter().for_each(destroy);
    channel.destroy();
}

/// By packets: if a queue pair requests a second connection, its first one is stale.
#[test]
fn a_queue_pair_that_asks_again_has_a_stale_connection() {
    let scene = Scene::new("roce").with(network::LOSS, "0");
    let mut server = scene.start("stale/server");
    let mut client = scene.start("stale/client");
    client.say(&server.hear());
    client.done();
    server.done();
}

pub(crate) fn stale_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let mut answer = param(b"");
    answer.qp_num = 5;
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let ended = channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(ended.id, request.id);
    ok!(rdma_destroy_id(request.id));
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

pub(crate) fn stale_client(_: &mut Stage) {
    let channel = Channel::new();
    let port = port();
    let mut asked = param(b"");
    asked.qp_num = 77;
    let first = resolved(&channel, RDMA_PS_TCP, &port);
    ok!(rdma_connect(first, &raw mut asked));
    channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    ok!(rdma_establish(first));
    let second = resolved(&channel, RDMA_PS_TCP, &port);
    ok!(rdma_connect(second, &raw mut asked));
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 10);
    let ended = channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(ended.id, first);
    ok!(rdma_destroy_id(first));
    ok!(rdma_destroy_id(second));
    channel.destroy();
}
