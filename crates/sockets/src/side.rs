//! The words of a connection, as one side of it sees them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::c_int;

use crate::page::{DirectionWords, Page, stage, state};
use crate::real;
use crate::remote::{Remote, mailbox};

/// A page, and this process's side of it.
#[derive(Clone)]
pub(crate) struct PageAndSide {
    pub(crate) page: Arc<Page>,
    pub(crate) own_side: usize,
    /// The peer, if the connection is one between hosts and the page is this end's alone.
    pub(crate) remote: Option<Arc<Remote>>,
}

impl PageAndSide {
    /// Returns the words of the direction in which this side sends.
    #[inline]
    pub(crate) fn outgoing(&self) -> DirectionWords<'_> {
        let mut dir = self.page.direction_words(self.own_side);
        if let Some(remote) = &self.remote
            && let (Some(taken), Some(sleeps)) = (
                remote.word(mailbox::RDMA_BYTES_TAKEN),
                remote.word(mailbox::WAKES_FOR_DATA),
            )
        {
            (dir.rdma_bytes_taken, dir.receiver_sleeps) = (taken, sleeps);
        }
        dir
    }

    /// Returns the stage of the peer.
    pub(crate) fn peer_stage(&self) -> u64 {
        let peer = self.page.side(1 - self.own_side);
        peer.stage.load(Ordering::Acquire)
    }

    /// Returns the words of the direction in which this side receives.
    #[inline]
    pub(crate) fn incoming(&self) -> DirectionWords<'_> {
        let mut dir = self.page.direction_words(1 - self.own_side);
        if let Some(remote) = &self.remote {
            if let Some(sleeps) = remote.word(mailbox::SENDER_SLEEPS) {
                dir.sender_sleeps = sleeps;
            }
            if dir.state.load(Ordering::Acquire) == state::TCP
                && remote.load(mailbox::PEER_SENDS_BY_RDMA) != 0
            {
                dir.tcp_bytes_before_rdma.store(
                    remote.load(mailbox::PEER_TCP_BYTES_BEFORE_RDMA),
                    Ordering::Relaxed,
                );
                let _ = dir.state.compare_exchange(
                    state::TCP,
                    state::RDMA,
                    Ordering::Release,
                    Ordering::Relaxed,
                );
            }
        }
        dir
    }

    /// Returns true if the peer has closed its socket or has ended.
    pub(crate) fn has_peer_ended(&self, fd: c_int) -> bool {
        let ended = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let (n, revents) = real::poll_one(fd, libc::POLLRDHUP, 0);
        n > 0 && revents & ended != 0 && self.peer_is_gone()
    }

    /// Returns true if the peer's page says so.
    pub(crate) fn peer_is_gone(&self) -> bool {
        let peer = self.page.side(1 - self.own_side);
        peer.stage.load(Ordering::Acquire) == stage::TCP_OR_CLOSED || peer.is_dead()
    }
}
