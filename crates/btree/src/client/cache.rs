//! Inner nodes that a client keeps. What is kept may be old: who walks finds out by the fences of the leaf.

use crate::node::{META, Node, Words};

/// Nodes by their numbers: a number has one place, where the last one of that place is kept.
#[derive(Debug)]
pub(super) struct Cache {
    node_words: usize,
    /// Numbers of the nodes that are there; 0 for none.
    numbers: Box<[u64]>,
    words: Vec<u64>,
    /// The root of each tree with its level, as far as it is known.
    roots: Vec<Option<(u64, u16)>>,
}

impl Cache {
    /// Room for so many nodes, which may be none.
    pub(super) fn new(nodes: usize, node_words: usize, trees: usize) -> Self {
        Self {
            node_words,
            numbers: vec![0; nodes].into(),
            // Taken from the system as it is used.
            words: vec![0; nodes * node_words],
            roots: vec![None; trees],
        }
    }

    pub(super) fn root(&self, tree: u8) -> Option<(u64, u16)> {
        self.roots.get(usize::from(tree)).copied().flatten()
    }

    pub(super) fn set_root(&mut self, tree: u8, root: Option<(u64, u16)>) {
        if let Some(place) = self.roots.get_mut(usize::from(tree)) {
            *place = root;
        }
    }

    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        let nodes = self.numbers.len();
        #[expect(clippy::cast_possible_truncation, reason = "below the length")]
        let place = number.checked_rem(nodes as u64)? as usize;
        Some(place)
    }

    /// A node, if it is kept.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<Node<'_, [u64]>> {
        let place = self.place(number).filter(|p| self.numbers[*p] == number)?;
        let start = place * self.node_words;
        Some(Node(&self.words[start..start + self.node_words]))
    }

    /// Keeps an inner node.
    pub(super) fn keep<W: Words + ?Sized>(&mut self, number: u64, node: Node<'_, W>) {
        let Some(place) = self.place(number).filter(|_| number != 0) else {
            return;
        };
        self.numbers[place] = number;
        let start = place * self.node_words;
        let into = &mut self.words[start..start + self.node_words];
        for (i, word) in into.iter_mut().enumerate() {
            *word = node.0.word(i);
        }
        debug_assert!(into[META] >> 32 > 0, "leaves change too often to be kept");
    }

    /// Forgets a node that turned out to be old.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(place) = self.place(number).filter(|p| self.numbers[*p] == number) {
            self.numbers[place] = 0;
        }
    }
}
