//! The connection manager of a process: what all ids share.

use std::ffi::c_int;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

use verbs_abi::{Gsi, Symbols};

use crate::addr::gid_of;
use crate::device::Device;
use crate::errno::{Errno, Result};
use crate::fork;
use crate::gsi;
use crate::lock::lock;
use crate::mad::{Hub, Settings};
use crate::ports::Ports;
use crate::service::Service;

/// What connection management needs of whoever brings the verbs.
#[derive(Clone, Debug)]
pub struct Provider {
    /// The verbs, of the software NIC.
    pub verbs: &'static Symbols,
    /// The folder through which the processes of the fabric find each other. It exists once a device of the
    /// verbs is open.
    pub fabric_dir: PathBuf,
    /// The way to other hosts; `None` for a NIC that has none.
    pub gsi: Option<&'static Gsi>,
    /// How long a peer may take to answer before it counts as unreachable.
    pub answer_timeout: Duration,
}

/// How long a peer may take to answer: what Linux's retries of a request add up to (15 times 4.096 µs × 2^20;
/// `CMA_MAX_CM_RETRIES`, `CMA_CM_RESPONSE_TIMEOUT` of `linux:drivers/infiniband/core/cma.c`).
pub const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_millis(64_424);

/// How long connections stay in TIMEWAIT: the order of what Linux derives from the default packet lifetime of
/// RoCE (`CMA_IBOE_PACKET_LIFETIME`, 4.096 µs × 2^18, twice).
pub(crate) const TIMEWAIT: Duration = Duration::from_millis(2148);

type Find = fn() -> std::result::Result<Provider, c_int>;

static PROVIDER: OnceLock<Find> = OnceLock::new();

/// Says where the verbs come from; `find` is called when they are first needed, and its error is the errno
/// that the program gets. The first call counts.
pub fn provide(find: Find) {
    let _ = PROVIDER.set(find);
}

/// The device that connections of this process are made on.
///
/// # Errors
/// `ENODEV` where there is none, and what opening it says.
pub fn device() -> Result<&'static Device> {
    Ok(&Cm::get()?.device)
}

/// The connection manager of this process.
pub(crate) struct Cm {
    pub(crate) device: Device,
    pub(crate) ports: &'static Ports,
    pub(crate) service: &'static Service,
    pub(crate) answer_timeout: Duration,
    gsi: Option<&'static Gsi>,
    hub: OnceLock<Arc<Hub>>,
    starting_hub: Mutex<()>,
}

/// The connection manager, and the pid of the process that it is of: a forked child starts anew.
static CM: Mutex<Option<(u32, &'static Cm)>> = Mutex::new(None);

static AT_EXIT: Once = Once::new();

/// The process ends: peers that packets reach get no end of a stream, and hear of it here. What other threads hold is left
/// alone, since they may never go on.
extern "C" fn leave() {
    if let Ok(cm) = CM.try_lock()
        && let Some((pid, cm)) = *cm
        && pid == std::process::id()
        && let Some(hub) = cm.started_hub()
    {
        hub.leave();
    }
}

impl Cm {
    /// The connection manager of this process, made at the first call.
    ///
    /// # Errors
    /// `ENODEV` where there are no verbs, and what opening the device or the fabric's folder says.
    pub(crate) fn get() -> Result<&'static Self> {
        let pid = std::process::id();
        let mut cm = lock(&CM);
        if let Some((of, cm)) = *cm
            && of == pid
        {
            return Ok(cm);
        }
        let find = PROVIDER.get().ok_or(Errno(libc::ENODEV))?;
        let provider = find().map_err(Errno)?;
        let device = Device::open(provider.verbs)?;
        let new: &'static Self = Box::leak(Box::new(Self {
            device,
            ports: Box::leak(Box::new(Ports::open(&provider.fabric_dir)?)),
            service: Service::start()?,
            answer_timeout: provider.answer_timeout,
            gsi: provider.gsi,
            hub: OnceLock::new(),
            starting_hub: Mutex::default(),
        }));
        *cm = Some((pid, new));
        Ok(new)
    }

    /// The GID of a peer's address, where packets lead to it; `None` where a socket of this host does, or nothing.
    pub(crate) fn gid_by_packets(&self, to: IpAddr) -> Option<[u8; 16]> {
        // Addresses of IP say nothing of ports of InfiniBand.
        let gsi = self.gsi.filter(|_| !self.device.is_infiniband())?;
        let (gid, is_by_packets) = gsi::route(gsi, gid_of(to));
        is_by_packets.then_some(gid)
    }

    /// Whether requests for an own address may come by packets.
    pub(crate) fn may_be_asked_by_packets(&self, own: IpAddr) -> bool {
        // Loopback addresses are this host's own, so only packets that are asked for lead there.
        !self.device.is_infiniband()
            && self.gsi.is_some()
            && (!own.is_loopback() || self.gid_by_packets(own).is_some())
    }

    /// The connections by MADs, begun at the first call.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the NIC has no way to other hosts, and what opening it says.
    pub(crate) fn hub(&self) -> Result<&Arc<Hub>> {
        let gsi = self.gsi.ok_or(Errno(libc::EOPNOTSUPP))?;
        let _starting = lock(&self.starting_hub);
        if self.hub.get().is_none() {
            let hub = Hub::start(&Settings {
                gsi,
                service: self.service,
                ports: self.ports,
                ca_guid: self.device.node_guid,
                answer_timeout: self.answer_timeout,
                time_wait: TIMEWAIT,
            })?;
            let _ = self.hub.set(hub);
            AT_EXIT.call_once(|| fork::at_exit(leave));
        }
        self.hub.get().ok_or(Errno(libc::EOPNOTSUPP))
    }

    /// The connections by MADs, if there have been any.
    pub(crate) fn started_hub(&self) -> Option<&Arc<Hub>> {
        self.hub.get()
    }
}
