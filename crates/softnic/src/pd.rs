//! Protection domains, thread domains and parent domains.
//!
//! A parent domain lets a provider leave out locks or take memory from the program's allocators. Here it changes nothing: a
//! queue pair's lock is one compare-and-swap, and a provider may do without the allocators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use verbs_abi::{ibv_context, ibv_pd, ibv_td};

use crate::abi_cell::AbiCell;
use crate::context::Context;
use crate::imports::{self, Shared, Sharing};
use crate::live;

/// A protection domain; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Pd {
    abi: AbiCell<ibv_pd>,
    pub(crate) context: &'static Context,
    /// What queue pairs and regions of this process call the domain.
    pub(crate) number: u32,
    /// What its home calls it.
    handle: u32,
    /// How many objects were made with this handle.
    pub(crate) uses: AtomicUsize,
    /// The program has given the handle back, and objects are left that were made with it.
    unimported: AtomicBool,
    of: DomainOf,
}

live::object!(Pd, ibv_pd);

/// What a handle stands for.
enum DomainOf {
    Itself(Shared),
    Parent(Parent),
}

impl Sharing for Pd {
    fn shared(&self) -> Option<&Shared> {
        self.itself()
    }
}

impl Pd {
    fn new(context: &'static Context, (number, handle): (u32, u32), of: DomainOf) -> Arc<Self> {
        let mut abi = ibv_pd::zeroed();
        abi.context = context.handle();
        abi.handle = handle;
        Arc::new(Self {
            abi: AbiCell::new(abi),
            context,
            number,
            handle,
            uses: AtomicUsize::new(0),
            unimported: AtomicBool::new(false),
            of,
        })
    }

    /// A domain of this process, or one that it imports.
    pub(crate) fn of_shared(context: &'static Context, shared: Shared) -> Arc<Self> {
        let names = (shared.number(), shared.handle());
        Self::new(context, names, DomainOf::Itself(shared))
    }

    /// A parent domain; `td` counts its use from now on.
    pub(crate) fn of_parent(
        context: &'static Context,
        of: Arc<Self>,
        td: Option<Arc<Td>>,
    ) -> Arc<Self> {
        of.enter();
        if let Some(td) = &td {
            td.uses.fetch_add(1, Ordering::Relaxed);
        }
        let names = (of.number, of.handle);
        Self::new(context, names, DomainOf::Parent(Parent { of, td }))
    }

    /// The program's handle.
    pub(crate) fn handle(&self) -> *mut ibv_pd {
        self.abi.handle()
    }

    /// What all see of it, unless it is a parent domain.
    pub(crate) fn itself(&self) -> Option<&Shared> {
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

    /// The domain behind a handle, to make objects of it: not once the handle has been given back, or somebody who shares
    /// the domain has destroyed it.
    pub(crate) fn usable(handle: *mut ibv_pd) -> Option<Arc<Self>> {
        live::find::<Self>(handle).filter(|pd| !pd.is_unimported() && pd.root().exists())
    }

    /// Has the program given the handle back?
    pub(crate) fn is_unimported(&self) -> bool {
        self.unimported.load(Ordering::Acquire)
    }

    /// The program gives the handle back, perhaps before it destroys what it has made of it.
    pub(crate) fn unimport(&self) {
        self.unimported.store(true, Ordering::Release);
        if self.uses.load(Ordering::Acquire) == 0 {
            self.let_go();
        }
    }

    /// An object is made of it, which [leaves](Self::leave) it when it is destroyed.
    pub(crate) fn enter(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        // A parent domain's objects, too: who destroys one by an import knows its domain only by the number.
        if let Some(uses) = self.root().uses() {
            uses.fetch_add(1, Ordering::Release);
        }
    }

    /// An object that [entered](Self::enter) the domain is destroyed.
    pub(crate) fn leave(&self) {
        if let Some(uses) = self.root().uses() {
            uses.fetch_sub(1, Ordering::Release);
        }
        self.leave_unseen();
    }

    /// The same for an object that another process has destroyed, and taken out of what all see.
    pub(crate) fn leave_unseen(&self) {
        let last = self.uses.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && self.is_unimported() {
            self.let_go();
        }
    }

    fn let_go(&self) {
        if let Some(pd) = live::take_back::<Self>(self.handle()) {
            imports::let_go(pd);
        }
    }
}

/// A thread domain; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Td {
    abi: AbiCell<ibv_td>,
    pub(crate) uses: AtomicUsize,
}

live::object!(Td, ibv_td);

impl Td {
    pub(crate) fn new(context: *mut ibv_context) -> Self {
        Self {
            abi: AbiCell::new(ibv_td { context }),
            uses: AtomicUsize::new(0),
        }
    }
}

/// What a parent domain was made of.
struct Parent {
    of: Arc<Pd>,
    td: Option<Arc<Td>>,
}

impl Drop for Parent {
    fn drop(&mut self) {
        self.of.leave();
        if let Some(td) = &self.td {
            td.uses.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
