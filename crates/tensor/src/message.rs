//! The messages between two peers, each in a fixed buffer of [`MESSAGE_BYTES`]; pure.
//!
//! Numbers are little-endian. A message begins with a byte for its kind. The count of messages that its sender has
//! consumed so far ([`ConnectionWindows`](crate::window::ConnectionWindows)), the index of a request, and the fields of
//! the kind follow.

use verbs::{RKey, RemoteMemory};

use crate::meta::{DIMENSIONS_MAX, DType, MetaError, TensorMeta};

/// Bytes of a message at most, and of the buffers that messages are sent from and received in.
pub const MESSAGE_BYTES: usize = 1024;
/// Bytes of a key at most.
pub const KEY_BYTES_MAX: usize = 512;

/// A tensor's name: its key, and the step of the program that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorName {
    /// The key, 1 to [`KEY_BYTES_MAX`] bytes of UTF-8.
    pub key: String,
    /// The step.
    pub step: u64,
}

impl TensorName {
    /// A name whose key has a valid length.
    ///
    /// # Errors
    /// When it has not.
    pub fn new(key: &str, step: u64) -> Result<Self, MessageError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(MessageError::InvalidKeyLength(key.len()));
        }
        Ok(Self {
            key: key.to_owned(),
            step,
        })
    }
}

impl std::fmt::Display for TensorName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of step {}", self.key, self.step)
    }
}

/// Which tensor a receiver asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedTensor {
    /// The one of this name; `wait`: once there is one.
    ByName {
        /// The name.
        name: TensorName,
        /// Whether to answer later if there is no such tensor now.
        wait: bool,
    },
    /// The one that the sender has offered with this index.
    ByOffer(u32),
}

/// Why a peer does not do what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRefusal {
    /// There is no such tensor.
    Missing,
    /// The request was cancelled.
    Cancelled,
    /// The tensor is larger than what the store may hold.
    TooLarge,
    /// The destination does not have the size of the tensor, or the peer could not register memory.
    MemoryUnsuitable,
    /// The peer has published the tensor itself: others can neither replace nor remove it.
    PublishedByPeer,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// A receiver asks for a tensor.
    Request {
        /// The receiver's number of the request: the immediate of the WRITEs.
        index: u32,
        /// Which.
        tensor: RequestedTensor,
        /// The metadata that the receiver expects, and the destination; `None` if the receiver knows neither.
        destination: Option<(TensorMeta, RemoteMemory)>,
    },
    /// The sender answers that the tensor has other metadata. The receiver may ask again.
    Metadata {
        /// That of the request.
        index: u32,
        /// The metadata of the tensor.
        meta: TensorMeta,
    },
    /// The request is refused.
    Refused {
        /// That of the request or offer.
        index: u32,
        /// Why.
        reason: PeerRefusal,
    },
    /// The receiver wants no answer any more.
    Cancel {
        /// That of the request.
        index: u32,
    },
    /// A sender has a tensor that the receiver may store.
    Offer {
        /// The sender's number of the offer.
        index: u32,
        /// Its name there.
        name: TensorName,
        /// The metadata of the tensor.
        meta: TensorMeta,
    },
    /// The sender asks the receiver to remove a stored tensor.
    Remove {
        /// The number of this request, of the same sequence as those of offers.
        index: u32,
        /// Its name.
        name: TensorName,
    },
    /// The offered tensor is stored, or the named one is removed.
    StoredOrRemoved {
        /// That of the offer.
        index: u32,
    },
}

/// Why some bytes are no message, or a message has no bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message ends too early, or goes on after its end.
    #[error("a message has another length than its content")]
    WrongLength,
    /// The kind of the message, or another code in it, is unknown.
    #[error("{what} {code} is unknown")]
    UnknownCode {
        /// Of what.
        what: &'static str,
        /// The code.
        code: u8,
    },
    /// A key's length.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes of UTF-8, not {0}")]
    InvalidKeyLength(usize),
    /// There is no such tensor.
    #[error(transparent)]
    InvalidMetadata(#[from] MetaError),
}

const REQUEST: u8 = 1;
const METADATA: u8 = 2;
const REFUSED: u8 = 3;
const CANCEL: u8 = 4;
const OFFER: u8 = 5;
const REMOVE: u8 = 6;
const STORED_OR_REMOVED: u8 = 7;

const REQUEST_BY_NAME: u8 = 0;
const REQUEST_BY_NAME_OR_WAIT: u8 = 1;
const REQUEST_BY_OFFER: u8 = 2;

impl PeerMessage {
    /// Its bytes, at most [`MESSAGE_BYTES`]; `consumed` is the count for the peer's window.
    pub fn encode(&self, consumed: u32) -> Vec<u8> {
        let mut out = MessageEncoder(Vec::with_capacity(128));
        out.u8(self.kind());
        out.u32(consumed);
        out.u32(self.request_index());
        match self {
            Self::Request {
                tensor: wanted,
                destination,
                ..
            } => {
                out.requested_tensor(wanted);
                out.u8(destination.is_some().into());
                if let Some((meta, memory)) = destination {
                    out.meta(meta);
                    out.u64(memory.addr);
                    out.u64(memory.len);
                    out.u32(memory.rkey.0);
                }
            }
            Self::Metadata { meta, .. } => out.meta(meta),
            Self::Refused { reason: why, .. } => out.u8(*why as u8),
            Self::Offer { name, meta, .. } => {
                out.name(name);
                out.meta(meta);
            }
            Self::Remove { name, .. } => out.name(name),
            Self::Cancel { .. } | Self::StoredOrRemoved { .. } => {}
        }
        out.0
    }

    /// The message in these bytes, and its sender's count of consumed messages.
    ///
    /// # Errors
    /// When there is none.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), MessageError> {
        let mut from = MessageDecoder(bytes);
        let kind = from.u8()?;
        let (consumed, index) = (from.u32()?, from.u32()?);
        let message = match kind {
            REQUEST => Self::Request {
                index,
                tensor: from.requested_tensor()?,
                destination: from.destination()?,
            },
            METADATA => Self::Metadata {
                index,
                meta: from.meta()?,
            },
            REFUSED => Self::Refused {
                index,
                reason: from.refusal()?,
            },
            CANCEL => Self::Cancel { index },
            OFFER => Self::Offer {
                index,
                name: from.name()?,
                meta: from.meta()?,
            },
            REMOVE => Self::Remove {
                index,
                name: from.name()?,
            },
            STORED_OR_REMOVED => Self::StoredOrRemoved { index },
            code => {
                let what = "the kind of message";
                return Err(MessageError::UnknownCode { what, code });
            }
        };
        if !from.0.is_empty() {
            return Err(MessageError::WrongLength);
        }
        Ok((message, consumed))
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Request { .. } => REQUEST,
            Self::Metadata { .. } => METADATA,
            Self::Refused { .. } => REFUSED,
            Self::Cancel { .. } => CANCEL,
            Self::Offer { .. } => OFFER,
            Self::Remove { .. } => REMOVE,
            Self::StoredOrRemoved { .. } => STORED_OR_REMOVED,
        }
    }

    fn request_index(&self) -> u32 {
        match *self {
            Self::Request { index, .. }
            | Self::Metadata { index, .. }
            | Self::Refused { index, .. }
            | Self::Cancel { index }
            | Self::Offer { index, .. }
            | Self::Remove { index, .. }
            | Self::StoredOrRemoved { index } => index,
        }
    }
}

/// Bytes that are written.
struct MessageEncoder(Vec<u8>);

impl MessageEncoder {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
    fn name(&mut self, name: &TensorName) {
        self.u64(name.step);
        let len = u16::try_from(name.key.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_le_bytes());
        self.0.extend(name.key.as_bytes());
    }
    fn meta(&mut self, meta: &TensorMeta) {
        let DType {
            dlpack_type_code: code,
            bits_per_lane: bits,
            lanes,
        } = meta.dtype();
        self.u8(code);
        self.u8(bits);
        self.0.extend(lanes.to_le_bytes());
        self.u8(u8::try_from(meta.shape().len()).unwrap_or(u8::MAX));
        meta.shape().iter().for_each(|&d| self.u64(d));
    }
    fn requested_tensor(&mut self, wanted: &RequestedTensor) {
        match wanted {
            RequestedTensor::ByName { name, wait } => {
                self.u8(if *wait {
                    REQUEST_BY_NAME_OR_WAIT
                } else {
                    REQUEST_BY_NAME
                });
                self.name(name);
            }
            RequestedTensor::ByOffer(index) => {
                self.u8(REQUEST_BY_OFFER);
                self.u32(*index);
            }
        }
    }
}

/// Bytes that are read.
struct MessageDecoder<'b>(&'b [u8]);

impl MessageDecoder<'_> {
    fn take_bytes<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self
            .0
            .split_first_chunk()
            .ok_or(MessageError::WrongLength)?;
        self.0 = rest;
        Ok(*first)
    }
    fn u8(&mut self) -> Result<u8, MessageError> {
        self.take_bytes().map(|[b]| b)
    }
    fn u16(&mut self) -> Result<u16, MessageError> {
        self.take_bytes().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, MessageError> {
        self.take_bytes().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, MessageError> {
        self.take_bytes().map(u64::from_le_bytes)
    }
    fn name(&mut self) -> Result<TensorName, MessageError> {
        let step = self.u64()?;
        let len = usize::from(self.u16()?);
        let (key, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(MessageError::WrongLength)?;
        self.0 = rest;
        let key = str::from_utf8(key).map_err(|_| MessageError::InvalidKeyLength(len))?;
        TensorName::new(key, step)
    }
    fn meta(&mut self) -> Result<TensorMeta, MessageError> {
        let (code, bits, lanes) = (self.u8()?, self.u8()?, self.u16()?);
        let dimensions = usize::from(self.u8()?);
        if dimensions > DIMENSIONS_MAX {
            return Err(MetaError::TooManyDimensions(dimensions).into());
        }
        let shape = (0..dimensions)
            .map(|_| self.u64())
            .collect::<Result<_, _>>();
        Ok(TensorMeta::new(
            DType {
                dlpack_type_code: code,
                bits_per_lane: bits,
                lanes,
            },
            shape?,
        )?)
    }
    fn requested_tensor(&mut self) -> Result<RequestedTensor, MessageError> {
        match self.u8()? {
            how @ (REQUEST_BY_NAME | REQUEST_BY_NAME_OR_WAIT) => Ok(RequestedTensor::ByName {
                wait: how == REQUEST_BY_NAME_OR_WAIT,
                name: self.name()?,
            }),
            REQUEST_BY_OFFER => Ok(RequestedTensor::ByOffer(self.u32()?)),
            code => {
                let what = "the way to name a tensor";
                Err(MessageError::UnknownCode { what, code })
            }
        }
    }
    fn destination(&mut self) -> Result<Option<(TensorMeta, RemoteMemory)>, MessageError> {
        match self.u8()? {
            0 => Ok(None),
            1 => {
                let meta = self.meta()?;
                let memory = RemoteMemory {
                    addr: self.u64()?,
                    len: self.u64()?,
                    rkey: RKey(self.u32()?),
                };
                Ok(Some((meta, memory)))
            }
            code => {
                let what = "the presence of a destination";
                Err(MessageError::UnknownCode { what, code })
            }
        }
    }
    fn refusal(&mut self) -> Result<PeerRefusal, MessageError> {
        let all = [
            PeerRefusal::Missing,
            PeerRefusal::Cancelled,
            PeerRefusal::TooLarge,
            PeerRefusal::MemoryUnsuitable,
            PeerRefusal::PublishedByPeer,
        ];
        let code = self.u8()?;
        let what = "the reason of a refusal";
        let why = all.into_iter().find(|&why| why as u8 == code);
        why.ok_or(MessageError::UnknownCode { what, code })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metas() -> impl Strategy<Value = TensorMeta> {
        let shape = prop::collection::vec(0..5u64, 0..DIMENSIONS_MAX);
        (0..7u8, 1..128u8, 1..4u16, shape).prop_filter_map("too large", |(code, bits, lanes, s)| {
            TensorMeta::new(
                DType {
                    dlpack_type_code: code,
                    bits_per_lane: bits,
                    lanes,
                },
                s,
            )
            .ok()
        })
    }

    fn names() -> impl Strategy<Value = TensorName> {
        ("\\PC{1,128}", any::<u64>()).prop_map(|(key, step)| TensorName { key, step })
    }

    fn destinations() -> impl Strategy<Value = (TensorMeta, RemoteMemory)> {
        (metas(), any::<(u64, u64, u32)>()).prop_map(|(meta, (addr, len, rkey))| {
            let rkey = RKey(rkey);
            (meta, RemoteMemory { addr, len, rkey })
        })
    }

    fn refusals() -> impl Strategy<Value = PeerRefusal> {
        prop_oneof![
            Just(PeerRefusal::Missing),
            Just(PeerRefusal::Cancelled),
            Just(PeerRefusal::TooLarge),
            Just(PeerRefusal::MemoryUnsuitable),
            Just(PeerRefusal::PublishedByPeer),
        ]
    }

    fn messages() -> impl Strategy<Value = PeerMessage> {
        let index = any::<u32>;
        let wanted = prop_oneof![
            (names(), any::<bool>())
                .prop_map(|(name, wait)| RequestedTensor::ByName { name, wait }),
            index().prop_map(RequestedTensor::ByOffer),
        ];
        let destination = prop::option::of(destinations());
        prop_oneof![
            (index(), wanted, destination).prop_map(|(index, tensor, destination)| {
                PeerMessage::Request {
                    index,
                    tensor,
                    destination,
                }
            }),
            (index(), metas()).prop_map(|(index, meta)| PeerMessage::Metadata { index, meta }),
            (index(), refusals())
                .prop_map(|(index, reason)| PeerMessage::Refused { index, reason }),
            index().prop_map(|index| PeerMessage::Cancel { index }),
            (index(), names(), metas()).prop_map(|(index, name, meta)| PeerMessage::Offer {
                index,
                name,
                meta
            }),
            (index(), names()).prop_map(|(index, name)| PeerMessage::Remove { index, name }),
            index().prop_map(|index| PeerMessage::StoredOrRemoved { index }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(message in messages(), consumed: u32) {
            let bytes = message.encode(consumed);
            prop_assert!(bytes.len() <= MESSAGE_BYTES);
            prop_assert_eq!(PeerMessage::decode(&bytes), Ok((message, consumed)));
            // No prefix of a message is one, and nothing may follow it.
            for len in 0..bytes.len() {
                prop_assert!(PeerMessage::decode(&bytes[..len]).is_err());
            }
            let longer = [&bytes[..], &[0]].concat();
            prop_assert!(PeerMessage::decode(&longer).is_err());
        }

        #[test]
        fn bytes_of_anybody_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            crate::fuzz::check_message_round_trip(&bytes);
        }
    }

    #[test]
    fn the_largest_message_fits() {
        let name = TensorName::new(&"k".repeat(KEY_BYTES_MAX), 1).expect("long enough");
        assert!(TensorName::new(&"k".repeat(KEY_BYTES_MAX + 1), 1).is_err());
        assert!(TensorName::new("", 1).is_err());
        let meta = TensorMeta::new(DType::F32, vec![1; DIMENSIONS_MAX]).expect("small");
        let memory = RemoteMemory {
            addr: 1,
            len: 4,
            rkey: RKey(1),
        };
        let message = PeerMessage::Request {
            index: 1,
            tensor: RequestedTensor::ByName { name, wait: true },
            destination: Some((meta, memory)),
        };
        assert!(message.encode(0).len() <= MESSAGE_BYTES);
    }
}
