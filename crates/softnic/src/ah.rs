//! Address handles.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use verbs_abi::{ibv_ah, ibv_ah_attr, ibv_send_wr};

use crate::multicast::Group;
use crate::nic::Nic;

/// An address handle; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Ah {
    abi: UnsafeCell<ibv_ah>,
    /// Never used twice, unlike the address.
    pub(crate) id: u64,
    pub(crate) pd: u32,
    /// The destination is a port of this host.
    pub(crate) reachable: bool,
    /// The GRH that receivers see.
    pub(crate) grh: Option<[u8; 40]>,
    /// The multicast group that it addresses.
    pub(crate) group: Option<Group>,
    /// As in `RingHeader::path`.
    pub(crate) path: u64,
}

// SAFETY: `abi` is written before the handle is given out and only read by the program.
unsafe impl Sync for Ah {}
// SAFETY: as above; its raw pointers are not followed here.
unsafe impl Send for Ah {}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Ah {
    pub(crate) fn new(nic: &Nic, abi: ibv_ah, pd: u32, attr: &ibv_ah_attr) -> Self {
        let grh = nic.port.grh(attr);
        Self {
            abi: UnsafeCell::new(abi),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            pd,
            reachable: nic.port.reaches(attr),
            group: if attr.is_global == 0 {
                None
            } else {
                // SAFETY: any bytes are a GID.
                Group::of(unsafe { attr.grh.dgid.raw })
            },
            path: u64::from(nic.port.lid)
                | u64::from(nic.port.completion_sl(attr, grh.as_ref())) << 16
                | u64::from(attr.src_path_bits) << 24
                | u64::from(grh.is_some()) << 32,
            grh,
        }
    }

    /// The program's handle.
    pub(crate) fn handle(&self) -> *mut ibv_ah {
        self.abi.get()
    }

    /// What a handle stands for.
    ///
    /// # Safety
    /// `handle` is null or was given out for an `Arc<Ah>` that has not been taken back.
    pub(crate) unsafe fn from_handle<'a>(handle: *mut ibv_ah) -> Option<&'a Self> {
        // SAFETY: `abi` is the first field (`repr(C)`), so the handle is the address of an `Ah`.
        unsafe { handle.cast::<Self>().as_ref() }
    }

    /// Keeps the address handle of a UD work request alive.
    ///
    /// # Safety
    /// As for [`Self::from_handle`], for `wr.wr.ud.ah` if the WR was posted to a UD queue pair.
    pub(crate) unsafe fn retain(wr: &ibv_send_wr, ud: bool) -> Option<Arc<Self>> {
        if !ud {
            return None;
        }
        // SAFETY: the handle came from `Arc::into_raw` (contract), and this adds a reference to it.
        unsafe {
            let ah = wr.wr.ud.ah.cast::<Self>();
            if ah.is_null() {
                return None;
            }
            Arc::increment_strong_count(ah);
            Some(Arc::from_raw(ah))
        }
    }
}
