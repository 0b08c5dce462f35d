//! What the two ends of a connection know of each other.

use crate::wire::{Params, QpAddress};

/// What the two ends need to know of each other to connect their queue pairs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    /// How the peer reaches this end.
    pub(crate) local: QpAddress,
    /// How this end reaches the peer.
    pub(crate) remote: QpAddress,
    /// As this end means them. The retry counts are those of its own sends.
    pub(crate) params: Params,
    /// MTU of the path, `IBV_MTU_*`, as the request has it; 0 for that of the port.
    pub(crate) path_mtu: u8,
    /// What the peer offered: vendor and options of `struct ibv_ece`.
    pub(crate) remote_ece: (u32, u32),
}
