//! The fuzz target of this crate, the replay of its corpus, and tests of two connected streams.

use crate::{AnnouncedBuffer, ByteStream, Command};

/// Runs a stream against an arbitrary peer. The bytes are actions, each with a message or numbers.
/// Reads must stay inside the own buffer, and writes inside the peer's, whatever the peer sends.
///
/// # Panics
/// A read or a write leaves its buffer.
pub fn fuzz_stream(mut bytes: &[u8]) {
    let own = AnnouncedBuffer {
        addr: 0x10_0000,
        len: u32::from(take_bytes_or_zeroes::<1>(&mut bytes)[0]) + 1,
        rkey: 7,
    };
    let mut stream = ByteStream::new(own);
    let mut peer: Option<(u64, u64)> = None;
    let mut told = 0;
    while !bytes.is_empty() {
        let [action, a, b] = take_bytes_or_zeroes::<3>(&mut bytes);
        let number = u32::from(u16::from_le_bytes([a, b]));
        let fine = match action % 6 {
            0 => {
                let message = take_bytes_or_zeroes::<32>(&mut bytes);
                let message = &message[..if a == 0 { usize::from(b % 33) } else { 32 }];
                let fine = stream.on_command(message);
                if let (Ok(()), Ok(Command::RegisterXferMemory(buffer))) =
                    (&fine, Command::decode(message))
                {
                    assert_eq!(
                        Command::RegisterXferMemory(buffer).encode()[16..],
                        message[16..]
                    );
                    peer = Some((buffer.addr, buffer.addr + u64::from(buffer.len)));
                }
                fine
            }
            1 => stream.on_data(number, u32::from(a)),
            2 => stream.on_data(u32::from_be_bytes(take_bytes_or_zeroes(&mut bytes)), number),
            3 => {
                let (_, there) = stream.unread_offset_and_len();
                stream.consume(number.min(there));
                Ok(())
            }
            4 => {
                let before = stream.free_peer_buffer_bytes();
                if let Some(piece) = stream.reserve_write(number) {
                    let (begin, end) = peer.expect("it has told of a buffer");
                    let piece_end = piece.addr + u64::from(piece.len);
                    assert!(begin <= piece.addr && piece_end <= end && piece.len <= number);
                    assert_eq!(stream.free_peer_buffer_bytes(), before - piece.len);
                }
                Ok(())
            }
            _ => {
                let command = stream.take_next_command();
                told += usize::from(command == Some(Command::RegisterXferMemory(own)));
                if a & 1 == 1 {
                    stream.queue_keep_alive();
                }
                Ok(())
            }
        };
        let (offset, there) = stream.unread_offset_and_len();
        assert!(offset + there <= own.len && (there == 0 || told > 0));
        if fine.is_err() {
            // The connection ends with an error.
            return;
        }
    }
}

/// Takes the next bytes; missing bytes are zeroes.
fn take_bytes_or_zeroes<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let mut taken = [0; N];
    let len = bytes.len().min(N);
    let (head, rest) = bytes.split_at(len);
    taken[..len].copy_from_slice(head);
    *bytes = rest;
    taken
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use crate::{AnnouncedBuffer, ByteStream, Command};

    #[test]
    fn the_corpus_of_valkey_streams_is_replayed() {
        corpus::replay("valkey_stream", super::fuzz_stream);
    }

    /// A message from one end to the other, in order.
    enum Message {
        Command([u8; 32]),
        Write { at: usize, bytes: Vec<u8> },
    }

    /// One end with its memory, and the messages on the way to it.
    struct End {
        stream: ByteStream,
        own: AnnouncedBuffer,
        memory: Vec<u8>,
        /// Messages on the way to this end.
        incoming: VecDeque<Message>,
        sent: u64,
        received: u64,
        to_send: u64,
    }

    /// Returns the byte at a position of the stream that an end sends.
    fn byte(place: u64, salt: u64) -> u8 {
        let mixed = (place ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.to_be_bytes()[0]
    }

    impl End {
        fn new(addr: u64, len: u32, to_send: u64) -> Self {
            let own = AnnouncedBuffer { addr, len, rkey: 1 };
            Self {
                stream: ByteStream::new(own),
                own,
                memory: vec![0; len as usize],
                incoming: VecDeque::new(),
                sent: 0,
                received: 0,
                to_send,
            }
        }

        /// Sends at most `most` bytes to `other`, and the pending control messages.
        fn send(&mut self, other: &mut Self, most: u32) {
            while let Some(command) = self.stream.take_next_command() {
                other.incoming.push_back(Message::Command(command.encode()));
            }
            let left = u32::try_from(self.to_send - self.sent).expect("small");
            if let Some(piece) = self.stream.reserve_write(most.min(left)) {
                let salt = self.own.addr;
                let bytes = (0..u64::from(piece.len)).map(|i| byte(self.sent + i, salt));
                let at = usize::try_from(piece.addr - other.own.addr).expect("inside");
                other.incoming.push_back(Message::Write {
                    at,
                    bytes: bytes.collect(),
                });
                self.sent += u64::from(piece.len);
            }
        }

        /// Receives at most `messages` messages, and reads at most `most` bytes.
        fn receive(&mut self, messages: usize, most: u32, salt: u64) {
            for _ in 0..messages {
                match self.incoming.pop_front() {
                    Some(Message::Command(bytes)) => {
                        self.stream.on_command(&bytes).expect("a good message");
                    }
                    Some(Message::Write { at, bytes }) => {
                        self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
                        let len = u32::try_from(bytes.len()).expect("small");
                        self.stream.on_data(len, len).expect("it fits");
                    }
                    None => break,
                }
            }
            let (offset, there) = self.stream.unread_offset_and_len();
            let len = there.min(most);
            for i in 0..len {
                let expected = byte(self.received, salt);
                assert_eq!(self.memory[(offset + i) as usize], expected);
                self.received += 1;
            }
            // Overwrite the bytes that were read, since the peer may now do so.
            self.memory[offset as usize..(offset + len) as usize].fill(!0);
            self.stream.consume(len);
        }
    }

    proptest! {
        /// Random writes in both directions, through buffers of any size, arrive unchanged in any
        /// interleaving.
        #[test]
        fn what_is_written_is_read(
            sizes in (1u32..300, 1u32..300),
            totals in (0u64..5_000, 0u64..5_000),
            turns in prop::collection::vec((any::<bool>(), 0usize..8, 0u32..400, 0u32..400), 1..60),
        ) {
            let mut a = End::new(0x1000, sizes.0, totals.0);
            let mut b = End::new(0x9000, sizes.1, totals.1);
            let mut turn = 0;
            // Repeat the given turns until everything has arrived, with fair turns between, so that
            // progress is possible.
            let fair = [(true, 8, 400, 400), (false, 8, 400, 400)];
            let mut turns = turns.iter().chain(&fair).cycle();
            while (a.received, b.received) != (totals.1, totals.0) {
                let (which, messages, writes, reads) = *turns.next().expect("it never ends");
                let (one, other) = if which { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let salt = other.own.addr;
                one.receive(messages, reads, salt);
                one.send(other, writes);
                turn += 1;
                prop_assert!(turn < 2_000_000, "{} of {} and {} of {} bytes arrive", a.received, totals.1, b.received, totals.0);
            }
        }

        #[test]
        fn any_peer_is_endured(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            super::fuzz_stream(&bytes);
        }

        /// A peer that sends mostly valid messages before a violation does no harm.
        #[test]
        fn a_good_peer_that_goes_wrong_is_endured(
            len in any::<u8>(),
            steps in prop::collection::vec((0u8..6, 0u8..3, any::<u8>(), any::<u64>(), 1u32..1000), 0..60),
        ) {
            let mut bytes = vec![len];
            for (action, opcode, number, addr, len) in steps {
                bytes.extend([action, number, 0]);
                match action {
                    0 => {
                        let command = match opcode {
                            0 => Command::GetServerFeature { select: 0, features: 0 },
                            1 => Command::Keepalive,
                            _ => Command::RegisterXferMemory(AnnouncedBuffer { addr, len, rkey: 3 }),
                        };
                        bytes.extend(command.encode());
                    }
                    2 => bytes.extend(u32::from(number).to_be_bytes()),
                    _ => {}
                }
            }
            super::fuzz_stream(&bytes);
        }
    }
}
