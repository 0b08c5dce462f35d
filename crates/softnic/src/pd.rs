//! Protection domains, thread domains and parent domains.
//!
//! A parent domain lets a provider leave out locks or take memory from the program's allocators. Here it changes
//! nothing: the lock of a queue pair is cheap, and a provider may do without the allocators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use verbs_abi::{ibv_context, ibv_pd, ibv_td};

use crate::abi_cell::AbiCell;
use crate::context::Context;
use crate::imports::{self, MaybeShared, SharedObject};
use crate::live_handles;

/// A protection domain; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Pd {
    abi: AbiCell<ibv_pd>,
    pub(crate) context: &'static Context,
    /// The number that queue pairs and regions of this process use for the domain.
    pub(crate) local_number: u32,
    /// The handle that the domain has in its home.
    home_handle: u32,
    /// Number of objects that were made with this handle.
    pub(crate) object_count: AtomicUsize,
    /// True if the program has given the handle back while objects made with it are left.
    is_unimported: AtomicBool,
    kind: PdKind,
}

live_handles::object!(Pd, ibv_pd);

/// The kind of domain that a handle stands for.
enum PdKind {
    /// A protection domain of this process, or one that it imports.
    ProtectionDomain(SharedObject),
    ParentDomain(ParentDomain),
}

impl MaybeShared for Pd {
    fn shared_object(&self) -> Option<&SharedObject> {
        self.own_shared_domain()
    }
}

impl Pd {
    fn new(context: &'static Context, (number, handle): (u32, u32), kind: PdKind) -> Arc<Self> {
        let mut abi = ibv_pd::zeroed();
        abi.context = context.handle();
        abi.handle = handle;
        Arc::new(Self {
            abi: AbiCell::new(abi),
            context,
            local_number: number,
            home_handle: handle,
            object_count: AtomicUsize::new(0),
            is_unimported: AtomicBool::new(false),
            kind,
        })
    }

    /// Makes the handle of a domain of this process, or of one that it imports.
    pub(crate) fn from_shared_domain(context: &'static Context, shared: SharedObject) -> Arc<Self> {
        let names = (shared.pd_number(), shared.handle());
        Self::new(context, names, PdKind::ProtectionDomain(shared))
    }

    /// Makes a parent domain, which uses `of` and `td` from now on.
    pub(crate) fn new_parent_domain(
        context: &'static Context,
        of: Arc<Self>,
        td: Option<Arc<Td>>,
    ) -> Arc<Self> {
        of.add_user();
        if let Some(td) = &td {
            td.use_count.fetch_add(1, Ordering::Relaxed);
        }
        let names = (of.local_number, of.home_handle);
        Self::new(
            context,
            names,
            PdKind::ParentDomain(ParentDomain {
                protection_domain: of,
                td,
            }),
        )
    }

    /// Returns the program's handle.
    pub(crate) fn handle(&self) -> *mut ibv_pd {
        self.abi.handle()
    }

    /// Returns the shared domain, unless this is a parent domain.
    pub(crate) fn own_shared_domain(&self) -> Option<&SharedObject> {
        match &self.kind {
            PdKind::ProtectionDomain(shared) => Some(shared),
            PdKind::ParentDomain(_) => None,
        }
    }

    /// Returns the shared domain: for a parent domain, the one at the end of its chain.
    fn root_shared_domain(&self) -> &SharedObject {
        let mut pd = self;
        loop {
            match &pd.kind {
                PdKind::ProtectionDomain(shared) => return shared,
                PdKind::ParentDomain(parent) => pd = &parent.protection_domain,
            }
        }
    }

    /// Returns the domain behind a handle, to make objects of it. `None` if the handle has been given back, or a
    /// process that shares the domain has destroyed it.
    pub(crate) fn find_usable(handle: *mut ibv_pd) -> Option<Arc<Self>> {
        live_handles::find_object::<Self>(handle)
            .filter(|pd| !pd.is_unimported() && pd.root_shared_domain().exists())
    }

    /// Returns true if the program has given the handle back.
    pub(crate) fn is_unimported(&self) -> bool {
        self.is_unimported.load(Ordering::Acquire)
    }

    /// Takes the handle back from the program, perhaps before the program destroys the objects made with it.
    pub(crate) fn unimport(&self) {
        self.is_unimported.store(true, Ordering::Release);
        if self.object_count.load(Ordering::Acquire) == 0 {
            self.take_handle_back_without_destroying();
        }
    }

    /// Counts an object that is made of the domain, and [leaves](Self::remove_user) it when it is destroyed.
    pub(crate) fn add_user(&self) {
        self.object_count.fetch_add(1, Ordering::Relaxed);
        // Objects of a parent domain count here, too: a process that destroys one by an import knows its domain only by
        // number.
        if let Some(uses) = self.root_shared_domain().derived_object_count() {
            uses.fetch_add(1, Ordering::Release);
        }
    }

    /// Ends the count of an object that [entered](Self::add_user) the domain and is destroyed.
    pub(crate) fn remove_user(&self) {
        if let Some(uses) = self.root_shared_domain().derived_object_count() {
            uses.fetch_sub(1, Ordering::Release);
        }
        self.remove_user_destroyed_by_other_process();
    }

    /// Ends the count of an object that another process has destroyed and taken out of the shared count.
    pub(crate) fn remove_user_destroyed_by_other_process(&self) {
        let last = self.object_count.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && self.is_unimported() {
            self.take_handle_back_without_destroying();
        }
    }

    fn take_handle_back_without_destroying(&self) {
        if let Some(pd) = live_handles::take_back_handle::<Self>(self.handle()) {
            imports::release_without_destroying(pd);
        }
    }
}

/// A thread domain; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Td {
    abi: AbiCell<ibv_td>,
    pub(crate) use_count: AtomicUsize,
}

live_handles::object!(Td, ibv_td);

impl Td {
    pub(crate) fn new(context: *mut ibv_context) -> Self {
        Self {
            abi: AbiCell::new(ibv_td { context }),
            use_count: AtomicUsize::new(0),
        }
    }
}

/// The domains that a parent domain was made of.
struct ParentDomain {
    protection_domain: Arc<Pd>,
    td: Option<Arc<Td>>,
}

impl Drop for ParentDomain {
    fn drop(&mut self) {
        self.protection_domain.remove_user();
        if let Some(td) = &self.td {
            td.use_count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
