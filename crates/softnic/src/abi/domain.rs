//! Protection domains, thread domains and parent domains: `ibv_alloc_pd(3)`, `ibv_alloc_td(3)`,
//! `ibv_alloc_parent_domain(3)`.
//!
//! The latter two let a provider leave out locks or take memory from the program's allocators. Here they are accepted and
//! change nothing: a queue pair's lock is one compare-and-swap, and a provider may do without the allocators.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use verbs_abi::*;

use super::device::context_of;
use super::objects::busy;
use super::*;
use crate::context::Context;
use crate::imports::{self, Exported, Kind, Shared, Sharing};

/// A protection domain; the program's handle points to its first field.
#[repr(C)]
pub(super) struct Pd {
    pub(super) abi: UnsafeCell<ibv_pd>,
    pub(super) context: &'static Context,
    pub(super) number: u32,
    /// How many objects were made with this handle.
    uses: AtomicUsize,
    /// The program has given the handle back, and objects are left that were made with it.
    unimported: AtomicBool,
    of: DomainOf,
}

/// What a handle stands for.
enum DomainOf {
    Itself(Shared),
    Parent(Parent),
}

// SAFETY: `abi` is written before the handle is given out and only read afterwards; the rest is atomic or
// constant.
unsafe impl Sync for Pd {}
// SAFETY: as above; the raw pointer in `abi` is only handed back.
unsafe impl Send for Pd {}

impl Sharing for Pd {
    fn shared(&self) -> Option<&Shared> {
        self.itself()
    }
}

impl Pd {
    /// `number` is what queue pairs and regions of this process call the domain, `handle` what its home does.
    fn new(
        (c, context): (&'static Context, *mut ibv_context),
        (number, handle): (u32, u32),
        of: DomainOf,
    ) -> Arc<Self> {
        let mut abi = ibv_pd::zeroed();
        abi.context = context;
        abi.handle = handle;
        Arc::new(Self {
            abi: UnsafeCell::new(abi),
            context: c,
            number,
            uses: AtomicUsize::new(0),
            unimported: AtomicBool::new(false),
            of,
        })
    }

    fn of_shared(context: (&'static Context, *mut ibv_context), shared: Shared) -> Arc<Self> {
        let names = (shared.number(), shared.handle());
        Self::new(context, names, DomainOf::Itself(shared))
    }

    fn itself(&self) -> Option<&Shared> {
        match &self.of {
            DomainOf::Itself(shared) => Some(shared),
            DomainOf::Parent(_) => None,
        }
    }

    /// The domain that all see: of a parent domain, the one at the end of what it was made of.
    fn root(&self) -> &Shared {
        let mut pd = self;
        loop {
            match &pd.of {
                DomainOf::Itself(shared) => return shared,
                DomainOf::Parent(parent) => pd = &parent.of,
            }
        }
    }

    /// May objects be made of it? Not once it has been given back, or somebody who shares it has destroyed it.
    fn is_usable(&self) -> bool {
        !self.unimported.load(Ordering::Relaxed) && self.root().exists()
    }

    /// An object is made of it, which [leaves](leave) it when it is destroyed.
    pub(super) fn enter(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        // A parent domain's objects, too: who destroys one by an import knows its domain only by the number.
        if let Some(uses) = self.root().uses() {
            uses.fetch_add(1, Ordering::Release);
        }
    }
}

/// An object that was made with this handle is destroyed.
///
/// # Safety
/// The object [entered](Pd::enter) the domain, and leaves it once.
pub(super) unsafe fn leave(handle: *mut ibv_pd) {
    // SAFETY: the domain is there, since its objects keep it.
    unsafe { leave_quietly(handle, true) }
}

/// The same for an object that another process has destroyed, and taken out of what all see.
///
/// # Safety
/// As for [`leave`].
pub(super) unsafe fn leave_quietly(handle: *mut ibv_pd, seen: bool) {
    // SAFETY: contract of this function.
    let Some(pd) = (unsafe { borrow::<Pd, _>(handle) }) else {
        return;
    };
    if seen && let Some(uses) = pd.root().uses() {
        uses.fetch_sub(1, Ordering::Release);
    }
    let last = pd.uses.fetch_sub(1, Ordering::AcqRel) == 1;
    if last && pd.unimported.load(Ordering::Acquire) {
        let_go(handle);
    }
}

/// The domain behind a handle, to make objects of it.
///
/// # Safety
/// As for [`share`].
pub(super) unsafe fn share_pd(handle: *mut ibv_pd) -> Option<Arc<Pd>> {
    // SAFETY: contract of this function.
    unsafe { share::<Pd, _>(handle) }.filter(|pd| pd.is_usable())
}

/// The same without a reference of its own.
///
/// # Safety
/// As for [`borrow`].
pub(super) unsafe fn borrow_pd<'a>(handle: *mut ibv_pd) -> Option<&'a Pd> {
    // SAFETY: contract of this function.
    unsafe { borrow::<Pd, _>(handle) }.filter(|pd| pd.is_usable())
}

pub(super) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: a handle of ours.
    let made = unsafe { context_of(context) }
        .ok_or(libc::EINVAL)
        .and_then(|c| {
            let own = Shared::Own(Exported::new(c.nic, Kind::Pd, |_| {})?);
            Ok(Pd::of_shared((c, context), own))
        });
    or_null(made.map(live::hand_out))
}

/// `ibv_import_pd(3)`.
pub(super) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    pd_handle: u32,
) -> *mut ibv_pd {
    // SAFETY: a handle of ours.
    let c = unsafe { context_of(context) }.ok_or(libc::EINVAL);
    let made = c.and_then(|c| {
        let imported = Shared::import(c.nic, c.home(), Kind::Pd, pd_handle)?;
        Ok(Pd::of_shared((c, context), imported))
    });
    or_null(made.map(live::hand_out))
}

/// Gives the handle back and leaves the domain as it is. A program may do so before it destroys what it has made of it.
pub(super) unsafe extern "C" fn ibv_unimport_pd(handle: *mut ibv_pd) {
    // SAFETY: a handle of ours.
    let Some(pd) = (unsafe { borrow::<Pd, _>(handle) }) else {
        return;
    };
    pd.unimported.store(true, Ordering::Release);
    if pd.uses.load(Ordering::Acquire) == 0 {
        let_go(handle);
    }
}

fn let_go(handle: *mut ibv_pd) {
    if let Some(pd) = live::take_back::<Pd, _>(handle) {
        imports::let_go(pd);
    }
}

/// Destroys the domain, whichever process it is of; "once destroy is done no other process can touch the object except
/// for unimport" (`ibv_import_pd(3)`).
pub(super) unsafe extern "C" fn ibv_dealloc_pd(handle: *mut ibv_pd) -> c_int {
    // SAFETY: a handle of ours; given back once, when nothing uses it.
    let Some(pd) = (unsafe { borrow::<Pd, _>(handle) }) else {
        return libc::EINVAL;
    };
    // It ends with the last object that was made with it.
    if pd.unimported.load(Ordering::Acquire) {
        return libc::EINVAL;
    }
    let destroyed = pd.itself().map_or_else(|| busy(&pd.uses), Shared::destroy);
    or_errno(destroyed.map(|()| drop(live::take_back::<Pd, _>(handle))))
}

/// A thread domain; the program's handle points to its first field.
#[repr(C)]
struct Td {
    abi: ibv_td,
    uses: AtomicUsize,
}

pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours; NULL or the program's attributes.
    let (c, init) = unsafe { (context_of(context), init.as_ref()) };
    match (c, init) {
        (Some(_), Some(init)) if init.comp_mask == 0 => {
            let td = Td {
                abi: ibv_td { context },
                uses: AtomicUsize::new(0),
            };
            live::hand_out_box(Box::new(td))
        }
        (Some(_), Some(_)) => or_null(Err(libc::EOPNOTSUPP)),
        _ => or_null(Err(libc::EINVAL)),
    }
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours, given back once, when nothing uses it.
    unsafe {
        let Some(t) = borrow::<Td, _>(td) else {
            return libc::EINVAL;
        };
        or_errno(busy(&t.uses).map(|()| drop(live::take_back_box::<Td, _>(td))))
    }
}

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _hold_off = cancellation::HoldOff::new();
    const KNOWN: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // SAFETY: handles of ours; NULL or the program's attributes.
    let made = unsafe {
        context_of(context)
            .zip(init.as_ref())
            .ok_or(libc::EINVAL)
            .and_then(|(c, init)| {
                if init.comp_mask & !KNOWN != 0 {
                    return Err(libc::EINVAL);
                }
                // "pd: a mandatory parameter, an already allocated protection domain".
                let of = share_pd(init.pd).ok_or(libc::EINVAL)?;
                // One that was destroyed is none: the next may have its address.
                if !init.td.is_null() {
                    let td = borrow::<Td, _>(init.td).ok_or(libc::EINVAL)?;
                    td.uses.fetch_add(1, Ordering::Relaxed);
                }
                let names = (of.number, (*of.abi.get()).handle);
                let parent = Parent::new(of, init.td);
                Ok(Pd::new((c, context), names, DomainOf::Parent(parent)))
            })
    };
    or_null(made.map(live::hand_out))
}

/// What a parent domain was made of.
struct Parent {
    of: Arc<Pd>,
    td: *mut ibv_td,
}

impl Parent {
    /// Counts the use of `of`; that of `td` is counted.
    fn new(of: Arc<Pd>, td: *mut ibv_td) -> Self {
        of.enter();
        Self { of, td }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // SAFETY: `of` was entered in `new`. NULL, or a thread domain of ours, which counts this use and so has not
        // been deallocated.
        unsafe {
            leave(self.of.abi.get());
            if let Some(td) = borrow::<Td, _>(self.td) {
                td.uses.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
