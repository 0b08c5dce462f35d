//! The sequence of verbs that both programs execute, and their data.

use Verb::{
    CompareSwap, FetchAdd, Read as ReadVerb, Send, SendImm, SendInv, Write as WriteVerb, WriteImm,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

pub(crate) const VERBS: [Verb; 8] = [
    Send,
    SendImm,
    SendInv,
    WriteVerb,
    WriteImm,
    ReadVerb,
    FetchAdd,
    CompareSwap,
];

impl Verb {
    pub(crate) fn needs_recv(self) -> bool {
        matches!(self, Send | SendImm | SendInv | WriteImm)
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, FetchAdd | CompareSwap)
    }
}

pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

pub(crate) fn seed_of(step: u64, from_responder: bool) -> u64 {
    mix(step.wrapping_mul(2).wrapping_add(u64::from(from_responder)))
}

pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).map(|word| mix(seed.wrapping_add(word * 8)));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) verb: Verb,
    pub(crate) id: u64,
    pub(crate) seed: u64,
    pub(crate) local: usize,
    pub(crate) remote: usize,
    pub(crate) length: usize,
    pub(crate) key: u32,
}
