//! The NIC of this process: its place in the fabric, its port, its tables of objects, and its mail.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::cq::Cq;
use crate::device::{Port, PortError};
use crate::engine;
use crate::identity::{BadDevice, Identity};
use crate::imports::Imports;
use crate::lock::lock;
use crate::multicast::Attachments;
use crate::path::loopback::BadPath;
use crate::path::{self, Network};
use crate::qp::Qp;
use crate::recv::take_request;
use crate::send::take_answer;
use crate::steering::Flows;
use crate::steering::spread::Spreads;
use crate::xrc::{FileId, Xrcd};
use shm::fabric::layout::*;
use shm::fabric::mailbox::MAILBOX_SLOTS;
use shm::fabric::{Fabric, FabricError, Peer};
use shm::keys::Keys;
use shm::mem::Mappings;
use shm::shortage::errno_of;
use shm::sync::SpinLock;

/// Why there is no software NIC in this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// The fabric cannot be joined.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The port was asked to be something that it cannot be.
    #[error("{message}")]
    Port {
        /// What was asked and what can be.
        message: String,
        /// The errno for C callers.
        errno: i32,
    },
    /// The device was asked to be something that it cannot be.
    #[error(transparent)]
    Device(#[from] BadDevice),
    /// The path was asked to be something that it cannot be.
    #[error(transparent)]
    Path(#[from] BadPath),
    /// The engine's thread cannot be started.
    #[error("cannot start the engine: {0}")]
    Engine(std::io::Error),
}

impl From<PortError> for NicError {
    fn from(e: PortError) -> Self {
        Self::Port {
            message: e.to_string(),
            errno: e.errno(),
        }
    }
}

/// A ring that was given up by its sender and may still be read by its receiver.
struct RetiredRing {
    offset: usize,
    bytes: usize,
    to: Option<Arc<Peer>>,
}

/// The mailbox, as its reader sees it.
#[derive(Default)]
struct Mail {
    /// Position of the next letter.
    next: u64,
    /// Letters of processes that could not be reached for want of descriptors or memory.
    put_off: Vec<u64>,
}

/// Everything that this process has of the software NIC.
pub(crate) struct Nic {
    pub(crate) fabric: Fabric,
    pub(crate) port: Port,
    pub(crate) identity: Identity,
    pub(crate) keys: Keys,
    pub(crate) maps: Mappings,
    /// What carries messages between queue pairs; `None`: they share memory.
    pub(crate) network: Option<Network>,
    qps: Box<[SpinLock<Option<Arc<Qp>>>]>,
    next_qp: AtomicUsize,
    cqs: Mutex<Vec<Option<Arc<Cq>>>>,
    pub(crate) imports: Imports,
    /// Contexts that stand for other processes' devices, until those have ended.
    imported_contexts: Mutex<Vec<&'static Context>>,
    /// What its contexts have for `cmd_fd`.
    cmd_fd: Mutex<Option<OwnedFd>>,
    mail: SpinLock<Mail>,
    /// The mailbox's next slot, as the last reader of mail left it.
    mail_at: AtomicUsize,
    retired: Mutex<Vec<RetiredRing>>,
    /// The engine looks every millisecond, called or not.
    pub(crate) engine_ticks: AtomicBool,
    /// Completion queues that can be overrun.
    pub(crate) watched_cqs: AtomicUsize,
    xrcds: Mutex<Vec<Weak<Xrcd>>>,
    pub(crate) attachments: Attachments,
    pub(crate) flows: Flows,
    pub(crate) spreads: Spreads,
}

/// The NIC, and the pid of the process that joined: a forked child joins anew.
static NIC: Mutex<Option<(u32, &'static Nic)>> = Mutex::new(None);
/// The folder that is left at exit.
static AT_EXIT: AtomicBool = AtomicBool::new(false);
/// What the last failed attempt said.
static LAST_ERROR: Mutex<Option<String>> = Mutex::new(None);
/// Why the last `ibv_modify_qp` of this process was refused.
pub(crate) static LAST_MODIFY_ERROR: Mutex<Option<String>> = Mutex::new(None);

/// Why the last attempt of this process to use the software NIC failed: a message for the user, where the C
/// ABI has room for an errno only.
#[must_use]
pub fn last_error() -> Option<String> {
    lock(&LAST_ERROR).clone()
}

/// The folder of shared memory through which the processes of this user reach each other.
///
/// # Errors
/// Where `VERBATIM_FABRIC_DIR` does not hold an absolute path.
pub fn fabric_dir() -> Result<PathBuf, FabricError> {
    Fabric::default_dir()
}

/// The NIC of this process, made at the first call.
pub(crate) fn get() -> Result<&'static Nic, NicError> {
    let pid = std::process::id();
    let mut nic = lock(&NIC);
    if let Some((p, nic)) = *nic
        && p == pid
    {
        return Ok(nic);
    }
    match Nic::new() {
        Ok(new) => {
            *nic = Some((pid, new));
            if !AT_EXIT.swap(true, Ordering::Relaxed) {
                engine::at_exit(leave);
            }
            Ok(new)
        }
        Err(e) => {
            tracing::error!("no software NIC: {e}");
            *lock(&LAST_ERROR) = Some(e.to_string());
            Err(e)
        }
    }
}

extern "C" fn leave() {
    if let Ok(nic) = NIC.try_lock()
        && let Some((pid, nic)) = *nic
        && pid == std::process::id()
    {
        nic.let_mail_be_read();
        nic.fabric.leave();
    }
}

/// How long a process that ends waits for its peers to read their mail: longer than a busy machine keeps a thread from
/// running. Only a peer that was stopped makes it wait so long.
const LAST_MAIL: Duration = Duration::from_secs(2);

impl Nic {
    fn new() -> Result<&'static Self, NicError> {
        let port = Port::from_env()?;
        let identity = Identity::from_env()?;
        let network = Network::from_env()?;
        let keys = Keys::new();
        // Before anything that others see: a process that cannot have a thread leaves nothing behind.
        let engine = engine::begin().map_err(NicError::Engine)?;
        let fabric = Fabric::join(&Fabric::default_dir()?)?;
        shm::mem::survive_faults();
        // It lives as long as the process: handles that a program forgot to destroy stay valid.
        let nic: &'static Self = Box::leak(Box::new(Self {
            fabric,
            port,
            identity,
            keys,
            maps: Mappings::default(),
            network,
            qps: (0..MAX_QPS).map(|_| SpinLock::new(None)).collect(),
            next_qp: AtomicUsize::new(0),
            cqs: Mutex::new(Vec::new()),
            imports: Imports::default(),
            imported_contexts: Mutex::new(Vec::new()),
            cmd_fd: Mutex::new(None),
            mail: SpinLock::new(Mail::default()),
            mail_at: AtomicUsize::new(0),
            retired: Mutex::new(Vec::new()),
            engine_ticks: AtomicBool::new(false),
            watched_cqs: AtomicUsize::new(0),
            xrcds: Mutex::new(Vec::new()),
            attachments: Attachments::default(),
            flows: Flows::default(),
            spreads: Spreads::default(),
        }));
        // The thread lives until it has received this.
        let _ = engine.send(nic);
        Ok(nic)
    }

    /// This process as its own peer.
    pub(crate) fn me(&self) -> &Arc<Peer> {
        &self.fabric.me
    }

    /// The descriptor that stands for the contexts of this process, as [`Name`] tells others.
    ///
    /// # Errors
    /// What the system says where there are no descriptors left.
    ///
    /// [`Name`]: shm::fabric::Name
    pub(crate) fn cmd_fd(&self) -> Result<RawFd, i32> {
        let mut made = lock(&self.cmd_fd);
        let file = match &mut *made {
            Some(file) => file,
            none => none.insert(self.me().name().as_file().map_err(|e| errno_of(&e))?),
        };
        Ok(file.as_raw_fd())
    }

    /// Has `context`, which stands for another process's device, hear of that process's end.
    pub(crate) fn add_imported_context(&self, context: &'static Context) {
        lock(&self.imported_contexts).push(context);
        // It may have ended just now.
        self.me().wake();
    }

    /// Does not tell `context` any more.
    pub(crate) fn remove_imported_context(&self, context: &'static Context) {
        lock(&self.imported_contexts).retain(|c| !std::ptr::eq(*c, context));
    }

    /// Tells the contexts whose device's process has ended: they get `IBV_EVENT_DEVICE_FATAL`.
    pub(crate) fn tell_imported_contexts(&self) {
        lock(&self.imported_contexts).retain(|context| {
            let ended = context.home.as_ref().is_some_and(|home| home.is_dead());
            if ended {
                context.raise_fatal();
            }
            !ended
        });
    }

    /// QP number of queue pair `index` of this process.
    pub(crate) fn qpn(&self, index: usize) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // 10 and 14 bits
        let qpn = (self.fabric.me.slot << QP_BITS | index) as u32;
        qpn
    }

    /// Makes a queue pair with `make` in a free place. Places are used in turn, so that a number comes back
    /// as late as possible.
    pub(crate) fn add_qp(
        &self,
        make: impl FnOnce(usize) -> Result<Arc<Qp>, i32>,
    ) -> Result<Arc<Qp>, i32> {
        for _ in 0..MAX_QPS {
            let index = self.next_qp.fetch_add(1, Ordering::Relaxed) % MAX_QPS;
            let mut place = self.qps[index].lock();
            if place.is_none() {
                self.fabric
                    .reserve(
                        QPS_AT + index * size_of::<QpShared>(),
                        size_of::<QpShared>(),
                    )
                    .map_err(|_| libc::ENOMEM)?;
                let qp = make(index)?;
                *place = Some(Arc::clone(&qp));
                return Ok(qp);
            }
        }
        Err(libc::ENOMEM)
    }

    /// The queue pair at `index`.
    pub(crate) fn qp(&self, index: usize) -> Option<Arc<Qp>> {
        self.qps.get(index)?.lock().clone()
    }

    /// The queue pair of this process with that number.
    pub(crate) fn qp_by_number(&self, qpn: u32) -> Option<Arc<Qp>> {
        let qp = self.qp(qpn as usize % MAX_QPS)?;
        (qp.qpn == qpn).then_some(qp)
    }

    /// The XRC domains of this process.
    pub(crate) fn xrcds(&self) -> Vec<Arc<Xrcd>> {
        let mut xrcds = lock(&self.xrcds);
        xrcds.retain(|x| x.strong_count() != 0);
        xrcds.iter().filter_map(Weak::upgrade).collect()
    }

    /// The XRC domain that a file names.
    pub(crate) fn xrcd_of(&self, file: FileId) -> Option<Arc<Xrcd>> {
        self.xrcds().into_iter().find(|x| x.file == Some(file))
    }

    pub(crate) fn add_xrcd(&self, xrcd: &Arc<Xrcd>) {
        lock(&self.xrcds).push(Arc::downgrade(xrcd));
    }

    /// Takes the queue pair at `index` out.
    pub(crate) fn remove_qp(&self, index: usize) {
        let removed = self.qps.get(index).and_then(|place| place.lock().take());
        drop(removed);
    }

    /// Makes a completion queue with `make` in a free place.
    pub(crate) fn add_cq(
        &self,
        make: impl FnOnce(usize) -> Result<Arc<Cq>, i32>,
    ) -> Result<Arc<Cq>, i32> {
        let mut cqs = lock(&self.cqs);
        let index = cqs.iter().position(Option::is_none).unwrap_or(cqs.len());
        if index >= MAX_CQS {
            return Err(libc::ENOMEM);
        }
        self.fabric
            .reserve(
                CQS_AT + index * size_of::<CqShared>(),
                size_of::<CqShared>(),
            )
            .map_err(|_| libc::ENOMEM)?;
        let cq = make(index)?;
        if index == cqs.len() {
            cqs.push(None);
        }
        cqs[index] = Some(Arc::clone(&cq));
        Ok(cq)
    }

    /// Takes the completion queue at `index` out.
    pub(crate) fn remove_cq(&self, index: usize) {
        if let Some(place) = lock(&self.cqs).get_mut(index) {
            *place = None;
        }
    }

    /// Has the engine look soon: something was kept back, and perhaps nobody polls.
    pub(crate) fn call_engine(&self) {
        // SYNC POINT T: see `engine::run`.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        if !self.engine_ticks.load(Ordering::Relaxed) {
            self.me().wake();
        }
    }

    /// All completion queues.
    pub(crate) fn all_cqs(&self) -> Vec<Arc<Cq>> {
        lock(&self.cqs).iter().flatten().cloned().collect()
    }

    /// Waits until the peers have found the rings that this process made for them, before it ends.
    ///
    /// What lies in a ring that is known can be read when its sender is gone; a ring that is not known is lost, and
    /// datagrams with it whose sends have completed. On a wire they would be on their way.
    fn let_mail_be_read(&self) {
        let unread: Vec<_> = self
            .fabric
            .opened_peers()
            .into_iter()
            .filter_map(|peer| {
                let count = peer.segment.mailbox().count();
                (!peer.segment.mailbox().has_dealt_with(count)).then_some((peer, count))
            })
            .collect();
        let start = Instant::now();
        for (peer, count) in &unread {
            peer.wake();
            while !peer.segment.mailbox().has_dealt_with(*count)
                && !peer.is_dead()
                && start.elapsed() < LAST_MAIL
            {
                cancellation::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Reads the mail, if there is any: rings that peers made for queue pairs of this process.
    #[inline]
    pub(crate) fn check_mail(&'static self) {
        if path::uses_messages() {
            self.deliver();
        }
        let at = self.mail_at.load(Ordering::Relaxed) as u64;
        if self.me().segment.mailbox().has_letter(at) {
            self.read_mail();
        }
    }

    /// Gives the messages that have arrived to their queue pairs. Nobody holds the lock of a queue.
    #[cold]
    fn deliver(&self) {
        let Some(network) = &self.network else { return };
        network.deliver(|message| {
            // A message to a queue pair that does not exist is lost.
            let Some(qp) = self.qp_by_number(message.dest_qpn) else {
                return;
            };
            if message.op.is_answer() {
                take_answer(&qp, &message);
            } else {
                take_request(&qp, message);
            }
        });
    }

    /// Are messages on their way?
    pub(crate) fn has_messages(&self) -> bool {
        self.network
            .as_ref()
            .is_some_and(|network| !network.is_idle())
    }

    #[cold]
    fn read_mail(&'static self) {
        let mailbox = self.me().segment.mailbox();
        // Held until all is dealt with, in the order in which it came.
        let mut mail = self.mail.lock();
        while let Some(letter) = mailbox.take(&mut mail.next) {
            self.mail_at.store(mail.next as usize, Ordering::Relaxed);
            if self.open_ring(letter).is_err() && mail.put_off.len() < MAILBOX_SLOTS {
                mail.put_off.push(letter);
                self.call_engine();
            }
            mailbox.dealt_with(mail.next);
        }
    }

    /// Tries again to read the letters that were put off. True if some still are.
    pub(crate) fn read_mail_put_off(&self) -> bool {
        let mut mail = self.mail.lock();
        mail.put_off
            .retain(|&letter| self.open_ring(letter).is_err());
        !mail.put_off.is_empty()
    }

    /// Opens the ring that a letter speaks of.
    ///
    /// # Errors
    /// This process has not what it takes to reach the sender: the letter is to be read later.
    fn open_ring(&self, letter: u64) -> Result<(), i32> {
        let (slot, offset) = (
            (letter >> 32) as usize,
            (letter & 0xffff_ffff) as usize * 64,
        );
        let Some(peer) = self.fabric.try_peer(slot)? else {
            return Ok(());
        };
        let Some(header) = peer.segment.ring_header(offset) else {
            return Ok(());
        };
        let qpn = header.dest_qpn.load(Ordering::Relaxed) as usize;
        let ours = header.magic.load(Ordering::Acquire) == RING_MAGIC
            && header.dest_incarnation.load(Ordering::Relaxed) == self.me().incarnation
            && qpn >> QP_BITS == self.me().slot;
        match self.qp(qpn % MAX_QPS) {
            Some(qp) if ours => qp.new_ring(peer, offset),
            _ => header.detached.store(1, Ordering::Release),
        }
        Ok(())
    }

    /// Takes shared memory for a ring of `bytes` bytes, header included.
    pub(crate) fn alloc_ring(&self, bytes: usize) -> std::io::Result<usize> {
        self.free_retired();
        self.fabric.alloc(bytes)
    }

    /// Gives a closed ring back as soon as its receiver has let go of it.
    pub(crate) fn retire_ring(&self, offset: usize, bytes: usize, to: Option<Arc<Peer>>) {
        lock(&self.retired).push(RetiredRing { offset, bytes, to });
    }

    /// Frees the retired rings that nobody reads any more.
    pub(crate) fn free_retired(&self) {
        lock(&self.retired).retain(|ring| {
            let Some(header) = self.me().segment.ring_header(ring.offset) else {
                return false;
            };
            let unread = match &ring.to {
                // Never announced to anybody.
                None => false,
                Some(to) => header.detached.load(Ordering::Acquire) == 0 && !to.is_dead(),
            };
            if !unread {
                self.fabric.free(ring.offset, ring.bytes);
            }
            unread
        });
    }
}
