//! Scenes of a server and a client.

use crate::common::{Scene, Stage};

const LINK_LAYERS: [&str; 2] = ["roce", "ib"];

/// A scene of a server that says its port and a client that is told it.
pub(crate) fn play(server: &str, client: &str) {
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

pub(crate) fn port() -> String {
    Stage.hear()
}
