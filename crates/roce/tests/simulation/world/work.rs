//! Random work requests for one direction of a connection, and their expected results.

use roce::opcode::LastPacketField;
use roce::rc::requester::{Request, RequestOperation};

use super::rng::Rng;

/// The R_Key of all valid memory.
pub(crate) const RKEY: u32 = 0x1234_5600;
/// An invalid R_Key.
pub(crate) const BAD_RKEY: u32 = 0x6666;

/// Areas of the responder's memory: one for WRITEs, one that is never written, and words for atomics.
pub(crate) const WRITTEN: u64 = 0;
pub(crate) const WRITTEN_BYTES: u32 = 32 << 10;
pub(crate) const CONSTANT: u64 = 32 << 10;
pub(crate) const CONSTANT_BYTES: u32 = 32 << 10;
pub(crate) const WORDS: u64 = 64 << 10;
pub(crate) const WORD_COUNT: u32 = 8;
pub(crate) const MEMORY_BYTES: usize = (64 << 10) + 64;

/// Size of the pattern from which payloads are taken.
pub(crate) const PATTERN_BYTES: usize = 128 << 10;

/// A work request.
pub(crate) struct Work {
    pub(crate) request: Request,
    /// Start of the payload in the pattern.
    pub(crate) payload: usize,
    /// The expected result.
    pub(crate) expected: Expected,
    /// Bytes of the result that have arrived.
    pub(crate) received: u32,
    /// True if the payload cannot be read.
    pub(crate) is_unreadable: bool,
}

/// The expected result of a work request.
pub(crate) enum Expected {
    Nothing,
    /// The bytes of the responder's constant area from this address on.
    Constant(u64),
    Bytes(Box<[u8]>),
}

impl Work {
    /// Returns the number of bytes sent to the responder.
    pub(crate) fn payload_bytes(&self) -> u32 {
        match self.request.operation {
            RequestOperation::Send { len, .. } | RequestOperation::Write { len, .. } => len,
            RequestOperation::AtomicWrite { .. } => 8,
            _ => 0,
        }
    }

    /// Returns true if the responder's execution of the work request cannot be observed.
    pub(crate) fn is_invisible(&self) -> bool {
        matches!(
            self.request.operation,
            RequestOperation::Read { .. }
                | RequestOperation::Write {
                    len: 0,
                    imm: None,
                    ..
                }
        )
    }
}

/// The parameters of the generated work requests.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) mtu_bytes: u32,
    /// True for unreliable connections: only SENDs and WRITEs with immediate, whose immediate data identifies them.
    pub(crate) is_unreliable: bool,
}

/// A generator of work requests, with a model of the responder's memory after all of them.
pub(crate) struct Generator {
    rng: Rng,
    mix: Mix,
    model: Box<[u8]>,
    /// A READ of the area for WRITEs was generated, so the next request needs a fence.
    must_fence: bool,
}

impl Generator {
    pub(crate) fn new(seed: u64, mix: Mix, memory: &[u8]) -> Self {
        Self {
            rng: Rng::new(seed),
            mix,
            model: memory.into(),
            must_fence: false,
        }
    }

    fn len(&mut self) -> u32 {
        let mtu = self.mix.mtu_bytes;
        match self.rng.below(16) {
            0 => 0,
            1 => mtu,
            2 => mtu + 1,
            3 => mtu * 2 - 1,
            4 => self.rng.below(6 * mtu),
            5 if self.rng.below(4) == 0 => self.rng.below(WRITTEN_BYTES),
            _ => 1 + self.rng.below(64),
        }
        .min(WRITTEN_BYTES)
    }

    /// Returns a random range in an area.
    fn range(&mut self, area: u64, bytes: u32) -> (u64, u32) {
        let len = self.len();
        (area + u64::from(self.rng.below(bytes - len + 1)), len)
    }

    /// Generates the work request at `position`.
    pub(crate) fn work(&mut self, position: u64, pattern: &[u8]) -> Work {
        let payload = self.rng.index(PATTERN_BYTES - WRITTEN_BYTES as usize);
        #[allow(clippy::cast_possible_truncation)] // the lower half identifies the work request.
        let name = (position as u32).to_be_bytes();
        let kind = self.rng.below(if self.mix.is_unreliable { 2 } else { 10 });
        let (operation, expected) = match kind {
            0 | 6 => (self.send(name), Expected::Nothing),
            1 | 7 => (self.write(name, payload, pattern), Expected::Nothing),
            2 | 8 => self.read(),
            9 => self.read_written(),
            3 => self.atomic(),
            4 => {
                let addr = self.word();
                let bytes = &pattern[payload..payload + 8];
                self.model[address(addr, 8)].copy_from_slice(bytes);
                (
                    RequestOperation::AtomicWrite { addr, rkey: RKEY },
                    Expected::Nothing,
                )
            }
            _ => {
                let (addr, len) = self.range(CONSTANT, CONSTANT_BYTES);
                let (rkey, placement, selectivity) = (RKEY, 1, 0);
                let flush = RequestOperation::Flush {
                    addr,
                    rkey,
                    len,
                    placement,
                    selectivity,
                };
                (flush, Expected::Nothing)
            }
        };
        let fence = std::mem::take(&mut self.must_fence) || self.rng.below(32) == 0;
        self.must_fence = kind == 9;
        Work {
            request: Request {
                operation,
                solicited: self.rng.below(2) == 0,
                fence,
            },
            payload,
            expected,
            received: 0,
            is_unreadable: false,
        }
    }

    fn send(&mut self, name: [u8; 4]) -> RequestOperation {
        let len = self.len();
        let kinds = if self.mix.is_unreliable { 1 } else { 3 };
        let tail = match self.rng.below(kinds) {
            0 => LastPacketField::Imm(name),
            1 => LastPacketField::Invalidate(u32::from_be_bytes(name)),
            _ => LastPacketField::None,
        };
        RequestOperation::Send { len, tail }
    }

    fn write(&mut self, name: [u8; 4], payload: usize, pattern: &[u8]) -> RequestOperation {
        let (addr, len) = self.range(WRITTEN, WRITTEN_BYTES);
        self.model[address(addr, len)].copy_from_slice(&pattern[payload..payload + len as usize]);
        let has_imm = self.mix.is_unreliable || self.rng.below(2) == 0;
        RequestOperation::Write {
            addr,
            rkey: RKEY,
            len,
            imm: has_imm.then_some(name),
        }
    }

    fn read(&mut self) -> (RequestOperation, Expected) {
        let (addr, len) = self.range(CONSTANT, CONSTANT_BYTES);
        let rkey = RKEY;
        (
            RequestOperation::Read { addr, rkey, len },
            Expected::Constant(addr),
        )
    }

    fn read_written(&mut self) -> (RequestOperation, Expected) {
        let (addr, len) = self.range(WRITTEN, WRITTEN_BYTES);
        let rkey = RKEY;
        let bytes = self.model[address(addr, len)].into();
        (
            RequestOperation::Read { addr, rkey, len },
            Expected::Bytes(bytes),
        )
    }

    fn word(&mut self) -> u64 {
        WORDS + 8 * u64::from(self.rng.below(WORD_COUNT))
    }

    fn atomic(&mut self) -> (RequestOperation, Expected) {
        let addr = self.word();
        let rkey = RKEY;
        let value = word(&self.model, addr);
        let operand = self.rng.next();
        let (operation, stored) = if self.rng.below(2) == 0 {
            let add = operand;
            let operation = RequestOperation::FetchAdd { addr, rkey, add };
            (operation, value.wrapping_add(add))
        } else {
            let compare = if self.rng.below(2) == 0 {
                value
            } else {
                operand
            };
            let swap = operand.rotate_left(9);
            let operation = RequestOperation::CompareSwap {
                addr,
                rkey,
                compare,
                swap,
            };
            (operation, if compare == value { swap } else { value })
        };
        self.model[address(addr, 8)].copy_from_slice(&stored.to_ne_bytes());
        (operation, Expected::Bytes(Box::new(value.to_ne_bytes())))
    }

    /// Returns true if `memory` has the contents that all work requests produce.
    pub(crate) fn agrees_with(&self, memory: &[u8]) -> bool {
        *self.model == *memory
    }
}

/// Returns the index range of `len` bytes at an address.
pub(crate) fn address(addr: u64, len: u32) -> std::ops::Range<usize> {
    let start = usize::try_from(addr).unwrap_or(usize::MAX);
    start..start.saturating_add(len as usize)
}

/// Returns the word at an address.
pub(crate) fn word(memory: &[u8], addr: u64) -> u64 {
    u64::from_ne_bytes(memory[address(addr, 8)].try_into().unwrap_or_default())
}
