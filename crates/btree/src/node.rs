//! The layout of a node, shared by the server and by clients that READ nodes. This module has no memory, locks or I/O.
//!
//! A node is an array of 8-byte words in host order:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | lock: 0, or the holder's lock word |
//! | 1 | version: grows with every change of the node |
//! | 2 | checksum of words 1 and 3 to the last that is in use |
//! | 3 | level in bits 47..32 (0 is a leaf), flags [`FLAG_DEAD`], [`FLAG_LAST_OF_LEVEL`], [`FLAG_FROZEN`] and [`FLAG_MOVED`], count of entries in bits 15..0 |
//! | 4 | low fence: no key of the node is below it |
//! | 5 | high fence: all keys of the node are below it, unless the node has the flag [`FLAG_LAST_OF_LEVEL`] |
//! | 6 | the right sibling's number, 0 for none |
//! | 7 | the number of the node's tree |
//! | from 8 | keys in ascending order, room for [`NodeShape::entry_capacity`] of them |
//! | after the keys | values of a leaf; in an inner node the numbers of the children |
//!
//! Numbers take one word each. A byte string takes a slot of several words, which has room for the longest key or value
//! of the tree. The fences of such a tree are in two slots after word 7, in front of the keys, and words 4 and 5 are 0.
//!
//! In an inner node key `i` is the low fence of child `i`, so the first key equals the node's low fence.
//!
//! A READ can return words of several versions if the node changes meanwhile. [`Node::has_valid_checksum`] detects
//! this: the checksum covers all words in use, and a mixture of two versions matches neither version's checksum. Words
//! are never torn, so a mixture has wrong keys at worst: every search below is bounded for any contents of the words.

use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::node_words::NodeWords;

/// Words in front of the keys: one cache line.
pub(crate) const HEADER_WORDS: usize = 8;
/// Index of the lock word.
pub(crate) const LOCK_WORD_INDEX: usize = 0;
/// Index of the version word.
pub(crate) const VERSION_WORD_INDEX: usize = 1;
/// Index of the checksum word.
pub(crate) const CHECKSUM_WORD_INDEX: usize = 2;
/// Index of the word with level, flags and count.
pub(crate) const LEVEL_FLAGS_COUNT_INDEX: usize = 3;
/// Index of the low fence.
pub(crate) const LOW_FENCE_WORD_INDEX: usize = 4;
/// Index of the high fence.
pub(crate) const HIGH_FENCE_WORD_INDEX: usize = 5;
/// Index of the right sibling's number.
pub(crate) const SIBLING_WORD_INDEX: usize = 6;
/// Index of the tree's number.
pub(crate) const TREE_WORD_INDEX: usize = 7;

/// Flag: the node was merged into its left sibling and has no entries.
pub(crate) const FLAG_DEAD: u64 = 1 << 16;
/// Flag: the node is the last of its level; its high fence is above all keys.
pub(crate) const FLAG_LAST_OF_LEVEL: u64 = 1 << 17;

/// Flag: the keys of this leaf are being handed over to another server. They can be read but not changed.
pub(crate) const FLAG_FROZEN: u64 = 1 << 18;
/// Flag: the keys of this leaf belong to another server. The leaf has one entry: its low fence and the
/// [`RangeOwner`](crate::RangeOwner) of the keys.
pub(crate) const FLAG_MOVED: u64 = 1 << 19;

/// The smallest node in bytes.
pub const MIN_NODE_BYTES: usize = 256;
/// The largest node in bytes.
pub const MAX_NODE_BYTES: usize = 4096;

/// The places of keys and values in the nodes of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeShape<T: KeyOrValue = u64> {
    /// Words of a node.
    pub(crate) words_per_node: usize,
    /// The room for keys and values.
    pub(crate) key_and_value_limits: T::Sizes,
}

impl<T: KeyOrValue> NodeShape<T> {
    /// Returns the index of the first key's slot.
    #[inline]
    pub(crate) fn first_key_word_index(self) -> usize {
        match T::IS_NUMBER {
            true => HEADER_WORDS,
            false => HEADER_WORDS + 2 * self.key_and_value_limits.key_words(),
        }
    }

    /// Returns the indices of the low and the high fence.
    #[inline]
    pub(crate) fn fence_word_indices(self) -> (usize, usize) {
        match T::IS_NUMBER {
            true => (LOW_FENCE_WORD_INDEX, HIGH_FENCE_WORD_INDEX),
            false => (
                HEADER_WORDS,
                HEADER_WORDS + self.key_and_value_limits.key_words(),
            ),
        }
    }

    /// Returns the words of a value in a leaf, or of a child's number in an inner node.
    #[inline]
    pub(crate) fn words_per_payload(self, level: u16) -> usize {
        match level {
            0 => self.key_and_value_limits.value_words(),
            _ => 1,
        }
    }

    /// Returns the number of entries that fit into a node of this level.
    #[inline]
    pub(crate) fn entry_capacity(self, level: u16) -> usize {
        self.words_per_node
            .saturating_sub(self.first_key_word_index())
            / (self.key_and_value_limits.key_words() + self.words_per_payload(level))
    }

    /// Returns the index of key `i`'s slot.
    #[inline]
    pub(crate) fn key_word_index(self, i: usize) -> usize {
        self.first_key_word_index() + i * self.key_and_value_limits.key_words()
    }

    /// Returns the index of value or child `i` in a node of this level.
    #[inline]
    pub(crate) fn payload_word_index(self, level: u16, i: usize) -> usize {
        self.key_word_index(self.entry_capacity(level)) + i * self.words_per_payload(level)
    }
}

/// Returns the word at [`LEVEL_FLAGS_COUNT_INDEX`] of a node.
pub(crate) fn encode_level_flags_count(level: u16, flags: u64, count: usize) -> u64 {
    u64::from(level) << 32 | flags | (count as u64 & 0xffff)
}

/// The next step of a walk for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// The key belongs into the subtree of this child, one level below.
    Child(u64),
    /// The key belongs to the right sibling: the node was split.
    Sibling(u64),
    /// The key belongs into this node, which is a leaf.
    Leaf,
    /// The node is dead, has another tree or level, or has only larger keys. The walk restarts at the root.
    Restart,
}

/// A view of a node's words that is valid for any contents.
pub(crate) struct Node<'a, W: ?Sized, T: KeyOrValue = u64>(pub(crate) &'a W, pub(crate) T::Sizes);

impl<W: ?Sized, T: KeyOrValue> Clone for Node<'_, W, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: ?Sized, T: KeyOrValue> Copy for Node<'_, W, T> {}

impl<W: NodeWords + ?Sized, T: KeyOrValue> Node<'_, W, T> {
    #[inline]
    pub(crate) fn shape(self) -> NodeShape<T> {
        NodeShape {
            words_per_node: self.0.len(),
            key_and_value_limits: self.1,
        }
    }

    /// Returns the number of entries that fit into the node.
    #[inline]
    pub(crate) fn entry_capacity(self) -> usize {
        self.shape().entry_capacity(self.level_for_payload_width())
    }

    /// Returns the number of entries below which the node is sparse.
    #[inline]
    pub(crate) fn min_entries(self) -> usize {
        self.entry_capacity().div_ceil(4)
    }

    /// Returns the level as far as it decides about the width of payloads: all nodes of numbers are alike.
    #[inline]
    fn level_for_payload_width(self) -> u16 {
        if T::IS_NUMBER { 0 } else { self.level() }
    }

    /// Returns the number of entries, at most the capacity.
    #[inline]
    pub(crate) fn entry_count(self) -> usize {
        ((self.0.word(LEVEL_FLAGS_COUNT_INDEX) & 0xffff) as usize).min(self.entry_capacity())
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "16 bits")]
    pub(crate) fn level(self) -> u16 {
        (self.0.word(LEVEL_FLAGS_COUNT_INDEX) >> 32) as u16
    }

    pub(crate) fn flags(self) -> u64 {
        self.0.word(LEVEL_FLAGS_COUNT_INDEX)
            & (FLAG_DEAD | FLAG_LAST_OF_LEVEL | FLAG_FROZEN | FLAG_MOVED)
    }

    /// Returns true if the keys of this leaf belong to another server.
    #[inline]
    pub(crate) fn is_owned_elsewhere(self) -> bool {
        self.0.word(LEVEL_FLAGS_COUNT_INDEX) & FLAG_MOVED != 0
    }

    /// Returns true if the keys of this leaf may be changed.
    #[inline]
    pub(crate) fn keys_may_change(self) -> bool {
        self.0.word(LEVEL_FLAGS_COUNT_INDEX) & (FLAG_FROZEN | FLAG_MOVED) == 0
    }

    #[inline]
    pub(crate) fn is_dead(self) -> bool {
        self.0.word(LEVEL_FLAGS_COUNT_INDEX) & FLAG_DEAD != 0
    }

    #[inline]
    pub(crate) fn is_last_of_level(self) -> bool {
        self.0.word(LEVEL_FLAGS_COUNT_INDEX) & FLAG_LAST_OF_LEVEL != 0
    }

    #[inline]
    pub(crate) fn key(self, i: usize) -> T {
        let shape = self.shape();
        T::load(
            self.0,
            shape.key_word_index(i),
            shape.key_and_value_limits.key_words(),
        )
    }

    /// Returns a value of a leaf.
    #[inline]
    pub(crate) fn value(self, i: usize) -> T {
        self.payload(i)
    }

    /// Returns the number of a child of an inner node. In a leaf with the flag [`FLAG_MOVED`], returns the encoded
    /// [`RangeOwner`](crate::RangeOwner).
    #[inline]
    pub(crate) fn child(self, i: usize) -> u64 {
        self.payload(i)
    }

    /// Returns what belongs to key `i`: `T` in a leaf, a number in an inner node.
    #[inline]
    pub(crate) fn payload<P: KeyOrValue>(self, i: usize) -> P {
        let (shape, level) = (self.shape(), self.level_for_payload_width());
        P::load(
            self.0,
            shape.payload_word_index(level, i),
            shape.words_per_payload(level),
        )
    }

    /// Returns the inclusive lower bound of the node's keys.
    #[inline]
    pub(crate) fn key_lower_bound(self) -> T {
        let shape = self.shape();
        T::load(
            self.0,
            shape.fence_word_indices().0,
            shape.key_and_value_limits.key_words(),
        )
    }

    /// Returns the exclusive upper bound of the node's keys; `None` if the node is the last of its level.
    #[inline]
    pub(crate) fn key_upper_bound(self) -> Option<T> {
        let shape = self.shape();
        let bound = || {
            T::load(
                self.0,
                shape.fence_word_indices().1,
                shape.key_and_value_limits.key_words(),
            )
        };
        (!self.is_last_of_level()).then(bound)
    }

    /// Returns the number of keys that are less than or equal to `key`.
    #[inline]
    pub(crate) fn count_keys_up_to(self, key: &T) -> usize {
        let shape = self.shape();
        let key_words = shape.key_and_value_limits.key_words();
        let is_at_most_key =
            |i: usize| key.is_at_least_slot(self.0, shape.key_word_index(i), key_words);
        // Each step halves what is left, whatever the comparison says: so the number of steps depends on the count alone,
        // and the processor predicts the end of the loop.
        let (mut from, mut left) = (0, self.entry_count());
        while left > 1 {
            let half = left / 2;
            from += if is_at_most_key(from + half - 1) {
                half
            } else {
                0
            };
            left -= half;
        }
        from + usize::from(left == 1 && is_at_most_key(from))
    }

    /// Returns the number of keys that are less than `key`.
    #[inline]
    pub(crate) fn count_keys_below(self, key: &T) -> usize {
        let rank = self.count_keys_up_to(key);
        match rank.checked_sub(1) {
            Some(place) if self.key(place) == *key => place,
            _ => rank,
        }
    }

    /// Returns the index of the key in a leaf, or as an error the index at which the key would be inserted.
    #[inline]
    pub(crate) fn find(self, key: &T) -> Result<usize, usize> {
        let rank = self.count_keys_up_to(key);
        match rank.checked_sub(1) {
            Some(place) if self.key(place) == *key => Ok(place),
            _ => Err(rank),
        }
    }

    /// Returns the next step of the walk for a key from this node, which is expected to have this tree and level.
    #[inline]
    pub(crate) fn next_walk_step(self, key: &T, tree: u64, level: u16) -> NextStep {
        let (header, key_words) = (self.0, self.1.key_words());
        let (low, high) = self.shape().fence_word_indices();
        if self.is_dead()
            || self.level() != level
            || header.word(TREE_WORD_INDEX) != tree
            || !key.is_at_least_slot(header, low, key_words)
        {
            return NextStep::Restart;
        }
        if !self.is_last_of_level() && key.is_at_least_slot(header, high, key_words) {
            return match header.word(SIBLING_WORD_INDEX) {
                0 => NextStep::Restart,
                sibling => NextStep::Sibling(sibling),
            };
        }
        if level == 0 {
            return NextStep::Leaf;
        }
        match self.count_keys_up_to(key) {
            0 => NextStep::Restart,
            rank => NextStep::Child(self.child(rank - 1)),
        }
    }

    /// Returns the checksum of the words in use.
    pub(crate) fn checksum_of_words(self) -> u64 {
        let (shape, level, count) = (self.shape(), self.level(), self.entry_count());
        let header = [
            VERSION_WORD_INDEX,
            LEVEL_FLAGS_COUNT_INDEX,
            LOW_FENCE_WORD_INDEX,
            HIGH_FENCE_WORD_INDEX,
            SIBLING_WORD_INDEX,
            TREE_WORD_INDEX,
        ];
        let fences_and_keys = HEADER_WORDS..shape.key_word_index(count);
        let payloads = shape.payload_word_index(level, 0)..shape.payload_word_index(level, count);
        let all = header.into_iter().chain(fences_and_keys).chain(payloads);
        all.fold(0, |sum: u64, i| {
            sum.wrapping_add(checksum_term(i, self.0.word(i)))
        })
    }

    /// Returns true if all words in use are of one version.
    pub(crate) fn has_valid_checksum(self) -> bool {
        self.checksum_of_words() == self.0.word(CHECKSUM_WORD_INDEX)
    }
}

/// Returns the contribution of a word to its node's checksum. Changing one word changes the sum by the difference of
/// two terms, so an update of a value does not read the other words.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
pub(crate) fn checksum_term(index: usize, word: u64) -> u64 {
    // The fold of a full product depends on all bits of both factors and is linear in neither.
    let place = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let product =
        u128::from(word ^ place) * u128::from(place.rotate_left(23) ^ 0xd6e8_feb8_6659_fd93 | 1);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key_or_value::NumberSizes;

    fn number_node(words: &[u64]) -> Node<'_, [u64]> {
        Node(words, NumberSizes)
    }

    fn entries_per_node(words: usize) -> usize {
        let sizes = NumberSizes;
        NodeShape::<u64> {
            words_per_node: words,
            key_and_value_limits: sizes,
        }
        .entry_capacity(0)
    }

    fn leaf(entries: &[(u64, u64)], words: usize) -> Vec<u64> {
        let mut node = vec![0; words];
        let room = entries_per_node(words);
        for (i, (key, value)) in entries.iter().enumerate() {
            node[HEADER_WORDS + i] = *key;
            node[HEADER_WORDS + room + i] = *value;
        }
        node[LEVEL_FLAGS_COUNT_INDEX] = encode_level_flags_count(0, 0, entries.len());
        node[HIGH_FENCE_WORD_INDEX] = 1000;
        node[SIBLING_WORD_INDEX] = 9;
        node[CHECKSUM_WORD_INDEX] = number_node(&node).checksum_of_words();
        node
    }

    #[test]
    fn a_walk_goes_where_fences_say() {
        let words = leaf(&[(10, 1), (20, 2)], 32);
        let node = number_node(&words);
        assert_eq!(node.next_walk_step(&10, 0, 0), NextStep::Leaf);
        assert_eq!(node.next_walk_step(&1000, 0, 0), NextStep::Sibling(9));
        assert_eq!(
            node.next_walk_step(&10, 1, 0),
            NextStep::Restart,
            "another tree"
        );
        assert_eq!(
            node.next_walk_step(&10, 0, 1),
            NextStep::Restart,
            "another level"
        );
        assert_eq!(
            (node.find(&10), node.find(&15), node.find(&5)),
            (Ok(0), Err(1), Err(0))
        );
        let mut inner = leaf(&[(0, 7), (50, 8)], 32);
        inner[LEVEL_FLAGS_COUNT_INDEX] = encode_level_flags_count(1, FLAG_LAST_OF_LEVEL, 2);
        let node = number_node(&inner);
        assert_eq!(node.next_walk_step(&49, 0, 1), NextStep::Child(7));
        assert_eq!(node.next_walk_step(&u64::MAX, 0, 1), NextStep::Child(8));
    }

    proptest! {
        #[test]
        fn the_rank_is_that_of_a_linear_search(
            mut keys in proptest::collection::vec(0u64..100, 0..28), key in 0u64..110,
        ) {
            keys.sort_unstable();
            let entries: Vec<_> = keys.iter().map(|k| (*k, 0)).collect();
            let words = leaf(&entries, 64);
            let expected = keys.iter().filter(|k| **k <= key).count();
            prop_assert_eq!(number_node(&words).count_keys_up_to(&key), expected);
        }

        #[test]
        fn the_number_of_lower_keys_is_that_of_a_linear_search(
            keys in proptest::collection::btree_set(0u64..100, 0..28), key in 0u64..110,
        ) {
            let entries: Vec<_> = keys.iter().map(|k| (*k, 0)).collect();
            let words = leaf(&entries, 64);
            prop_assert_eq!(number_node(&words).count_keys_below(&key), keys.range(..key).count());
        }

        /// Two versions differ by an insertion, a deletion or an update: no mixture of their words is whole.
        #[test]
        fn a_mixture_of_versions_is_not_whole(
            mut keys in proptest::collection::btree_set(0u64..60, 2..25), other in 0u64..60,
            from in proptest::collection::vec(any::<bool>(), 64),
        ) {
            let entries = |keys: &std::collections::BTreeSet<u64>| keys.iter().map(|k| (*k, k + 1)).collect::<Vec<_>>();
            let mut old = leaf(&entries(&keys), 64);
            if !keys.remove(&other) {
                keys.insert(other);
            }
            let mut new = leaf(&entries(&keys), 64);
            new[VERSION_WORD_INDEX] = 1;
            new[CHECKSUM_WORD_INDEX] = number_node(&new).checksum_of_words();
            prop_assert!(number_node(&old).has_valid_checksum() && number_node(&new).has_valid_checksum());
            let mixed: Vec<u64> = (0..64).map(|i| if from[i] { new[i] } else { old[i] }).collect();
            // Words that are not in use do not count.
            let used = |words: &[u64]| {
                let node = number_node(words);
                let mut used: Vec<u64> = (1..HEADER_WORDS).map(|i| words[i]).collect();
                used.extend((0..node.entry_count()).flat_map(|i| [node.key(i), node.value(i)]));
                used
            };
            let is_one = used(&mixed) == used(&old) || used(&mixed) == used(&new);
            prop_assert_eq!(number_node(&mixed).has_valid_checksum(), is_one);
            old.fill(u64::MAX);
            prop_assert!(number_node(&old).entry_count() <= entries_per_node(64), "garbage is bounded");
        }

        #[test]
        fn an_update_changes_the_sum_by_the_difference_of_terms(value in any::<u64>(), at in 0usize..3) {
            let mut words = leaf(&[(1, 10), (2, 20), (3, 30)], 32);
            let place = HEADER_WORDS + entries_per_node(32) + at;
            let sum = words[CHECKSUM_WORD_INDEX].wrapping_sub(checksum_term(place, words[place])).wrapping_add(checksum_term(place, value));
            words[place] = value;
            prop_assert_eq!(number_node(&words).checksum_of_words(), sum);
        }
    }
}
