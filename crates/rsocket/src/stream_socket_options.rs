//! Options of stream sockets.

use std::ffi::c_int;

use verbs_abi::*;

use crate::queue_and_buffer_sizes::clamp_buffer_size;
use crate::stream::Stream;
use crate::stream_socket_state::StreamSocketState;
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
                self.queue_and_buffer_sizes.recv_buffer_bytes = clamp_buffer_size(value);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if before_connecting => {
                self.queue_and_buffer_sizes.send_buffer_bytes = clamp_buffer_size(value);
            }
            // The buffers of a connection keep their size, which is only a hint.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.ineffective_options.keep_alive = value,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.ineffective_options.oob_inline = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.ineffective_options.keep_idle = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                self.ineffective_options.keep_interval = value
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.ineffective_options.keep_count = value,
            // Sends are never delayed, so the option has no effect.
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.ineffective_options.no_delay = value,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => self.ineffective_options.max_segment = value,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6only = value,
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE) => {
                let set = before_connecting.then(|| {
                    self.queue_and_buffer_sizes
                        .set_rdma_option_if_known(name, value)
                });
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
        let sizes = self
            .stream
            .as_ref()
            .map_or(self.queue_and_buffer_sizes, Stream::queue_and_buffer_sizes);
        let int = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(sizes.recv_buffer_bytes),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(sizes.send_buffer_bytes),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.ineffective_options.keep_alive,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.ineffective_options.oob_inline,
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                self.process_completions_and_events();
                std::mem::take(&mut self.pending_so_error)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => self.ineffective_options.keep_idle,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => self.ineffective_options.keep_interval,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => self.ineffective_options.keep_count,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.ineffective_options.no_delay,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match self.ineffective_options.max_segment {
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
