//! A TCP connection: on TCP, then on RDMA, and on TCP again if need be.
//!
//! The kernel's connection stays underneath. Both ends find one [page](crate::page) by the two addresses. When both have
//! connected their queue pairs, each direction changes to RDMA at a byte that the sender writes into the page. From there
//! on, the TCP stream carries wake bytes, which are counted, until the direction is demoted; then plain bytes again.
//! Since all is counted, no marker in the stream is needed, and no byte of one kind can be taken for another.
//!
//! Order of locks: `setup`, `rx`, `tx`, then those of the page: receiving, sending of side 0, sending of side 1.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};

use verbs::{QpEndpoint, RemoteMemory};

use crate::nic::{self, Nic, Prepared, Sender, lock};
use crate::page::{Page, stage, state};
use crate::reason::Reason;
use crate::ring::{Arena, Ring};
use crate::{address, real};

/// Calls that move bytes before a connection looks for its page: connections of one request stay on TCP.
const CALLS_BEFORE: u32 = 3;
/// Calls after which it does not wait for the peer any more.
const CALLS_WAITING: u32 = 512;

/// The state of a connection in this process.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Nothing yet.
    Fresh = 0,
    /// It has the page, and waits for the peer.
    Waiting = 1,
    /// Its queue pair is connected.
    Ready = 2,
    /// It stays on TCP, and calls go to the kernel as they are.
    Plain = 3,
    /// Another process has brought it onto RDMA; the first use here demotes it.
    Foreign = 4,
}

impl Phase {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::Fresh,
            1 => Self::Waiting,
            2 => Self::Ready,
            4 => Self::Foreign,
            _ => Self::Plain,
        }
    }
}

/// A connection.
pub(crate) struct Conn {
    refs: AtomicU32,
    phase: AtomicU8,
    /// Grows with each connection that this object is used for.
    generation: AtomicU32,
    calls: AtomicU32,
    /// This side connected; the other accepted.
    pub(crate) is_active: AtomicBool,
    /// Calls within the kernel's plain functions.
    pub(crate) plain_readers: AtomicU32,
    pub(crate) plain_writers: AtomicU32,
    /// Bytes that they moved.
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    /// A send found no room since an edge of `EPOLLOUT` was reported.
    pub(crate) was_full: AtomicBool,
    /// Threads that sleep in a read.
    pub(crate) sleeping_readers: AtomicU32,
    /// Threads that wait for room while another one, which sleeps in a read, gets the wake byte.
    pub(crate) napping: Mutex<()>,
    pub(crate) woken: Condvar,
    setup: Mutex<Setup>,
    pub(crate) rx: Mutex<Rx>,
    pub(crate) tx: Mutex<Tx>,
}

#[derive(Default)]
struct Setup {
    page: Option<Arc<Page>>,
    side: usize,
    prepared: Option<Prepared>,
    ring: Option<Ring>,
    arena: usize,
}

/// What receiving needs.
#[derive(Default)]
pub(crate) struct Rx {
    pub(crate) link: Option<Link>,
    pub(crate) ring: Option<Ring>,
}

/// What sending needs.
#[derive(Default)]
pub(crate) struct Tx {
    pub(crate) link: Option<Link>,
    pub(crate) sender: Option<Sender>,
    pub(crate) nic: Option<&'static Nic>,
    /// The program has not asked for `TCP_NODELAY`.
    had_delay: bool,
    /// Sends in a row after which the receiver had taken nothing, and how much it had taken.
    pub(crate) unanswered: u32,
    pub(crate) last_head: u64,
}

/// The page, and which side of it this is.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) page: Arc<Page>,
    pub(crate) side: usize,
}

impl Default for Conn {
    fn default() -> Self {
        Self {
            refs: AtomicU32::new(0),
            phase: AtomicU8::new(Phase::Plain as u8),
            generation: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            is_active: AtomicBool::new(false),
            plain_readers: AtomicU32::new(0),
            plain_writers: AtomicU32::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            was_full: AtomicBool::new(false),
            sleeping_readers: AtomicU32::new(0),
            napping: Mutex::default(),
            woken: Condvar::new(),
            setup: Mutex::default(),
            rx: Mutex::default(),
            tx: Mutex::default(),
        }
    }
}

impl Conn {
    /// Begins anew, with one descriptor.
    pub(crate) fn renew(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        self.is_active.store(false, Ordering::Relaxed);
        self.bytes_in.store(0, Ordering::Relaxed);
        self.bytes_out.store(0, Ordering::Relaxed);
        self.was_full.store(false, Ordering::Relaxed);
        self.refs.store(1, Ordering::Relaxed);
        self.set_phase(Phase::Fresh);
    }

    pub(crate) fn refs(&self) -> &AtomicU32 {
        &self.refs
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Ordering::SeqCst))
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    /// Whether the kernel alone knows what is ready.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !matches!(self.phase(), Phase::Ready | Phase::Foreign)
    }

    /// A call that moves bytes begins: brings the connection on its way to RDMA. The phase that it has then.
    #[inline]
    pub(crate) fn begin_call(&self, fd: i32) -> Phase {
        let phase = self.phase();
        match phase {
            Phase::Plain | Phase::Ready => phase,
            Phase::Fresh if self.calls.fetch_add(1, Ordering::Relaxed) < CALLS_BEFORE => phase,
            Phase::Fresh | Phase::Waiting | Phase::Foreign => {
                if self.proceed(fd) == Phase::Foreign {
                    self.demote(fd, Reason::OtherProcess);
                }
                self.phase()
            }
        }
    }

    /// Another process may use the connection: the page is looked for at the first call.
    pub(crate) fn share(&self) {
        self.calls.fetch_max(CALLS_BEFORE, Ordering::Relaxed);
    }

    #[cold]
    fn proceed(&self, fd: i32) -> Phase {
        let before = real::errno();
        if let Ok(mut setup) = self.setup.try_lock() {
            let result = match self.phase() {
                Phase::Fresh => self.find_page(fd, &mut setup),
                Phase::Waiting => self.meet(fd, &mut setup),
                _ => Ok(()),
            };
            if let Err(reason) = result {
                self.give_up(&mut setup, reason);
            }
        }
        real::set_errno(before);
        self.phase()
    }

    /// Stays on TCP.
    fn give_up(&self, setup: &mut Setup, reason: Reason) {
        if let Some(page) = setup.page.take() {
            page.reason().store(reason as u64, Ordering::Relaxed);
            page.side(setup.side)
                .stage
                .store(stage::GONE, Ordering::Release);
            if crate::stale::has_ended(&page) {
                let _ = std::fs::remove_file(&page.path);
            }
        }
        if let (Some(ring), Some(nic)) = (setup.ring.take(), nic::existing()) {
            nic.give_ring(setup.arena, ring.offset());
        }
        setup.prepared = None;
        self.set_phase(Phase::Plain);
    }

    fn find_page(&self, fd: i32, setup: &mut Setup) -> Result<(), Reason> {
        let unsupported = |_| Reason::NoResources;
        let is_tcp =
            real::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
        let addresses = address::of(fd).filter(|(own, peer)| is_tcp && own != peer);
        let (own, peer) = addresses.ok_or(Reason::Unsupported)?;
        if !address::is_this_host(own, peer) {
            return Err(Reason::PeerSilent);
        }
        let nic = nic::get().map_err(unsupported)?;
        let cookie = real::cookie(fd).ok_or(Reason::Unsupported)?;
        setup.side = usize::from(own > peer);
        let path = nic.dir.join(page_name(own, peer).map_err(unsupported)?);
        if let Ok(page) = Page::open(&path, false)
            && page.side(setup.side).cookie.load(Ordering::Acquire) == cookie
        {
            self.adopt(page, setup.side);
            return Ok(());
        }
        self.check_counts(fd)?;
        for _ in 0..8 {
            let page = Page::open(&path, true).map_err(unsupported)?;
            match claim(&page, setup.side, nic, cookie) {
                Claim::Mine => {
                    setup.page = Some(Arc::new(page));
                    self.set_phase(Phase::Waiting);
                    return self.meet(fd, setup);
                }
                Claim::OtherProcess => {
                    self.adopt(page, setup.side);
                    return Ok(());
                }
                Claim::Stale => {
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
        Err(Reason::NoResources)
    }

    /// The kernel must have counted the same bytes, or somebody else has moved some.
    fn check_counts(&self, fd: i32) -> Result<(), Reason> {
        let idle = self.plain_readers.load(Ordering::Acquire)
            + self.plain_writers.load(Ordering::Acquire)
            == 0;
        let (sent, taken) = real::bytes_by_kernel(fd).ok_or(Reason::Unsupported)?;
        let syn = u64::from(self.is_active.load(Ordering::Relaxed));
        let ours = self.bytes_out.load(Ordering::Acquire);
        let taken_ours = self.bytes_in.load(Ordering::Acquire);
        // Another thread is within a call: what it moves will be counted when it returns.
        if idle && (taken != taken_ours || sent != ours && sent != ours + syn) {
            return Err(Reason::Uncounted);
        }
        Ok(())
    }

    /// Another process of this side has the page: everything that is in it will be read, and the rest goes by TCP.
    fn adopt(&self, page: Page, side: usize) {
        let owner = page.side(side);
        let id = i32::try_from(owner.arena.load(Ordering::Acquire)).unwrap_or(-1);
        let offset = usize::try_from(owner.offset.load(Ordering::Acquire)).unwrap_or(usize::MAX);
        let ring = match owner.stage.load(Ordering::Acquire) {
            0 | stage::HERE => None,
            _ => Arena::attach(id)
                .ok()
                .and_then(|arena| Ring::at(arena, offset)),
        };
        let link = Link {
            page: Arc::new(page),
            side,
        };
        let mut rx = lock(&self.rx);
        let mut tx = lock(&self.tx);
        (rx.link, rx.ring, tx.link) = (Some(link.clone()), ring, Some(link));
        self.set_phase(Phase::Foreign);
    }

    /// Goes as far towards RDMA as the peer has come.
    fn meet(&self, fd: i32, setup: &mut Setup) -> Result<(), Reason> {
        let page = setup.page.clone().ok_or(Reason::NoResources)?;
        let (own, peer) = (page.side(setup.side), page.side(1 - setup.side));
        let there = peer.stage.load(Ordering::Acquire);
        if there == stage::GONE {
            return Err(Reason::PeerSilent);
        }
        if there == 0 {
            let calls = self.calls.fetch_add(1, Ordering::Relaxed);
            return if calls < CALLS_WAITING {
                Ok(())
            } else {
                Err(Reason::PeerSilent)
            };
        }
        let nic = nic::get().map_err(|_| Reason::NoResources)?;
        if setup.prepared.is_none() {
            self.prepare(nic, setup, &page)
                .map_err(|_| Reason::NoResources)?;
        }
        if there == stage::HERE || own.stage.load(Ordering::Relaxed) != stage::ENDPOINT {
            return Ok(());
        }
        self.connect(fd, nic, setup, &page)
    }

    /// Makes the queue pair and the ring, and tells the peer.
    fn prepare(&self, nic: &Nic, setup: &mut Setup, page: &Page) -> io::Result<()> {
        let (ring, remote, place) = nic.take_ring()?;
        (setup.arena, setup.ring) = (place.number, Some(ring.clone()));
        let prepared = nic.prepare()?;
        let side = page.side(setup.side);
        let text = serde_json::to_vec(&(prepared.endpoint(), remote))?;
        if !side.set_text(&text) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let id = u64::from(place.id.unsigned_abs());
        side.arena.store(id, Ordering::Relaxed);
        side.offset.store(ring.offset() as u64, Ordering::Relaxed);
        side.stage.store(stage::ENDPOINT, Ordering::Release);
        setup.prepared = Some(prepared);
        Ok(())
    }

    /// Connects the queue pair, and takes what the peer WRITEs from now on.
    fn connect(
        &self,
        fd: i32,
        nic: &'static Nic,
        setup: &mut Setup,
        page: &Arc<Page>,
    ) -> Result<(), Reason> {
        let failed = Reason::NoResources;
        let mut rx = lock(&self.rx);
        let mut tx = lock(&self.tx);
        // Nobody may be within a plain read when wake bytes may come.
        self.set_phase(Phase::Ready);
        if self.plain_readers.load(Ordering::SeqCst) > 0 {
            self.set_phase(Phase::Waiting);
            return Ok(());
        }
        let peer = page.side(1 - setup.side);
        let text = peer.text();
        let (endpoint, remote): (QpEndpoint, RemoteMemory) =
            serde_json::from_slice(&text).map_err(|_| failed)?;
        let prepared = setup.prepared.take().ok_or(failed)?;
        let sender = prepared.connect(&endpoint, remote).map_err(|_| failed)?;
        let link = Link {
            page: Arc::clone(page),
            side: setup.side,
        };
        // A wake byte must not wait for the acknowledgement of the one before (RFC 896).
        tx.had_delay = real::option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Some(0);
        real::set_nodelay(fd, true);
        (tx.link, tx.sender, tx.nic) = (Some(link.clone()), Some(sender), Some(nic));
        (rx.link, rx.ring) = (Some(link), setup.ring.clone());
        let incoming = page.dir(1 - setup.side);
        incoming
            .by_tcp
            .store(self.bytes_in.load(Ordering::Acquire), Ordering::Relaxed);
        // A thread may sleep in `epoll_wait(2)` by now, without having asked to be woken.
        incoming.rx_armed.store(1, Ordering::Relaxed);
        page.side(setup.side)
            .stage
            .store(stage::READY, Ordering::Release);
        Ok(())
    }

    /// A plain read begins; `None` if the connection is not plain any more.
    pub(crate) fn enter_plain_read(&self) -> Option<PlainCall<'_>> {
        self.plain_readers.fetch_add(1, Ordering::SeqCst);
        let call = PlainCall(&self.plain_readers);
        self.is_plain().then_some(call)
    }

    /// Goes back to TCP, in both directions. Bytes sent by RDMA are received before bytes sent by TCP.
    pub(crate) fn demote(&self, fd: i32, reason: Reason) {
        let mut setup = lock(&self.setup);
        match self.phase() {
            Phase::Plain => return,
            Phase::Fresh | Phase::Waiting => return self.give_up(&mut setup, reason),
            Phase::Ready | Phase::Foreign => {}
        }
        let before = real::errno();
        let _rx = lock(&self.rx);
        let mut tx = lock(&self.tx);
        let Some(link) = tx.link.clone() else { return };
        demote_page(&link, fd, reason);
        if std::mem::take(&mut tx.had_delay) {
            real::set_nodelay(fd, false);
        }
        tx.sender = None;
        if self.phase() == Phase::Foreign {
            self.set_phase(Phase::Ready);
        }
        real::set_errno(before);
    }

    /// Receiving is done with RDMA: all went to the program.
    pub(crate) fn set_plain_if_demoted(&self) {
        if self.phase() == Phase::Ready {
            self.set_phase(Phase::Plain);
        }
    }

    /// The last descriptor of this process goes.
    pub(crate) fn release(&self, fd: i32) {
        let before = real::errno();
        let mut setup = lock(&self.setup);
        if self.phase() == Phase::Waiting {
            self.give_up(&mut setup, Reason::Shutdown);
        }
        let mut rx = lock(&self.rx);
        let mut tx = lock(&self.tx);
        if let Some(link) = tx.link.take() {
            // What another process has made is that one's to leave, unless this is the same process after `exec`.
            let owner = link.page.side(link.side).pid.load(Ordering::Relaxed);
            if owner == u64::from(std::process::id()) {
                let ring = rx.ring.take().filter(|_| setup.page.is_some());
                self.leave(fd, &link, &setup, ring);
            }
        }
        *rx = Rx::default();
        *tx = Tx::default();
        *setup = Setup::default();
        self.set_phase(Phase::Plain);
        real::set_errno(before);
    }

    /// Closes this side.
    fn leave(&self, fd: i32, link: &Link, setup: &Setup, ring: Option<Ring>) {
        demote_page(link, fd, Reason::Shutdown);
        let incoming = link.page.dir(1 - link.side);
        // Wake bytes that nobody has taken would have the kernel reset the connection.
        let mut read = incoming.wakes_read.load(Ordering::Relaxed);
        let by_tcp =
            incoming.by_tcp.load(Ordering::Relaxed) >= incoming.switch_at.load(Ordering::Relaxed);
        while by_tcp && read < incoming.wakes.load(Ordering::Acquire) {
            let n = real::discard(fd, incoming.wakes.load(Ordering::Acquire) - read);
            let Ok(n @ 1..) = u64::try_from(n) else { break };
            read += n;
        }
        incoming.wakes_read.store(read, Ordering::Relaxed);
        let own = link.page.side(link.side);
        own.stage.store(stage::GONE, Ordering::Release);
        if crate::stale::has_ended(&link.page) {
            let _ = std::fs::remove_file(&link.page.path);
        }
        // Another process may still have to read what is left in the ring.
        let is_read = ring
            .as_ref()
            .is_none_or(|ring| ring.tail() == incoming.head.load(Ordering::Relaxed));
        if let (Some(ring), Some(nic), true) = (ring, nic::existing(), is_read) {
            nic.give_ring(setup.arena, ring.offset());
        }
    }

    /// In a forked child: the parent's queue pairs are not this process's.
    pub(crate) fn forked(&self) {
        let locks = (
            self.setup.try_lock(),
            self.rx.try_lock(),
            self.tx.try_lock(),
        );
        let (Ok(mut setup), Ok(_rx), Ok(mut tx)) = locks else {
            self.set_phase(Phase::Plain);
            return;
        };
        self.share();
        std::mem::forget(tx.sender.take());
        std::mem::forget(setup.prepared.take());
        tx.nic = None;
        match self.phase() {
            Phase::Ready => self.set_phase(Phase::Foreign),
            Phase::Waiting => {
                // Whoever of both processes uses it first after this goes by the page.
                *setup = Setup::default();
                self.set_phase(Phase::Fresh);
            }
            _ => {}
        }
    }
}

/// Within a plain call.
pub(crate) struct PlainCall<'c>(&'c AtomicU32);

impl<'c> PlainCall<'c> {
    /// One that the counter already counts.
    pub(crate) fn counted(counter: &'c AtomicU32) -> Self {
        Self(counter)
    }
}

impl Drop for PlainCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes both directions of a page back to TCP. A peer that sleeps is woken first.
fn demote_page(link: &Link, fd: i32, reason: Reason) {
    let page = &link.page;
    let dirs = [page.dir(0), page.dir(1)];
    let _held = [dirs[0].lock_sending(), dirs[1].lock_sending()];
    let (outgoing, incoming) = (dirs[link.side], dirs[1 - link.side]);
    if dirs
        .iter()
        .any(|dir| dir.state.load(Ordering::Relaxed) < state::DEMOTED)
    {
        page.reason().store(reason as u64, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    let sleeps = outgoing.rx_armed.swap(0, Ordering::SeqCst)
        + incoming.tx_armed.swap(0, Ordering::SeqCst)
        > 0;
    if sleeps && outgoing.state.load(Ordering::Relaxed) == state::RDMA {
        send_wake(outgoing.wakes, fd);
    }
    for dir in dirs {
        match dir.state.load(Ordering::Relaxed) {
            state::TCP => dir.state.store(state::NEVER, Ordering::Release),
            state::RDMA => dir.state.store(state::DEMOTED, Ordering::Release),
            _ => {}
        }
    }
}

/// Sends a wake byte; the sender holds the lock of the direction.
pub(crate) fn send_wake(wakes: &AtomicU64, fd: i32) {
    // Counted first: the receiver never takes more than are counted.
    wakes.fetch_add(1, Ordering::SeqCst);
    if !real::send_byte(fd) {
        wakes.fetch_sub(1, Ordering::SeqCst);
    }
}

enum Claim {
    Mine,
    OtherProcess,
    Stale,
}

/// Takes a side of a page for this process.
fn claim(page: &Page, side: usize, nic: &Nic, cookie: u64) -> Claim {
    let (own, peer) = (page.side(side), page.side(1 - side));
    if peer.is_dead()
        || peer.stage.load(Ordering::Acquire) == stage::GONE && own.pid.load(Ordering::Acquire) == 0
    {
        return Claim::Stale;
    }
    if own
        .pid
        .compare_exchange(0, nic.pid, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        let same = own.cookie.load(Ordering::Acquire) == cookie;
        return if same {
            Claim::OtherProcess
        } else {
            Claim::Stale
        };
    }
    own.cookie.store(cookie, Ordering::Release);
    own.start.store(nic.start, Ordering::Release);
    own.stage.store(stage::HERE, Ordering::Release);
    // Removed by somebody who took it for stale: a page of its own would never be found.
    if page.is_current() {
        Claim::Mine
    } else {
        Claim::Stale
    }
}

/// The name of the page of a connection, which both ends come to: network namespace, lower and higher address.
fn page_name(own: SocketAddr, peer: SocketAddr) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/self/ns/net")?.ino();
    let (low, high) = (own.min(peer), own.max(peer));
    Ok(format!("c-{namespace:x}_{low}_{high}"))
}
