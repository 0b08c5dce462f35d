//! Protection domains.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use verbs_abi as abi;

use crate::context::{Context, ContextRef};
use crate::error::{CreateError, last_error};

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// - [`CreateError::NoResources`] (`ENOMEM`): the device has no more domains.
    /// - [`CreateError::Refused`] (any other errno).
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, CreateError> {
        // SAFETY: live context.
        let raw = unsafe { (self.inner.symbols.ibv_alloc_pd)(self.inner.raw) };
        if raw.is_null() {
            return Err(CreateError::of("ibv_alloc_pd", last_error()));
        }
        Ok(ProtectionDomain {
            inner: Arc::new(PdInner {
                context: Arc::clone(&self.inner),
                raw,
            }),
        })
    }
}

/// A protection domain, whose objects may be used together. Clones are the same domain.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<PdInner>,
}

pub(crate) struct PdInner {
    pub(crate) context: ContextRef,
    pub(crate) raw: *mut abi::ibv_pd,
}

// SAFETY: verbs on a PD are thread-safe, see `ContextInner`.
unsafe impl Send for PdInner {}
// SAFETY: as for Send.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: made by ibv_alloc_pd of this table; everything in it held an Arc of this and is
        // gone.
        unsafe { (self.context.symbols.ibv_dealloc_pd)(self.raw) };
    }
}

impl ProtectionDomain {
    /// Returns the context of the domain.
    pub fn context(&self) -> Context {
        Context {
            inner: Arc::clone(&self.inner.context),
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({})", self.inner.context.name)
    }
}
