//! The function that this crate's fuzz target runs, and the replay of its corpus.

use crate::key_or_value::{ByteString, KeyOrValue, NumberSizes, StringSizes};
use crate::node::{LEVEL_FLAGS_COUNT_INDEX, MIN_NODE_BYTES, NextStep, Node, NodeShape};
use crate::node_words::NodeWords;
use crate::wire::{Answer, Operation, key_and_tree_of_request};

/// Words of a node of the smallest size.
const NODE_WORDS: usize = MIN_NODE_BYTES / 8;
/// Largest number of nodes that a walk visits, as in a client.
const MAX_VISITED_NODES: usize = 40;
/// Limits with which a node of the smallest size has room for a few entries.
const SIZES: StringSizes = StringSizes {
    key_bytes: 11,
    value_bytes: 8,
};

/// Reads any bytes as a request, as an answer, and as a key followed by nodes in which a client looks for it; each with
/// numbers and with byte strings.
///
/// # Panics
/// If a decoded request does not survive encoding, an answer has more entries than bytes, or a search leaves its node.
pub fn check_messages_and_walk_of_any_bytes(bytes: &[u8]) {
    check_request_decoding::<u64>(bytes);
    check_request_decoding::<ByteString>(bytes);
    check_answer_decoding::<u64>(bytes, 16);
    check_answer_decoding::<ByteString>(bytes, 4);
    if let Some((key, nodes)) = bytes.split_first_chunk::<8>() {
        check_walk_through_any_nodes(u64::from_le_bytes(*key), NumberSizes, nodes);
        let key = key.strip_suffix(b"\0").unwrap_or(key);
        check_walk_through_any_nodes(ByteString::new(key).unwrap_or_default(), SIZES, nodes);
    }
}

/// Decodes the bytes as a server does.
fn check_request_decoding<T: KeyOrValue>(bytes: &[u8]) {
    let Some((op, tree, number)) = Operation::<T>::decode(bytes) else {
        return;
    };
    if op != Operation::ReadServerLoad {
        assert_eq!(key_and_tree_of_request(bytes), Some((op.key(), tree)));
    }
    let (again, length) = op.encode(tree, number);
    let again = Operation::decode(&again.as_ref()[..length]);
    assert_eq!(again, Some((op, tree, number)));
}

/// Decodes the bytes as a client does.
fn check_answer_decoding<T: KeyOrValue>(bytes: &[u8], min_entry_bytes: usize) {
    if let Some(answer) = Answer::<T>::decode(bytes) {
        let mut places = vec![Default::default(); bytes.len()];
        assert!(answer.copy_entries_to(&mut places) <= bytes.len() / min_entry_bytes);
        assert!(answer.first_entry_number.max(answer.total_entries) < 1 << 16);
        let _ = answer.moved_range();
    }
}

/// Walks from the first node to a leaf through nodes with any contents. A node's number is its position, from 1 on.
fn check_walk_through_any_nodes<T: KeyOrValue>(key: T, sizes: T::Sizes, bytes: &[u8]) {
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect();
    let nodes: Vec<&[u64]> = words.chunks_exact(NODE_WORDS).collect();
    let Some(root) = nodes.first().map(|words| Node::<_, T>(*words, sizes)) else {
        return;
    };
    let (tree, mut level) = (root.0.word(crate::node::TREE_WORD_INDEX), root.level());
    let mut number = 1;
    for _ in 0..MAX_VISITED_NODES {
        let place = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        let Some(words) = place.and_then(|place| nodes.get(place)) else {
            return;
        };
        let node = Node::<_, T>(*words, sizes);
        check_searches(node, key);
        match node.next_walk_step(&key, tree, level) {
            NextStep::Child(child) => {
                assert!(level > 0, "a leaf has no children");
                (number, level) = (child, level - 1);
            }
            NextStep::Sibling(right) => number = right,
            NextStep::Leaf => {
                assert!(level == 0 && !node.is_dead());
                // A SCAN that continues at the node's end makes progress.
                assert!(node.key_upper_bound().is_none_or(|end| end > key));
                return;
            }
            NextStep::Restart => return,
        }
    }
}

/// Checks that searches stay within their node.
fn check_searches<T: KeyOrValue>(node: Node<'_, [u64], T>, key: T) {
    let count = node.entry_count();
    let shape = NodeShape::<T> {
        words_per_node: NODE_WORDS,
        key_and_value_limits: node.1,
    };
    assert!(count <= shape.entry_capacity(node.level()));
    assert!(shape.payload_word_index(node.level(), count) <= NODE_WORDS);
    assert!(node.count_keys_up_to(&key) <= count);
    match node.find(&key) {
        Ok(place) => {
            assert!(place < count && node.key(place) == key);
            let _ = node.value(place);
        }
        Err(place) => assert!(place <= count),
    }
    // A change of a word that describes the node must invalidate the checksum.
    if node.has_valid_checksum() {
        let mut other = node.0.to_vec();
        other[LEVEL_FLAGS_COUNT_INDEX] ^= 1 << 40;
        assert!(!Node::<_, T>(&other[..], node.1).has_valid_checksum());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn the_corpus_of_btree_messages_is_replayed() {
        corpus::replay(
            "btree_messages",
            super::check_messages_and_walk_of_any_bytes,
        );
    }

    proptest! {
        /// The words that describe a node get small numbers, so that more walks continue than with random bytes.
        #[test]
        fn nodes_that_say_anything_are_walked(
            key in 0u64..40, words in proptest::collection::vec(0u64..40, 0..200), flags in any::<u64>(),
        ) {
            let mut bytes = u64::to_le_bytes(key).to_vec();
            for (i, word) in words.into_iter().enumerate() {
                let word = match i % super::NODE_WORDS {
                    crate::node::LEVEL_FLAGS_COUNT_INDEX => word & 15 | (word & 16) << 28 | (flags >> (i / super::NODE_WORDS) & 1) << 17,
                    crate::node::TREE_WORD_INDEX => word & 1,
                    _ => word,
                };
                bytes.extend(word.to_le_bytes());
            }
            super::check_messages_and_walk_of_any_bytes(&bytes);
        }
    }
}
