//! Transport services.

use verbs_abi as abi;

/// Reliable connection: every verb.
#[derive(Debug)]
pub enum Rc {}
/// Unreliable connection: SEND and RDMA WRITE.
#[derive(Debug)]
pub enum Uc {}
/// Unreliable datagram: SEND to any UD queue pair.
#[derive(Debug)]
pub enum Ud {}

/// A transport service: [`Rc`], [`Uc`] or [`Ud`].
pub trait Transport: sealed::Transport {
    /// The short name of the transport.
    const NAME: &'static str;
}

/// A transport whose queue pairs are connected to one peer: [`Rc`] or [`Uc`].
pub trait Connected: Transport {}

pub(crate) mod sealed {
    pub trait Transport {
        const QP_TYPE: u32;
        const RELIABLE: bool = false;
    }
}

impl sealed::Transport for Rc {
    const QP_TYPE: u32 = abi::IBV_QPT_RC;
    const RELIABLE: bool = true;
}
impl sealed::Transport for Uc {
    const QP_TYPE: u32 = abi::IBV_QPT_UC;
}
impl sealed::Transport for Ud {
    const QP_TYPE: u32 = abi::IBV_QPT_UD;
}
impl Transport for Rc {
    const NAME: &'static str = "RC";
}
impl Transport for Uc {
    const NAME: &'static str = "UC";
}
impl Transport for Ud {
    const NAME: &'static str = "UD";
}
impl Connected for Rc {}
impl Connected for Uc {}
