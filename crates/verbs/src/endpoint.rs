//! The data of queue pairs that peers exchange.

use serde::{Deserialize, Serialize};

use crate::types::{Gid, Lid, Mtu, Psn, QKey, Qpn};

/// The data of a queue pair that its peer needs. Any channel serves for the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpEndpoint {
    /// The queue pair number.
    pub qpn: Qpn,
    /// The PSN of the queue pair's first packet.
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
