//! The words of a connection, as one side of it sees them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::c_int;

use crate::connection_page::{ConnectionPage, DirectionWords, stage, state};
use crate::real_libc;
use crate::remote_peer::{RemotePeer, mailbox};

/// A page, and this process's side of it.
#[derive(Clone)]
pub(crate) struct PageAndSide {
    pub(crate) page: Arc<ConnectionPage>,
    pub(crate) own_side: usize,
    /// The peer, if the connection is one between hosts and the page is this end's alone.
    pub(crate) remote_peer: Option<Arc<RemotePeer>>,
}

impl PageAndSide {
    /// Returns the words of the direction in which this side sends.
    #[inline]
    pub(crate) fn outgoing_words(&self) -> DirectionWords<'_> {
        let mut dir = self.page.direction_words(self.own_side);
        if let Some(remote) = &self.remote_peer
            && let (Some(taken), Some(sleeps)) = (
                remote.mailbox_word(mailbox::RDMA_BYTES_TAKEN),
                remote.mailbox_word(mailbox::WAKES_FOR_DATA),
            )
        {
            (dir.rdma_bytes_taken, dir.receiver_sleeps) = (taken, sleeps);
        }
        dir
    }

    /// Returns the stage of the peer.
    pub(crate) fn peer_stage(&self) -> u64 {
        let peer = self.page.side_words(1 - self.own_side);
        peer.setup_stage.load(Ordering::Acquire)
    }

    /// Returns the words of the direction in which this side receives.
    #[inline]
    pub(crate) fn incoming_words(&self) -> DirectionWords<'_> {
        let mut dir = self.page.direction_words(1 - self.own_side);
        if let Some(remote) = &self.remote_peer {
            if let Some(sleeps) = remote.mailbox_word(mailbox::SENDER_SLEEPS) {
                dir.sender_sleeps = sleeps;
            }
            if dir.state.load(Ordering::Acquire) == state::TCP
                && remote.load_mailbox_word(mailbox::PEER_SENDS_BY_RDMA) != 0
            {
                dir.tcp_bytes_before_rdma.store(
                    remote.load_mailbox_word(mailbox::PEER_TCP_BYTES_BEFORE_RDMA),
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
        let (n, revents) = real_libc::poll_one(fd, libc::POLLRDHUP, 0);
        n > 0 && revents & ended != 0 && self.peer_is_gone()
    }

    /// Returns true if the peer's page says so.
    pub(crate) fn peer_is_gone(&self) -> bool {
        let peer = self.page.side_words(1 - self.own_side);
        peer.setup_stage.load(Ordering::Acquire) == stage::TCP_OR_CLOSED || peer.is_dead()
    }
}
