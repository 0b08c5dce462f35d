//! What peers tell each other of their queue pairs.

use serde::{Deserialize, Serialize};

use crate::types::{Gid, Lid, Mtu, Psn, QKey, Qpn};

/// What a peer needs to know of a queue pair: exchange it by any means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpEndpoint {
    /// The queue pair number.
    pub qpn: Qpn,
    /// The PSN that its first packet will have.
    pub psn: Psn,
    /// The port's LID; 0 on Ethernet.
    pub lid: Lid,
    /// The port's GID.
    pub gid: Gid,
    /// The largest path MTU of the port.
    pub mtu: Mtu,
    /// The Q_Key, if this is a UD queue pair.
    pub qkey: Option<QKey>,
}
