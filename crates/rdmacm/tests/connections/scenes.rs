//! Scenes of a server and a client.

use crate::common::{Scene, Stage, network};

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
