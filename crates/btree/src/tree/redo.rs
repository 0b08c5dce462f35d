//! What a client writes down before it changes a leaf itself, so that the server can finish the change of a client that died.
//!
//! An entry has as many words as a node and two: the node's number, the client's lock word, words 1 to the last of the new
//! node, and a checksum. See [`service::guests`] for when an entry is used.

use std::sync::atomic::{AtomicU64, Ordering};

use service::guests::{LockTable, owner_of};

use super::store::Store;
use crate::node::{Node, term};

/// Bytes of an entry for nodes of so many words.
pub(crate) const fn bytes(node_words: usize) -> usize {
    8 * (node_words + 2)
}

/// Where word 1 of the node is in an entry, in words.
pub(crate) const BODY: usize = 2;

fn checksum(words: &[u64]) -> u64 {
    let terms = words.iter().enumerate().map(|(i, word)| term(i, *word));
    terms.fold(1, u64::wrapping_add)
}

/// Completes an entry in which the node's words are already.
pub(crate) fn seal(entry: &mut [u64], number: u64, lock: u64) {
    let last = entry.len() - 1;
    (entry[0], entry[1]) = (number, lock);
    entry[last] = checksum(&entry[..last]);
}

/// Number, lock word and node words of an entry, if it is a whole one: its bytes may be any.
fn open(bytes: &[u8]) -> Option<(u64, u64, Vec<u64>)> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|w| u64::from_ne_bytes(*w)).collect();
    let (last, front) = words.split_last()?;
    let is_whole = rest.is_empty() && front.len() > BODY && checksum(front) == *last;
    (is_whole && front[1] != 0).then(|| (front[0], front[1], front[BODY..].to_vec()))
}

impl LockTable for Store {
    fn lock_of(&self, object: u64) -> Option<&AtomicU64> {
        self.index().memory().lock_of(object)
    }

    fn redo_bytes(&self) -> usize {
        bytes(self.index().memory().node_words())
    }

    /// All trees are in one part.
    fn part_of(_entry: &[u8]) -> Option<usize> {
        Some(0)
    }

    fn redo(&self, entry: &[u8], owner: u32) -> bool {
        let Some((number, word, body)) = open(entry) else {
            return false;
        };
        let memory = self.index().memory();
        let Some(lock) = memory.lock_of(number) else {
            return false;
        };
        if owner_of(word) != owner
            || lock.load(Ordering::Acquire) != word
            || body.len() + 1 != memory.node_words()
        {
            return false;
        }
        // The client's word is believed as its WRITEs are, but for what no node can be.
        let mut node = vec![word];
        node.extend_from_slice(&body);
        if !Node(&node[..]).is_whole() {
            return false;
        }
        memory.finish(number, body.into_iter());
        lock.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_is_whole_or_none(at in 0usize..34 * 8, bit in 0u32..8) {
            let mut entry: Vec<u64> = (0..34).collect();
            seal(&mut entry, 7, 9 << 40);
            let mut bytes: Vec<u8> = entry.iter().flat_map(|w| w.to_ne_bytes()).collect();
            prop_assert_eq!(open(&bytes), Some((7, 9 << 40, entry[2..33].to_vec())));
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(open(&bytes), None);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(open(&bytes), None);
        }
    }
}
