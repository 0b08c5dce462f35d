//! Connections between two processes: made, refused, used, ended, and cut off by a death.

#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "calls of C functions are what the macros are for"
)]

#[macro_use]
mod common;

use std::ffi::{c_int, c_void};
use std::ptr;

use common::*;
use rdmacm::abi::*;
use verbs_abi::*;

const PARTS: &Parts = &[
    ("talk/server", talk_server),
    ("talk/client", talk_client),
    ("refuse/server", refuse_server),
    ("refuse/client", refuse_client),
    ("nobody/client", nobody_client),
    ("mute/server", mute_server),
    ("unanswered/client", unanswered_client),
    ("doomed/client", doomed_client),
    ("survivor/server", survivor_server),
    ("steady/server", steady_server),
    ("steady/client", steady_client),
    ("forking/server", forking_server),
    ("lookup/server", lookup_server),
    ("lookup/client", lookup_client),
    ("sync/server", sync_server),
    ("sync/client", sync_client),
    ("own_qp/server", own_qp_server),
    ("own_qp/client", own_qp_client),
    ("crowd/server", crowd_server),
    ("crowd/client", crowd_client),
    ("states", states),
];

#[test]
fn child_main() {
    common::child_main(PARTS);
}

const LINK_LAYERS: [&str; 2] = ["roce", "ib"];

/// A scene of a server that says its port and a client that is told it.
fn play(server: &str, client: &str) {
    for link_layer in LINK_LAYERS {
        let scene = Scene::new(link_layer);
        let mut server = scene.start(server);
        let port = server.hear();
        let mut client = scene.start(client);
        client.say(&port);
        client.done();
        server.done();
        assert_eq!(scene.ports(), [""; 0], "ports are left behind");
    }
}

fn port() -> String {
    Stage.hear()
}

// A connection, from the request to the end.

#[test]
fn two_processes_connect_talk_and_part() {
    play("talk/server", "talk/client");
}

fn talk_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (listener, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
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

fn talk_client(_: &mut Stage) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    create_qp(id);
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

fn refuse_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (listener, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let words = b"not today";
    ok!(rdma_reject(request.id, words.as_ptr().cast(), 9));
    fails!(libc::EINVAL, rdma_reject(request.id, ptr::null(), 0));
    ok!(rdma_destroy_id(request.id));
    // A request that is dropped is refused as well.
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    ok!(rdma_destroy_id(request.id));
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

fn refuse_client(_: &mut Stage) {
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

#[test]
fn where_nobody_listens_the_service_is_unknown() {
    let scene = Scene::new("roce");
    scene.start("nobody/client").done();
}

fn nobody_client(_: &mut Stage) {
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
    // Not an address of this host.
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

// Deaths, and peers that say nothing.

/// Takes a request and never answers.
fn mute_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (_listener, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    stage.say("asked");
    loop {
        std::thread::park();
    }
}

/// Asks, and expects what the director says.
fn unanswered_client(stage: &mut Stage) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    create_qp(id);
    let mut asked = param(b"");
    ok!(rdma_connect(id, &raw mut asked));
    match stage.hear().as_str() {
        "refused" => assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 28),
        "unreachable" => {
            let unreachable = channel.expect(RDMA_CM_EVENT_UNREACHABLE);
            assert_eq!(unreachable.status, -libc::ETIMEDOUT);
        }
        other => panic!("{other}?"),
    }
    destroy(id);
    channel.destroy();
}

#[test]
fn a_listener_that_dies_before_its_answer_has_refused() {
    let scene = Scene::new("roce");
    let mut server = scene.start("mute/server");
    let mut client = scene.start("unanswered/client");
    client.say(&server.hear());
    assert_eq!(server.hear(), "asked");
    server.kill();
    client.say("refused");
    client.done();
}

#[test]
fn a_listener_that_never_answers_is_unreachable() {
    let scene = Scene::new("roce").with("VERBATIM_TEST_ANSWER_MS", "200");
    let mut server = scene.start("mute/server");
    let mut client = scene.start("unanswered/client");
    client.say(&server.hear());
    client.say("unreachable");
    client.done();
}

/// Asks, and is killed at the point that the director says.
fn doomed_client(stage: &mut Stage) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    create_qp(id);
    let mut asked = param(b"");
    ok!(rdma_connect(id, &raw mut asked));
    if stage.hear() == "established" {
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        stage.say("established");
    }
    loop {
        std::thread::park();
    }
}

/// Serves clients that die.
fn survivor_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (listener, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
    // One dies before the answer, ...
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request.id);
    stage.say("asked");
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).id, request.id);
    let mut answer = param(b"");
    fails!(libc::EINVAL, rdma_accept(request.id, &raw mut answer));
    destroy(request.id);
    // ... one before it is ready, ...
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request.id);
    ok!(rdma_accept(request.id, &raw mut answer));
    stage.say("answered");
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);
    destroy(request.id);
    // ... and one while it is connected.
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request.id);
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(channel.expect(RDMA_CM_EVENT_DISCONNECTED).id, request.id);
    destroy(request.id);
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

#[test]
fn a_server_hears_of_the_death_of_its_clients() {
    let scene = Scene::new("roce");
    let mut server = scene.start("survivor/server");
    let port = server.hear();
    for (heard, told) in [
        (Some("asked"), ""),
        (Some("answered"), "stay"),
        (None, "established"),
    ] {
        let mut client = scene.start("doomed/client");
        client.say(&port);
        if let Some(heard) = heard {
            assert_eq!(server.hear(), heard);
        }
        if told == "established" {
            client.say(told);
            assert_eq!(client.hear(), "established");
        }
        client.kill();
    }
    server.done();
    // Whoever comes next cleans up.
    scene.start("nobody/client").done();
    assert_eq!(scene.ports(), [""; 0]);
}

/// Is connected until it is killed.
fn steady_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (_listener, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request.id);
    let mut answer = param(b"");
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    stage.say("established");
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

/// As `steady_server`, with a child that outlives it.
fn forking_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (_listener, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request.id);
    let mut answer = param(b"");
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    // SAFETY: the child only sleeps, and ends by itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: in the child of a program with threads only such functions are allowed.
        unsafe {
            libc::sleep(3);
            libc::_exit(0);
        }
    }
    stage.say("established");
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

/// Is connected until its server ends.
fn steady_client(_: &mut Stage) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    create_qp(id);
    let mut asked = param(b"");
    ok!(rdma_connect(id, &raw mut asked));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
    channel.destroy();
}

#[test]
fn a_client_hears_of_the_death_of_its_server_also_if_a_child_lives_on() {
    for server in ["steady/server", "forking/server"] {
        let scene = Scene::new("roce");
        let mut server = scene.start(server);
        let mut client = scene.start("steady/client");
        client.say(&server.hear());
        assert_eq!(server.hear(), "established");
        server.kill();
        client.done();
    }
}

// Datagrams.

#[test]
fn a_datagram_service_is_looked_up_and_reached() {
    play("lookup/server", "lookup/client");
}

fn lookup_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (listener, port) = listener(&channel, RDMA_PS_UDP, 0);
    stage.say(&port.to_string());
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
    // Datagrams are not connected: the next event is the next request.
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    ok!(rdma_reject(request.id, ptr::null(), 0));
    destroy(request.id);
    ok!(rdma_destroy_id(listener));
    channel.destroy();
}

fn lookup_client(_: &mut Stage) {
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
        let verbs = softnic::symbols();
        let ah = (verbs.ibv_create_ah)((*id).pd, &raw mut found.ud.ah_attr);
        assert!(!ah.is_null());
        let mut buffer = Buffer::new((*id).pd);
        buffer.memory[..5].copy_from_slice(b"there");
        let to = ibv_send_wr_wr_ud {
            ah,
            remote_qpn: found.ud.qp_num,
            remote_qkey: found.ud.qkey,
        };
        buffer.post_send((*id).qp, 5, Some(to));
        assert_eq!(completion((*id).send_cq).status, IBV_WC_SUCCESS);
        ok!((verbs.ibv_destroy_ah)(ah));
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

// The calls that wait.

#[test]
fn synchronous_endpoints_connect_and_part() {
    play("sync/server", "sync/client");
}

fn addrinfo(port: &str, flags: c_int) -> *mut rdma_addrinfo {
    let mut hints = rdma_addrinfo::zeroed();
    hints.ai_flags = flags;
    hints.ai_port_space = RDMA_PS_TCP.cast_signed();
    let port = std::ffi::CString::new(port).expect("no zero in it");
    let mut res = ptr::null_mut();
    ok!(rdma_getaddrinfo(
        c"127.0.0.1".as_ptr(),
        port.as_ptr(),
        &raw const hints,
        &raw mut res
    ));
    res
}

fn sync_server(stage: &mut Stage) {
    let res = addrinfo("0", RAI_PASSIVE);
    let mut attr = qp_init_attr(IBV_QPT_RC);
    let mut listener = ptr::null_mut();
    ok!(rdma_create_ep(
        &raw mut listener,
        res,
        ptr::null_mut(),
        &raw mut attr
    ));
    // SAFETY: made above.
    unsafe { rdma_freeaddrinfo(res) };
    ok!(rdma_listen(listener, 0));
    // SAFETY: a live id.
    stage.say(&u16::from_be(unsafe { rdma_get_src_port(listener) }).to_string());
    let mut id = ptr::null_mut();
    ok!(rdma_get_request(listener, &raw mut id));
    // SAFETY: live ids; the event is kept by the id.
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
        // Once is enough.
        ok!(rdma_disconnect(id));
        buffer.free();
        rdma_destroy_ep(id);
        rdma_destroy_ep(listener);
    }
}

fn sync_client(_: &mut Stage) {
    let res = addrinfo(&port(), 0);
    let mut attr = qp_init_attr(IBV_QPT_RC);
    let mut id = ptr::null_mut();
    ok!(rdma_create_ep(
        &raw mut id,
        res,
        ptr::null_mut(),
        &raw mut attr
    ));
    // SAFETY: made above; live ids.
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

// Queue pairs that the ids do not know.

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
        // SAFETY: live.
        unsafe { (*self.qp).qp_num }
    }

    fn destroy(self) {
        ok!((softnic::symbols().ibv_destroy_qp)(self.qp));
        ok!((softnic::symbols().ibv_destroy_cq)(self.cq));
    }
}

fn own_qp_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (listener, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
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

fn own_qp_client(_: &mut Stage) {
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

// Many.

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
    // Else the first ones part while the server hears that the last one is there.
    assert_eq!(server.hear(), "all are here");
    client.say("part");
    client.done();
    server.done();
    assert_eq!(scene.ports(), [""; 0]);
}

fn crowd_server(stage: &mut Stage) {
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

fn crowd_client(stage: &mut Stage) {
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

// What is refused, and how channels behave.

#[test]
fn calls_out_of_order_are_refused_and_channels_say_what_is_there() {
    Scene::new("roce").start("states").done();
}

fn states(_: &mut Stage) {
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

    // A channel that does not block says EAGAIN, and is readable exactly while there is an event.
    // SAFETY: a live channel's descriptor.
    unsafe {
        let flags = libc::fcntl((*channel.0).fd, libc::F_GETFL);
        libc::fcntl((*channel.0).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
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
    // Events move with their id.
    let other = Channel::new();
    ok!(rdma_migrate_id(id, other.0));
    assert!(!channel.is_readable() && other.is_readable());
    other.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    assert!(!other.is_readable());
    fails!(libc::EINVAL, rdma_bind_addr(id, as_sockaddr(&mut here)));
    ok!(rdma_resolve_route(id, 1));
    // ... and go with it.
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

    // Private data that does not fit.
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

    // Two listeners do not share a port.
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
