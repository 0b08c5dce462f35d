//! Prefetches of nodes for walks and scans.

use verbs::prefetch;

use super::memory::{NodeNumber, StoreMemory};
use crate::key_or_value::KeyOrValue;

impl<T: KeyOrValue> StoreMemory<T> {
    /// Prefetches the header and the keys of a node of this level.
    #[inline]
    pub(crate) fn prefetch_header_and_keys(&self, number: NodeNumber, level: u16) {
        let words = self.words_of_node(number);
        let keys_end = self.node_shape().payload_word_index(level, 0);
        for word in words.get(..keys_end).unwrap_or_default().iter().step_by(8) {
            prefetch(word);
        }
    }

    /// Prefetches all lines of a node.
    #[inline]
    pub(crate) fn prefetch_all_lines(&self, number: NodeNumber) {
        for word in self.words_of_node(number).iter().step_by(8) {
            prefetch(word);
        }
    }

    /// Prefetches the values of a leaf from number `place` on.
    #[inline]
    pub(crate) fn prefetch_values_from(&self, number: NodeNumber, place: usize) {
        let words = self.words_of_node(number);
        let from = self.node_shape().payload_word_index(0, place);
        for word in words.get(from..).unwrap_or_default().iter().step_by(8) {
            prefetch(word);
        }
    }

    /// Prefetches one value of a leaf.
    #[inline]
    pub(crate) fn prefetch_value(&self, number: NodeNumber, place: usize) {
        let words = self.words_of_node(number);
        let from = self.node_shape().payload_word_index(0, place);
        let to = self.node_shape().payload_word_index(0, place + 1);
        for word in words.get(from..to).unwrap_or_default().iter().step_by(8) {
            prefetch(word);
        }
    }
}
