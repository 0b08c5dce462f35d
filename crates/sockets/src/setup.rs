//! The set-up of a connection: its page, its queue pair and its ring, as far as the peer's stage permits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use verbs::{QpEndpoint, RemoteMemory};

use crate::address::ConnectionKind;
use crate::conn::{Conn, Phase, SetupState};
use crate::connection_page::{ConnectionPage, page_file_name, stage, state};
use crate::nic::{self, Nic, lock};
use crate::not_rdma_reason::NotRdmaReason;
use crate::page_side::PageAndSide;
use crate::real_libc::KernelByteCounts;
use crate::remote_peer::RemotePeer;
use crate::ring::{Arena, Ring};
use crate::{
    address, deep_stack, ended_connection_totals, own_calls, peer_lookup, real_libc,
    remove_stale_pages,
};

/// Number of calls after which a connection stops waiting for the peer, not before [`MIN_WAIT_FOR_PEER`].
const MAX_CALLS_WAITING_FOR_PEER: u32 = 512;
/// Time for which a connection waits for the peer. On a busy host, the peer may not be scheduled while many calls are
/// executed.
const MIN_WAIT_FOR_PEER: Duration = Duration::from_secs(1);

impl Conn {
    #[cold]
    pub(crate) fn advance_setup(&self, fd: i32) -> Phase {
        let before = real_libc::errno();
        own_calls::as_library(|| self.advance_setup_as_library(fd));
        real_libc::set_errno(before);
        self.phase()
    }

    fn advance_setup_as_library(&self, fd: i32) {
        let Ok(mut setup) = self.setup.try_lock() else {
            return;
        };
        let setup = &mut *setup;
        let result = match self.phase() {
            Phase::NotStarted => deep_stack::run_if_possible(|| self.find_or_claim_page(fd, setup))
                .unwrap_or(Err(NotRdmaReason::NoResources)),
            // A look at the page of a peer that has not come needs no stack.
            Phase::WaitingForPeer if setup.has_no_peer_on_this_host() => {
                self.continue_setup(fd, setup)
            }
            Phase::WaitingForPeer => deep_stack::run_if_possible(|| self.continue_setup(fd, setup))
                .unwrap_or(Err(NotRdmaReason::NoResources)),
            _ => Ok(()),
        };
        if let Err(reason) = result
            && deep_stack::run_if_possible(|| self.stay_on_tcp(setup, reason)).is_none()
        {
            self.stay_on_tcp(setup, reason);
        }
    }

    /// Keeps the connection on TCP.
    pub(crate) fn stay_on_tcp(&self, setup: &mut SetupState, reason: NotRdmaReason) {
        let remote = setup.remote_peer.take();
        if let Some(page) = setup.page.take() {
            page.not_rdma_reason()
                .store(reason as u64, Ordering::Relaxed);
            let own = page.side_words(setup.own_side);
            own.setup_stage
                .store(stage::TCP_OR_CLOSED, Ordering::Release);
            if let Some(remote) = remote {
                peer_lookup::send_own_state_to_peer(
                    &remote,
                    &own,
                    peer_lookup::AnswerRequest::NotWanted,
                );
            }
            if remove_stale_pages::is_page_unused(&page) {
                ended_connection_totals::remove_page_and_add_to_totals(&page);
            }
        }
        if let (Some(ring), Some(nic)) = (setup.ring.take(), nic::nic_if_created()) {
            nic.free_ring(setup.ring_arena_number, ring.offset());
        }
        setup.unconnected_qp = None;
        self.set_phase(Phase::Tcp);
    }

    fn find_or_claim_page(&self, fd: i32, setup: &mut SetupState) -> Result<(), NotRdmaReason> {
        let unsupported = |_| NotRdmaReason::NoResources;
        let is_tcp = real_libc::int_socket_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)
            == Some(libc::IPPROTO_TCP);
        let addresses = address::socket_addresses(fd).filter(|(own, peer)| is_tcp && own != peer);
        let (own, peer) = addresses.ok_or(NotRdmaReason::Unsupported)?;
        let remote = match address::connection_kind(own, peer) {
            ConnectionKind::SharedPage => None,
            ConnectionKind::BetweenHosts => Some(Arc::new(RemotePeer::new(own, peer, fd))),
            ConnectionKind::Tcp => return Err(NotRdmaReason::PeerWithoutLibrary),
        };
        let nic = nic::get_or_create_nic().map_err(unsupported)?;
        let cookie = real_libc::socket_cookie(fd).ok_or(NotRdmaReason::Unsupported)?;
        setup.own_side = usize::from(own > peer);
        let name = page_file_name(own, peer, remote.is_some()).map_err(unsupported)?;
        let path = nic.connections_dir.join(name);
        if let Ok(page) = ConnectionPage::open(&path, false)
            && page
                .side_words(setup.own_side)
                .socket_cookie
                .load(Ordering::Acquire)
                == cookie
        {
            self.adopt_page_of_other_process(fd, page, setup.own_side, remote);
            return Ok(());
        }
        if !self.check_tcp_byte_counts(fd)? {
            return Ok(());
        }
        for _ in 0..8 {
            let page = ConnectionPage::open(&path, true).map_err(unsupported)?;
            match claim_side(&page, setup.own_side, nic, cookie) {
                SideClaimOutcome::Claimed => {
                    (setup.page, setup.remote_peer) = (Some(Arc::new(page)), remote);
                    self.set_phase(Phase::WaitingForPeer);
                    return self.continue_setup(fd, setup);
                }
                SideClaimOutcome::OtherProcess => {
                    self.adopt_page_of_other_process(fd, page, setup.own_side, remote);
                    return Ok(());
                }
                SideClaimOutcome::Stale => {
                    ended_connection_totals::remove_page_and_add_to_totals(&page);
                }
            }
        }
        Err(NotRdmaReason::NoResources)
    }

    /// Checks that the kernel counted the same bytes as this library; otherwise other code has moved some. Returns false
    /// if that cannot be said yet.
    fn check_tcp_byte_counts(&self, fd: i32) -> Result<bool, NotRdmaReason> {
        let counts_of_library = || {
            let idle = self.running_tcp_reads.load(Ordering::Acquire)
                + self.running_tcp_writes.load(Ordering::Acquire)
                == 0;
            let sent = self.tcp_bytes_sent.load(Ordering::Acquire);
            idle.then(|| (sent, self.tcp_bytes_received.load(Ordering::Acquire)))
        };
        let before = counts_of_library();
        let counts = real_libc::byte_counts_by_kernel(fd).ok_or(NotRdmaReason::Unsupported)?;
        let KernelByteCounts::SentAndRead(sent, taken) = counts else {
            return Ok(false);
        };
        // While another thread is inside a call, its bytes are not counted yet.
        if let Some((sent_by_us, taken_by_us)) = before
            && before == counts_of_library()
        {
            let syn = u64::from(self.called_connect.load(Ordering::Relaxed));
            let is_same = taken == taken_by_us && (sent == sent_by_us || sent == sent_by_us + syn);
            if !is_same {
                return Err(NotRdmaReason::BypassedBytes);
            }
        }
        Ok(true)
    }

    /// Uses a page of another process on this side: its remaining data will be read, and all later data goes by TCP.
    fn adopt_page_of_other_process(
        &self,
        fd: i32,
        page: ConnectionPage,
        side: usize,
        remote: Option<Arc<RemotePeer>>,
    ) {
        let owner = page.side_words(side);
        let id = i32::try_from(owner.ring_segment_id.load(Ordering::Acquire)).unwrap_or(-1);
        let offset =
            usize::try_from(owner.ring_offset.load(Ordering::Acquire)).unwrap_or(usize::MAX);
        let ring = match owner.setup_stage.load(Ordering::Acquire) {
            0 | stage::PAGE_FOUND => None,
            _ => Arena::attach(id)
                .ok()
                .and_then(|arena| Ring::at(arena, offset)),
        };
        if let (Some(remote), Some(ring)) = (&remote, &ring) {
            remote.set_mailbox(ring.clone());
        }
        let incoming = page.direction_words(1 - side);
        let unread = incoming.rdma_bytes_sent.load(Ordering::Acquire)
            != incoming.rdma_bytes_taken.load(Ordering::Acquire);
        // Between hosts the bytes that have come are counted in the ring, which ends with its process.
        let may_be_unread = match incoming.state.load(Ordering::Acquire) {
            state::RDMA => remote.is_some() || unread,
            state::DEMOTED => unread,
            _ => false,
        };
        let is_unread_lost = ring.is_none() && may_be_unread;
        let link = PageAndSide {
            page: Arc::new(page),
            own_side: side,
            remote_peer: remote,
        };
        let mut rx = lock(&self.rx);
        let mut tx = lock(&self.tx);
        (rx.page_and_side, rx.ring, tx.page_and_side) = (Some(link.clone()), ring, Some(link));
        self.set_phase(Phase::RdmaByOtherProcess);
        if is_unread_lost {
            self.reset_stream(fd);
        }
    }

    /// Continues the change to RDMA as far as the peer's stage permits.
    fn continue_setup(&self, fd: i32, setup: &mut SetupState) -> Result<(), NotRdmaReason> {
        let page = setup.page.clone().ok_or(NotRdmaReason::NoResources)?;
        let (own, peer) = (
            page.side_words(setup.own_side),
            page.side_words(1 - setup.own_side),
        );
        let there = peer.setup_stage.load(Ordering::Acquire);
        if there == stage::TCP_OR_CLOSED {
            return Err(NotRdmaReason::PeerWithoutLibrary);
        }
        if let Some(remote) = &setup.remote_peer
            && there < stage::ENDPOINT_READY
            && remote.is_time_to_look_up(there != 0)
        {
            peer_lookup::send_own_state_to_peer(remote, &own, peer_lookup::AnswerRequest::Wanted);
        }
        if there == 0 {
            let calls = self.data_calls_before_setup.fetch_add(1, Ordering::Relaxed);
            let since = *setup.waits_since.get_or_insert_with(Instant::now);
            let may_come =
                calls < MAX_CALLS_WAITING_FOR_PEER || since.elapsed() < MIN_WAIT_FOR_PEER;
            return if may_come {
                Ok(())
            } else {
                Err(NotRdmaReason::PeerWithoutLibrary)
            };
        }
        let nic = nic::get_or_create_nic().map_err(|_| NotRdmaReason::NoResources)?;
        if setup.unconnected_qp.is_none() {
            self.create_and_publish_qp_and_ring(nic, setup, &page)
                .map_err(|_| NotRdmaReason::NoResources)?;
        }
        if there == stage::PAGE_FOUND
            || own.setup_stage.load(Ordering::Relaxed) != stage::ENDPOINT_READY
        {
            return Ok(());
        }
        self.connect_qp_and_accept_writes(fd, nic, setup, &page)
    }

    /// Creates the queue pair and the ring, and publishes them to the peer.
    fn create_and_publish_qp_and_ring(
        &self,
        nic: &Nic,
        setup: &mut SetupState,
        page: &ConnectionPage,
    ) -> io::Result<()> {
        let (ring, remote, place) = nic.take_ring()?;
        (setup.ring_arena_number, setup.ring) = (place.number, Some(ring.clone()));
        let address = setup
            .remote_peer
            .as_ref()
            .map(|remote| remote.own_addr.ip());
        let prepared = nic.create_unconnected_qp(address)?;
        let side = page.side_words(setup.own_side);
        let text = serde_json::to_vec(&(prepared.endpoint(), remote))?;
        if !side.set_message_for_peer(&text) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let id = u64::from(place.sysv_segment_id.unsigned_abs());
        side.ring_segment_id.store(id, Ordering::Relaxed);
        side.ring_offset
            .store(ring.offset() as u64, Ordering::Relaxed);
        side.setup_stage
            .store(stage::ENDPOINT_READY, Ordering::Release);
        setup.unconnected_qp = Some(prepared);
        if let Some(remote) = &setup.remote_peer {
            remote.set_mailbox(ring);
            peer_lookup::send_own_state_to_peer(remote, &side, peer_lookup::AnswerRequest::Wanted);
        }
        Ok(())
    }

    /// Connects the queue pair, and accepts the peer's WRITEs from now on.
    fn connect_qp_and_accept_writes(
        &self,
        fd: i32,
        nic: &'static Nic,
        setup: &mut SetupState,
        page: &Arc<ConnectionPage>,
    ) -> Result<(), NotRdmaReason> {
        let failed = NotRdmaReason::NoResources;
        let mut rx = lock(&self.rx);
        let mut tx = lock(&self.tx);
        // No thread may be inside a plain read once wake bytes can arrive.
        self.set_phase(Phase::QpConnected);
        if self.running_tcp_reads.load(Ordering::SeqCst) > 0 {
            self.set_phase(Phase::WaitingForPeer);
            return Ok(());
        }
        let peer = page.side_words(1 - setup.own_side);
        let text = peer.message_for_peer();
        let (endpoint, remote): (QpEndpoint, RemoteMemory) =
            serde_json::from_slice(&text).map_err(|_| failed)?;
        let prepared = setup.unconnected_qp.take().ok_or(failed)?;
        let sender = prepared.connect(&endpoint, remote).map_err(|_| failed)?;
        let link = PageAndSide {
            page: Arc::clone(page),
            own_side: setup.own_side,
            remote_peer: setup.remote_peer.clone(),
        };
        // Without `TCP_NODELAY`, a wake byte would wait for the acknowledgement of the previous one (RFC 896).
        tx.had_nagle =
            real_libc::int_socket_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Some(0);
        real_libc::set_nodelay(fd, true);
        (tx.page_and_side, tx.sender, tx.nic) = (Some(link.clone()), Some(sender), Some(nic));
        (rx.page_and_side, rx.ring) = (Some(link), setup.ring.clone());
        let incoming = page.direction_words(1 - setup.own_side);
        incoming.tcp_bytes_received.store(
            self.tcp_bytes_received.load(Ordering::Acquire),
            Ordering::Relaxed,
        );
        // A thread may already sleep in `epoll_wait(2)` without having armed the connection.
        incoming.receiver_sleeps.store(1, Ordering::Relaxed);
        let own = page.side_words(setup.own_side);
        own.setup_stage.store(stage::READY, Ordering::Release);
        if let Some(remote) = &setup.remote_peer {
            remote.setup_fd.store(fd, Ordering::Relaxed);
            peer_lookup::send_own_state_to_peer(remote, &own, peer_lookup::AnswerRequest::Wanted);
        }
        Ok(())
    }
}

impl SetupState {
    /// Returns true if the peer, which may be on this host, has not claimed its side of the page.
    fn has_no_peer_on_this_host(&self) -> bool {
        self.remote_peer.is_none()
            && self.page.as_ref().is_some_and(|page| {
                let peer = page.side_words(1 - self.own_side);
                peer.setup_stage.load(Ordering::Acquire) == 0
            })
    }
}

enum SideClaimOutcome {
    Claimed,
    OtherProcess,
    Stale,
}

/// Claims a side of a page for this process.
fn claim_side(page: &ConnectionPage, side: usize, nic: &Nic, cookie: u64) -> SideClaimOutcome {
    let (own, peer) = (page.side_words(side), page.side_words(1 - side));
    if peer.is_dead()
        || peer.setup_stage.load(Ordering::Acquire) == stage::TCP_OR_CLOSED
            && own.pid.load(Ordering::Acquire) == 0
    {
        return SideClaimOutcome::Stale;
    }
    if own
        .pid
        .compare_exchange(0, nic.pid, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        let same = own.socket_cookie.load(Ordering::Acquire) == cookie;
        return if same {
            SideClaimOutcome::OtherProcess
        } else {
            SideClaimOutcome::Stale
        };
    }
    own.socket_cookie.store(cookie, Ordering::Release);
    own.process_start_time
        .store(nic.process_start_time, Ordering::Release);
    own.setup_stage.store(stage::PAGE_FOUND, Ordering::Release);
    // Another process may have removed the file as stale; the peer would then never find this page.
    if page.path_names_this_page() {
        SideClaimOutcome::Claimed
    } else {
        SideClaimOutcome::Stale
    }
}
