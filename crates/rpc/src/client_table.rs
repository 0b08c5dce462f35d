//! A small hash table from queue pair numbers to clients, which identifies the sender of a
//! datagram.

use verbs::Qpn;

/// Table of clients by the queue pair number that their datagrams come from.
///
/// Queue pair numbers are unique only on one port. [`insert`](Self::insert) therefore refuses a
/// number that is taken, and the refused client must connect again with another queue pair.
#[derive(Debug, Clone)]
pub struct ClientTable {
    /// Entries `(qpn + 1) << 32 | client`; 0 means free. Open addressing, at most half full.
    packed_entries: Vec<u64>,
    len: usize,
}

impl ClientTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self {
            packed_entries: vec![0; 16],
            len: 0,
        }
    }

    /// Returns the client with this queue pair number.
    #[inline]
    pub fn get(&self, qpn: Qpn) -> Option<usize> {
        let key = u64::from(qpn.0) + 1;
        let mask = self.packed_entries.len() - 1;
        let mut i = home_slot(qpn, mask);
        loop {
            let slot = self.packed_entries[i & mask];
            if slot >> 32 == key {
                #[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are meant")]
                return Some(slot as u32 as usize);
            }
            if slot == 0 {
                return None;
            }
            i += 1;
        }
    }

    /// Adds a client. Returns false if the number is taken.
    #[must_use]
    pub fn insert(&mut self, qpn: Qpn, client: u32) -> bool {
        if self.get(qpn).is_some() {
            return false;
        }
        if (self.len + 1) * 2 > self.packed_entries.len() {
            let old = std::mem::take(&mut self.packed_entries);
            self.packed_entries = vec![0; old.len() * 2];
            old.into_iter()
                .filter(|&s| s != 0)
                .for_each(|s| self.insert_packed_entry(s));
        }
        self.insert_packed_entry((u64::from(qpn.0) + 1) << 32 | u64::from(client));
        self.len += 1;
        true
    }

    /// Removes a client.
    pub fn remove(&mut self, qpn: Qpn) {
        let key = u64::from(qpn.0) + 1;
        // Rebuild the table, which keeps every probe sequence intact; clients are removed rarely.
        let old = std::mem::take(&mut self.packed_entries);
        self.packed_entries = vec![0; old.len()];
        self.len = 0;
        for slot in old.into_iter().filter(|&s| s != 0 && s >> 32 != key) {
            self.insert_packed_entry(slot);
            self.len += 1;
        }
    }

    fn insert_packed_entry(&mut self, slot: u64) {
        let mask = self.packed_entries.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "24 bits and one")]
        let mut i = home_slot(Qpn(((slot >> 32) - 1) as u32), mask);
        while self.packed_entries[i & mask] != 0 {
            i += 1;
        }
        self.packed_entries[i & mask] = slot;
    }
}

#[inline]
fn home_slot(qpn: Qpn, mask: usize) -> usize {
    (qpn.0.wrapping_mul(0x9e37_79b1) >> 8) as usize & mask
}

impl Default for ClientTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_hash_map() {
        let mut table = ClientTable::new();
        let mut model = HashMap::new();
        let mut x = 1u32;
        for client in 0..4_000u32 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let qpn = Qpn(x >> 8 & 0x3ff);
            if client % 3 == 2 {
                table.remove(qpn);
                model.remove(&qpn);
            } else {
                assert_eq!(table.insert(qpn, client), !model.contains_key(&qpn));
                model.entry(qpn).or_insert(client as usize);
            }
        }
        for n in 0..0x400 {
            assert_eq!(table.get(Qpn(n)), model.get(&Qpn(n)).copied(), "{n}");
        }
    }
}
