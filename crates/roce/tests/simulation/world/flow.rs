//! One direction of a connection: the requester's memory, the responder's memory and receive queue, and the checks of
//! each call.

#![allow(clippy::cast_possible_truncation)] // messages and memory are far below 4 GiB

use std::collections::VecDeque;
use std::rc::Rc;

use roce::opcode::LastPacketField;
use roce::rc::requester::{LocalFault, LocalMemory, RequestOperation};
use roce::rc::responder::{AtomicOperation, Refusal, ResponderTarget};

use super::rng::Rng;
use super::work::{Expected, Generator, MEMORY_BYTES, Mix, RKEY, Work, address, word};

/// Limit of receive work requests in a receive queue.
const RECEIVE_QUEUE: u32 = 64;

pub(crate) struct Flow {
    generator: Generator,
    pattern: Rc<[u8]>,
    rng: Rng,
    fault: f64,
    is_unreliable: bool,
    /// Work requests that are posted and not done, preceded by done ones that may still be looked up.
    works: VecDeque<Work>,
    /// Position of the first work request in `works`.
    first: u64,
    posted: u64,
    /// The responder's memory.
    memory: Box<[u8]>,
    /// Number of posted receive work requests.
    receives: u32,
    /// Number of work requests that the responder has executed, in posting order.
    executed: u64,
    /// Bytes of the current message that have arrived; `offset_before`: those without its last packet.
    offset: u32,
    offset_before: u32,
    /// Receive buffer of an unreliable connection, with its contents.
    buffer: Vec<u8>,
    completed: u64,
    has_refused: bool,
    /// The first violated property.
    pub(crate) violation: Option<String>,
}

/// A deliberate fault in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// A READ with an invalid R_Key.
    BadRkey,
    /// A SEND whose payload cannot be read.
    Unreadable,
    /// The connection is cut: no packet arrives any more.
    Cut,
}

impl Flow {
    pub(crate) fn new(seed: u64, mix: Mix, fault: f64, pattern: Rc<[u8]>) -> Self {
        let memory: Box<[u8]> = pattern[..MEMORY_BYTES].into();
        Self {
            generator: Generator::new(seed, mix, &memory),
            pattern,
            rng: Rng::new(!seed),
            fault,
            is_unreliable: mix.is_unreliable,
            works: VecDeque::new(),
            first: 1,
            posted: 0,
            memory,
            receives: 4,
            executed: 0,
            offset: 0,
            offset_before: 0,
            buffer: Vec::new(),
            completed: 0,
            has_refused: false,
            violation: None,
        }
    }

    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns the position of the oldest work request that is not done.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number of messages that an unreliable connection has completed.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Generates and posts the next work request.
    pub(crate) fn post(&mut self, sabotage: Option<Sabotage>) -> &Work {
        self.posted += 1;
        let mut work = self.generator.work(self.posted, &self.pattern);
        match sabotage {
            Some(Sabotage::BadRkey) => {
                work.request.operation = RequestOperation::Read {
                    addr: 0,
                    rkey: super::work::BAD_RKEY,
                    len: 8,
                }
            }
            Some(Sabotage::Unreadable) => {
                work.request.operation = RequestOperation::Send {
                    len: 3000,
                    tail: LastPacketField::None,
                };
                work.is_unreadable = true;
                work.expected = Expected::Nothing;
            }
            Some(Sabotage::Cut) | None => {}
        }
        self.works.push_back(work);
        self.works.back().expect("just pushed")
    }

    /// Posts receive work requests at random times.
    pub(crate) fn refill(&mut self) {
        if self.receives < RECEIVE_QUEUE / 4 && self.rng.below(4) == 0 {
            self.receives += self.rng.below(RECEIVE_QUEUE);
        }
    }

    /// Checks and removes the work requests up to `done`, which the requester reports as done.
    pub(crate) fn settle(&mut self, done: u64) {
        if self.is_unreliable {
            return;
        }
        self.skip_invisible();
        if self.executed < done {
            let executed = self.executed;
            self.blame(format!("{done} done, but {executed} executed"));
        }
        while self.first <= done {
            let Some(work) = self.works.pop_front() else {
                self.blame(format!("{done} done, but fewer posted"));
                return;
            };
            let result = match (&work.expected, work.request.operation) {
                (_, RequestOperation::Read { len, .. }) => len,
                (Expected::Bytes(bytes), _) => bytes.len() as u32,
                _ => 0,
            };
            if work.received != result {
                let (position, received) = (self.first, work.received);
                self.blame(format!("{position} done with {received} of {result} bytes"));
            }
            self.first += 1;
        }
    }

    /// Checks the responder's memory after all work requests are done.
    pub(crate) fn finish(&mut self) {
        if !self.is_unreliable && !self.generator.agrees_with(&self.memory) {
            self.blame("the memory differs in the end".into());
        }
    }

    fn blame(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }

    fn work(&self, position: u64) -> Option<&Work> {
        let index = position.checked_sub(self.first)?;
        self.works.get(usize::try_from(index).ok()?)
    }

    fn payload(&self, work: &Work) -> &[u8] {
        &self.pattern[work.payload..work.payload + work.payload_bytes() as usize]
    }

    fn skip_invisible(&mut self) {
        while self.offset == 0 && self.work(self.executed + 1).is_some_and(Work::is_invisible) {
            self.executed += 1;
        }
    }

    /// Returns the work request that the responder is executing.
    fn current(&mut self) -> Option<&Work> {
        self.skip_invisible();
        if self.has_refused {
            self.blame("executed behind an error".into());
        }
        let position = self.executed + 1;
        if self.work(position).is_none() {
            self.blame(format!("{position} executed, which was not posted"));
        }
        self.work(position)
    }

    fn execute(&mut self) {
        self.executed += 1;
        self.offset = 0;
        self.offset_before = 0;
    }

    fn expect(&mut self, is_right: bool, call: &str) {
        if !is_right {
            let (position, offset) = (self.executed + 1, self.offset);
            self.blame(format!(
                "{call} does not belong to {position} at byte {offset}"
            ));
        }
    }

    /// Checks a part of a message, and counts its bytes.
    fn place(&mut self, offset: u32, bytes: &[u8], is_write: bool) {
        let Some(work) = self.current() else { return };
        let is_write_due = matches!(work.request.operation, RequestOperation::Write { .. });
        let is_send_due = matches!(work.request.operation, RequestOperation::Send { .. });
        let range = address(u64::from(offset), bytes.len() as u32);
        let (is_due, len) = (
            if is_write { is_write_due } else { is_send_due },
            work.payload_bytes(),
        );
        let is_right = range.end <= len as usize
            && self
                .work(self.executed + 1)
                .map(|work| &self.payload(work)[range])
                == Some(bytes);
        self.expect(is_due && is_right && offset == self.offset, "a part");
        self.offset_before = self.offset;
        self.offset = offset + bytes.len() as u32;
    }

    /// Takes receive work requests that `try_begin_receive` has reported, as another queue pair of the shared receive
    /// queue may do.
    fn steal_receive(&mut self) {
        if !self.is_unreliable && self.rng.chance(self.fault) {
            self.receives = self.receives.saturating_sub(1 + self.rng.below(2));
        }
    }

    /// Checks a message of an unreliable connection, identified by its immediate data.
    fn complete_unreliable(&mut self, by_write: Option<u32>, tail: LastPacketField) {
        let LastPacketField::Imm(name) = tail else {
            self.blame("a message without its name".into());
            return;
        };
        let position = u64::from(u32::from_be_bytes(name));
        if position <= self.executed {
            let last = self.executed;
            self.blame(format!("{position} completes behind {last}"));
        }
        self.executed = position;
        self.completed += 1;
        let Some(work) = self.work(position) else {
            self.blame(format!("{position} completes, which was not posted"));
            return;
        };
        let payload = self.payload(work);
        let is_right = match (by_write, work.request.operation) {
            (None, RequestOperation::Send { .. }) => payload == &self.buffer[..],
            (Some(len), RequestOperation::Write { addr, .. }) => {
                len as usize == payload.len() && payload == &self.memory[address(addr, len)]
            }
            _ => false,
        };
        if !is_right {
            self.blame(format!("{position} completes with other bytes"));
        }
    }
}

impl LocalMemory for Flow {
    fn read_payload(
        &mut self,
        position: u64,
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), LocalFault> {
        let Some(work) = self.work(position) else {
            self.blame(format!(
                "payload of {position} is read, which is not posted"
            ));
            return Err(LocalFault);
        };
        // Only the last packet cannot be read; the packets in front of it are sent.
        if work.is_unreadable && offset as usize + into.len() == work.payload_bytes() as usize {
            return Err(LocalFault);
        }
        let start = work.payload + offset as usize;
        into.copy_from_slice(&self.pattern[start..start + into.len()]);
        Ok(())
    }

    fn write_read_or_atomic_result(
        &mut self,
        position: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalFault> {
        let range = address(u64::from(offset), bytes.len() as u32);
        let is_right = self.work(position).is_some_and(|work| {
            let expected = match &work.expected {
                Expected::Nothing => None,
                Expected::Constant(addr) => {
                    let shift = usize::try_from(*addr).unwrap_or(0);
                    self.pattern.get(range.start + shift..range.end + shift)
                }
                Expected::Bytes(expected) => expected.get(range),
            };
            offset == work.received && expected == Some(bytes)
        });
        if !is_right {
            self.blame(format!("a wrong result of {position} at byte {offset}"));
        }
        let index = position.wrapping_sub(self.first) as usize;
        if let Some(work) = self.works.get_mut(index) {
            work.received += bytes.len() as u32;
        }
        Ok(())
    }
}

impl ResponderTarget for Flow {
    fn try_begin_receive(&mut self) -> bool {
        self.buffer.clear();
        self.receives > 0
    }

    fn write_to_receive_buffers(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        if self.is_unreliable {
            self.buffer.truncate(offset as usize);
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.place(offset, bytes, false);
        Ok(())
    }

    fn finish_receive(
        &mut self,
        by_write: Option<u32>,
        tail: LastPacketField,
        solicited: bool,
    ) -> Result<(), Refusal> {
        self.steal_receive();
        let Some(receives) = self.receives.checked_sub(1) else {
            self.offset = self.offset_before;
            return Err(Refusal::NotReady);
        };
        self.receives = receives;
        if self.is_unreliable {
            self.complete_unreliable(by_write, tail);
            self.buffer.clear();
            return Ok(());
        }
        let offset = self.offset;
        let Some(work) = self.current() else {
            return Ok(());
        };
        let is_right = solicited == work.request.solicited
            && match (by_write, work.request.operation) {
                (None, RequestOperation::Send { len, tail: due }) => len == offset && tail == due,
                (Some(written), RequestOperation::Write { len, imm, .. }) => {
                    written == len && len == offset && imm.map(LastPacketField::Imm) == Some(tail)
                }
                _ => false,
            };
        self.expect(is_right, "a completion");
        self.execute();
        Ok(())
    }

    fn check_write(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        check(addr, rkey, len)
    }

    fn write_memory(&mut self, addr: u64, _rkey: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.memory[address(addr, bytes.len() as u32)].copy_from_slice(bytes);
        if self.is_unreliable {
            return Ok(());
        }
        let Some(work) = self.current() else {
            return Ok(());
        };
        let RequestOperation::Write {
            addr: start,
            len,
            imm,
            ..
        } = work.request.operation
        else {
            self.expect(false, "a write");
            return Ok(());
        };
        let offset = addr.wrapping_sub(start) as u32;
        self.place(offset, bytes, true);
        if self.offset == len && imm.is_none() {
            self.execute();
        }
        Ok(())
    }

    fn check_read(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        let checked = check(addr, rkey, len);
        self.has_refused |= checked.is_err();
        checked
    }

    fn read_memory(&mut self, addr: u64, _rkey: u32, into: &mut [u8]) -> Result<(), Refusal> {
        into.copy_from_slice(&self.memory[address(addr, into.len() as u32)]);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        addr: u64,
        _rkey: u32,
        atomic: AtomicOperation,
    ) -> Result<u64, Refusal> {
        let original = word(&self.memory, addr);
        let stored = match atomic {
            AtomicOperation::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOperation::CompareSwap { .. } => original,
            AtomicOperation::FetchAdd { add } => original.wrapping_add(add),
            AtomicOperation::Write(bytes) => u64::from_ne_bytes(bytes),
        };
        self.memory[address(addr, 8)].copy_from_slice(&stored.to_ne_bytes());
        let Some(work) = self.current() else {
            return Ok(original);
        };
        let is_right = match work.request.operation {
            RequestOperation::CompareSwap {
                compare,
                swap,
                addr: due,
                ..
            } => due == addr && atomic == AtomicOperation::CompareSwap { compare, swap },
            RequestOperation::FetchAdd { add, addr: due, .. } => {
                due == addr && atomic == AtomicOperation::FetchAdd { add }
            }
            RequestOperation::AtomicWrite { addr: due, .. } => {
                due == addr && matches!(atomic, AtomicOperation::Write(_))
            }
            _ => false,
        };
        self.expect(is_right, "an atomic");
        self.execute();
        Ok(original)
    }

    fn execute_flush(
        &mut self,
        addr: u64,
        rkey: u32,
        len: u32,
        placement: u8,
        selectivity: u8,
    ) -> Result<(), Refusal> {
        let flush = RequestOperation::Flush {
            addr,
            rkey,
            len,
            placement,
            selectivity,
        };
        let is_right = self
            .current()
            .is_some_and(|work| work.request.operation == flush);
        self.expect(is_right, "a FLUSH");
        self.execute();
        Ok(())
    }
}

fn check(addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
    let fits = address(addr, len).end <= MEMORY_BYTES;
    if rkey == RKEY && fits {
        Ok(())
    } else {
        Err(Refusal::RemoteAccess)
    }
}
