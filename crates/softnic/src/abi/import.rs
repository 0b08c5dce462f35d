//! Objects of one context used through another: `ibv_import_device(3)`, `ibv_import_pd(3)`,
//! `ibv_import_mr(3)`, `ibv_import_dm(3)`.
//!
//! A context is named by its `cmd_fd`, an object by its handle. All of it is within this process: memory regions
//! and protection domains belong to the process that made them.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock, Weak};

use rustix::fs::{MemfdFlags, memfd_create};
use verbs_abi::*;

use super::device::{context_of, open_context, the_device};
use super::dm::Dm;
use super::domain::Parent;
use super::mr::import;
use super::objects::Pd;
use super::*;
use crate::nic::lock;

/// What descriptors of contexts are called in `/proc/PID/fd`.
const CMD_FD_NAME: &str = "verbatim-context";

/// The descriptor that stands for the contexts of this process; -1 where there are no descriptors left.
pub(super) fn cmd_fd() -> c_int {
    static FD: OnceLock<Option<OwnedFd>> = OnceLock::new();
    FD.get_or_init(|| memfd_create(CMD_FD_NAME, MemfdFlags::CLOEXEC).ok())
        .as_ref()
        .map_or(-1, AsRawFd::as_raw_fd)
}

/// Objects by their handles.
pub(super) struct Registry<T>(Mutex<BTreeMap<u32, Weak<T>>>);

impl<T> Registry<T> {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(super) fn enter(&self, handle: u32, object: &Arc<T>) {
        lock(&self.0).insert(handle, Arc::downgrade(object));
    }

    pub(super) fn remove(&self, handle: u32) {
        lock(&self.0).remove(&handle);
    }

    fn find(&self, handle: u32) -> Result<Arc<T>, c_int> {
        let found = lock(&self.0).get(&handle).and_then(Weak::upgrade);
        found.ok_or(libc::ENOENT)
    }
}

/// The protection domains of this process.
pub(super) static PDS: Registry<Pd> = Registry::new();
/// Its device memory.
pub(super) static DMS: Registry<Dm> = Registry::new();

pub(super) unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    let named = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    // "/memfd:NAME (deleted)": proc(5).
    let ours = named.is_ok_and(|to| {
        to.to_string_lossy()
            .starts_with(&format!("/memfd:{CMD_FD_NAME}"))
    });
    if !ours {
        return or_null(Err(libc::EINVAL));
    }
    or_null(open_context(the_device(), fd))
}

pub(super) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    pd_handle: u32,
) -> *mut ibv_pd {
    // SAFETY: a handle of ours.
    let c = unsafe { context_of(context) }.ok_or(libc::EINVAL);
    let made = c.and_then(|c| {
        let of = PDS.find(pd_handle)?;
        let mut abi = ibv_pd::zeroed();
        abi.context = context;
        abi.handle = pd_handle;
        Ok(Arc::new(Pd {
            abi: UnsafeCell::new(abi),
            context: c,
            number: of.number,
            uses: AtomicUsize::new(0),
            parent: Some(Parent::new(of, std::ptr::null_mut())),
        }))
    });
    or_null(made.map(live::hand_out))
}

pub(super) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    drop(live::take_back::<Pd, _>(pd));
}

pub(super) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    // SAFETY: a handle of ours.
    let pd = unsafe { share::<Pd, _>(pd) }.ok_or(libc::EINVAL);
    or_null(pd.and_then(|pd| import(pd, mr_handle)))
}

pub(super) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> *mut ibv_dm {
    // SAFETY: a handle of ours.
    let c = unsafe { context_of(context) }.ok_or(libc::EINVAL);
    let made = c.and_then(|_| Ok(DMS.find(dm_handle)?.again(context)));
    or_null(made.map(|dm| live::hand_out(Arc::new(dm))))
}

pub(super) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    drop(live::take_back::<Dm, _>(dm));
}
