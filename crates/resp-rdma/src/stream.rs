//! The state of a connection, without verbs: places for writes, arrivals, and messages to the peer.

use std::collections::VecDeque;

use crate::command::{Buffer, Command};
use crate::error::ProtocolError;

/// The most pending control messages. This end sends few on its own; the rest are answers to a peer
/// that requests answers but receives none.
const MAX_DUE: usize = 64;

/// The destination of a WRITE in the peer's memory. The WRITE's immediate is `len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes, at least 1.
    pub len: u32,
    /// The R_Key.
    pub rkey: u32,
}

/// One end of a byte stream. It holds no bytes: the caller moves them to and from the returned
/// places.
#[derive(Debug)]
pub struct Stream {
    own: Buffer,
    /// Bytes of the own buffer that have arrived, and that were read; `read <= filled <= own.len`.
    filled: u32,
    read: u32,
    /// True if the peer knows that the own buffer is empty and may be filled.
    told: bool,
    /// The peer's buffer, once announced.
    peer: Option<Buffer>,
    /// Bytes written to the peer's buffer; at most its length.
    written: u32,
    due: VecDeque<Command>,
}

impl Stream {
    /// Makes a stream whose receive buffer is `own`, of at least one byte. The first message to the
    /// peer announces the buffer.
    pub fn new(own: Buffer) -> Self {
        Self {
            own,
            filled: 0,
            read: 0,
            told: false,
            peer: None,
            written: 0,
            due: VecDeque::from([Command::RegisterXferMemory(own)]),
        }
    }

    /// Processes a control message from the peer.
    ///
    /// # Errors
    /// The errors of [`Command::decode`]; [`ProtocolError::Buffer`], [`ProtocolError::Flood`].
    pub fn on_command(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        match Command::decode(bytes)? {
            Command::GetServerFeature { select, .. } => self.tell(Command::GetServerFeature {
                select,
                features: 0,
            }),
            // Valkey's server accepts no features and does not answer.
            Command::SetClientFeature { .. } | Command::Keepalive => Ok(()),
            Command::RegisterXferMemory(buffer) => {
                let end = buffer.addr.checked_add(buffer.len.into());
                if buffer.len == 0 || end.is_none() {
                    let Buffer { addr, len, .. } = buffer;
                    return Err(ProtocolError::Buffer { addr, len });
                }
                self.peer = Some(buffer);
                self.written = 0;
                Ok(())
            }
        }
    }

    /// Processes a message with the immediate `imm`: `imm` more bytes of the own buffer have
    /// arrived. `len` is the length of the message itself, which may be the last of a group.
    ///
    /// # Errors
    /// [`ProtocolError::Overrun`], [`ProtocolError::Immediate`].
    pub fn on_data(&mut self, imm: u32, len: u32) -> Result<(), ProtocolError> {
        let left = if self.told {
            self.own.len - self.filled
        } else {
            0
        };
        if imm > left {
            return Err(ProtocolError::Overrun { imm, left });
        }
        if imm < len {
            return Err(ProtocolError::Immediate { imm, len });
        }
        self.filled += imm;
        Ok(())
    }

    /// Returns the bytes that have arrived and were not read: their offset in the own buffer, and
    /// their number.
    pub fn readable(&self) -> (u32, u32) {
        (self.read, self.filled - self.read)
    }

    /// Marks `bytes` as read. After the last byte of the buffer, the buffer is announced again.
    ///
    /// # Panics
    /// `bytes` exceeds the number of readable bytes.
    pub fn consume(&mut self, bytes: u32) {
        assert!(
            bytes <= self.filled - self.read,
            "{bytes} bytes are read of {}",
            self.filled - self.read
        );
        self.read += bytes;
        if self.read == self.own.len {
            (self.filled, self.read) = (0, 0);
            // Only one announcement is pending at a time: no byte arrives before it is sent.
            self.told = false;
            self.due.push_back(Command::RegisterXferMemory(self.own));
        }
    }

    /// Returns the number of bytes that may be written now.
    pub fn writable(&self) -> u32 {
        self.peer.map_or(0, |peer| peer.len - self.written)
    }

    /// Returns the place for at most `most` bytes to write; `None` if the peer's buffer is full or
    /// unknown.
    pub fn write(&mut self, most: u32) -> Option<Piece> {
        let peer = self.peer?;
        let len = most.min(peer.len - self.written);
        let addr = peer.addr + u64::from(self.written);
        self.written += len;
        (len > 0).then_some(Piece {
            addr,
            len,
            rkey: peer.rkey,
        })
    }

    /// Queues a keepalive message, unless another message is pending.
    pub fn keep_alive(&mut self) {
        if self.due.is_empty() {
            self.due.push_back(Command::Keepalive);
        }
    }

    /// Takes the next control message to send.
    pub fn next_command(&mut self) -> Option<Command> {
        let next = self.due.pop_front();
        self.told |= matches!(next, Some(Command::RegisterXferMemory(_)));
        next
    }

    /// Returns true if a control message is pending.
    pub fn has_command(&self) -> bool {
        !self.due.is_empty()
    }

    fn tell(&mut self, command: Command) -> Result<(), ProtocolError> {
        if self.due.len() >= MAX_DUE {
            return Err(ProtocolError::Flood(MAX_DUE));
        }
        self.due.push_back(command);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Buffer = Buffer {
        addr: 0x1000,
        len: 100,
        rkey: 1,
    };

    fn register(addr: u64, len: u32) -> [u8; 32] {
        Command::RegisterXferMemory(Buffer { addr, len, rkey: 9 }).encode()
    }

    /// Returns a stream that has announced its buffer.
    fn open() -> Stream {
        let mut stream = Stream::new(OWN);
        let first = stream.next_command();
        assert_eq!(first, Some(Command::RegisterXferMemory(OWN)));
        assert_eq!(stream.next_command(), None);
        stream
    }

    #[test]
    fn nothing_is_written_before_the_peer_has_a_buffer() {
        let mut stream = open();
        assert_eq!((stream.writable(), stream.write(5)), (0, None));
    }

    #[test]
    fn a_buffer_is_filled_to_its_last_byte_and_no_further() {
        let mut stream = open();
        stream.on_command(&register(0x8000, 10)).expect("a buffer");
        let piece = |addr, len| Some(Piece { addr, len, rkey: 9 });
        assert_eq!(stream.write(4), piece(0x8000, 4));
        assert_eq!(stream.write(0), None);
        assert_eq!(stream.write(7), piece(0x8004, 6));
        assert_eq!(stream.write(1), None);
        stream.on_command(&register(0x8000, 10)).expect("again");
        assert_eq!(stream.write(100), piece(0x8000, 10));
    }

    #[test]
    fn the_own_buffer_is_registered_again_once_it_is_full_and_read() {
        let mut stream = open();
        stream.on_data(60, 60).expect("fits");
        stream.consume(60);
        stream.on_data(40, 1).expect("a group fits");
        assert_eq!(stream.readable(), (60, 40));
        stream.consume(39);
        assert_eq!(stream.next_command(), None);
        stream.consume(1);
        let again = stream.next_command();
        assert_eq!(again, Some(Command::RegisterXferMemory(OWN)));
        assert_eq!(stream.readable(), (0, 0));
        stream.on_data(100, 100).expect("empty again");
    }

    #[test]
    fn no_byte_comes_before_the_peer_knows_where_to() {
        let mut stream = Stream::new(OWN);
        let early = Err(ProtocolError::Overrun { imm: 1, left: 0 });
        assert_eq!(stream.on_data(1, 1), early);
        stream.next_command();
        stream.on_data(100, 100).expect("told");
        stream.consume(100);
        assert_eq!(stream.on_data(1, 1), early);
    }

    #[test]
    fn wrong_immediates_are_refused() {
        let mut stream = open();
        stream.on_data(99, 99).expect("fits");
        let overrun = Err(ProtocolError::Overrun { imm: 2, left: 1 });
        assert_eq!(stream.on_data(2, 2), overrun);
        let overrun = stream.on_data(u32::MAX, 0);
        assert!(matches!(overrun, Err(ProtocolError::Overrun { .. })));
        let short = Err(ProtocolError::Immediate { imm: 0, len: 1 });
        assert_eq!(stream.on_data(0, 1), short);
        stream.on_data(0, 0).expect("nothing is allowed");
    }

    #[test]
    fn buffers_that_are_none_are_refused() {
        let mut stream = open();
        for (addr, len) in [(0x1000, 0), (u64::MAX, 2)] {
            let refused = Err(ProtocolError::Buffer { addr, len });
            assert_eq!(stream.on_command(&register(addr, len)), refused);
        }
    }

    #[test]
    fn features_are_answered_and_a_flood_of_questions_ends() {
        let mut stream = open();
        let question = Command::GetServerFeature {
            select: 3,
            features: 0,
        };
        for _ in 0..MAX_DUE {
            stream.on_command(&question.encode()).expect("room");
        }
        let flood = Err(ProtocolError::Flood(MAX_DUE));
        assert_eq!(stream.on_command(&question.encode()), flood);
        assert_eq!(stream.next_command(), Some(question));
        let wish = Command::SetClientFeature {
            select: 0,
            features: 1,
        };
        let before = stream.due.len();
        stream.on_command(&wish.encode()).expect("ignored");
        stream
            .on_command(&Command::Keepalive.encode())
            .expect("ignored");
        assert_eq!(stream.due.len(), before);
    }
}
