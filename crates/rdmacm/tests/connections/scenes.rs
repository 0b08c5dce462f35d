//! Scenes of a server and a client.

use verbs_abi::*;

use crate::common::{Channel, Scene, Seen, Stage, create_qp, listener, network, resolved};

const LINK_LAYERS: [&str; 2] = ["roce", "ib"];

/// Runs a scene of a server and a client, to which the server's port is passed: over sockets, and by packets without
/// loss.
pub(crate) fn play(server: &str, client: &str) {
    for link_layer in LINK_LAYERS {
        play_in(&Scene::new(link_layer), server, client);
    }
    play_in(&Scene::new("roce").with(network::LOSS, "0"), server, client);
}

/// Runs the scene by packets with a high loss rate.
pub(crate) fn play_under_loss(server: &str, client: &str) {
    let scene = Scene::new("roce")
        .with(network::LOSS, "30")
        .with("VERBATIM_TEST_ANSWER_MS", "16000");
    play_in(&scene, server, client);
}

fn play_in(scene: &Scene, server: &str, client: &str) {
    let mut server = scene.start(server);
    let port = server.hear();
    let mut client = scene.start(client);
    client.say(&port);
    client.done();
    server.done();
    assert_eq!(scene.ports(), [""; 0], "ports are left behind");
}

pub(crate) fn port() -> String {
    Stage.hear()
}

/// Listens at a free port, and tells the test the port.
pub(crate) fn announced_listener(
    stage: &mut Stage,
    ps: rdma_port_space,
    backlog: i32,
) -> (Channel, *mut rdma_cm_id) {
    let channel = Channel::new();
    let (listener, port) = listener(&channel, ps, backlog);
    stage.say(&port.to_string());
    (channel, listener)
}

/// Makes a client's id with a queue pair, and with the address and route of the port that the test names.
pub(crate) fn client_with_qp() -> (Channel, *mut rdma_cm_id) {
    let channel = Channel::new();
    let id = resolved(&channel, RDMA_PS_TCP, &port());
    create_qp(id);
    (channel, id)
}

/// Waits for a connection request, and makes its queue pair.
pub(crate) fn request_with_qp(channel: &Channel) -> Seen {
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(request.id);
    request
}
