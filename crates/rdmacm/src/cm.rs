//! The connection manager of a process: the state that all ids share.

use std::ffi::c_int;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

use verbs_abi::{Gsi, Symbols};

use crate::addr::{IdAddress, gid_of_ip};
use crate::cm_thread::CmThread;
use crate::device_port::DevicePort;
use crate::errno::{Errno, Result};
use crate::gsi;
use crate::libc_calls;
use crate::lock::lock;
use crate::mad::{MadConnectionSettings, MadConnections};
use crate::ports::PortFolder;

/// The functions that a verbs provider supplies to connection management.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Verbs of the software NIC.
    pub verbs: &'static Symbols,
    /// Folder in which the processes of the fabric find each other. The folder exists once a device is open.
    pub fabric_dir: PathBuf,
    /// QP1 for messages to other hosts; `None` if the NIC has none.
    pub gsi: Option<&'static Gsi>,
    /// Time in which a peer must answer before it is considered unreachable.
    pub answer_timeout: Duration,
}

/// Default of [`Provider::answer_timeout`]: the sum of Linux's retries of a request (15 times 4.096 µs × 2^20;
/// `CMA_MAX_CM_RETRIES`, `CMA_CM_RESPONSE_TIMEOUT` of `linux:drivers/infiniband/core/cma.c`).
pub const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_millis(64_424);

/// Time that connections stay in TIMEWAIT. Linux derives a similar time from the default packet lifetime of RoCE
/// (`CMA_IBOE_PACKET_LIFETIME`, 4.096 µs × 2^18, twice).
pub(crate) const TIMEWAIT_DURATION: Duration = Duration::from_millis(2148);

type FindProvider = fn() -> std::result::Result<Provider, c_int>;

static FIND_PROVIDER: OnceLock<FindProvider> = OnceLock::new();

/// Sets the function that finds the verbs provider. `find` is called when the verbs are first needed, and its error is
/// the errno for the program. Only the first call has an effect.
pub fn set_provider_finder(find: FindProvider) {
    let _ = FIND_PROVIDER.set(find);
}

/// The first port of the first device: that of connections from addresses that no other port has.
///
/// # Errors
/// `ENODEV` if no device exists; otherwise the error of opening it.
pub fn default_device_port() -> Result<&'static DevicePort> {
    Ok(Cm::get_or_create()?.default_device_port())
}

/// The connection manager of this process.
pub(crate) struct Cm {
    /// The ports of all devices; at least one.
    pub(crate) device_ports: Vec<DevicePort>,
    pub(crate) port_folder: &'static PortFolder,
    pub(crate) cm_thread: &'static CmThread,
    pub(crate) answer_timeout: Duration,
    gsi: Option<&'static Gsi>,
    mad_connections: OnceLock<Arc<MadConnections>>,
    mad_connections_start_lock: Mutex<()>,
}

/// The connection manager, and the process that made it: a forked child makes a new one.
static CM: Mutex<Option<(u32, &'static Cm)>> = Mutex::new(None);

static AT_EXIT_REGISTRATION: Once = Once::new();

/// Tells peers on other hosts that the process ends, since they see no end of a stream. Locks that other threads hold
/// are skipped, because those threads may never continue.
extern "C" fn notify_peers_at_exit() {
    if let Ok(cm) = CM.try_lock()
        && let Some((pid, cm)) = *cm
        && pid == std::process::id()
        && let Some(hub) = cm.mad_connections_if_started()
    {
        hub.notify_exit();
    }
}

impl Cm {
    /// Returns the connection manager of this process, which the first call makes.
    ///
    /// # Errors
    /// `ENODEV` if no provider exists; otherwise the error of opening the device or the fabric's folder.
    pub(crate) fn get_or_create() -> Result<&'static Self> {
        let pid = std::process::id();
        let mut cm = lock(&CM);
        if let Some((of, cm)) = *cm
            && of == pid
        {
            return Ok(cm);
        }
        let find = FIND_PROVIDER.get().ok_or(Errno(libc::ENODEV))?;
        let provider = find().map_err(Errno)?;
        let devices = DevicePort::open_all(provider.verbs)?;
        let new: &'static Self = Box::leak(Box::new(Self {
            device_ports: devices,
            port_folder: Box::leak(Box::new(PortFolder::open(&provider.fabric_dir)?)),
            cm_thread: CmThread::start()?,
            answer_timeout: provider.answer_timeout,
            gsi: provider.gsi,
            mad_connections: OnceLock::new(),
            mad_connections_start_lock: Mutex::default(),
        }));
        *cm = Some((pid, new));
        Ok(new)
    }

    /// The first port of the first device.
    pub(crate) fn default_device_port(&self) -> &DevicePort {
        // `open_all` fails where there is none.
        &self.device_ports[0]
    }

    /// The port that has an own address; the first port for addresses that none has, such as 127.0.0.1.
    pub(crate) fn device_port_for_address(&self, own: IdAddress) -> &DevicePort {
        let mut devices = self.device_ports.iter();
        let found = devices.find(|device| device.has_address(own));
        found.unwrap_or_else(|| self.default_device_port())
    }

    /// The GID of a peer's address, where packets lead to it; `None` where a socket of this host does, or nothing.
    pub(crate) fn gid_if_reached_by_packets(&self, to: IpAddr) -> Option<[u8; 16]> {
        // Addresses of IP say nothing of ports of InfiniBand.
        let gsi = self
            .gsi
            .filter(|_| !self.default_device_port().is_infiniband())?;
        let (gid, is_by_packets) = gsi::gid_and_reached_by_packets(gsi, gid_of_ip(to));
        is_by_packets.then_some(gid)
    }

    /// Returns true if requests to the local address `own` may arrive by packets.
    pub(crate) fn accepts_packet_requests(&self, own: IpAddr) -> bool {
        // Loopback addresses are this host's own, so only packets that are asked for lead there.
        !self.default_device_port().is_infiniband()
            && self.gsi.is_some()
            && (!own.is_loopback() || self.gid_if_reached_by_packets(own).is_some())
    }

    /// Returns the connection manager for MADs on QP1. The first call starts it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the NIC does not reach other hosts; otherwise the error of opening QP1.
    pub(crate) fn mad_connections_or_start(&self) -> Result<&Arc<MadConnections>> {
        let gsi = self.gsi.ok_or(Errno(libc::EOPNOTSUPP))?;
        let _starting = lock(&self.mad_connections_start_lock);
        if self.mad_connections.get().is_none() {
            let hub = MadConnections::start(&MadConnectionSettings {
                gsi,
                cm_thread: self.cm_thread,
                port_folder: self.port_folder,
                ca_guid: self.default_device_port().node_guid,
                answer_timeout: self.answer_timeout,
                time_wait: TIMEWAIT_DURATION,
            })?;
            let _ = self.mad_connections.set(hub);
            AT_EXIT_REGISTRATION.call_once(|| libc_calls::at_exit(notify_peers_at_exit));
        }
        self.mad_connections.get().ok_or(Errno(libc::EOPNOTSUPP))
    }

    /// Returns the connections by MADs, if they were started.
    pub(crate) fn mad_connections_if_started(&self) -> Option<&Arc<MadConnections>> {
        self.mad_connections.get()
    }
}
