//! XRC domains: queue pairs that only receive, and deliver each message to the shared receive queue that it names (IBTA
//! vol. 1, annex A14).
//!
//! A completion belongs to the CQ of the shared receive queue, and a queue pair feeds several of these queues. The
//! domain therefore owns the receive sides of its queue pairs. In a process that uses XRC, a thread that polls a CQ
//! first lets the domains deliver arrived messages. To peers, those queue pairs have a CQ, the *gatherer*. It is armed
//! while the CQ of one of the shared receive queues is, so that peers call the engine. Locks are taken in this order:
//! receive sides, shared receive queue, CQ.
//!
//! A domain belongs to one process: another process that opens the same file gets a domain of its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::context::Context;
use crate::cq::Cq;
use crate::lock::lock;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::recv::RecvSide;
use crate::srq::Srq;
use shm::fabric::layout::*;
use shm::membarrier;
use shm::sync::SpinLock;

/// The file that names a domain: device and inode.
pub(crate) type FileId = (u64, u64);

/// An XRC domain.
pub(crate) struct Xrcd {
    nic: &'static Nic,
    /// The number of the domain; never 0.
    pub(crate) number: u32,
    pub(crate) file: Option<FileId>,
    /// The CQ that peers take for the receive CQ of the XRC queue pairs.
    pub(crate) cq_seen_by_peers: Arc<Cq>,
    srqs: Mutex<Vec<Arc<Srq>>>,
    recv_sides: SpinLock<Vec<RecvSide>>,
}

/// The part of a shared receive queue that only XRC needs.
pub(crate) struct XrcSrq {
    pub(crate) domain: Arc<Xrcd>,
    /// The use count of the domain's handle through which the queue was made.
    pub(crate) domain_handle_use_count: Arc<AtomicUsize>,
    /// The CQ in which receives of this queue complete.
    pub(crate) cq: Arc<Cq>,
    /// The number by which requesters name the queue.
    pub(crate) srqn: u32,
}

/// The role of a queue pair in XRC.
pub(crate) enum XrcRole {
    /// The queue pair does not use XRC.
    NotXrc,
    /// The queue pair sends to shared receive queues.
    Send,
    /// The queue pair receives for the queues of a domain; with the use count of the handle through which it was made.
    Recv(Arc<Xrcd>, Arc<AtomicUsize>),
}

/// True once this process has had a domain: polls then look for domains.
static XRC_IN_USE: AtomicBool = AtomicBool::new(false);

/// Returns true if this process has ever had an XRC domain.
#[inline]
pub(crate) fn is_xrc_in_use() -> bool {
    XRC_IN_USE.load(Ordering::Relaxed)
}

/// The domains of all NICs that this process has had (a forked child has one of its own).
static XRC_DOMAINS: Mutex<Vec<Weak<Xrcd>>> = Mutex::new(Vec::new());

/// Returns the domains of `nic`.
fn xrc_domains_of_nic(nic: &Nic) -> Vec<Arc<Xrcd>> {
    let mut domains = lock(&XRC_DOMAINS);
    domains.retain(|domain| domain.strong_count() != 0);
    let live = domains.iter().filter_map(Weak::upgrade);
    live.filter(|domain| std::ptr::eq(domain.nic, nic))
        .collect()
}

/// The domain of a context's device that a file names.
pub(crate) fn find_domain_of_file(context: &Context, file: FileId) -> Option<Arc<Xrcd>> {
    xrc_domains_of_nic(context.nic).into_iter().find(|domain| {
        let device = domain.cq_seen_by_peers.context.device;
        domain.file == Some(file) && device.number == context.device.number
    })
}

/// Registers a domain for polls and the engine.
pub(crate) fn add_domain(domain: &Arc<Xrcd>) {
    lock(&XRC_DOMAINS).push(Arc::downgrade(domain));
}

/// Delivers the messages that have arrived in all domains.
#[cold]
pub(crate) fn deliver_in_all_domains(nic: &Nic) {
    for domain in xrc_domains_of_nic(nic) {
        domain.deliver_arrived_messages();
    }
}

/// Delivers arrived messages for the engine. Returns true if a record waits for a deadline.
pub(crate) fn deliver_in_all_domains_for_engine(nic: &Nic) -> bool {
    let mut waiting = false;
    for domain in xrc_domains_of_nic(nic) {
        waiting |= domain.deliver_arrived_messages();
        domain.update_arming();
    }
    waiting
}

/// Makes peers that send to the domains' queue pairs call the engine, because a CQ has been armed.
#[cold]
pub(crate) fn arm_domain_cqs(nic: &Nic) {
    for domain in xrc_domains_of_nic(nic) {
        // SYNC POINT A, as in `Cq::arm_domain_cqs`.
        domain.cq_seen_by_peers.arm_for_xrc_cqs();
    }
}

impl Xrcd {
    /// Makes a domain.
    pub(crate) fn new(nic: &'static Nic, file: Option<FileId>, gatherer: Arc<Cq>) -> Arc<Self> {
        static NEXT_XRCD_NUMBER: AtomicUsize = AtomicUsize::new(0);
        XRC_IN_USE.store(true, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation)] // it only has to differ from those that exist
        let number = (NEXT_XRCD_NUMBER.fetch_add(1, Ordering::Relaxed) as u32) | 1 << 31;
        Arc::new(Self {
            nic,
            number,
            file,
            cq_seen_by_peers: gatherer,
            srqs: Mutex::new(Vec::new()),
            recv_sides: SpinLock::new(Vec::new()),
        })
    }

    /// Returns a number for a shared receive queue of this domain, and enters it where peers see it.
    ///
    /// # Errors
    /// `ENOMEM` if there are no more numbers or no more shared memory.
    pub(crate) fn allocate_and_publish_srq_number(&self, pd: u32) -> Result<u32, i32> {
        static NEXT_SRQ_INDEX: Mutex<usize> = Mutex::new(0);
        let fabric = &self.nic.fabric;
        let mut next = lock(&NEXT_SRQ_INDEX);
        for _ in 0..MAX_XRC_SRQS {
            let index = *next;
            *next = (index + 1) % MAX_XRC_SRQS;
            let at = SRQS_AT + index * size_of::<SrqShared>();
            fabric
                .back_with_memory(at, size_of::<SrqShared>())
                .map_err(|_| libc::ENOMEM)?;
            let Some(shared) = fabric.this_process.segment.srq(index) else {
                continue;
            };
            if shared.xrc_domain.load(Ordering::Relaxed) != 0 {
                continue;
            }
            shared.pd.store(pd, Ordering::Relaxed);
            shared.xrc_domain.store(self.number, Ordering::Release);
            return Ok(self.nic.qpn(index));
        }
        Err(libc::ENOMEM)
    }

    pub(crate) fn add_srq(&self, srq: &Arc<Srq>) {
        lock(&self.srqs).push(Arc::clone(srq));
    }

    /// Removes a shared receive queue: messages that name it are refused from now on.
    pub(crate) fn remove_srq(&self, number: u32) {
        // With the lock, no message is being received for the queue when this returns.
        let _sides = self.recv_sides.lock();
        lock(&self.srqs).retain(|srq| srq.xrc_srqn() != Some(number));
        if let Some(shared) = self
            .nic
            .this_process()
            .segment
            .find_srq(number as usize % MAX_XRC_SRQS)
        {
            shared.xrc_domain.store(0, Ordering::Release);
        }
    }

    /// Returns the shared receive queue with that number.
    pub(crate) fn find_srq(&self, number: u32) -> Option<Arc<Srq>> {
        let srqs = lock(&self.srqs);
        srqs.iter().find(|s| s.xrc_srqn() == Some(number)).cloned()
    }

    pub(crate) fn add_receiving_qp(&self, qp: &Arc<Qp>) {
        self.recv_sides.lock().push(RecvSide::new(Arc::clone(qp)));
    }

    pub(crate) fn remove_receiving_qp(&self, qp: &Qp) {
        let mut sides = self.recv_sides.lock();
        if let Some(at) = sides.iter().position(|s| s.qp().index == qp.index) {
            sides.swap_remove(at).detach_all_rings();
        }
        drop(sides);
        self.drop_completions_of_qp(qp.qpn);
    }

    /// Drops the completions of a queue pair.
    pub(crate) fn drop_completions_of_qp(&self, qpn: u32) {
        for srq in lock(&self.srqs).iter() {
            if let Some(xrc) = &srq.xrc_srq {
                xrc.cq.drop_completions_of_qp(qpn);
            }
        }
    }

    /// Runs `f` on the receive side of `qp`.
    pub(crate) fn with_recv_side(&self, qp: &Qp, f: impl FnOnce(Option<&mut RecvSide>)) {
        let mut sides = self.recv_sides.lock();
        f(sides.iter_mut().find(|s| s.qp().index == qp.index));
    }

    /// Delivers arrived messages. Returns true if a record waits for a deadline.
    pub(crate) fn deliver_arrived_messages(&self) -> bool {
        let mut waiting = false;
        for side in self.recv_sides.lock().iter_mut() {
            waiting |= side.receive_xrc(self);
        }
        waiting
    }

    fn is_any_srq_cq_armed(&self) -> bool {
        lock(&self.srqs)
            .iter()
            .any(|srq| srq.xrc_srq.as_ref().is_some_and(|xrc| xrc.cq.is_armed()))
    }

    /// Lets peers call the engine again, as long as a thread waits for completions.
    fn update_arming(&self) {
        if !self.cq_seen_by_peers.is_armed() {
            return;
        }
        let armed = self.is_any_srq_cq_armed();
        self.cq_seen_by_peers.disarm_for_xrc_cqs();
        if armed {
            self.cq_seen_by_peers.arm_for_xrc_cqs();
        }
        membarrier::membarrier_all_processes();
        // A CQ that was armed meanwhile may have found the gatherer armed, before this function disarmed it.
        if !armed && self.is_any_srq_cq_armed() {
            arm_domain_cqs(self.nic);
        }
        // A peer may have published, and found the engine called already.
        self.deliver_arrived_messages();
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        self.nic.objects.remove_cq(self.cq_seen_by_peers.index);
    }
}
