//! The connection manager of a process: what all ids share.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use verbs_abi::Symbols;

use crate::device::Device;
use crate::errno::{Errno, Result};
use crate::lock::lock;
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
    /// How long a peer may take to answer before it counts as unreachable.
    pub answer_timeout: Duration,
}

/// How long a peer may take to answer: what Linux's retries of a request add up to (15 times 4.096 µs × 2^20;
/// `CMA_MAX_CM_RETRIES`, `CMA_CM_RESPONSE_TIMEOUT` of `linux:drivers/infiniband/core/cma.c`).
pub const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_millis(64_424);

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
    pub(crate) ports: Ports,
    pub(crate) service: &'static Service,
    pub(crate) answer_timeout: Duration,
}

/// The connection manager, and the pid of the process that it is of: a forked child starts anew.
static CM: Mutex<Option<(u32, &'static Cm)>> = Mutex::new(None);

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
            ports: Ports::open(&provider.fabric_dir)?,
            service: Service::start()?,
            answer_timeout: provider.answer_timeout,
        }));
        *cm = Some((pid, new));
        Ok(new)
    }
}
