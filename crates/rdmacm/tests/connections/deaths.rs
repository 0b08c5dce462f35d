//! Tests of processes that die, and of peers that do not answer.

use rdmacm::abi::*;
use verbs_abi::*;

use crate::common::*;
use crate::scenes::{announced_listener, client_with_qp, request_with_qp};

/// Receives a request and does not answer it.
pub(crate) fn mute_server(stage: &mut Stage) {
    let (channel, _listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    stage.say("asked");
    loop {
        std::thread::park();
    }
}

/// Requests a connection, and expects the event that the test names.
pub(crate) fn unanswered_client(stage: &mut Stage) {
    let (channel, id) = client_with_qp();
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

/// Requests a connection, and is killed at the point that the test names.
pub(crate) fn doomed_client(stage: &mut Stage) {
    let (channel, id) = client_with_qp();
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
pub(crate) fn survivor_server(stage: &mut Stage) {
    let (channel, listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    // The first client dies before the reply, ...
    let request = request_with_qp(&channel);
    stage.say("asked");
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).id, request.id);
    let mut answer = param(b"");
    fails!(libc::EINVAL, rdma_accept(request.id, &raw mut answer));
    destroy(request.id);
    // ... the second one before it is ready, ...
    let request = request_with_qp(&channel);
    ok!(rdma_accept(request.id, &raw mut answer));
    stage.say("answered");
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);
    destroy(request.id);
    // ... and the third one while it is connected.
    let request = request_with_qp(&channel);
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
    // The next process removes stale names.
    scene.start("nobody/client").done();
    assert_eq!(scene.ports(), [""; 0]);
}

/// Stays connected until it is killed.
pub(crate) fn steady_server(stage: &mut Stage) {
    let (channel, _listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = request_with_qp(&channel);
    let mut answer = param(b"");
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    stage.say("established");
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

/// As `steady_server`, with a child that outlives it.
pub(crate) fn forking_server(stage: &mut Stage) {
    let (channel, _listener) = announced_listener(stage, RDMA_PS_TCP, 0);
    let request = request_with_qp(&channel);
    let mut answer = param(b"");
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    // SAFETY: the child only sleeps and then exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child of a program with threads may only call async-signal-safe functions, as these are.
        unsafe {
            libc::sleep(3);
            libc::_exit(0);
        }
    }
    stage.say("established");
    channel.expect(RDMA_CM_EVENT_DISCONNECTED);
}

/// Checks that a client gets an event if its server exits without disconnecting.
#[test]
fn a_client_hears_that_its_server_has_ended() {
    for scene in [
        Scene::new("roce"),
        Scene::new("roce").with(network::LOSS, "0"),
    ] {
        let mut server = scene.start("leaving/server");
        let mut client = scene.start("steady/client");
        client.say(&server.hear());
        server.done();
        client.done();
    }
}

pub(crate) fn leaving_server(stage: &mut Stage) {
    let channel = Channel::new();
    let (_, port) = listener(&channel, RDMA_PS_TCP, 0);
    stage.say(&port.to_string());
    let request = request_with_qp(&channel);
    let mut answer = param(b"");
    ok!(rdma_accept(request.id, &raw mut answer));
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
}

pub(crate) fn steady_client(_: &mut Stage) {
    let (channel, id) = client_with_qp();
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
