//! The sizes of queues and buffers, as socket options set them.

use std::ffi::c_int;

use verbs_abi::*;

/// Minimum of `SO_SNDBUF` and `SO_RCVBUF`, as for TCP sockets (`socket(7)`); the stream has its own minimum.
const MIN_SOCKET_BUFFER_BYTES: c_int = 2048;

/// The sizes of queues and buffers, as set by socket options; the defaults are those of `rsocket(7)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueAndBufferSizes {
    /// Bytes of the send buffer; `recv_buffer_bytes`: of the receive buffer.
    pub(crate) send_buffer_bytes: usize,
    pub(crate) recv_buffer_bytes: usize,
    /// Work requests of the send queue; `rq_wrs`: of the receive queue.
    pub(crate) sq_wrs: u16,
    pub(crate) rq_wrs: u16,
    pub(crate) max_inline: u16,
    /// Number of buffers that the peer may map.
    pub(crate) iomap_entry_count: u16,
}

impl Default for QueueAndBufferSizes {
    fn default() -> Self {
        Self {
            send_buffer_bytes: 1 << 17,
            recv_buffer_bytes: 1 << 17,
            sq_wrs: 384,
            rq_wrs: 384,
            max_inline: 64,
            iomap_entry_count: 0,
        }
    }
}

impl QueueAndBufferSizes {
    /// Sets an option of the level `SOL_RDMA`; `None` if no such option exists.
    pub(crate) fn set_rdma_option_if_known(&mut self, name: c_int, value: c_int) -> Option<()> {
        let value = u16::try_from(value.clamp(0, 8192)).ok()?;
        match name {
            RDMA_SQSIZE => self.sq_wrs = value,
            RDMA_RQSIZE => self.rq_wrs = value,
            RDMA_INLINE => self.max_inline = value.min(1024),
            RDMA_IOMAPSIZE => self.iomap_entry_count = value,
            _ => return None,
        }
        Some(())
    }

    /// Returns an option of the level `SOL_RDMA`; `None` if no such option exists.
    pub(crate) fn rdma_option_if_known(&self, name: c_int) -> Option<c_int> {
        match name {
            RDMA_SQSIZE => Some(self.sq_wrs.into()),
            RDMA_RQSIZE => Some(self.rq_wrs.into()),
            RDMA_INLINE => Some(self.max_inline.into()),
            RDMA_IOMAPSIZE => Some(self.iomap_entry_count.into()),
            _ => None,
        }
    }
}

/// Limits a value of `SO_SNDBUF` or `SO_RCVBUF` to the valid range.
pub(crate) fn clamp_buffer_size(value: c_int) -> usize {
    usize::try_from(value.clamp(MIN_SOCKET_BUFFER_BYTES, 1 << 28)).unwrap_or(0)
}
