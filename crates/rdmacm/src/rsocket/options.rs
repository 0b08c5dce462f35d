//! The options of sockets for streams.

use std::ffi::c_int;

use verbs_abi::*;

use super::socket::StreamSocket;
use super::stream::{Sizes, Stream};
use super::wait::{Blocking, Waitable};
use crate::errno::{Errno, INVALID, Result};

/// Least buffer of `SO_SNDBUF` and `SO_RCVBUF`, as of TCP's sockets (`socket(7)`); the stream has one of its own.
const MIN_BUFFER: c_int = 2048;

/// Options that are only remembered.
#[derive(Clone, Copy, Default)]
pub(super) struct Remembered {
    keep_alive: c_int,
    keep_idle: c_int,
    keep_interval: c_int,
    keep_count: c_int,
    no_delay: c_int,
    max_segment: c_int,
    oob_inline: c_int,
    linger: (c_int, c_int),
}

fn buffer_size(value: c_int) -> usize {
    usize::try_from(value.clamp(MIN_BUFFER, 1 << 28)).unwrap_or(0)
}

impl Sizes {
    /// Sets an option of the level `SOL_RDMA`; `None` if there is none of that name.
    pub(super) fn set(&mut self, name: c_int, value: c_int) -> Option<()> {
        let value = u16::try_from(value.clamp(0, 8192)).ok()?;
        match name {
            RDMA_SQSIZE => self.sq = value,
            RDMA_RQSIZE => self.rq = value,
            RDMA_INLINE => self.max_inline = value.min(1024),
            RDMA_IOMAPSIZE => self.iomap_entries = value,
            _ => return None,
        }
        Some(())
    }

    /// An option of the level `SOL_RDMA`, if there is one of that name.
    pub(super) fn get(&self, name: c_int) -> Option<c_int> {
        match name {
            RDMA_SQSIZE => Some(self.sq.into()),
            RDMA_RQSIZE => Some(self.rq.into()),
            RDMA_INLINE => Some(self.max_inline.into()),
            RDMA_IOMAPSIZE => Some(self.iomap_entries.into()),
            _ => None,
        }
    }
}

impl StreamSocket {
    pub(super) fn set_nonblocking(&self, nonblocking: bool) {
        self.lock().blocking = Blocking::new(nonblocking);
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.lock().blocking.never()
    }

    /// `setsockopt(2)` of a number.
    ///
    /// # Errors
    /// `ENOTSUP` for options that there are not, `EINVAL` for values that they cannot have.
    pub(super) fn set_option(&self, level: c_int, name: c_int, value: c_int) -> Result {
        let mut inner = self.lock();
        let before_connecting = inner.stream.is_none();
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => inner.reuse_address = value,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if before_connecting => {
                inner.sizes.recv_buffer = buffer_size(value);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if before_connecting => {
                inner.sizes.send_buffer = buffer_size(value);
            }
            // Buffers of a connection stay as they are: their size is a wish.
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => inner.remembered.keep_alive = value,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => inner.remembered.oob_inline = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => inner.remembered.keep_idle = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => inner.remembered.keep_interval = value,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => inner.remembered.keep_count = value,
            // Nothing waits for more to be sent.
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => inner.remembered.no_delay = value,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => inner.remembered.max_segment = value,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => inner.v6only = value,
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE) => {
                let set = before_connecting.then(|| inner.sizes.set(name, value));
                return set.flatten().ok_or(INVALID);
            }
            _ => return Err(Errno(libc::ENOTSUP)),
        }
        Ok(())
    }

    /// `SO_LINGER`, which is remembered only: `rclose` always delivers what was sent.
    pub(crate) fn set_linger(&self, on: c_int, seconds: c_int) {
        self.lock().remembered.linger = (on, seconds);
    }

    /// `SO_LINGER`.
    pub(crate) fn linger(&self) -> (c_int, c_int) {
        self.lock().remembered.linger
    }

    /// `getsockopt(2)` of a number.
    ///
    /// # Errors
    /// `ENOTSUP` for options that there are not.
    pub(super) fn option(&self, level: c_int, name: c_int) -> Result<c_int> {
        let mut inner = self.lock();
        let sizes = inner.stream.as_ref().map_or(inner.sizes, Stream::sizes);
        let int = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => inner.reuse_address,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(sizes.recv_buffer),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(sizes.send_buffer),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => inner.remembered.keep_alive,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => inner.remembered.oob_inline,
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                inner.progress();
                std::mem::take(&mut inner.error)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => inner.remembered.keep_idle,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => inner.remembered.keep_interval,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => inner.remembered.keep_count,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => inner.remembered.no_delay,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => match inner.remembered.max_segment {
                // The MTU.
                0 => 4096,
                asked => asked,
            },
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => inner.v6only,
            (SOL_RDMA, _) => return sizes.get(name).ok_or(Errno(libc::ENOTSUP)),
            _ => return Err(Errno(libc::ENOTSUP)),
        })
    }
}
