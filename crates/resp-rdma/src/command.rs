//! Encodes and decodes control messages.

use crate::error::ProtocolError;

/// The length of every control message in bytes.
pub const COMMAND_BYTES: usize = 32;

/// A receive buffer, as its owner announces it to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedBuffer {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// The R_Key.
    pub rkey: u32,
}

/// A control message, which the ends exchange by SENDs. Numbers are big-endian.
///
/// Source: `ValkeyRdmaCmd` in `valkey:src/rdma.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Requests the features of the server, or answers the request; both have the same opcode.
    GetServerFeature {
        /// The index of the word of features; the answer repeats the index.
        select: u16,
        /// The features; 0 in the request.
        features: u64,
    },
    /// Announces the features that the client wants; no answer follows.
    SetClientFeature {
        /// The index of the word of features.
        select: u16,
        /// The features.
        features: u64,
    },
    /// Shows that the sender is alive; no answer follows.
    Keepalive,
    /// Announces the sender's receive buffer, which is empty.
    RegisterXferMemory(AnnouncedBuffer),
}

impl Command {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        let opcode: u16 = match self {
            Self::GetServerFeature { .. } => 0,
            Self::SetClientFeature { .. } => 1,
            Self::Keepalive => 2,
            Self::RegisterXferMemory(_) => 3,
        };
        bytes[..2].copy_from_slice(&opcode.to_be_bytes());
        match self {
            Self::GetServerFeature { select, features }
            | Self::SetClientFeature { select, features } => {
                bytes[2..4].copy_from_slice(&select.to_be_bytes());
                bytes[24..].copy_from_slice(&features.to_be_bytes());
            }
            Self::Keepalive => {}
            Self::RegisterXferMemory(AnnouncedBuffer { addr, len, rkey }) => {
                bytes[16..24].copy_from_slice(&addr.to_be_bytes());
                bytes[24..28].copy_from_slice(&len.to_be_bytes());
                bytes[28..].copy_from_slice(&rkey.to_be_bytes());
            }
        }
        bytes
    }

    /// Decodes a message, and ignores reserved bytes.
    ///
    /// # Errors
    /// [`ProtocolError::WrongCommandLength`], [`ProtocolError::UnknownOpcode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let whole: &[u8; COMMAND_BYTES] = bytes
            .try_into()
            .map_err(|_| ProtocolError::WrongCommandLength(bytes.len()))?;
        let [o0, o1, s0, s1, _, _, _, _, rest @ ..] = whole;
        let [_, _, _, _, _, _, _, _, tail @ ..] = rest;
        let [a0, a1, a2, a3, a4, a5, a6, a7, last @ ..] = tail;
        let [l0, l1, l2, l3, k0, k1, k2, k3] = last;
        let select = u16::from_be_bytes([*s0, *s1]);
        let features = u64::from_be_bytes(*last);
        match u16::from_be_bytes([*o0, *o1]) {
            0 => Ok(Self::GetServerFeature { select, features }),
            1 => Ok(Self::SetClientFeature { select, features }),
            2 => Ok(Self::Keepalive),
            3 => Ok(Self::RegisterXferMemory(AnnouncedBuffer {
                addr: u64::from_be_bytes([*a0, *a1, *a2, *a3, *a4, *a5, *a6, *a7]),
                len: u32::from_be_bytes([*l0, *l1, *l2, *l3]),
                rkey: u32::from_be_bytes([*k0, *k1, *k2, *k3]),
            })),
            other => Err(ProtocolError::UnknownOpcode(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes written by hand from the description of the messages.
    #[test]
    fn messages_are_those_of_the_description() {
        let mut get = [0; 32];
        get[3] = 7;
        let select = Command::GetServerFeature {
            select: 7,
            features: 0,
        };
        assert_eq!(select.encode(), get);
        let mut set = [0; 32];
        (set[1], set[2], set[24], set[31]) = (1, 1, 0x80, 5);
        let features = Command::SetClientFeature {
            select: 256,
            features: 0x8000_0000_0000_0005,
        };
        assert_eq!(features.encode(), set);
        let mut keepalive = [0; 32];
        keepalive[1] = 2;
        assert_eq!(Command::Keepalive.encode(), keepalive);
        let mut register = [0; 32];
        register[1] = 3;
        register[16..].copy_from_slice(&[
            0x00, 0x00, 0x7f, 0x12, 0x34, 0x56, 0x70, 0x00, // address
            0x00, 0x10, 0x00, 0x00, // length: 1 MiB
            0xde, 0xad, 0xbe, 0xef, // R_Key
        ]);
        let buffer = AnnouncedBuffer {
            addr: 0x7f12_3456_7000,
            len: 1 << 20,
            rkey: 0xdead_beef,
        };
        let told = Command::RegisterXferMemory(buffer);
        assert_eq!(told.encode(), register);
        for (bytes, command) in [
            (get, select),
            (set, features),
            (keepalive, Command::Keepalive),
            (register, told),
        ] {
            assert_eq!(Command::decode(&bytes), Ok(command));
        }
    }

    #[test]
    fn other_lengths_and_opcodes_are_refused() {
        for len in [0, 1, 31, 33, 64] {
            let refused = Err(ProtocolError::WrongCommandLength(len));
            assert_eq!(Command::decode(&vec![0; len]), refused);
        }
        for opcode in [4u16, 255, 256, u16::MAX] {
            let mut bytes = [0; 32];
            bytes[..2].copy_from_slice(&opcode.to_be_bytes());
            assert_eq!(
                Command::decode(&bytes),
                Err(ProtocolError::UnknownOpcode(opcode))
            );
        }
    }

    #[test]
    fn reserved_bytes_may_be_anything() {
        let mut bytes = [0xa5; 32];
        bytes[..2].copy_from_slice(&2u16.to_be_bytes());
        assert_eq!(Command::decode(&bytes), Ok(Command::Keepalive));
    }
}
