//! The link layer of the port, and the errors of the port's set-up.

use std::ffi::{OsStr, OsString};
use std::io;

use libc::EINVAL;
use shm::errno::errno_of;

use super::device_and_port_counts::BadCount;
use super::interfaces::ADDRESS_VAR;

/// The environment variable that chooses the link layer.
pub(crate) const LINK_LAYER_VAR: &str = "VERBATIM_LINK_LAYER";

/// The link layer that the port reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    /// RoCEv2: peers are addressed by GIDs that are IP addresses.
    Ethernet,
    /// InfiniBand: peers are addressed by LIDs.
    InfiniBand,
}

impl LinkLayer {
    /// Parses the value of `VERBATIM_LINK_LAYER`: `roce` or `ethernet` (the default when unset), `ib` or `infiniband`,
    /// in any case (`ibv_devinfo` prints `InfiniBand` and `Ethernet`).
    pub(super) fn from_env_value(value: Option<&OsStr>) -> Result<Self, PortError> {
        let Some(value) = value else {
            return Ok(Self::Ethernet);
        };
        let is = |name| value.eq_ignore_ascii_case(name);
        if is("roce") || is("ethernet") {
            Ok(Self::Ethernet)
        } else if is("ib") || is("infiniband") {
            Ok(Self::InfiniBand)
        } else {
            Err(PortError::UnknownLinkLayer {
                value: value.to_owned(),
            })
        }
    }
}

/// The reason why the port cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PortError {
    /// `VERBATIM_LINK_LAYER` has an unknown value.
    #[error(
        "{LINK_LAYER_VAR} is {value:?}: set it to `roce` or `ethernet` (the default), \
         or to `ib` or `infiniband`"
    )]
    UnknownLinkLayer {
        /// The value of the variable.
        value: OsString,
    },
    /// The host's addresses cannot be read, and a RoCEv2 port's GIDs are made of them.
    #[error(
        "cannot list the addresses of the network interfaces: {0}; \
         {LINK_LAYER_VAR}=ib gives a port that needs none"
    )]
    CannotReadAddresses(#[source] io::Error),
    /// `VERBATIM_ADDRESS` names an address that the port cannot have.
    #[error(
        "{ADDRESS_VAR} is {0:?}: list addresses of this host's network interfaces, separated by commas \
         (`ip -brief address` shows them; any address of 127.0.0.0/8 is one)"
    )]
    NoSuchAddress(String),
    /// `VERBATIM_ADDRESS` has fewer addresses than there are ports.
    #[error(
        "{ADDRESS_VAR} is {list:?}, and the {ports} ports need an address each: list more, or leave {ADDRESS_VAR} unset"
    )]
    TooFewAddresses {
        /// The addresses.
        list: String,
        /// Ports of all devices.
        ports: usize,
    },
    /// The number of devices or ports cannot be had.
    #[error(transparent)]
    BadCount(#[from] BadCount),
    /// The host's id cannot be read, of which the port's GUID is made.
    #[error("cannot read the host's id: {0}")]
    CannotReadHostId(#[source] io::Error),
}

impl PortError {
    /// Returns the errno for C callers: `EINVAL` for a bad value, else that of the system call.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::UnknownLinkLayer { .. }
            | Self::NoSuchAddress(_)
            | Self::TooFewAddresses { .. }
            | Self::BadCount(_) => EINVAL,
            Self::CannotReadAddresses(error) | Self::CannotReadHostId(error) => errno_of(error),
        }
    }
}
