//! Messages of communication management: MADs on QP1 (IBTA vol. 1, chapter 12).
//!
//! LAP and APR are not supported: no queue pair migrates to an alternate path.

mod bounded_data;
mod connection;
mod ip_cm_header;
pub mod reason;
mod sidr;

pub use bounded_data::BoundedData;
pub use connection::{
    ConnectionPath, Dreq, Mra, ReferredMessage, Rej, Rep, Req, RtuOrDrep, TransportService,
};
pub use ip_cm_header::{IP_CM_HEADER_BYTES, IpCmHeader, IpCmHeaderError, PortSpace};
pub use sidr::{SidrRep, SidrReq, sidr_status};

use crate::mad::{CLASS_CM, MAD_BYTES, METHOD_SEND, MadBody, MadError, MadHeader};

/// Version of the management class.
const CLASS_VERSION: u8 = 2;

/// Coded time in which Linux's `rdma_cm` expects an answer: 4.3 s.
pub const CM_RESPONSE_TIMEOUT_CODE: u8 = 20;
/// Number of times that Linux's `rdma_cm` sends a message again.
pub const MAX_CM_RETRIES: u8 = 15;
/// Coded time that Linux's `rdma_cm` requests with an MRA: 69 s.
pub const MRA_SERVICE_TIMEOUT_CODE: u8 = 24;
/// Q_Key of datagram queue pairs of `rdma_cm` (`RDMA_UDP_QKEY`).
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// Converts a coded time to nanoseconds: 4.096 us times two to the power of `code`, which has 5 bits.
#[must_use]
pub const fn coded_time_ns(code: u8) -> u64 {
    4096 << (code & 31)
}

/// A message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement.
    Mra(Mra),
    /// Rejection.
    Rej(Rej),
    /// Reply to a REQ.
    Rep(Rep),
    /// Ready to use (RTU): the answer to a REP.
    Rtu(RtuOrDrep),
    /// Request to disconnect.
    Dreq(Dreq),
    /// The answer to a DREQ.
    Drep(RtuOrDrep),
    /// Service ID resolution request (SIDR_REQ): asks for the queue pair of a service.
    SidrReq(SidrReq),
    /// The answer to a SIDR_REQ (SIDR_REP).
    SidrRep(SidrRep),
}

/// The reason why bytes are not a message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CmParseError {
    /// The bytes are not a management datagram.
    #[error(transparent)]
    Mad(#[from] MadError),
    /// The management class is not communication management.
    #[error("management class {0:#04x} is not communication management")]
    Class(u8),
    /// The class version is not 2.
    #[error("version {0} of communication management is unknown")]
    ClassVersion(u8),
    /// The method is not Send.
    #[error("method {0:#04x} is not one of communication management")]
    Method(u8),
    /// The attribute is unknown, or it is LAP or APR, which are not supported.
    #[error("message {0:#06x} of communication management is not supported")]
    Attribute(u16),
}

impl CmMessage {
    /// Parses a management datagram, the payload of a SEND to QP1; returns the transaction id and the message.
    ///
    /// # Errors
    /// The datagram is not a supported message of communication management.
    pub fn parse(mad: &[u8]) -> Result<(u64, Self), CmParseError> {
        let (header, body) = MadHeader::parse(mad)?;
        if header.class != CLASS_CM {
            return Err(CmParseError::Class(header.class));
        }
        if header.class_version != CLASS_VERSION {
            return Err(CmParseError::ClassVersion(header.class_version));
        }
        if header.method != METHOD_SEND {
            return Err(CmParseError::Method(header.method));
        }
        let message = match header.attribute {
            0x10 => Self::Req(Req::parse(&body)),
            0x11 => Self::Mra(Mra::parse(&body)),
            0x12 => Self::Rej(Rej::parse(&body)),
            0x13 => Self::Rep(Rep::parse(&body)),
            0x14 => Self::Rtu(RtuOrDrep::parse(&body)),
            0x15 => Self::Dreq(Dreq::parse(&body)),
            0x16 => Self::Drep(RtuOrDrep::parse(&body)),
            0x17 => Self::SidrReq(SidrReq::parse(&body)),
            0x18 => Self::SidrRep(SidrRep::parse(&body)),
            other => return Err(CmParseError::Attribute(other)),
        };
        Ok((header.transaction, message))
    }

    /// Encodes the message as a management datagram. Numbers are truncated to the width of their fields.
    #[must_use]
    pub fn emit(&self, transaction: u64) -> [u8; MAD_BYTES] {
        let mut body = MadBody::zeroed();
        match self {
            Self::Req(message) => message.emit(&mut body),
            Self::Mra(message) => message.emit(&mut body),
            Self::Rej(message) => message.emit(&mut body),
            Self::Rep(message) => message.emit(&mut body),
            Self::Rtu(message) | Self::Drep(message) => message.emit(&mut body),
            Self::Dreq(message) => message.emit(&mut body),
            Self::SidrReq(message) => message.emit(&mut body),
            Self::SidrRep(message) => message.emit(&mut body),
        }
        let header = MadHeader {
            class: CLASS_CM,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            transaction,
            attribute: self.attribute_id(),
            modifier: 0,
        };
        header.emit(&body)
    }

    /// Returns the attribute id of the message.
    #[must_use]
    pub const fn attribute_id(&self) -> u16 {
        match self {
            Self::Req(_) => 0x10,
            Self::Mra(_) => 0x11,
            Self::Rej(_) => 0x12,
            Self::Rep(_) => 0x13,
            Self::Rtu(_) => 0x14,
            Self::Dreq(_) => 0x15,
            Self::Drep(_) => 0x16,
            Self::SidrReq(_) => 0x17,
            Self::SidrRep(_) => 0x18,
        }
    }
}

#[cfg(test)]
mod tests;
