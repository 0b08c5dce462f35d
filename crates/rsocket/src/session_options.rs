//! Options of stream sockets.

use std::ffi::c_int;

use verbs_abi::*;

use crate::session::StreamSocketState;
use crate::sizes::clamp_buffer_size;
use crate::stream::Stream;
use crate::wait::WaitableState;
use rdmacm::errno::{Errno, INVALID, Result};

impl StreamSocketState {
    /// Implements `setsockopt(2)` for options whose value is an `int`.
    ///
    /// # Errors
    /// `ENOTSUP` for unknown options, `EINVAL` for invalid values.
    pub(crate) fn set_option(&mut self, level: c_int, name: c_int, value: c_int) -> Result {
        let before_connecting = self.stream.is_none();
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address = value,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if before_connecting => {
                self.sizes.recv_buffer_bytes = clamp_buffer_size(value);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if before_connecting => {
                self.sizes.send_buffer_bytes = clamp_buffer_size(value);
            }
            // The buffers of a connection keep their size, which is only a hint.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.stored_options.keep_alive = value,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.stored_options.oob_inline = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.stored_options.keep_idle = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.stored_options.keep_interval = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.stored_options.keep_count = value,
            // Sends are never delayed, so the option has no effect.
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.stored_options.no_delay = value,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => self.stored_options.max_segment = value,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6only = value,
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE) => {
                let set =
                    before_connecting.then(|| self.sizes.set_rdma_option_if_known(name, value));
                return set.flatten().ok_or(INVALID);
            }
            _ => return Err(Errno(libc::ENOTSUP)),
        }
        Ok(())
    }

    /// Implements `getsockopt(2)` for options whose value is an `int`.
    ///
    /// # Errors
    /// `ENOTSUP` for unknown options.
    pub(crate) fn option(&mut self, level: c_int, name: c_int) -> Result<c_int> {
        let sizes = self.stream.as_ref().map_or(self.sizes, Stream::sizes);
        let int = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(sizes.recv_buffer_bytes),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(sizes.send_buffer_bytes),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.stored_options.keep_alive,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.stored_options.oob_inline,
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                self.progress();
                std::mem::take(&mut self.pending_so_error)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.stored_options.keep_idle,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.stored_options.keep_interval,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.stored_options.keep_count,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.stored_options.no_delay,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match self.stored_options.max_segment {
                // If none was set, the largest MTU of the verbs is reported.
                0 => 4096,
                asked => asked,
            },
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6only,
            (SOL_RDMA, _) => return sizes.rdma_option_if_known(name).ok_or(Errno(libc::ENOTSUP)),
            _ => return Err(Errno(libc::ENOTSUP)),
        })
    }
}
