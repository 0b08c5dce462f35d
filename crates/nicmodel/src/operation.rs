//! One kind of operation, as the requester posts it.

use serde::{Deserialize, Serialize};

use crate::profile::Profile;
use crate::verb::{ATOMIC_BYTES, Transport, Verb};
use crate::wqe::header_bytes;

/// Largest message: 2^31 bytes (IBTA vol. 1, 9.7.7).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// Most scatter/gather elements that this model accepts in a work request; the limits of WQEs are lower.
pub const MAX_SGES: u32 = 256;

/// A verb with all parameters that decide its cost, except the method by which its WQE reaches the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// The verb.
    pub verb: Verb,
    /// The transport that carries it.
    pub transport: Transport,
    /// Payload: sent by SEND and WRITE, fetched by READ, 8 for atomics, 0 for FLUSH. An immediate is no payload.
    pub payload_bytes: u32,
    /// The payload is copied into the WQE (`IBV_SEND_INLINE`).
    pub inline: bool,
    /// SEND or WRITE with immediate: 4 bytes that arrive in the completion.
    #[serde(rename = "imm")]
    pub has_imm: bool,
    /// Fraction of the operations that are signaled, 0 to 1.
    #[serde(rename = "signaled")]
    pub signaled_fraction: f64,
    /// Scatter/gather elements of a payload that is not inlined.
    pub num_sge: u32,
    /// The place where the responder's NIC puts the payload of a SEND.
    #[serde(rename = "receive")]
    pub payload_destination: PayloadDestination,
}

/// The place where the responder's NIC puts the payload of a SEND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PayloadDestination {
    /// The buffer of the RECV.
    #[default]
    Regular,
    /// The CQE, if the NIC supports inline RECVs and the payload fits.
    Inline,
}

/// The method by which WQEs reach the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PostMethod {
    /// The processor writes each WQE to the NIC, a cache line at a time (BlueFlame).
    WqeByMmio,
    /// The processor rings once, and the NIC fetches the WQEs of the postlist by DMA.
    Doorbell,
}

impl PostMethod {
    /// Returns the method that drivers use for a postlist: MMIO for one WQE, a doorbell for several.
    pub fn of_postlist(len: f64) -> Self {
        if len > 1.0 {
            Self::Doorbell
        } else {
            Self::WqeByMmio
        }
    }
}

/// The reason for which an operation is not possible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The transport does not have the verb.
    #[error("{transport} does not carry {verb} ({})", carried_verbs_text(*.transport))]
    NotCarried {
        /// The transport.
        transport: Transport,
        /// The verb.
        verb: Verb,
    },
    /// The payload is longer than the verb or transport allows.
    #[error("{verb} on {transport} carries at most {max} bytes on this NIC, not {payload_bytes}")]
    PayloadTooLong {
        /// The verb.
        verb: Verb,
        /// The transport.
        transport: Transport,
        /// The requested payload.
        payload_bytes: u32,
        /// The largest possible payload.
        max: u32,
    },
    /// Atomics have 8 bytes.
    #[error("an atomic works on {ATOMIC_BYTES} bytes, not on {0}")]
    AtomicPayload(u32),
    /// A FLUSH has no payload.
    #[error("a FLUSH carries no payload, and not {0} bytes")]
    FlushPayload(u32),
    /// Inline data was requested of a verb whose request has no payload.
    #[error("{0} has no payload in its request that could be inlined")]
    InlineWithoutPayload(Verb),
    /// The payload is longer than the NIC's WQEs carry inline.
    #[error("{payload_bytes} bytes cannot be inlined: this NIC's WQEs carry at most {max}")]
    InlineTooLong {
        /// The requested payload.
        payload_bytes: u32,
        /// The largest possible payload.
        max: u32,
    },
    /// An immediate was requested of a verb that has none.
    #[error("{0} has no immediate; SEND and WRITE have")]
    NoImmediate(Verb),
    /// A number is outside its range.
    #[error("{name} is {value}, and must be from {low} to {high}")]
    OutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Least value.
        low: f64,
        /// Largest value.
        high: f64,
    },
    /// The WQE is longer than the NIC's longest WQE.
    #[error("a WQE of {bytes} bytes is longer than this NIC's longest, {max}")]
    WqeTooLong {
        /// Size of the WQE.
        bytes: u32,
        /// Size of the longest WQE.
        max: u32,
    },
}

fn carried_verbs_text(transport: Transport) -> String {
    let verbs = Verb::ALL
        .into_iter()
        .filter(|verb| transport.carries(*verb));
    let names: Vec<_> = verbs.map(|verb| verb.to_string()).collect();
    format!("it carries {}", names.join(", "))
}

impl Operation {
    /// An operation with default flags: not inlined, not signaled, without immediate, one scatter/gather element.
    pub fn new(verb: Verb, transport: Transport, payload_bytes: u32) -> Self {
        Self {
            verb,
            transport,
            payload_bytes,
            inline: false,
            has_imm: false,
            signaled_fraction: 0.0,
            num_sge: 1,
            payload_destination: PayloadDestination::Regular,
        }
    }

    /// The same operation with its payload inlined.
    #[must_use]
    pub fn inlined(self) -> Self {
        Self {
            inline: true,
            ..self
        }
    }

    /// The same operation with an immediate.
    #[must_use]
    pub fn with_imm(self) -> Self {
        Self {
            has_imm: true,
            ..self
        }
    }

    /// The same operation with this fraction signaled.
    #[must_use]
    pub fn with_signaled_fraction(self, fraction: f64) -> Self {
        Self {
            signaled_fraction: fraction,
            ..self
        }
    }

    /// The same operation with this receive method.
    #[must_use]
    pub fn with_recv_destination(self, receive: PayloadDestination) -> Self {
        Self {
            payload_destination: receive,
            ..self
        }
    }

    /// A header-only SEND: no payload, and 4 bytes of immediate.
    pub fn header_only(transport: Transport) -> Self {
        Self::new(Verb::Send, transport, 0).with_imm()
    }

    /// Returns true if the WQE contains payload.
    pub fn inlines_payload(&self) -> bool {
        self.inline && self.payload_bytes > 0 && self.verb.carries_payload_in_request()
    }

    /// Size of the WQE: the header and either the inlined payload or the scatter/gather list.
    ///
    /// The size field belongs to inlined data. Without inlined data (header-only, or data that the NIC fetches) the
    /// header is shorter by the size field. A header-only SEND on UD has 64 bytes (Figure 5 of the paper).
    pub fn wqe_bytes(&self, profile: &Profile) -> u32 {
        let wqe = &profile.wqe;
        let header = header_bytes(profile, self.verb, self.transport);
        if self.inlines_payload() {
            return header.saturating_add(self.payload_bytes);
        }
        let header = if self.verb.is_atomic() {
            header
        } else {
            header.saturating_sub(wqe.inline_size_bytes.value)
        };
        if self.payload_bytes == 0 {
            return header;
        }
        let list = wqe.sge_bytes.value.saturating_mul(self.num_sge);
        header.saturating_add(list)
    }

    /// Returns true if the operation consumes a RECV of the responder.
    pub fn consumes_recv(&self) -> bool {
        self.verb == Verb::Send || (self.verb == Verb::RdmaWrite && self.has_imm)
    }

    /// Returns true if the payload arrives within the CQE of the RECV.
    pub fn arrives_in_cqe(&self, profile: &Profile) -> bool {
        let limit = profile.wqe.inline_recv_bytes.as_ref();
        self.verb == Verb::Send
            && self.payload_destination == PayloadDestination::Inline
            && self.payload_bytes > 0
            && limit.is_some_and(|limit| self.payload_bytes <= limit.value)
    }

    /// Checks that this NIC can execute the operation.
    ///
    /// # Errors
    /// The first rule that the operation breaks.
    pub fn check_executable(&self, profile: &Profile) -> Result<(), OperationError> {
        let Self {
            verb,
            transport,
            payload_bytes,
            ..
        } = *self;
        if !transport.carries(verb) {
            return Err(OperationError::NotCarried { transport, verb });
        }
        if verb.is_atomic() && payload_bytes != ATOMIC_BYTES {
            return Err(OperationError::AtomicPayload(payload_bytes));
        }
        if verb == Verb::Flush && payload_bytes != 0 {
            return Err(OperationError::FlushPayload(payload_bytes));
        }
        let max = match transport {
            // A datagram is one packet.
            Transport::Ud => profile.port.mtu_bytes.value,
            Transport::Rc | Transport::Uc => MAX_MESSAGE_BYTES,
        };
        if payload_bytes > max {
            return Err(OperationError::PayloadTooLong {
                verb,
                transport,
                payload_bytes,
                max,
            });
        }
        if self.inline && !verb.carries_payload_in_request() {
            return Err(OperationError::InlineWithoutPayload(verb));
        }
        let max = profile.wqe.max_inline_bytes.value;
        if self.inline && payload_bytes > max {
            return Err(OperationError::InlineTooLong { payload_bytes, max });
        }
        if self.has_imm && !verb.carries_payload_in_request() {
            return Err(OperationError::NoImmediate(verb));
        }
        let ranges = [
            ("signaled", self.signaled_fraction, 0.0, 1.0),
            ("num_sge", f64::from(self.num_sge), 1.0, f64::from(MAX_SGES)),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return Err(OperationError::OutOfRange {
                    name,
                    value,
                    low,
                    high,
                });
            }
        }
        let bytes = self.wqe_bytes(profile);
        let max = profile.wqe.max_wqe_bytes.value;
        if bytes > max {
            return Err(OperationError::WqeTooLong { bytes, max });
        }
        Ok(())
    }
}
