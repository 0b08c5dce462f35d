//! The NIC of this process: made at the first call, and left when the process ends.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::at_exit::at_exit;
use crate::capabilities::DeviceCapabilities;
use crate::device::{self, DeviceAndPortCounts, LINK_LAYER_VAR};
use crate::engine;
use crate::identity::Identity;
use crate::lock::lock;
use crate::nic::{LAST_OPEN_ERROR, Nic, NicError, NicParts};
use crate::path::PacketPath;
use crate::registry::{self, ObjectRegistry};
use shm::fabric::Fabric;

/// The NIC, and the pid of the process that joined the fabric: a forked child joins again.
static NIC: Mutex<Option<(u32, &'static Nic)>> = Mutex::new(None);
/// True once the function that leaves the fabric at exit is registered.
static EXIT_HANDLER_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Returns the NIC of this process, and makes it at the first call.
pub(crate) fn process_nic() -> Result<&'static Nic, NicError> {
    let pid = std::process::id();
    let mut nic = lock(&NIC);
    if let Some((p, nic)) = *nic
        && p == pid
    {
        return Ok(nic);
    }
    match new_nic() {
        Ok(new) => {
            *nic = Some((pid, new));
            if !EXIT_HANDLER_REGISTERED.swap(true, Ordering::Relaxed) {
                at_exit(leave_fabric);
            }
            Ok(new)
        }
        Err(e) => {
            tracing::error!("no software NIC: {e}");
            *lock(&LAST_OPEN_ERROR) = Some(e.to_string());
            Err(e)
        }
    }
}

extern "C" fn leave_fabric() {
    if let Ok(nic) = NIC.try_lock()
        && let Some((pid, nic)) = *nic
        && pid == std::process::id()
    {
        await_notices_read(nic);
        registry::objects_of_nic(nic).send_waiting_answers_of_all_qps();
        nic.packet_path.close_sockets();
        nic.fabric.leave();
    }
}

/// Time for which an ending process waits until its peers have read their connection notices. It is longer than a busy
/// machine keeps a thread from running. Only a stopped peer makes the process wait so long.
const NOTICE_READ_TIMEOUT: Duration = Duration::from_secs(2);

fn new_nic() -> Result<&'static Nic, NicError> {
    let identity = Identity::from_env()?;
    let counts = DeviceAndPortCounts::from_env()?;
    let link_layer = std::env::var_os(LINK_LAYER_VAR);
    let (devices, port) = device::devices_from_env(link_layer.as_deref(), &identity, counts)?;
    let capabilities = DeviceCapabilities::from_env()?;
    crate::faults::is_plan_active()?;
    let network = PacketPath::from_env()?;
    shm::membarrier::register_for_membarriers();
    // The engine starts before anything that others see: a process that cannot have a thread leaves nothing behind.
    let engine = engine::start_engine_thread().map_err(NicError::Engine)?;
    let fabric = Fabric::join_fabric(&Fabric::default_dir()?)?;
    shm::mem::install_fault_handler();
    // The NIC lives as long as the process, so handles that a program forgot to destroy stay valid.
    let nic: &'static Nic = Box::leak(Box::new(Nic::new(NicParts {
        fabric,
        devices,
        first_port: port,
        identity,
        capabilities,
        packet_path: network,
        objects: Box::leak(Box::new(ObjectRegistry::new())),
    })));
    // The thread lives until it has received the NIC.
    let _ = engine.send(nic);
    Ok(nic)
}

/// Waits until the peers have found the rings that this process made for them, before it ends.
///
/// A receiver can read a known ring after its sender has ended. A ring that is not known is lost, and with it datagrams
/// whose sends have completed. On a wire those would be in transit.
fn await_notices_read(nic: &Nic) {
    let unread: Vec<_> = nic
        .fabric
        .opened_peers()
        .into_iter()
        .filter_map(|peer| {
            let count = peer.segment.mailbox().put_notice_count();
            (!peer.segment.mailbox().has_owner_acknowledged(count)).then_some((peer, count))
        })
        .collect();
    let start = Instant::now();
    for (peer, count) in &unread {
        peer.wake_engine();
        while !peer.segment.mailbox().has_owner_acknowledged(*count)
            && !peer.is_dead()
            && start.elapsed() < NOTICE_READ_TIMEOUT
        {
            cancellation::sleep(Duration::from_micros(100));
        }
    }
}
