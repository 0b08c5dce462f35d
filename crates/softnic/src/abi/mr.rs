//! Memory regions: `ibv_reg_mr(3)`, `ibv_rereg_mr(3)`, `ibv_import_mr(3)`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use verbs_abi::*;

use super::edge::set_errno;
use crate::abi_cell::AbiCell;
use crate::capabilities::OptionalFeature;
use crate::dm::Dm;
use crate::imports::{find_key_in_shared_pd, pd_derived_object_count};
use crate::live_handles;
use crate::lock::lock;
use crate::nic::Nic;
use crate::pd::Pd;
use crate::why;
use nic_core::rights::OwningPdOrQp;
use shm::fabric::Peer;
use shm::keys::{self, NewRegion};
use shm::mem::{RangeBacking, ReachabilityGuard, find_or_make_backing};

/// A memory region; the program's handle points to its first field.
#[repr(C)]
pub(super) struct Mr {
    abi: AbiCell<ibv_mr>,
    /// The key at creation, whatever the program writes into `abi`.
    creation_key: u32,
    /// The registration, which re-registration changes.
    current_registration: Mutex<CurrentRegistration>,
    /// The device memory that the region is made of.
    dm: Option<Arc<Dm>>,
    /// The process that an imported region belongs to.
    imported_from: Option<Arc<Peer>>,
}

live_handles::object!(Mr, ibv_mr);

/// The present registration of a region.
struct CurrentRegistration {
    pd: Arc<Pd>,
    range: RegisteredRange,
    access: c_int,
    /// Keeps the backing memory for peers.
    reachability_guard: ReachabilityGuard,
    /// False after a re-registration that failed.
    is_registered: bool,
    /// True if a re-registration found that an importer had destroyed the region, and the domain no longer counts it.
    was_destroyed_by_importer: bool,
}

impl Mr {
    /// Makes the handle of a region with that key and that R_Key, which is the same or 0. `addr` is the address that the
    /// program sees.
    fn make_handle(
        (key, rkey): (u32, u32),
        now: CurrentRegistration,
        addr: *mut c_void,
        dm: Option<Arc<Dm>>,
        owner: Option<Arc<Peer>>,
    ) -> *mut ibv_mr {
        let mut abi = ibv_mr::zeroed();
        abi.context = now.pd.context.handle();
        abi.pd = now.pd.handle();
        abi.addr = addr;
        abi.length = now.range.length;
        abi.handle = key;
        abi.lkey = key;
        abi.rkey = rkey;
        live_handles::make_handle(Arc::new(Self {
            abi: AbiCell::new(abi),
            creation_key: key,
            current_registration: Mutex::new(now),
            dm,
            imported_from: owner,
        }))
    }

    /// Returns true if the region was registered in that domain.
    pub(super) fn is_in_pd(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&lock(&self.current_registration).pd, pd)
    }
}

pub(super) fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<*mut ibv_mr, c_int> {
    reg_mr_iova(pd, addr, length, addr.addr() as u64, access)
}

pub(super) fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    reg_mr_iova(pd, addr, length, iova, access.cast_signed())
}

pub(super) fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Result<*mut ibv_mr, c_int> {
    let range = RegisteredRange { addr, length, iova };
    if length == 0 || (range.is_whole_address_space() && access & IBV_ACCESS_ON_DEMAND == 0) {
        return Err(why::einval_because(
            || "length is 0, or the whole address space without IBV_ACCESS_ON_DEMAND",
        ));
    }
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    register_mr(pd, &range, access, None)
}

pub(super) fn reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> Result<*mut ibv_mr, c_int> {
    Err(libc::EOPNOTSUPP)
}

/// Makes a memory region, of device memory if `dm` is given.
pub(super) fn register_mr(
    pd: Arc<Pd>,
    range: &RegisteredRange,
    access: c_int,
    dm: Option<Arc<Dm>>,
) -> Result<*mut ibv_mr, c_int> {
    if access & IBV_ACCESS_ON_DEMAND != 0 {
        // As `ib_check_mr_access` of `linux:include/rdma/ib_verbs.h`.
        pd.context
            .nic
            .capabilities
            .require_feature(OptionalFeature::OnDemandPaging)?;
    }
    let (key, hold) = check_region_and_enter_in_key_table(&pd, range, access, |nic, new| {
        // Processes that share the domain use its keys side by side.
        let taken =
            |key| find_key_in_shared_pd(nic, nic.this_process(), pd.local_number, key).is_some();
        nic.key_table
            .register_under_new_key(&nic.fabric, new, taken)
    })?;
    Ok(make_mr_handle(pd, range, access, ((key, key), hold), dm))
}

/// Makes the region without memory: "discards all data written to it, and always returns 0 on read. It has the maximum
/// length and only the lkey, the rkey is unused" (`ibv_alloc_null_mr(3)`).
pub(super) fn alloc_null_mr(pd: *mut ibv_pd) -> Result<*mut ibv_mr, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    let access = IBV_ACCESS_LOCAL_WRITE;
    let range = RegisteredRange {
        addr: std::ptr::null_mut(),
        length: usize::MAX,
        iova: 0,
    };
    let nic = pd.context.nic;
    let new = NewRegion {
        owner: OwningPdOrQp::region_in_pd(pd.local_number),
        iova: 0,
        owner_address: 0,
        len: u64::MAX,
        access: access.cast_unsigned(),
        backing: &RangeBacking::null(),
    };
    let key = nic
        .key_table
        .register_under_new_key(&nic.fabric, &new, |_| false)?;
    // `mlx5_alloc_null_mr` of rdma-core, whose driver alone has this verb, gives no R_Key either.
    let keys = (key, 0);
    Ok(make_mr_handle(
        pd,
        &range,
        access,
        (keys, ReachabilityGuard::Nothing),
        None,
    ))
}

/// Makes the program's handle of a region that has been entered in the key table.
fn make_mr_handle(
    pd: Arc<Pd>,
    range: &RegisteredRange,
    access: c_int,
    (keys, backing): ((u32, u32), ReachabilityGuard),
    dm: Option<Arc<Dm>>,
) -> *mut ibv_mr {
    pd.add_user();
    let now = CurrentRegistration {
        pd,
        range: *range,
        access,
        reachability_guard: backing,
        is_registered: true,
        was_destroyed_by_importer: false,
    };
    // A program has no address for device memory.
    let addr = if dm.is_some() {
        std::ptr::null_mut()
    } else {
        range.addr
    };
    Mr::make_handle(keys, now, addr, dm, None)
}

/// The memory that a region is made of, and the address of its first byte in work requests.
#[derive(Clone, Copy)]
pub(super) struct RegisteredRange {
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) iova: u64,
}

#[allow(unsafe_code)]
// SAFETY: `addr` is only a number here: the verbs of this file expose it and give it back to the program.
unsafe impl Send for RegisteredRange {}

impl RegisteredRange {
    /// Returns true for a region of the whole address space. "To create an implicit ODP MR, IBV_ACCESS_ON_DEMAND should
    /// be set, addr should be 0 and length should be SIZE_MAX" (`ibv_reg_mr(3)`).
    fn is_whole_address_space(&self) -> bool {
        self.addr.is_null() && self.length == usize::MAX
    }
}

/// Checks a memory region and enters it in the key table with `register`. Returns the result of `register`, and the
/// hold that keeps the memory reachable.
fn check_region_and_enter_in_key_table<T>(
    pd: &Pd,
    range: &RegisteredRange,
    access: c_int,
    register: impl FnOnce(&Nic, &NewRegion<'_>) -> Result<T, c_int>,
) -> Result<(T, ReachabilityGuard), c_int> {
    /// The range of flags that a provider may ignore: `IBV_ACCESS_OPTIONAL_RANGE` of verbs.h.
    const OPTIONAL_ACCESS_FLAGS: c_int = IBV_ACCESS_OPTIONAL_RANGE;
    const KNOWN_ACCESS_FLAGS: c_int = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_ON_DEMAND
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_FLUSH_GLOBAL
        | OPTIONAL_ACCESS_FLAGS;
    /// "Local write must be set for these" (`ibv_reg_mr(3)`).
    const NEEDS_LOCAL_WRITE: c_int = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    /// Memory that peers reach with one-sided verbs.
    const REMOTE: c_int = NEEDS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    if access & !KNOWN_ACCESS_FLAGS != 0
        || (access & NEEDS_LOCAL_WRITE != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0)
    {
        return Err(why::einval_because(|| match access & !KNOWN_ACCESS_FLAGS {
            0 => format!(
                "access is {access:#x}: IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE"
            ),
            unknown => format!(
                "access has the bits {unknown:#x}, which are no access flags of this device"
            ),
        }));
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
    // Other threads use the addresses later.
    let at = range.addr.expose_provenance();
    let (owner, backing) = if range.is_whole_address_space() {
        (
            OwningPdOrQp::implicit_odp_region_in_pd(pd.local_number),
            RangeBacking::accessed_by_system_call(),
        )
    } else {
        let write = access & IBV_ACCESS_LOCAL_WRITE != 0;
        let share = access & REMOTE != 0 && access & IBV_ACCESS_ON_DEMAND == 0;
        (
            OwningPdOrQp::region_in_pd(pd.local_number),
            find_or_make_backing(at, range.length, write, share)?,
        )
    };
    let new = NewRegion {
        owner,
        iova,
        owner_address: at as u64,
        len: length,
        access: (access & !OPTIONAL_ACCESS_FLAGS).cast_unsigned(),
        backing: &backing,
    };
    Ok((register(nic, &new)?, backing.reachability_guard))
}

pub(super) fn rereg_mr(
    handle: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // Arguments that are not to be changed are not read, since programs pass anything for them.
    let pd = || {
        let changes = flags & IBV_REREG_MR_CHANGE_PD != 0;
        changes.then(|| Pd::find_usable(pd)).flatten()
    };
    let mut given_up = false;
    let changed = live_handles::find_object::<Mr>(handle)
        .ok_or(libc::EINVAL)
        .and_then(|mr| {
            let change = RequestedChanges {
                flags,
                pd: pd(),
                addr,
                length,
                access,
            };
            rereg(&mr, change, &mut given_up)
        });
    let Err(errno) = changed else { return 0 };
    set_errno(errno);
    if given_up {
        IBV_REREG_MR_ERR_CMD
    } else {
        IBV_REREG_MR_ERR_INPUT
    }
}

/// The changes that a re-registration asks for; `flags` tell which of the other fields count.
struct RequestedChanges {
    flags: c_int,
    pd: Option<Arc<Pd>>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
}

/// Registers the region again under its key, with the changes of `change`. Sets `given_up` once the old registration
/// has been given up.
fn rereg(mr: &Mr, change: RequestedChanges, given_up: &mut bool) -> Result<(), c_int> {
    let mut now = lock(&mr.current_registration);
    let flags = change.flags;
    // A region without memory cannot change.
    let is_null = now.range.is_whole_address_space() && now.access & IBV_ACCESS_ON_DEMAND == 0;
    if mr.imported_from.is_some() {
        // Only the process that has the memory can register it.
        return Err(libc::EOPNOTSUPP);
    }
    if is_null || flags == 0 || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
        return Err(libc::EINVAL);
    }
    let pd = if flags & IBV_REREG_MR_CHANGE_PD != 0 {
        change.pd.ok_or(libc::EINVAL)?
    } else {
        Arc::clone(&now.pd)
    };
    let access = if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
        change.access
    } else {
        now.access
    };
    let range = if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
        if change.addr.is_null() || change.length == 0 {
            return Err(libc::EINVAL);
        }
        RegisteredRange {
            addr: change.addr,
            length: change.length,
            iova: change.addr.addr() as u64,
        }
    } else {
        now.range
    };
    let ((), hold) = check_region_and_enter_in_key_table(&pd, &range, access, |nic, new| {
        if now.was_destroyed_by_importer {
            return Err(libc::ENOENT);
        }
        if now.is_registered {
            now.was_destroyed_by_importer =
                !nic.key_table.deregister(&nic.fabric, mr.creation_key)?;
        }
        now.is_registered = false;
        *given_up = true;
        if now.was_destroyed_by_importer {
            return Err(libc::ENOENT);
        }
        nic.key_table
            .register_under_given_key(&nic.fabric, mr.creation_key, new)?;
        now.is_registered = true;
        Ok(())
    })?;
    pd.add_user();
    now.pd.remove_user();
    update_program_mr(mr, &pd, &range);
    now.pd = pd;
    now.range = range;
    now.access = access;
    now.reachability_guard = hold;
    Ok(())
}

/// Updates the structure of a region that the program sees.
#[allow(unsafe_code)]
fn update_program_mr(mr: &Mr, pd: &Pd, range: &RegisteredRange) {
    let abi = mr.abi.handle();
    // SAFETY: `mr` keeps the structure; no other thread uses the region while it is changed (`ibv_rereg_mr(3)`), and
    // other threads that change it wait for `mr.now`, which the caller holds.
    unsafe {
        (*abi).pd = pd.handle();
        (*abi).addr = range.addr;
        (*abi).length = range.length;
    }
}

pub(super) fn dereg_mr(handle: *mut ibv_mr) -> Result<(), c_int> {
    let mr = live_handles::find_object::<Mr>(handle).ok_or(libc::EINVAL)?;
    // "ibv_dereg_mr() fails if any memory window is still bound to this MR": the man page.
    let in_use = deregister(&mr)?;
    take_back_mr_handle(handle, in_use)
}

/// Deregisters a region, whichever process it belongs to. Returns true if its protection domain still counts it.
fn deregister(mr: &Mr) -> Result<bool, c_int> {
    let now = lock(&mr.current_registration);
    let nic = now.pd.context.nic;
    let Some(owner) = &mr.imported_from else {
        return if now.is_registered {
            nic.key_table.deregister(&nic.fabric, mr.creation_key)
        } else {
            Ok(!now.was_destroyed_by_importer)
        };
    };
    if owner.kernel_says_ended() {
        return Err(libc::ENOENT);
    }
    let belonged_to = keys::deregister_remote(&nic.fabric, owner, mr.creation_key)?;
    // The region's own process no longer counts it either.
    if let Some(uses) = belonged_to
        .pd_number()
        .and_then(|pd| pd_derived_object_count(owner, pd))
    {
        uses.fetch_sub(1, Ordering::Release);
    }
    Ok(true)
}

/// Takes a handle back.
fn take_back_mr_handle(handle: *mut ibv_mr, in_use: bool) -> Result<(), c_int> {
    let mr = live_handles::take_back_handle::<Mr>(handle).ok_or(libc::EINVAL)?;
    // An import does not count as a use of its domain.
    if mr.imported_from.is_none() {
        let pd = Arc::clone(&lock(&mr.current_registration).pd);
        if in_use {
            pd.remove_user();
        } else {
            pd.remove_user_destroyed_by_other_process();
        }
    }
    if let Some(dm) = &mr.dm {
        dm.remove_region_use();
    }
    Ok(())
}

/// Executes `ibv_import_mr(3)`. The handle of a region is its key, in any process that shares the domain.
pub(super) fn import_mr(pd: *mut ibv_pd, key: u32) -> Result<*mut ibv_mr, c_int> {
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    let nic = pd.context.nic;
    let own = keys::find_slot_of_key(nic.this_process(), key)
        .filter(|(_, mr)| {
            OwningPdOrQp::from_word(mr.owner_pd_or_qp.load(Ordering::Relaxed)).pd_number()
                == Some(pd.local_number)
        })
        .map(|(index, _)| (Arc::clone(nic.this_process()), index));
    let others = || {
        find_key_in_shared_pd(nic, nic.this_process(), pd.local_number, key)
            .map(|found| (found.owner, found.key_table_index))
    };
    let (owner, index) = own.or_else(others).ok_or(libc::ENOENT)?;
    let shared = owner.segment.mr(index).ok_or(libc::ENOENT)?;
    let length = usize::try_from(shared.len.load(Ordering::Relaxed)).map_err(|_| libc::EINVAL)?;
    let base =
        usize::try_from(shared.owner_address.load(Ordering::Relaxed)).map_err(|_| libc::EINVAL)?;
    let now = CurrentRegistration {
        range: RegisteredRange {
            addr: std::ptr::with_exposed_provenance_mut(base),
            length,
            iova: shared.iova.load(Ordering::Relaxed),
        },
        access: shared.access.load(Ordering::Relaxed).cast_signed(),
        pd,
        reachability_guard: ReachabilityGuard::Nothing,
        is_registered: true,
        was_destroyed_by_importer: false,
    };
    // "The addr field of an imported MR is NULL" (`ibv_import_mr(3)`).
    Ok(Mr::make_handle(
        (key, key),
        now,
        std::ptr::null_mut(),
        None,
        Some(owner),
    ))
}

/// Takes the handle back and leaves the region as it is. An own region that no other process has destroyed stays
/// registered until this process ends, as `ibv_unimport_mr(3)` leaves it in the kernel.
pub(super) fn unimport_mr(handle: *mut ibv_mr) {
    let Some(mr) = live_handles::find_object::<Mr>(handle) else {
        return;
    };
    let nic = lock(&mr.current_registration).pd.context.nic;
    // A second call at the same time finds no handle to take back.
    if mr.imported_from.is_some() {
        let _ = take_back_mr_handle(handle, true);
    } else if keys::find_slot_of_key(nic.this_process(), mr.creation_key).is_none() {
        // Another process has destroyed it.
        if let Ok(in_use) = deregister(&mr) {
            let _ = take_back_mr_handle(handle, in_use);
        }
    }
}

#[allow(unsafe_code)]
pub(super) fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sges: *mut ibv_sge,
    num_sges: u32,
) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let pd = live_handles::find_object::<Pd>(pd).ok_or(libc::EINVAL)?;
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || num_sges == 0 || sges.is_null() {
        return Err(libc::EINVAL);
    }
    let write = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH | IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => false,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
        _ => return Err(libc::EOPNOTSUPP),
    };
    // SAFETY: not NULL (above); the list has `num_sge` entries (`ibv_advise_mr(3)`).
    let sges = unsafe { std::slice::from_raw_parts(sges, num_sges as usize) };
    let nic = pd.context.nic;
    // Pages need not be fetched: the advice is checked, and takes effect at the first access.
    let good = sges.iter().all(|sge| {
        let mut cache = crate::region_cache::RegionCache::new();
        crate::sge::check_and_pin_sge(nic, &mut cache, pd.local_number, sge, write).is_ok()
    });
    if good { Ok(()) } else { Err(libc::EINVAL) }
}
