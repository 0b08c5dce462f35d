//! The data that peers exchange about their queue pairs.

use serde::{Deserialize, Serialize};

use crate::types::{Gid, Lid, Mtu, Psn, QKey, Qpn};

/// The data of a queue pair that its peer needs. Exchange it by any means.
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
