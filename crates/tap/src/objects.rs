//! The tap's data for each object of the verbs, and for each thread that uses the object.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use verbs_abi::*;

use crate::built_work_requests::BuiltWr;
use crate::layout::*;
use crate::mapped_counter_file::{
    CqCounters, MappedCounterFile, QpCounters, SrqCounters, TappedThread, thread_token,
};
use crate::message_balance::RepeatedSends;
use crate::object_table::OpenAddressingTable;
use crate::provider_operations::{PollOps, PostOps};
use crate::send_work_request::NO_REPEATABLE_PATTERN;

/// Queue pairs by the key that [`qp_key`] returns.
pub(crate) static QPS: OpenAddressingTable<Qp> = OpenAddressingTable::new();
/// Queue pairs by the address of their handle, so that a post finds its queue pair without reading
/// memory.
pub(crate) static QPS_BY_HANDLE: OpenAddressingTable<Qp> = OpenAddressingTable::new();
/// Completion queues by their address.
pub(crate) static CQS: OpenAddressingTable<Cq> = OpenAddressingTable::new();
/// Shared receive queues by their address.
pub(crate) static SRQS: OpenAddressingTable<Srq> = OpenAddressingTable::new();
/// Open devices by their address.
pub(crate) static CONTEXTS: OpenAddressingTable<Context> = OpenAddressingTable::new();

/// Locks the tables against concurrent creation and destruction of objects.
pub(crate) fn lock_object_tables() -> MutexGuard<'static, ()> {
    static REGISTRY: Mutex<()> = Mutex::new(());
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the key of an object in a table: the address of its handle.
#[inline(always)]
pub(crate) fn key_of_handle<T>(handle: *mut T) -> u64 {
    handle.addr() as u64
}

/// Returns the key of a queue pair: QP numbers have 24 bits, and are unique within a device.
#[inline(always)]
pub(crate) fn qp_key(context: *mut ibv_context, qpn: u32) -> u64 {
    (context.addr() as u64) << 24 | u64::from(qpn & 0xff_ffff)
}

/// An open device, with its provider's own operations.
pub(crate) struct Context {
    pub(crate) ops: ibv_context_ops,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub(crate) create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub(crate) create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub(crate) counter_file: &'static MappedCounterFile,
    /// Shift of a QP number whose result identifies the process; `None` if QP numbers do not identify
    /// processes.
    pub(crate) qpn_process_shift: Option<u32>,
}

/// Returns the open device with this handle; used for objects that are not counted.
#[cold]
#[inline(never)]
pub(crate) fn context_of_handle(context: *mut ibv_context) -> Option<&'static Context> {
    CONTEXTS.find(key_of_handle(context))
}

/// A list with one entry for each thread that uses the object, newest first; entries live for ever.
pub(crate) struct PerThreadEntries<U: 'static> {
    first_entry: AtomicPtr<U>,
}

/// One thread's entry for an object.
pub(crate) trait ThreadEntry: Sized {
    /// Returns the thread, as [`thread_token`] identifies it.
    fn owner_token(&self) -> usize;
    /// Returns the next entry of the list.
    fn next(&self) -> &AtomicPtr<Self>;
}

impl<U: ThreadEntry> PerThreadEntries<U> {
    fn new() -> Self {
        Self {
            first_entry: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the calling thread's entry, if it has one.
    #[inline(always)]
    fn entry_of_token(&self, token: usize) -> Option<&'static U> {
        // Acquire: pairs with the Release of `insert`.
        let mut at = self.first_entry.load(Ordering::Acquire);
        // SAFETY: entries live for ever.
        while let Some(this) = unsafe { at.as_ref() } {
            if this.owner_token() == token {
                return Some(this);
            }
            at = this.next().load(Ordering::Acquire);
        }
        None
    }

    /// Returns the calling thread's entry, and makes it if necessary.
    #[inline(always)]
    fn thread_entry_or_insert(&self, make: impl FnOnce(usize) -> U) -> &'static U {
        let token = thread_token();
        match self.entry_of_token(token) {
            Some(known) => known,
            None => self.insert(make(token)),
        }
    }

    #[cold]
    fn insert(&self, new: U) -> &'static U {
        let new: &'static U = Box::leak(Box::new(new));
        let _one = lock_object_tables();
        new.next().store(self.first_entry.load(Relaxed), Relaxed);
        self.first_entry
            .store(ptr::from_ref(new).cast_mut(), Ordering::Release);
        new
    }
}

type PostSendFn =
    Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>;
type PostSrqRecvFn =
    Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
type PostRecvFn =
    Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) context: &'static Context,
    /// The provider's own `post_send`, beside the other data that a post needs.
    pub(crate) provider_post_send: PostSendFn,
    pub(crate) provider_post_recv: PostRecvFn,
    id: u64,
    qpn: u32,
    pub(crate) qp_type: ibv_qp_type,
    cap: ibv_qp_cap,
    /// Flags that apply to every work request of the queue pair: `IBV_SEND_SIGNALED` if `sq_sig_all` is
    /// set.
    pub(crate) implied_flags: u32,
    thread_entries: PerThreadEntries<QpThread>,
    /// True if more than one thread posts to the queue pair or polls for it.
    used_by_several_threads: AtomicBool,
    /// Number of posted work requests, and number of posted signaled work requests.
    pub(crate) posted_wrs: AtomicU64,
    pub(crate) posted_signaled_wrs: AtomicU64,
    /// Number of completions of the send queue.
    pub(crate) completed_signaled_wrs: AtomicU64,
    /// Number of work requests posted up to each of the latest signaled work requests.
    pub(crate) posted_wrs_up_to_signaled: Box<[AtomicU64]>,
    pub(crate) post_ops: OnceLock<PostOps>,
}

/// One thread's entry for a queue pair.
pub(crate) struct QpThread {
    owner_token: usize,
    next: AtomicPtr<QpThread>,
    pub(crate) cell: &'static QpCounters,
    pub(crate) thread: &'static TappedThread,
    /// The posts that `cell.packed_repeated_posts` counts.
    pub(crate) repeated_sends: &'static RepeatedSends,
    /// Value of `thread.successful_polls` at the thread's last post.
    pub(crate) successful_polls_at_last_post: AtomicU64,
    /// Value of [`Qp::completed_signaled_wrs`] at the thread's last post.
    pub(crate) completed_signaled_wrs_at_last_post: AtomicU64,
    /// Key and index of the kind of work requests that was counted last.
    pub(crate) last_sent_kind_key: AtomicU64,
    pub(crate) last_sent_kind_index: AtomicU64,
    /// The [`RequestPattern`](crate::send_work_request::RequestPattern) of the last post; a post with an equal pattern
    /// is a repetition.
    pub(crate) last_post_opcode_and_sges: AtomicU64,
    pub(crate) last_post_flags_and_bytes: AtomicU64,
    pub(crate) last_received_kind_key: AtomicU64,
    pub(crate) last_received_kind_index: AtomicU64,
    /// Remote address behind the last byte of the previous READ.
    pub(crate) last_read_end_addr: AtomicU64,
    /// Datagram destinations that were looked up, by hash; empty for connected queue pairs.
    pub(crate) known_destinations: Box<[AtomicU64]>,
    pub(crate) destination_lookups: AtomicU64,
    /// The postlist that this thread builds with `ibv_wr_*`.
    pub(crate) built_wrs: UnsafeCell<Vec<BuiltWr>>,
}

// SAFETY: only the owning thread uses `built_wrs`; all other fields are atomic or never change.
unsafe impl Sync for QpThread {}
// SAFETY: as above; the handles in `built_wrs` are only compared.
unsafe impl Send for QpThread {}

impl ThreadEntry for QpThread {
    #[inline(always)]
    fn owner_token(&self) -> usize {
        self.owner_token
    }

    #[inline(always)]
    fn next(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

/// Number of datagram destinations of a queue pair that are distinguished by hash, without a search.
const DESTINATION_SLOTS: usize = 1024;
/// Maximum number of entries of [`Qp::posted_wrs_up_to_signaled`].
const MAX_TRACKED_SIGNALED: u32 = 1 << 16;

impl Qp {
    pub(crate) fn new(
        context: &'static Context,
        qp: &ibv_qp,
        cap: ibv_qp_cap,
        sq_sig_all: bool,
    ) -> Self {
        let marks = cap
            .max_send_wr
            .clamp(1, MAX_TRACKED_SIGNALED)
            .next_power_of_two();
        Self {
            context,
            provider_post_send: context.ops.post_send,
            provider_post_recv: context.ops.post_recv,
            id: context
                .counter_file
                .header()
                .created_queue_pairs
                .fetch_add(1, Relaxed),
            qpn: qp.qp_num,
            qp_type: qp.qp_type,
            cap,
            implied_flags: if sq_sig_all { IBV_SEND_SIGNALED } else { 0 },
            thread_entries: PerThreadEntries::new(),
            used_by_several_threads: AtomicBool::new(false),
            posted_wrs: AtomicU64::new(0),
            posted_signaled_wrs: AtomicU64::new(0),
            completed_signaled_wrs: AtomicU64::new(0),
            posted_wrs_up_to_signaled: (0..marks).map(|_| AtomicU64::new(0)).collect(),
            post_ops: OnceLock::new(),
        }
    }

    /// Returns the calling thread's entry, and makes it if necessary.
    #[inline(always)]
    pub(crate) fn thread_entry_or_create(&self) -> &'static QpThread {
        self.thread_entries
            .thread_entry_or_insert(|token| self.new_entry(token))
    }

    /// Returns the calling thread's entry, if it has one.
    #[inline(always)]
    pub(crate) fn existing_entry(&self) -> Option<&'static QpThread> {
        self.thread_entries.entry_of_token(thread_token())
    }

    #[cold]
    fn new_entry(&self, owner: usize) -> QpThread {
        if !self.thread_entries.first_entry.load(Relaxed).is_null() {
            self.used_by_several_threads.store(true, Relaxed);
        }
        let session = self.context.counter_file;
        let thread = session.current_thread();
        let cell = session.take_qp_cell(|cell| {
            for (word, number) in [
                (&cell.qp_id, self.id),
                (&cell.qpn, self.qpn.into()),
                (&cell.qp_type, self.qp_type.into()),
                (&cell.thread_id, thread.id),
                (&cell.max_send_wr, self.cap.max_send_wr.into()),
                (&cell.max_recv_wr, self.cap.max_recv_wr.into()),
                (&cell.max_inline_data, self.cap.max_inline_data.into()),
                (&cell.sq_sig_all, u64::from(self.implied_flags != 0)),
            ] {
                word.store(number, Relaxed);
            }
        });
        let destinations = if self.qp_type == IBV_QPT_UD {
            DESTINATION_SLOTS
        } else {
            0
        };
        QpThread {
            owner_token: owner,
            next: AtomicPtr::new(ptr::null_mut()),
            cell,
            thread,
            repeated_sends: RepeatedSends::new_leaked(&cell.packed_repeated_posts),
            successful_polls_at_last_post: AtomicU64::new(u64::MAX),
            completed_signaled_wrs_at_last_post: AtomicU64::new(0),
            last_sent_kind_key: AtomicU64::new(0),
            last_sent_kind_index: AtomicU64::new(0),
            last_post_opcode_and_sges: AtomicU64::new(NO_REPEATABLE_PATTERN),
            last_post_flags_and_bytes: AtomicU64::new(0),
            last_received_kind_key: AtomicU64::new(0),
            last_received_kind_index: AtomicU64::new(0),
            last_read_end_addr: AtomicU64::new(u64::MAX),
            known_destinations: (0..destinations).map(|_| AtomicU64::new(0)).collect(),
            destination_lookups: AtomicU64::new(0),
            built_wrs: UnsafeCell::new(Vec::new()),
        }
    }

    /// Adds `by` to a word of the queue pair. The sum is exact with one thread, and nearly exact when a
    /// second thread starts to add.
    #[inline(always)]
    pub(crate) fn add_atomically_if_shared(&self, word: &AtomicU64, by: u64) {
        if self.used_by_several_threads.load(Relaxed) {
            word.fetch_add(by, Relaxed);
        } else {
            crate::mapped_counter_file::add_as_only_writer(word, by);
        }
    }

    /// Records that `posted` work requests were posted up to the signaled work request with number
    /// `signaled`.
    #[inline(always)]
    pub(crate) fn record_posted_up_to_signaled(&self, signaled: u64, posted: u64) {
        self.posted_wrs_up_to_signaled
            [signaled as usize & (self.posted_wrs_up_to_signaled.len() - 1)]
            .store(posted, Relaxed);
    }

    /// Returns the number of work requests up to the last completed signaled work request, which is
    /// included.
    #[inline(always)]
    pub(crate) fn completed_wrs(&self) -> u64 {
        let completed = self
            .completed_signaled_wrs
            .load(Relaxed)
            .min(self.posted_signaled_wrs.load(Relaxed));
        match completed.checked_sub(1) {
            Some(last) => self.posted_wrs_up_to_signaled
                [last as usize & (self.posted_wrs_up_to_signaled.len() - 1)]
                .load(Relaxed),
            None => 0,
        }
    }

    /// Counts `count` signaled work requests as completed, but no more than are outstanding.
    pub(crate) fn count_signaled_completions(&self, count: u64) {
        let outstanding = self
            .posted_signaled_wrs
            .load(Relaxed)
            .saturating_sub(self.completed_signaled_wrs.load(Relaxed));
        self.add_atomically_if_shared(&self.completed_signaled_wrs, count.min(outstanding));
    }

    /// Counts all outstanding work requests as completed, after a reset of the queue pair.
    pub(crate) fn count_all_as_completed(&self) {
        let signaled = self.posted_signaled_wrs.load(Relaxed);
        if let Some(last) = signaled.checked_sub(1) {
            self.record_posted_up_to_signaled(last, self.posted_wrs.load(Relaxed));
        }
        self.completed_signaled_wrs.store(signaled, Relaxed);
    }

    /// Returns the maximum number of outstanding work requests.
    #[inline(always)]
    pub(crate) fn max_send_wr(&self) -> u64 {
        self.cap.max_send_wr.into()
    }
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) context: &'static Context,
    /// Handle of the queue's device.
    pub(crate) device: *mut ibv_context,
    capacity: u64,
    id: u64,
    thread_entries: PerThreadEntries<CqThread>,
    pub(crate) poll_ops: OnceLock<PollOps>,
}

// SAFETY: the device's handle is only compared.
unsafe impl Sync for Cq {}
// SAFETY: as above.
unsafe impl Send for Cq {}

/// One thread's entry for a completion queue.
pub(crate) struct CqThread {
    owner_token: usize,
    next: AtomicPtr<CqThread>,
    pub(crate) thread_counters: &'static CqCounters,
    pub(crate) thread: &'static TappedThread,
    /// Number of completions since `ibv_start_poll`.
    pub(crate) completions_in_poll: AtomicU64,
    /// Number of empty polls since the last trace line, if tracing is on.
    pub(crate) empty_polls_since_trace_line: AtomicU64,
}

impl ThreadEntry for CqThread {
    #[inline(always)]
    fn owner_token(&self) -> usize {
        self.owner_token
    }

    #[inline(always)]
    fn next(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

/// Counter that numbers objects which have no number of their own.
static NEXT_OBJECT_ID: AtomicU64 = AtomicU64::new(0);

impl Cq {
    pub(crate) fn new(context: &'static Context, device: *mut ibv_context, cqe: i32) -> Self {
        Self {
            context,
            device,
            capacity: u64::try_from(cqe).unwrap_or(0),
            id: NEXT_OBJECT_ID.fetch_add(1, Relaxed),
            thread_entries: PerThreadEntries::new(),
            poll_ops: OnceLock::new(),
        }
    }

    /// Returns the calling thread's entry, and makes it if necessary.
    #[inline(always)]
    pub(crate) fn thread_entry_or_create(&self) -> &'static CqThread {
        self.thread_entries
            .thread_entry_or_insert(|token| self.new_entry(token))
    }

    #[cold]
    fn new_entry(&self, owner: usize) -> CqThread {
        let session = self.context.counter_file;
        let thread = session.current_thread();
        CqThread {
            owner_token: owner,
            next: AtomicPtr::new(ptr::null_mut()),
            thread_counters: session.take_cq_cell(|cell| {
                cell.cq_id.store(self.id, Relaxed);
                cell.thread_id.store(thread.id, Relaxed);
                cell.capacity.store(self.capacity, Relaxed);
            }),
            thread,
            completions_in_poll: AtomicU64::new(0),
            empty_polls_since_trace_line: AtomicU64::new(0),
        }
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    context: &'static Context,
    pub(crate) provider_post_srq_recv: PostSrqRecvFn,
    id: u64,
    thread_entries: PerThreadEntries<SrqThread>,
}

/// One thread's entry for a shared receive queue.
pub(crate) struct SrqThread {
    owner_token: usize,
    next: AtomicPtr<SrqThread>,
    pub(crate) cell: &'static SrqCounters,
}

impl ThreadEntry for SrqThread {
    #[inline(always)]
    fn owner_token(&self) -> usize {
        self.owner_token
    }

    #[inline(always)]
    fn next(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

impl Srq {
    pub(crate) fn new(context: &'static Context) -> Self {
        Self {
            context,
            provider_post_srq_recv: context.ops.post_srq_recv,
            id: NEXT_OBJECT_ID.fetch_add(1, Relaxed),
            thread_entries: PerThreadEntries::new(),
        }
    }

    /// Returns the calling thread's entry, if it has one.
    #[inline(always)]
    pub(crate) fn existing_entry(&self) -> Option<&'static SrqThread> {
        self.thread_entries.entry_of_token(thread_token())
    }

    /// Returns the calling thread's entry, and makes it if necessary.
    #[inline(always)]
    pub(crate) fn thread_entry_or_create(&self) -> &'static SrqThread {
        self.thread_entries.thread_entry_or_insert(|owner| {
            let session = self.context.counter_file;
            let thread = session.current_thread();
            SrqThread {
                owner_token: owner,
                next: AtomicPtr::new(ptr::null_mut()),
                cell: session.take_srq_cell(|cell| {
                    cell.srq_id.store(self.id, Relaxed);
                    cell.thread_id.store(thread.id, Relaxed);
                }),
            }
        })
    }
}

/// Returns the index of a kind among the keys: its own place among the first `single`, or the place of
/// its class.
pub(crate) fn find_or_claim_kind_index<'a>(
    key: OperationKey,
    len: usize,
    single: usize,
    key_at: impl Fn(usize) -> &'a AtomicU64,
) -> Option<usize> {
    let search = |key: OperationKey, places: Range<usize>| {
        for place in places {
            match key_at(place).load(Relaxed) {
                0 => {
                    key_at(place).store(key.0, Relaxed);
                    return Some(place);
                }
                known if known == key.0 => return Some(place),
                _ => {}
            }
        }
        None
    };
    search(key, 0..single).or_else(|| search(key.with_size_class(), single..len))
}
