//! Memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::dm::Dm;
use super::domain::{Pd, leave, leave_quietly, share_pd};
use super::*;
use crate::imports::{find_region, pd_uses};
use crate::nic::Nic;
use nic_core::rights::Owner;
use shm::fabric::Peer;
use shm::keys::{self, NewRegion};
use shm::mem::{Hold, RangeBacking, backing_of};

/// A memory region; the program's handle points to its first field.
#[repr(C)]
struct Mr {
    abi: UnsafeCell<ibv_mr>,
    pd: Arc<Pd>,
    /// The key of creation, whatever the program writes into `abi`.
    key: u32,
    range: MrRange,
    access: c_int,
    /// Keeps the backing for peers.
    backing: Hold,
    /// The device memory that it is made of.
    dm: Option<Arc<Dm>>,
    /// False after a re-registration that failed.
    registered: bool,
    /// A re-registration found that it had been destroyed by an import, which its domain has heard of.
    gone: bool,
    /// It was imported, and belongs to that process.
    owner: Option<Arc<Peer>>,
}

pub(super) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.addr() as u64;
    // SAFETY: contract of this function.
    unsafe { ibv_reg_mr_iova(pd, addr, length, iova, access) }
}

pub(super) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: contract of this function.
    unsafe { ibv_reg_mr_iova(pd, addr, length, iova, access.cast_signed()) }
}

pub(super) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a handle of ours.
    let pd = unsafe { share_pd(pd) }.ok_or(libc::EINVAL);
    let range = MrRange { addr, length, iova };
    if length == 0 || (range.is_whole() && access & IBV_ACCESS_ON_DEMAND == 0) {
        return or_null(Err(libc::EINVAL));
    }
    or_null(pd.and_then(|pd| register_mr(pd, &range, access, None)))
}

/// Makes a memory region, of device memory if there is `dm`.
pub(super) fn register_mr(
    pd: Arc<Pd>,
    range: &MrRange,
    access: c_int,
    dm: Option<Arc<Dm>>,
) -> Result<*mut ibv_mr, c_int> {
    let (key, hold) = enter(&pd, range, access, |nic, new| {
        // Who shares the domain uses its keys side by side.
        let taken = |key| find_region(nic, nic.me(), pd.number, key).is_some();
        nic.keys.register(&nic.fabric, new, taken)
    })?;
    Ok(hand_out(pd, range, access, (key, hold), dm))
}

/// The region without memory: "discards all data written to it, and always returns 0 on read. It has the maximum length
/// and only the lkey, the rkey is unused" (`ibv_alloc_null_mr(3)`).
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours.
    let pd = unsafe { share_pd(pd) }.ok_or(libc::EINVAL);
    or_null(pd.and_then(|pd| {
        let access = IBV_ACCESS_LOCAL_WRITE;
        let range = MrRange {
            addr: std::ptr::null_mut(),
            length: usize::MAX,
            iova: 0,
        };
        let nic = pd.context.nic;
        let new = NewRegion {
            owner: Owner::domain(pd.number),
            addr: 0,
            base: 0,
            len: u64::MAX,
            access: access.cast_unsigned(),
            backing: &RangeBacking::null(),
        };
        let key = nic.keys.register(&nic.fabric, &new, |_| false)?;
        Ok(hand_out(pd, &range, access, (key, Hold::Nothing), None))
    }))
}

/// Makes the program's handle of a region that is entered.
fn hand_out(
    pd: Arc<Pd>,
    range: &MrRange,
    access: c_int,
    (key, hold): (u32, Hold),
    dm: Option<Arc<Dm>>,
) -> *mut ibv_mr {
    pd.enter();
    let mut abi = ibv_mr::zeroed();
    // SAFETY: the context field of our own object.
    abi.context = unsafe { (*pd.abi.get()).context };
    abi.pd = pd.abi.get();
    // A program has no address for device memory.
    abi.addr = if dm.is_some() {
        std::ptr::null_mut()
    } else {
        range.addr
    };
    abi.length = range.length;
    abi.handle = key;
    abi.lkey = key;
    abi.rkey = key;
    let mr = Box::new(Mr {
        abi: UnsafeCell::new(abi),
        pd,
        key,
        range: *range,
        access,
        backing: hold,
        dm,
        registered: true,
        gone: false,
        owner: None,
    });
    live::hand_out_box(mr)
}

/// The memory that a region is made of, and what work requests call its first byte.
#[derive(Clone, Copy)]
pub(super) struct MrRange {
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) iova: u64,
}

impl MrRange {
    /// "To create an implicit ODP MR, IBV_ACCESS_ON_DEMAND should be set, addr should be 0 and length should be
    /// SIZE_MAX" (`ibv_reg_mr(3)`).
    fn is_whole(&self) -> bool {
        self.addr.is_null() && self.length == usize::MAX
    }
}

/// Checks a memory region and enters it in the table of keys with `register`: what that returns, and what
/// keeps its memory reachable.
fn enter<T>(
    pd: &Pd,
    range: &MrRange,
    access: c_int,
    register: impl FnOnce(&Nic, &NewRegion<'_>) -> Result<T, c_int>,
) -> Result<(T, Hold), c_int> {
    /// The range of flags that a provider may ignore: `IBV_ACCESS_OPTIONAL_RANGE` of verbs.h.
    const OPTIONAL: c_int = IBV_ACCESS_OPTIONAL_RANGE;
    const KNOWN: c_int = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_ON_DEMAND
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_FLUSH_GLOBAL
        | OPTIONAL;
    /// "Local write must be set for these" (`ibv_reg_mr(3)`).
    const NEEDS_LOCAL_WRITE: c_int = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    /// Memory that peers reach with one-sided verbs.
    const REMOTE: c_int = NEEDS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    if access & !KNOWN != 0
        || (access & NEEDS_LOCAL_WRITE != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0)
    {
        return Err(libc::EINVAL);
    }
    let iova = if access & IBV_ACCESS_ZERO_BASED != 0 {
        0
    } else {
        range.iova
    };
    let length = range.length as u64;
    if iova.checked_add(length).is_none() {
        return Err(libc::EINVAL);
    }
    let nic = pd.context.nic;
    // The addresses are used from other threads later.
    let at = range.addr.expose_provenance();
    let (owner, backing) = if range.is_whole() {
        (Owner::whole_space(pd.number), RangeBacking::private())
    } else {
        let write = access & IBV_ACCESS_LOCAL_WRITE != 0;
        let share = access & REMOTE != 0 && access & IBV_ACCESS_ON_DEMAND == 0;
        (
            Owner::domain(pd.number),
            backing_of(at, range.length, write, share)?,
        )
    };
    let new = NewRegion {
        owner,
        addr: iova,
        base: at as u64,
        len: length,
        access: (access & !OPTIONAL).cast_unsigned(),
        backing: &backing,
    };
    Ok((register(nic, &new)?, backing.hold))
}

pub(super) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: handles of ours; nobody else uses the region while it is changed (`ibv_rereg_mr(3)`).
    // What is not to be changed is not looked at, and programs pass anything for it.
    let (mr, new_pd) = unsafe {
        let new_pd = (flags & IBV_REREG_MR_CHANGE_PD != 0).then(|| share_pd(pd));
        let live = live::is_live::<Mr, _>(mr);
        (mr.cast::<Mr>().as_mut().filter(|_| live), new_pd.flatten())
    };
    let Some(mr) = mr else {
        set_errno(libc::EINVAL);
        return IBV_REREG_MR_ERR_INPUT;
    };
    let mut given_up = false;
    match rereg(mr, flags, new_pd, (addr, length), access, &mut given_up) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            if given_up {
                IBV_REREG_MR_ERR_CMD
            } else {
                IBV_REREG_MR_ERR_INPUT
            }
        }
    }
}

/// Enters the region anew, with what `flags` change, under the key that it had.
fn rereg(
    mr: &mut Mr,
    flags: c_int,
    new_pd: Option<Arc<Pd>>,
    (addr, length): (*mut c_void, usize),
    access: c_int,
    given_up: &mut bool,
) -> Result<(), c_int> {
    // A region without memory stays what it is.
    let is_null = mr.range.is_whole() && mr.access & IBV_ACCESS_ON_DEMAND == 0;
    if mr.owner.is_some() {
        // Whose memory it is registers it.
        return Err(libc::EOPNOTSUPP);
    }
    if is_null || flags == 0 || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
        return Err(libc::EINVAL);
    }
    let pd = if flags & IBV_REREG_MR_CHANGE_PD != 0 {
        new_pd.ok_or(libc::EINVAL)?
    } else {
        Arc::clone(&mr.pd)
    };
    let access = if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
        access
    } else {
        mr.access
    };
    let range = if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
        if addr.is_null() || length == 0 {
            return Err(libc::EINVAL);
        }
        MrRange {
            addr,
            length,
            iova: addr.addr() as u64,
        }
    } else {
        mr.range
    };
    let key = mr.key;
    let (registered, gone) = (&mut mr.registered, &mut mr.gone);
    let ((), hold) = enter(&pd, &range, access, |nic, new| {
        if *gone {
            return Err(libc::ENOENT);
        }
        if *registered {
            *gone = !nic.keys.deregister(&nic.fabric, key)?;
        }
        *registered = false;
        *given_up = true;
        if *gone {
            return Err(libc::ENOENT);
        }
        nic.keys.register_as(&nic.fabric, key, new)?;
        *registered = true;
        Ok(())
    })?;
    pd.enter();
    // SAFETY: the region entered it.
    unsafe { leave(mr.pd.abi.get()) };
    let abi = mr.abi.get_mut();
    abi.pd = pd.abi.get();
    abi.addr = range.addr;
    abi.length = range.length;
    mr.pd = pd;
    mr.range = range;
    mr.access = access;
    mr.backing = hold;
    Ok(())
}

pub(super) unsafe extern "C" fn ibv_dereg_mr(handle: *mut ibv_mr) -> c_int {
    // SAFETY: a handle of ours.
    let Some(mr) = (unsafe { borrow::<Mr, _>(handle) }) else {
        return libc::EINVAL;
    };
    // "ibv_dereg_mr() fails if any memory window is still bound to this MR": the man page.
    match deregister(mr) {
        Ok(in_use) => forget(handle, in_use),
        Err(errno) => errno,
    }
}

/// Deregisters a region, whichever process it is of. True if its protection domain is still to hear of it.
fn deregister(mr: &Mr) -> Result<bool, c_int> {
    let nic = mr.pd.context.nic;
    let Some(owner) = &mr.owner else {
        return if mr.registered {
            nic.keys.deregister(&nic.fabric, mr.key)
        } else {
            Ok(!mr.gone)
        };
    };
    if owner.has_ended() {
        return Err(libc::ENOENT);
    }
    let belonged_to = keys::deregister_of(&nic.fabric, owner, mr.key)?;
    // Its own process does not count it any more, either.
    if let Some(uses) = belonged_to.number().and_then(|pd| pd_uses(owner, pd)) {
        uses.fetch_sub(1, Ordering::Release);
    }
    Ok(true)
}

/// Gives a handle back.
fn forget(handle: *mut ibv_mr, in_use: bool) -> c_int {
    let Some(mr) = live::take_back_box::<Mr, _>(handle) else {
        return libc::EINVAL;
    };
    // An import is no use of its domain.
    if mr.owner.is_none() {
        // SAFETY: the region entered it.
        unsafe { leave_quietly(mr.pd.abi.get(), in_use) };
    }
    if let Some(dm) = &mr.dm {
        dm.leave();
    }
    0
}

/// `ibv_import_mr(3)`: its handle is its key, in whichever process that shares the domain.
pub(super) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    // SAFETY: a handle of ours.
    let pd = unsafe { share_pd(pd) }.ok_or(libc::EINVAL);
    or_null(pd.and_then(|pd| import(pd, mr_handle)))
}

fn import(pd: Arc<Pd>, key: u32) -> Result<*mut ibv_mr, c_int> {
    let nic = pd.context.nic;
    let own = keys::find(nic.me(), key)
        .filter(|(_, mr)| {
            Owner::from_word(mr.pd.load(Ordering::Relaxed)).number() == Some(pd.number)
        })
        .map(|(index, _)| (Arc::clone(nic.me()), index));
    let others =
        || find_region(nic, nic.me(), pd.number, key).map(|found| (found.owner, found.index));
    let (owner, index) = own.or_else(others).ok_or(libc::ENOENT)?;
    let shared = owner.segment.mr(index).ok_or(libc::ENOENT)?;
    let length = usize::try_from(shared.len.load(Ordering::Relaxed)).map_err(|_| libc::EINVAL)?;
    let base = usize::try_from(shared.base.load(Ordering::Relaxed)).map_err(|_| libc::EINVAL)?;
    let range = MrRange {
        addr: std::ptr::with_exposed_provenance_mut(base),
        length,
        iova: shared.addr.load(Ordering::Relaxed),
    };
    let access = shared.access.load(Ordering::Relaxed).cast_signed();
    let mut abi = ibv_mr::zeroed();
    // SAFETY: the context field of our own object.
    abi.context = unsafe { (*pd.abi.get()).context };
    abi.pd = pd.abi.get();
    // "The addr field of an imported MR is NULL" (`ibv_import_mr(3)`).
    abi.length = length;
    abi.handle = key;
    abi.lkey = key;
    abi.rkey = key;
    let mr = Box::new(Mr {
        abi: UnsafeCell::new(abi),
        pd,
        key,
        range,
        access,
        backing: Hold::Nothing,
        dm: None,
        registered: true,
        gone: false,
        owner: Some(owner),
    });
    Ok(live::hand_out_box(mr))
}

/// Gives the handle back and leaves the region as it is. An own one that nobody else has destroyed stays registered until
/// this process ends, as `ibv_unimport_mr(3)` leaves it in the kernel.
pub(super) unsafe extern "C" fn ibv_unimport_mr(handle: *mut ibv_mr) {
    // SAFETY: a handle of ours.
    let Some(mr) = (unsafe { borrow::<Mr, _>(handle) }) else {
        return;
    };
    let nic = mr.pd.context.nic;
    if mr.owner.is_some() {
        forget(handle, true);
    } else if keys::find(nic.me(), mr.key).is_none() {
        // Another process has destroyed it.
        if let Ok(in_use) = deregister(mr) {
            forget(handle, in_use);
        }
    }
}

pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sges: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours.
    let Some(pd) = (unsafe { borrow::<Pd, _>(pd) }) else {
        return libc::EINVAL;
    };
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || num_sges == 0 || sges.is_null() {
        return libc::EINVAL;
    }
    let write = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH | IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => false,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
        _ => return libc::EOPNOTSUPP,
    };
    // SAFETY: the program's list has `num_sges` entries.
    let sges = unsafe { std::slice::from_raw_parts(sges, num_sges as usize) };
    let nic = pd.context.nic;
    // Pages need no fetching: the advice is checked, and then obeyed by the first access.
    let good = sges.iter().all(|sge| {
        let mut cache = crate::region_cache::RegionCache::new();
        crate::sge::checked_sge(nic, &mut cache, pd.number, sge, write).is_ok()
    });
    if good { 0 } else { libc::EINVAL }
}
