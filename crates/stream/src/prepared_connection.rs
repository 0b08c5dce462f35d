//! Queue pairs that are ready to be connected.

use std::collections::VecDeque;

use verbs::{CompletionQueue, PreparedQp, Rc};

use crate::handshake::Hello;
use crate::pool::{Block, Pool};

/// Maximum size in bytes of a payload that is sent inline.
pub(crate) const MAX_INLINE_BYTES: u32 = 256;

/// A queue pair that is not connected yet.
pub(crate) struct PreparedConnection {
    // Fields are dropped in this order: the queue pair must be destroyed before its blocks return
    // to the pool.
    pub(crate) qp: PreparedQp<Rc>,
    pub(crate) cq: CompletionQueue,
    pub(crate) pool: Pool,
    pub(crate) posted_recv_blocks: VecDeque<Block>,
    pub(crate) queue_size: u16,
    pub(crate) max_sge: usize,
}

impl PreparedConnection {
    /// Returns the hello that describes the queue pair to the peer.
    pub(crate) fn hello(&self) -> Hello {
        let own = self.qp.endpoint();
        Hello {
            block_bytes: u32::try_from(self.pool.block_bytes()).unwrap_or(u32::MAX),
            sq_size: self.queue_size,
            rq_size: self.queue_size,
            lid: own.lid.0,
            gid: own.gid.0,
            qpn: own.qpn.0,
        }
    }
}
