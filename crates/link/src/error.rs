//! Errors of opening an endpoint.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use rustix::io::Errno;

/// The reason why an address has no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The UDP port is in use.
    #[error(
        "UDP port {port} of {address} is in use: by Soft-RoCE in this network namespace, by another user, or by the \
         software NIC of another fabric of this user. Start the program in a network namespace of its own (`ip netns \
         exec`, a container), or end the other one (Soft-RoCE: `rdma link delete`; `ss -ulpn` names the process)"
    )]
    PortInUse {
        /// Address of the endpoint.
        address: IpAddr,
        /// UDP port.
        port: u16,
    },
    /// The host does not have the address.
    #[error(
        "this host has no address {address} in this network namespace (`ip address` lists them)"
    )]
    NoSuchAddress {
        /// The missing address.
        address: IpAddr,
    },
    /// A system call failed.
    #[error("cannot {what} for UDP port {port} of {address}: {source}")]
    SocketCallFailed {
        /// The attempted operation.
        what: &'static str,
        /// Address of the socket.
        address: IpAddr,
        /// UDP port.
        port: u16,
        /// Error of the system call.
        source: io::Error,
    },
    /// A file of the fabric's folder cannot be used.
    #[error("cannot {what} {path}: {source}")]
    FabricFile {
        /// The attempted operation.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The epoll descriptor could not be made: out of descriptors, or out of kernel memory.
    #[error("cannot wait for packets (epoll): {source}")]
    EpollCreateFailed {
        /// Error of the system call.
        source: io::Error,
    },
    /// The slot is outside 1 to 1023.
    #[error("slot {slot} is none of a process: they are 1 to 1023")]
    InvalidSlot {
        /// The invalid slot.
        slot: u16,
    },
    /// No address was given.
    #[error("an endpoint needs an address, and none was given")]
    NoAddress,
}

impl LinkError {
    /// Returns the address whose socket cannot be opened, if the reason concerns one.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::PortInUse { address, .. }
            | Self::NoSuchAddress { address }
            | Self::SocketCallFailed { address, .. } => Some(*address),
            _ => None,
        }
    }

    /// Returns the errno for C callers.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let code = match self {
            Self::PortInUse { .. } => Errno::ADDRINUSE,
            Self::NoSuchAddress { .. } | Self::NoAddress => Errno::ADDRNOTAVAIL,
            Self::InvalidSlot { .. } => Errno::INVAL,
            Self::SocketCallFailed { source, .. }
            | Self::FabricFile { source, .. }
            | Self::EpollCreateFailed { source } => {
                Errno::from_io_error(source).unwrap_or(Errno::IO)
            }
        };
        code.raw_os_error()
    }
}
