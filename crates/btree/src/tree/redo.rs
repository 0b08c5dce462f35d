//! The redo entry that a client writes before it changes a leaf, so that the server can finish the change if the client
//! dies.
//!
//! An entry has two words more than a node: the node's number, the client's lock word, words 1 to the last of the new
//! node, and a checksum. See [`service::lock_recovery`] for the recovery.

use std::sync::atomic::{AtomicU64, Ordering};

use service::lock_recovery::{LockTable, lock_word_owner};

use super::store::Store;
use crate::key_or_value::KeyOrValue;
use crate::node::{Node, checksum_term};

/// Returns the bytes of a redo entry for nodes of `node_words` words.
pub(crate) const fn redo_entry_bytes(node_words: usize) -> usize {
    8 * (node_words + 2)
}

/// Index of the entry's word that holds word 1 of the node.
pub(crate) const NODE_WORD_1_INDEX: usize = 2;

fn checksum(words: &[u64]) -> u64 {
    let terms = words
        .iter()
        .enumerate()
        .map(|(i, word)| checksum_term(i, *word));
    terms.fold(1, u64::wrapping_add)
}

/// Completes an entry that already contains the node's words.
pub(crate) fn complete_redo_entry(entry: &mut [u64], number: u64, lock: u64) {
    let last = entry.len() - 1;
    (entry[0], entry[1]) = (number, lock);
    entry[last] = checksum(&entry[..last]);
}

/// Returns the number, lock word and node words of an entry, or `None` if its checksum is wrong. The bytes are
/// untrusted.
fn decode_entry(bytes: &[u8]) -> Option<(u64, u64, Vec<u64>)> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|w| u64::from_ne_bytes(*w)).collect();
    let (last, front) = words.split_last()?;
    let is_valid = rest.is_empty() && front.len() > NODE_WORD_1_INDEX && checksum(front) == *last;
    (is_valid && front[1] != 0).then(|| (front[0], front[1], front[NODE_WORD_1_INDEX..].to_vec()))
}

impl<T: KeyOrValue> LockTable for Store<T> {
    fn lock_word_of(&self, object: u64) -> Option<&AtomicU64> {
        self.readable_trees().memory().node_lock_word(object)
    }

    fn redo_entry_bytes(&self) -> usize {
        redo_entry_bytes(self.readable_trees().memory().node_shape().words_per_node)
    }

    /// Returns 0: all trees are in one table.
    fn table_index_of_redo_entry(_entry: &[u8]) -> Option<usize> {
        Some(0)
    }

    fn execute_redo_entry(&self, entry: &[u8], owner: u32) -> bool {
        let Some((number, word, body)) = decode_entry(entry) else {
            return false;
        };
        let memory = self.readable_trees().memory();
        let Some(lock) = memory.node_lock_word(number) else {
            return false;
        };
        if lock_word_owner(word) != owner
            || lock.load(Ordering::Acquire) != word
            || body.len() + 1 != memory.node_shape().words_per_node
        {
            return false;
        }
        // The server trusts the client's entry as it trusts its WRITEs, except that the node must have a valid
        // checksum.
        let mut node = vec![word];
        node.extend_from_slice(&body);
        if !Node::<_, T>(&node[..], memory.node_shape().key_and_value_limits).has_valid_checksum() {
            return false;
        }
        memory.overwrite_locked_node_body(number, body.into_iter());
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
            complete_redo_entry(&mut entry, 7, 9 << 40);
            let mut bytes: Vec<u8> = entry.iter().flat_map(|w| w.to_ne_bytes()).collect();
            prop_assert_eq!(decode_entry(&bytes), Some((7, 9 << 40, entry[2..33].to_vec())));
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode_entry(&bytes), None);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode_entry(&bytes), None);
        }
    }
}
