//! Queue pairs that are ready to be connected.

use std::collections::VecDeque;

use verbs::{CompletionChannel, CompletionQueue, PreparedQp, Rc};

use crate::handshake::Hello;
use crate::pool::{Block, Pool};

/// Maximum payload that is sent inline, in bytes.
pub(crate) const INLINE_BYTES: u32 = 256;

/// A queue pair that is not connected yet.
pub(crate) struct Prepared {
    // Fields are dropped in this order: the queue pair must be destroyed before its blocks return
    // to the pool.
    pub(crate) qp: PreparedQp<Rc>,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) channel: CompletionChannel,
    pub(crate) pool: Pool,
    pub(crate) posted: VecDeque<Block>,
    pub(crate) queue_size: u16,
    pub(crate) max_sge: usize,
}

impl Prepared {
    /// Returns the hello for the peer.
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
