//! Memory and receive work requests of the queue pair.

use std::collections::VecDeque;

use roce::opcode::LastPacketField;
use roce::rc::requester::{LocalFault, LocalMemory};
use roce::rc::responder::{AtomicOperation, Refusal, ResponderTarget};

/// Bytes of the area that peers write and read, and of the area from which this side sends.
pub(crate) const AREA: usize = 8 << 20;
/// R_Key of the area.
pub(crate) const RKEY: u32 = 0x5a5a_1234;
/// Address of the area, as peers use it.
pub(crate) const BASE: u64 = 0x7000_0000_0000;

/// The area from which requests send, with the place of each posted request's payload.
pub(crate) struct Local {
    pub(crate) area: Vec<u8>,
    pub(crate) places: Vec<usize>,
}

impl Local {
    fn range(&self, position: u64, offset: u32, length: usize) -> Option<std::ops::Range<usize>> {
        let place = self
            .places
            .get(usize::try_from(position).ok()?.checked_sub(1)?)?;
        let start = place + offset as usize;
        (start + length <= AREA).then_some(start..start + length)
    }
}

impl LocalMemory for Local {
    fn read_payload(
        &mut self,
        position: u64,
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), LocalFault> {
        let range = self.range(position, offset, into.len()).ok_or(LocalFault)?;
        into.copy_from_slice(&self.area[range]);
        Ok(())
    }

    fn write_read_or_atomic_result(
        &mut self,
        position: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalFault> {
        let range = self
            .range(position, offset, bytes.len())
            .ok_or(LocalFault)?;
        self.area[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// A posted receive work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) place: usize,
    pub(crate) length: usize,
}

pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) length: usize,
    pub(crate) by_write: bool,
    pub(crate) tail: LastPacketField,
}

pub(crate) struct Remote {
    pub(crate) area: Vec<u8>,
    pub(crate) posted: VecDeque<Receive>,
    pub(crate) current: Option<Receive>,
    pub(crate) completions: VecDeque<Completion>,
}

impl Remote {
    fn range(&self, addr: u64, rkey: u32, len: usize) -> Result<std::ops::Range<usize>, Refusal> {
        let start = addr
            .checked_sub(BASE)
            .and_then(|at| usize::try_from(at).ok());
        match start {
            Some(start) if rkey == RKEY && start + len <= AREA => Ok(start..start + len),
            _ => Err(Refusal::RemoteAccess),
        }
    }
}

impl ResponderTarget for Remote {
    fn try_begin_receive(&mut self) -> bool {
        if self.current.is_none() {
            self.current = self.posted.pop_front();
        }
        self.current.is_some()
    }

    fn write_to_receive_buffers(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        let current = self.current.as_mut().ok_or(Refusal::RemoteOperational)?;
        let start = current.place + offset as usize;
        current.length = offset as usize + bytes.len();
        let place = self.area.get_mut(start..start + bytes.len());
        place.ok_or(Refusal::InvalidRequest)?.copy_from_slice(bytes);
        Ok(())
    }

    fn finish_receive(
        &mut self,
        by_write: Option<u32>,
        tail: LastPacketField,
        _: bool,
    ) -> Result<(), Refusal> {
        let current = self.current.take().ok_or(Refusal::RemoteOperational)?;
        self.completions.push_back(Completion {
            id: current.id,
            length: by_write.map_or(current.length, |length| length as usize),
            by_write: by_write.is_some(),
            tail,
        });
        Ok(())
    }

    fn check_write(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        self.range(addr, rkey, len as usize).map(drop)
    }

    fn write_memory(&mut self, addr: u64, rkey: u32, bytes: &[u8]) -> Result<(), Refusal> {
        let range = self.range(addr, rkey, bytes.len())?;
        self.area[range].copy_from_slice(bytes);
        Ok(())
    }

    fn check_read(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        self.range(addr, rkey, len as usize).map(drop)
    }

    fn read_memory(&mut self, addr: u64, rkey: u32, into: &mut [u8]) -> Result<(), Refusal> {
        let range = self.range(addr, rkey, into.len())?;
        into.copy_from_slice(&self.area[range]);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        addr: u64,
        rkey: u32,
        atomic: AtomicOperation,
    ) -> Result<u64, Refusal> {
        let range = self.range(addr, rkey, 8)?;
        let word = word_at(&self.area, range.start);
        let new = match atomic {
            AtomicOperation::CompareSwap { compare, swap } if word == compare => swap,
            AtomicOperation::CompareSwap { .. } => word,
            AtomicOperation::FetchAdd { add } => word.wrapping_add(add),
            AtomicOperation::Write(bytes) => u64::from_le_bytes(bytes),
        };
        self.area[range].copy_from_slice(&new.to_le_bytes());
        Ok(word)
    }

    fn execute_flush(&mut self, _: u64, _: u32, _: u32, _: u8, _: u8) -> Result<(), Refusal> {
        Err(Refusal::InvalidRequest)
    }
}

pub(crate) fn word_at(area: &[u8], at: usize) -> u64 {
    area[at..]
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
