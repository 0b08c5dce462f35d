//! Multicast groups, and the queue pairs of a process that are attached to them.
//!
//! The table is in the process's segment, and a sender reads the tables of all its peers. No switch copies a datagram,
//! so its sender does.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::lock::lock;
use shm::fabric::layout::*;
use shm::fabric::{Fabric, Peer};

/// The QP number to which datagrams for a group are addressed: IBTA vol. 1, 3.5.12.
pub(crate) const MULTICAST_QPN: u32 = 0xff_ffff;

/// A multicast GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MulticastGroup([u8; 16]);

impl MulticastGroup {
    /// Returns the group of a multicast GID: one that starts with 0xff (IBTA vol. 1, 4.1.1), or an IPv4 multicast
    /// address mapped into IPv6 (RoCEv2, annex A17).
    pub(crate) fn from_gid(gid: [u8; 16]) -> Option<Self> {
        const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let ipv4 = gid[..12] == MAPPED && (224..240).contains(&gid[12]);
        (gid[0] == 0xff || ipv4).then_some(Self(gid))
    }

    fn to_words(self) -> [u64; 2] {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.0[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        [word(0), word(8)]
    }
}

/// Serialises changes of this process's table.
#[derive(Default)]
pub(crate) struct MulticastAttachmentLock(Mutex<()>);

impl MulticastAttachmentLock {
    /// Attaches queue pair `index`. Returns false if it is attached already.
    ///
    /// # Errors
    /// `ENOMEM` if the table or shared memory is full.
    pub(crate) fn attach(
        &self,
        fabric: &Fabric,
        index: usize,
        group: MulticastGroup,
    ) -> Result<bool, i32> {
        let _one = lock(&self.0);
        let segment = &fabric.this_process.segment;
        let used = end_of_used_table_entries(&fabric.this_process);
        let free = |place: usize| {
            segment
                .mcast(place)
                .is_some_and(|m| m.qp_index_plus_1.load(Ordering::Relaxed) == 0)
        };
        if (0..used).any(|place| member_qp_at(&fabric.this_process, place, group) == Some(index)) {
            return Ok(false);
        }
        let place = (0..used).find(|&p| free(p)).unwrap_or(used);
        let at = MCASTS_AT + place * size_of::<McastAttachmentShared>();
        if place >= MAX_MCAST_ATTACHMENTS {
            return Err(libc::ENOMEM);
        }
        fabric
            .back_with_memory(at, size_of::<McastAttachmentShared>())
            .map_err(|_| libc::ENOMEM)?;
        let entry = segment.mcast(place).ok_or(libc::ENOMEM)?;
        for (to, word) in entry.mgid.iter().zip(group.to_words()) {
            to.store(word, Ordering::Relaxed);
        }
        let qp = u32::try_from(1 + index).map_err(|_| libc::EINVAL)?;
        entry.qp_index_plus_1.store(qp, Ordering::Release);
        segment
            .header()
            .mcast_slots_end
            .fetch_max(place as u64 + 1, Ordering::Release);
        Ok(true)
    }

    /// Detaches queue pair `index`. Returns false if it is not attached.
    pub(crate) fn detach(&self, fabric: &Fabric, index: usize, group: MulticastGroup) -> bool {
        let _one = lock(&self.0);
        let place = (0..end_of_used_table_entries(&fabric.this_process))
            .find(|&p| member_qp_at(&fabric.this_process, p, group) == Some(index));
        match place.and_then(|p| fabric.this_process.segment.mcast(p)) {
            Some(entry) => {
                entry.qp_index_plus_1.store(0, Ordering::Release);
                true
            }
            None => false,
        }
    }
}

fn end_of_used_table_entries(peer: &Peer) -> usize {
    let used = peer
        .segment
        .header()
        .mcast_slots_end
        .load(Ordering::Acquire);
    usize::try_from(used)
        .unwrap_or(MAX_MCAST_ATTACHMENTS)
        .min(MAX_MCAST_ATTACHMENTS)
}

/// Returns the queue pair that entry `place` of `peer` attaches to `group`. `None` if the entry does not.
fn member_qp_at(peer: &Peer, place: usize, group: MulticastGroup) -> Option<usize> {
    let entry = peer.segment.mcast(place)?;
    let qp = entry.qp_index_plus_1.load(Ordering::Acquire);
    let [a, b] = group.to_words();
    let here = qp != 0
        && entry.mgid[0].load(Ordering::Relaxed) == a
        && entry.mgid[1].load(Ordering::Relaxed) == b;
    here.then(|| qp as usize - 1)
}

/// Returns the queue pairs of `peer` that are attached to `group`, by their indices in the process.
pub(crate) fn member_qp_indices(peer: &Peer, group: MulticastGroup) -> impl Iterator<Item = usize> {
    (0..end_of_used_table_entries(peer)).filter_map(move |place| member_qp_at(peer, place, group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn multicast_addresses_are_groups_and_others_are_not() {
        let is_group = |gid: &str| {
            MulticastGroup::from_gid(gid.parse::<Ipv6Addr>().unwrap().octets()).is_some()
        };
        assert!(is_group("ff12:401b:ffff::1"));
        assert!(is_group("::ffff:224.0.0.1"));
        assert!(is_group("::ffff:239.255.255.255"));
        assert!(!is_group("::ffff:223.255.255.255"));
        assert!(!is_group("::ffff:240.0.0.1"));
        assert!(!is_group("fe80::1"));
        assert!(!is_group("::e000:1"));
    }
}
