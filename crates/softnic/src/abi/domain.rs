//! Thread domains and parent domains: `ibv_alloc_td(3)`, `ibv_alloc_parent_domain(3)`.
//!
//! They let a provider leave out locks or take memory from the program's allocators. Here they are accepted and
//! change nothing: a queue pair's lock is one compare-and-swap, and a provider may do without the allocators.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_abi::*;

use super::device::context_of;
use super::objects::{Pd, busy};
use super::*;

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
                let of = share::<Pd, _>(init.pd).ok_or(libc::EINVAL)?;
                let mut abi = ibv_pd::zeroed();
                abi.context = context;
                abi.handle = of.number;
                if let Some(td) = borrow::<Td, _>(init.td) {
                    td.uses.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Pd {
                    abi: UnsafeCell::new(abi),
                    context: c,
                    number: of.number,
                    uses: AtomicUsize::new(0),
                    parent: Some(Parent::new(of, init.td)),
                })
            })
    };
    or_null(made.map(|pd| live::hand_out(Arc::new(pd))))
}

/// What a parent domain was made of, or an imported one stands for.
pub(super) struct Parent {
    of: Arc<Pd>,
    td: *mut ibv_td,
}

impl Parent {
    /// Counts the use of `of`; that of `td` is counted.
    pub(super) fn new(of: Arc<Pd>, td: *mut ibv_td) -> Self {
        of.uses.fetch_add(1, Ordering::Relaxed);
        Self { of, td }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        self.of.uses.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: NULL, or a thread domain of ours, which counts this use and so has not been deallocated.
        if let Some(td) = unsafe { borrow::<Td, _>(self.td) } {
            td.uses.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
