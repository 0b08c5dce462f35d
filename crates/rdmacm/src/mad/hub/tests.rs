//! Tests of requests by MADs, without a network.

use std::ffi::c_int;
use std::path::Path;

use verbs_abi::IBV_QPT_RC;

use super::*;
use crate::addr::IdAddress;
use crate::ports::IdBinding;
use crate::wire::{NegotiatedParams, QpAddress};

const PORT_SPACE: u32 = 0x0106;
const LISTENER: &str = "10.0.0.1:7471";

extern "C" fn open() -> c_int {
    1
}

extern "C" fn ignore_route(_: *mut u8) -> c_int {
    1
}

extern "C" fn ignore_mad(_: *const u8, _: *const u8, _: *const u8) -> c_int {
    0
}

static GSI: Gsi = Gsi {
    route: ignore_route,
    open,
    send: ignore_mad,
};

fn ip(addr: &str) -> IdAddress {
    IdAddress::Ip(addr.parse().unwrap())
}

/// Returns the connections of a process whose fabric is in `dir`.
fn hub(dir: &Path) -> Arc<MadConnections> {
    MadConnections::start(&Settings {
        gsi: &GSI,
        service: ServiceThread::start().unwrap(),
        ports: Box::leak(Box::new(PortFolder::open(dir).unwrap())),
        ca_guid: 1,
        answer_timeout: Duration::from_secs(60),
        time_wait: Duration::from_secs(1),
    })
    .unwrap()
}

/// Returns a REQ with the communication id `id` to [`LISTENER`].
fn req(id: u32) -> DeliveredMad {
    let request = Request {
        port_space: PORT_SPACE,
        qp_type: IBV_QPT_RC,
        src: ip("10.0.0.2:1"),
        dst: ip(LISTENER),
        qp: QpAddress {
            qpn: id,
            ..QpAddress::default()
        },
        params: NegotiatedParams::default(),
        ece: (0, 0),
        path_mtu_code: 3,
        private_data: Vec::new(),
    };
    let ids = CommunicationIds {
        local: id,
        service_id: format::service_id(&request).unwrap(),
        ..CommunicationIds::default()
    };
    DeliveredMad {
        source: [2; 16],
        destination: [1; 16],
        mad: format::encode_request(&request, &ids).unwrap().emit(7),
    }
}

#[test]
fn requests_that_wait_for_a_listener_share_one_alarm() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let binding = IdBinding {
        addr: ip(LISTENER),
        afonly: false,
        reuse: false,
    };
    let _claim = hub.ports.claim(PORT_SPACE, binding).unwrap();
    for id in 1..=2 {
        hub.on_delivery(req(id));
    }
    // Each round of the alarm would double the number of alarms.
    std::thread::sleep(LISTENER_RETRY_PAUSE * 20);
    assert!(hub.shared.service.pending_timers() <= 1);
}
