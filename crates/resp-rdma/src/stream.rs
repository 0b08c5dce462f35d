//! The state of a connection, without verbs: places for writes, arrivals, and messages to the peer.

use std::collections::VecDeque;

use crate::command::{AnnouncedBuffer, Command};
use crate::error::ProtocolError;

/// The most pending control messages. This end sends few on its own; the rest are answers to a peer
/// that requests answers but receives none.
const MAX_UNSENT_COMMANDS: usize = 64;

/// The destination of a WRITE in the peer's memory. The WRITE's immediate is `len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteTarget {
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
pub struct ByteStream {
    own_buffer: AnnouncedBuffer,
    /// Bytes of the own buffer that have arrived, and that were read; `read <= received_bytes <= own.len`.
    received_bytes: u32,
    own_buffer_read_bytes: u32,
    /// True if the peer knows that the own buffer is empty and may be filled.
    is_own_buffer_announced: bool,
    /// The peer's buffer, once announced.
    peer_buffer: Option<AnnouncedBuffer>,
    /// Bytes written to the peer's buffer; at most its length.
    peer_buffer_written_bytes: u32,
    unsent_commands: VecDeque<Command>,
}

impl ByteStream {
    /// Makes a stream whose receive buffer is `own`, of at least one byte. The first message to the
    /// peer announces the buffer.
    pub fn new(own: AnnouncedBuffer) -> Self {
        Self {
            own_buffer: own,
            received_bytes: 0,
            own_buffer_read_bytes: 0,
            is_own_buffer_announced: false,
            peer_buffer: None,
            peer_buffer_written_bytes: 0,
            unsent_commands: VecDeque::from([Command::RegisterXferMemory(own)]),
        }
    }

    /// Processes a control message from the peer.
    ///
    /// # Errors
    /// The errors of [`Command::decode`]; [`ProtocolError::InvalidBuffer`], [`ProtocolError::TooManyUnsentAnswers`].
    pub fn on_command(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        match Command::decode(bytes)? {
            Command::GetServerFeature { select, .. } => {
                self.queue_command(Command::GetServerFeature {
                    select,
                    features: 0,
                })
            }
            // Valkey's server accepts no features and does not answer.
            Command::SetClientFeature { .. } | Command::Keepalive => Ok(()),
            Command::RegisterXferMemory(buffer) => {
                let end = buffer.addr.checked_add(buffer.len.into());
                if buffer.len == 0 || end.is_none() {
                    let AnnouncedBuffer { addr, len, .. } = buffer;
                    return Err(ProtocolError::InvalidBuffer { addr, len });
                }
                self.peer_buffer = Some(buffer);
                self.peer_buffer_written_bytes = 0;
                Ok(())
            }
        }
    }

    /// Processes a message with the immediate `imm`: `imm` more bytes of the own buffer have
    /// arrived. `len` is the length of the message itself, which may be the last of a group.
    ///
    /// # Errors
    /// [`ProtocolError::Overrun`], [`ProtocolError::ImmediateTooSmall`].
    pub fn on_data(&mut self, imm: u32, len: u32) -> Result<(), ProtocolError> {
        let left = if self.is_own_buffer_announced {
            self.own_buffer.len - self.received_bytes
        } else {
            0
        };
        if imm > left {
            return Err(ProtocolError::Overrun { imm, left });
        }
        if imm < len {
            return Err(ProtocolError::ImmediateTooSmall { imm, len });
        }
        self.received_bytes += imm;
        Ok(())
    }

    /// Returns the bytes that have arrived and were not read: their offset in the own buffer, and
    /// their number.
    pub fn unread_offset_and_len(&self) -> (u32, u32) {
        (
            self.own_buffer_read_bytes,
            self.received_bytes - self.own_buffer_read_bytes,
        )
    }

    /// Marks `bytes` as read. After the last byte of the buffer, the buffer is announced again.
    ///
    /// # Panics
    /// `bytes` exceeds the number of readable bytes.
    pub fn consume(&mut self, bytes: u32) {
        assert!(
            bytes <= self.received_bytes - self.own_buffer_read_bytes,
            "{bytes} bytes are read of {}",
            self.received_bytes - self.own_buffer_read_bytes
        );
        self.own_buffer_read_bytes += bytes;
        if self.own_buffer_read_bytes == self.own_buffer.len {
            (self.received_bytes, self.own_buffer_read_bytes) = (0, 0);
            // Only one announcement is pending at a time: no byte arrives before it is sent.
            self.is_own_buffer_announced = false;
            self.unsent_commands
                .push_back(Command::RegisterXferMemory(self.own_buffer));
        }
    }

    /// Returns the number of bytes that may be written now.
    pub fn free_peer_buffer_bytes(&self) -> u32 {
        self.peer_buffer
            .map_or(0, |peer| peer.len - self.peer_buffer_written_bytes)
    }

    /// Returns the place for at most `most` bytes to write; `None` if the peer's buffer is full or
    /// unknown.
    pub fn reserve_write(&mut self, most: u32) -> Option<WriteTarget> {
        let peer = self.peer_buffer?;
        let len = most.min(peer.len - self.peer_buffer_written_bytes);
        let addr = peer.addr + u64::from(self.peer_buffer_written_bytes);
        self.peer_buffer_written_bytes += len;
        (len > 0).then_some(WriteTarget {
            addr,
            len,
            rkey: peer.rkey,
        })
    }

    /// Queues a keepalive message, unless another message waits to be sent.
    pub fn queue_keep_alive(&mut self) {
        if self.unsent_commands.is_empty() {
            self.unsent_commands.push_back(Command::Keepalive);
        }
    }

    /// Takes the next control message to send.
    pub fn take_next_command(&mut self) -> Option<Command> {
        let next = self.unsent_commands.pop_front();
        self.is_own_buffer_announced |= matches!(next, Some(Command::RegisterXferMemory(_)));
        next
    }

    /// Returns true if a control message waits to be sent.
    pub fn has_command(&self) -> bool {
        !self.unsent_commands.is_empty()
    }

    fn queue_command(&mut self, command: Command) -> Result<(), ProtocolError> {
        if self.unsent_commands.len() >= MAX_UNSENT_COMMANDS {
            return Err(ProtocolError::TooManyUnsentAnswers(MAX_UNSENT_COMMANDS));
        }
        self.unsent_commands.push_back(command);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: AnnouncedBuffer = AnnouncedBuffer {
        addr: 0x1000,
        len: 100,
        rkey: 1,
    };

    fn register(addr: u64, len: u32) -> [u8; 32] {
        Command::RegisterXferMemory(AnnouncedBuffer { addr, len, rkey: 9 }).encode()
    }

    /// Returns a stream that has announced its buffer.
    fn open() -> ByteStream {
        let mut stream = ByteStream::new(OWN);
        let first = stream.take_next_command();
        assert_eq!(first, Some(Command::RegisterXferMemory(OWN)));
        assert_eq!(stream.take_next_command(), None);
        stream
    }

    #[test]
    fn nothing_is_written_before_the_peer_has_a_buffer() {
        let mut stream = open();
        assert_eq!(
            (stream.free_peer_buffer_bytes(), stream.reserve_write(5)),
            (0, None)
        );
    }

    #[test]
    fn a_buffer_is_filled_to_its_last_byte_and_no_further() {
        let mut stream = open();
        stream.on_command(&register(0x8000, 10)).expect("a buffer");
        let piece = |addr, len| Some(WriteTarget { addr, len, rkey: 9 });
        assert_eq!(stream.reserve_write(4), piece(0x8000, 4));
        assert_eq!(stream.reserve_write(0), None);
        assert_eq!(stream.reserve_write(7), piece(0x8004, 6));
        assert_eq!(stream.reserve_write(1), None);
        stream.on_command(&register(0x8000, 10)).expect("again");
        assert_eq!(stream.reserve_write(100), piece(0x8000, 10));
    }

    #[test]
    fn the_own_buffer_is_registered_again_once_it_is_full_and_read() {
        let mut stream = open();
        stream.on_data(60, 60).expect("fits");
        stream.consume(60);
        stream.on_data(40, 1).expect("a group fits");
        assert_eq!(stream.unread_offset_and_len(), (60, 40));
        stream.consume(39);
        assert_eq!(stream.take_next_command(), None);
        stream.consume(1);
        let again = stream.take_next_command();
        assert_eq!(again, Some(Command::RegisterXferMemory(OWN)));
        assert_eq!(stream.unread_offset_and_len(), (0, 0));
        stream.on_data(100, 100).expect("empty again");
    }

    #[test]
    fn no_byte_comes_before_the_peer_knows_where_to() {
        let mut stream = ByteStream::new(OWN);
        let early = Err(ProtocolError::Overrun { imm: 1, left: 0 });
        assert_eq!(stream.on_data(1, 1), early);
        stream.take_next_command();
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
        let short = Err(ProtocolError::ImmediateTooSmall { imm: 0, len: 1 });
        assert_eq!(stream.on_data(0, 1), short);
        stream.on_data(0, 0).expect("nothing is allowed");
    }

    #[test]
    fn buffers_that_are_none_are_refused() {
        let mut stream = open();
        for (addr, len) in [(0x1000, 0), (u64::MAX, 2)] {
            let refused = Err(ProtocolError::InvalidBuffer { addr, len });
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
        for _ in 0..MAX_UNSENT_COMMANDS {
            stream.on_command(&question.encode()).expect("room");
        }
        let flood = Err(ProtocolError::TooManyUnsentAnswers(MAX_UNSENT_COMMANDS));
        assert_eq!(stream.on_command(&question.encode()), flood);
        assert_eq!(stream.take_next_command(), Some(question));
        let wish = Command::SetClientFeature {
            select: 0,
            features: 1,
        };
        let before = stream.unsent_commands.len();
        stream.on_command(&wish.encode()).expect("ignored");
        stream
            .on_command(&Command::Keepalive.encode())
            .expect("ignored");
        assert_eq!(stream.unsent_commands.len(), before);
    }
}
