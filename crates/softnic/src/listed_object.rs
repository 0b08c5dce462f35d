//! Entries of the process's segment for lists of the fabric's objects, as `rdma resource show` of iproute2 prints them.
//!
//! Contexts and shared receive queues are of no interest to peers otherwise.

use std::mem::size_of;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::lock::lock;
use crate::nic::Nic;
use shm::fabric::layout::*;

/// An entry of the table, which ends with this object.
pub(crate) struct ListedObject {
    nic: &'static Nic,
    /// The place in the table; `None` if it had no room. The object is then on no list.
    place: Mutex<Option<usize>>,
}

/// The attributes of a shared receive queue that lists show.
pub(crate) struct ListedSrq {
    /// `ibv_srq_type`.
    pub(crate) srq_type: u32,
    /// Number of the protection domain.
    pub(crate) pd_number: u32,
    /// Index of the completion queue that it has of its own.
    pub(crate) cq_index: Option<usize>,
}

impl ListedObject {
    /// Adds a context of a device.
    pub(crate) fn list_context(nic: &'static Nic, device: u8) -> Self {
        Self::add_entry(nic, LISTED_CONTEXT, device, |_| ())
    }

    /// Adds a shared receive queue of a device.
    pub(crate) fn list_srq(nic: &'static Nic, device: u8, srq: &ListedSrq) -> Self {
        Self::add_entry(nic, LISTED_SRQ, device, |entry| {
            let cq = srq.cq_index.and_then(|index| u32::try_from(index + 1).ok());
            entry.srq_type.store(srq.srq_type, Ordering::Relaxed);
            entry.pd.store(srq.pd_number, Ordering::Relaxed);
            let cq = cq.unwrap_or(0);
            entry.cq_index_plus_1.store(cq, Ordering::Relaxed);
        })
    }

    fn add_entry(
        nic: &'static Nic,
        kind: u32,
        device: u8,
        fill: impl FnOnce(&ListedObjectShared),
    ) -> Self {
        /// The place at which the next search begins.
        static NEXT: Mutex<usize> = Mutex::new(0);
        let mut next = lock(&NEXT);
        let segment = &nic.this_process().segment;
        let is_free = |place: &usize| {
            let at = LISTED_AT + place * size_of::<ListedObjectShared>();
            let backed = nic
                .fabric
                .back_with_memory(at, size_of::<ListedObjectShared>());
            let entry = segment.listed(*place).filter(|_| backed.is_ok());
            entry.is_some_and(|entry| entry.kind.load(Ordering::Relaxed) == 0)
        };
        let place = (*next..MAX_LISTED_OBJECTS).chain(0..*next).find(is_free);
        if let Some(entry) = place.and_then(|place| segment.listed(place)) {
            fill(entry);
            entry.device.store(device.into(), Ordering::Relaxed);
            entry.kind.store(kind, Ordering::Release);
            *next = place.map_or(0, |place| (place + 1) % MAX_LISTED_OBJECTS);
            let used = *next as u64;
            let end = &segment.header().listed_slots_end;
            end.fetch_max(
                if used == 0 {
                    MAX_LISTED_OBJECTS as u64
                } else {
                    used
                },
                Ordering::Release,
            );
        }
        Self {
            nic,
            place: Mutex::new(place),
        }
    }

    /// Returns the place plus 1; 0 if the object is on no list.
    pub(crate) fn place_plus_1(&self) -> u32 {
        let place = *lock(&self.place);
        place
            .and_then(|place| u32::try_from(place + 1).ok())
            .unwrap_or(0)
    }

    /// Takes the object off the lists.
    pub(crate) fn remove(&self) {
        if let Some(place) = lock(&self.place).take()
            && let Some(entry) = self.nic.this_process().segment.listed(place)
        {
            entry.kind.store(0, Ordering::Release);
        }
    }
}

impl Drop for ListedObject {
    fn drop(&mut self) {
        self.remove();
    }
}
