//! What the fuzz target of this crate runs, and the replay of its corpus.

use crate::node::{META, MIN_NODE_BYTES, Next, Node, Words, capacity};
use crate::wire::{Answer, ENTRY, Op, place_of};

/// Words of a node: of the smallest.
const NODE_WORDS: usize = MIN_NODE_BYTES / 8;
/// Nodes that a walk looks at before it gives up, as a client does.
const MOST_NODES: usize = 40;

/// Any bytes as a request, as an answer, and as a key with nodes in which a client looks for it.
///
/// # Panics
/// If a request does not come out as it went in, an answer has more entries than bytes, or a search leaves its node.
pub fn messages(bytes: &[u8]) {
    request(bytes);
    answer(bytes);
    if let Some((key, nodes)) = bytes.split_first_chunk::<8>() {
        walk(u64::from_le_bytes(*key), nodes);
    }
}

/// A server's view.
fn request(bytes: &[u8]) {
    let Some((op, tree, number)) = Op::decode(bytes) else {
        return;
    };
    if op != Op::Load {
        assert_eq!(place_of(bytes), Some((op.key(), tree)));
    }
    let (again, length) = op.encode(tree, number);
    assert_eq!(Op::decode(&again[..length]), Some((op, tree, number)));
}

/// A client's view.
fn answer(bytes: &[u8]) {
    if let Some(answer) = Answer::decode(bytes) {
        assert!(answer.entries().count() <= bytes.len() / ENTRY);
        assert!(answer.first.max(answer.count) < 1 << 16);
    }
}

/// Goes from the first node to a leaf, through nodes that say whatever they say. Numbers of nodes are places, from 1 on.
fn walk(key: u64, bytes: &[u8]) {
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect();
    let nodes: Vec<&[u64]> = words.chunks_exact(NODE_WORDS).collect();
    let Some(root) = nodes.first().map(|words| Node(*words)) else {
        return;
    };
    let (tree, mut level) = (root.0.word(crate::node::TREE), root.level());
    let mut number = 1;
    for _ in 0..MOST_NODES {
        let place = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        let Some(node) = place.and_then(|place| nodes.get(place)).map(|n| Node(*n)) else {
            return;
        };
        look(node, key);
        match node.next(key, tree, level) {
            Next::Child(child) => {
                assert!(level > 0, "a leaf has no children");
                (number, level) = (child, level - 1);
            }
            Next::Sibling(right) => number = right,
            Next::Here => {
                assert!(level == 0 && !node.is_dead());
                // Where a SCAN goes on, it gets on.
                assert!(node.end().is_none_or(|end| end > key));
                return;
            }
            Next::Lost => return,
        }
    }
}

/// Searches stay in their node.
fn look(node: Node<'_, [u64]>, key: u64) {
    let count = node.count();
    assert!(count <= capacity(NODE_WORDS));
    assert!(node.rank(key) <= count);
    match node.find(key) {
        Ok(place) => {
            assert!(place < count && node.key(place) == key);
            let _ = node.value(place);
        }
        Err(place) => assert!(place <= count),
    }
    // A change of the lock or of a word that is not in use does not matter; one of the words that describe it does.
    if node.is_whole() {
        let mut other = node.0.to_vec();
        other[META] ^= 1 << 40;
        assert!(!Node(&other[..]).is_whole());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn the_corpus_of_btree_messages_is_replayed() {
        corpus::replay("btree_messages", super::messages);
    }

    proptest! {
        /// Small numbers in the words that describe a node: more walks go on than with any bytes.
        #[test]
        fn nodes_that_say_anything_are_walked(
            key in 0u64..40, words in proptest::collection::vec(0u64..40, 0..200), flags in any::<u64>(),
        ) {
            let mut bytes = u64::to_le_bytes(key).to_vec();
            for (i, word) in words.into_iter().enumerate() {
                let word = match i % super::NODE_WORDS {
                    crate::node::META => word & 15 | (word & 16) << 28 | (flags >> (i / super::NODE_WORDS) & 1) << 17,
                    crate::node::TREE => word & 1,
                    _ => word,
                };
                bytes.extend(word.to_le_bytes());
            }
            super::messages(&bytes);
        }
    }
}
