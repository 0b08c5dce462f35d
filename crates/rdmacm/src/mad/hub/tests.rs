//! Tests of requests by MADs, without a network.

use std::ffi::c_int;
use std::path::Path;

use roce::cm::ReferredMessage;
use verbs_abi::IBV_QPT_RC;

use super::*;
use crate::addr::IdAddress;
use crate::ports::IdBinding;
use crate::wire::{NegotiatedParams, QpAddress};

const PORT_SPACE: u32 = 0x0106;
const LISTENER: &str = "10.0.0.1:7471";
/// GID of the requester's port.
const REQUESTER: [u8; 16] = [2; 16];
const REQUESTER_GUID: u64 = 0x1234_5678_9abc_def0;

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
    MadConnections::start(&MadConnectionSettings {
        gsi: &GSI,
        cm_thread: CmThread::start().unwrap(),
        port_folder: Box::leak(Box::new(PortFolder::open(dir).unwrap())),
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
        ca_guid: REQUESTER_GUID,
        service_id: format::service_id_of_request(&request).unwrap(),
        ..CommunicationIds::default()
    };
    DeliveredMad {
        source_gid: REQUESTER,
        destination_gid: [1; 16],
        mad: format::encode_request(&request, &ids).unwrap().emit(7),
    }
}

fn binding() -> IdBinding {
    IdBinding {
        addr: ip(LISTENER),
        afonly: false,
        reuse_address: false,
    }
}

/// A listener that keeps the last connection, and what came over it.
#[derive(Default)]
struct Recorder {
    connection: Mutex<Option<Arc<Connection>>>,
    messages: Mutex<Vec<CmMessage>>,
}

impl Listener for Recorder {
    fn on_request(self: Arc<Self>, connection: Arc<Connection>, _: Request) {
        let consumer: Arc<dyn MessageConsumer> = Arc::clone(&self) as _;
        connection.set_consumer(Arc::downgrade(&consumer));
        *lock(&self.connection) = Some(connection);
    }
}

impl MessageConsumer for Recorder {
    fn on_peer_message(self: Arc<Self>, message: CmMessage) {
        lock(&self.messages).push(message);
    }

    fn on_timeout(self: Arc<Self>) {}
}

#[test]
fn a_requester_that_gives_up_is_found_by_its_guid_and_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let mut claim = hub.port_folder.claim(PORT_SPACE, binding()).unwrap();
    let _socket = hub.port_folder.listen(&mut claim).unwrap();
    let recorder = Arc::new(Recorder::default());
    let listener: Arc<dyn Listener> = Arc::clone(&recorder) as _;
    hub.listen(&claim, Arc::downgrade(&listener));
    hub.on_delivery(req(9));
    assert!(lock(&recorder.connection).is_some());
    let give_up = CmMessage::Reject {
        reason: reason::TIMEOUT,
        // All that a REJ has room for.
        private_data: vec![0; 148],
    };
    let rej = |source, local, ca_guid| {
        let ids = CommunicationIds {
            local,
            ca_guid,
            ..CommunicationIds::default()
        };
        let unspecified = ReferredMessage::LapOrUnspecified;
        let mad = format::encode_non_request(&give_up, &ids, unspecified).unwrap();
        DeliveredMad {
            source_gid: source,
            destination_gid: [1; 16],
            mad: mad.emit(7),
        }
    };
    hub.on_delivery(rej(REQUESTER, 8, REQUESTER_GUID));
    hub.on_delivery(rej(REQUESTER, 9, REQUESTER_GUID + 1));
    hub.on_delivery(rej([3; 16], 9, REQUESTER_GUID));
    assert_eq!(*lock(&recorder.messages), []);
    hub.on_delivery(rej(REQUESTER, 9, REQUESTER_GUID));
    assert_eq!(*lock(&recorder.messages), [give_up]);
}

#[test]
fn requests_that_wait_for_a_listener_share_one_alarm() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub(dir.path());
    let _claim = hub.port_folder.claim(PORT_SPACE, binding()).unwrap();
    for id in 1..=2 {
        hub.on_delivery(req(id));
    }
    // Each round of the alarm would double the number of alarms.
    std::thread::sleep(LISTENER_RETRY_PAUSE * 20);
    assert!(hub.shared.cm_thread.pending_timer_count() <= 1);
}
