//! Errors of the protocol, and of connection setup.

use std::io;
use std::net::SocketAddr;

use verbs::VerbError;

/// A violation of the protocol by the peer, which ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A control message has a wrong length.
    #[error("a control message of {0} bytes: they have 32")]
    WrongCommandLength(usize),
    /// A control message has an unknown opcode.
    #[error("a control message with the opcode {0}: the opcodes are 0 to 3")]
    UnknownOpcode(u16),
    /// The peer registers an empty buffer, or one that exceeds the address space.
    #[error("the peer registers {len} bytes at {addr:#x} as its receive buffer")]
    InvalidBuffer {
        /// The address of the buffer.
        addr: u64,
        /// The length of the buffer in bytes.
        len: u32,
    },
    /// An immediate counts more bytes than the receive buffer has left.
    #[error("the immediate counts {imm} bytes, and the receive buffer has {left} left")]
    Overrun {
        /// The immediate.
        imm: u32,
        /// Bytes left in the buffer.
        left: u32,
    },
    /// The immediate of a message announces fewer bytes than the message has.
    #[error("the immediate counts {imm} bytes of a message of {len}")]
    ImmediateTooSmall {
        /// The immediate.
        imm: u32,
        /// Bytes of the message.
        len: u32,
    },
    /// The peer requests answers without receiving any.
    #[error("the peer asks for {0} answers, and takes none of them")]
    TooManyUnsentAnswers(usize),
}

impl From<ProtocolError> for io::Error {
    fn from(e: ProtocolError) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, e)
    }
}

/// The reason why a connection or a listener could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The device is no software NIC, which `rdma_cm` needs.
    #[error(
        "connections by rdma_cm are made on the software NIC only, and this is a device of the provider {0}"
    )]
    NotSoftwareNic(String),
    /// The length of the receive buffer is out of range.
    #[error("a receive buffer of {0} bytes: it has 64 KiB to 16 MiB")]
    ReceiveBufferOutOfRange(u32),
    /// A step of connection management failed.
    #[error("{step} failed: {source}")]
    Cm {
        /// The step, as `rdma_cma.h` spells it.
        step: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Receives could not be posted.
    #[error(transparent)]
    PostReceives(#[from] verbs::PostError),
    /// No server listens at the address, or the server refused the connection.
    #[error("{0} refuses the connection: does a server listen there by rdma_cm?")]
    Refused(SocketAddr),
    /// The peer's address cannot be reached from the device.
    #[error("{0} cannot be reached from the software NIC")]
    Unreachable(SocketAddr),
    /// The server did not answer in time.
    #[error("{0} has not answered in time")]
    TimedOut(SocketAddr),
}

verbs::from_verb_errors!(SetupError);

impl SetupError {
    pub(crate) fn from_cm_error_in_step(
        step: &'static str,
    ) -> impl FnOnce(rdmacm::errno::Errno) -> Self {
        move |errno| Self::Cm {
            step,
            source: io::Error::from_raw_os_error(errno.0),
        }
    }
}

impl From<SetupError> for io::Error {
    fn from(e: SetupError) -> Self {
        let kind = match &e {
            SetupError::Cm { source, .. } => source.kind(),
            SetupError::Verb(e) => e.os_error().kind(),
            SetupError::Refused(_) => io::ErrorKind::ConnectionRefused,
            SetupError::Unreachable(_) => io::ErrorKind::HostUnreachable,
            SetupError::TimedOut(_) => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, e)
    }
}
