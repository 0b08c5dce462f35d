//! The parameters that the two ends of a connection exchange.

use crate::wire::{NegotiatedParams, QpAddress};

/// The parameters that the two ends need to connect their queue pairs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionParams {
    /// Address of the local queue pair.
    pub(crate) local_qp: QpAddress,
    /// Address of the peer's queue pair.
    pub(crate) remote_qp: QpAddress,
    /// Negotiated parameters from the view of this end. The retry counts are those of its own sends.
    pub(crate) params: NegotiatedParams,
    /// MTU of the path from the request, `IBV_MTU_*`; 0 for the MTU of the port.
    pub(crate) path_mtu_code: u8,
    /// The peer's enhanced connection establishment (ECE) options: vendor and options of `struct ibv_ece`.
    pub(crate) remote_ece: (u32, u32),
}
