//! Completion queues, completion channels and completions.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use verbs_abi as abi;

use crate::context::{Context, ContextRef};
use crate::error::VerbError;
use crate::id::{id_context, id_of, next_id};
use crate::types::{Lid, Qpn, c_enum};
use crate::wait::wait_readable;

/// A completion channel: a file descriptor that becomes readable when an armed CQ gets a completion.
/// Clones are the same channel.
#[derive(Clone)]
pub struct CompletionChannel {
    inner: Arc<ChannelInner>,
}

struct ChannelInner {
    context: ContextRef,
    raw: *mut abi::ibv_comp_channel,
}

// SAFETY: verbs on a channel are thread-safe, see `ContextInner`.
unsafe impl Send for ChannelInner {}
// SAFETY: as for Send.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_comp_channel of this table; every CQ on it held an Arc and is
        // gone.
        unsafe { (self.context.symbols.ibv_destroy_comp_channel)(self.raw) };
    }
}

/// A completion queue. Clones are the same queue.
#[derive(Clone)]
pub struct CompletionQueue {
    /// The pointer of `inner`, for polling without another indirection.
    raw: *mut abi::ibv_cq,
    pub(crate) inner: Arc<CqInner>,
}

// SAFETY: verbs on a CQ are thread-safe, see `ContextInner`; `inner` keeps the CQ alive.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for Send.
unsafe impl Sync for CompletionQueue {}

pub(crate) struct CqInner {
    pub(crate) context: ContextRef,
    pub(crate) raw: *mut abi::ibv_cq,
    channel: Option<CompletionChannel>,
    id: u64,
}

// SAFETY: verbs on a CQ are thread-safe, see `ContextInner`.
unsafe impl Send for CqInner {}
// SAFETY: as for Send.
unsafe impl Sync for CqInner {}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_cq of this table; every QP on it held an Arc of this and is
        // gone. Events were acknowledged when they were taken (`CompletionChannel::wait`), so this
        // cannot hang.
        unsafe { (self.context.symbols.ibv_destroy_cq)(self.raw) };
    }
}

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`VerbError`] if the provider refuses the verb, for example because the process has no descriptors left.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbError> {
        // SAFETY: live context.
        let raw = unsafe { (self.inner.symbols.ibv_create_comp_channel)(self.inner.raw) };
        if raw.is_null() {
            return Err(VerbError::last("ibv_create_comp_channel"));
        }
        Ok(CompletionChannel {
            inner: Arc::new(ChannelInner {
                context: Arc::clone(&self.inner),
                raw,
            }),
        })
    }

    /// Creates a CQ for at least `cqe` completions.
    ///
    /// # Errors
    /// [`VerbError`] if the provider refuses the verb, for example because of 0 completions or more
    /// than `max_cqe` of the device.
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue, VerbError> {
        self.cq(cqe, None)
    }

    /// Creates a CQ for at least `cqe` completions, whose events are reported on `channel`.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq).
    pub fn create_cq_with_channel(
        &self,
        cqe: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, VerbError> {
        if !Arc::ptr_eq(&channel.inner.context, &self.inner) {
            return Err(VerbError::invalid(
                "ibv_create_cq",
                "the completion channel belongs to another context",
            ));
        }
        self.cq(cqe, Some(channel.clone()))
    }

    fn cq(
        &self,
        cqe: u32,
        channel: Option<CompletionChannel>,
    ) -> Result<CompletionQueue, VerbError> {
        let id = next_id();
        let cqe = i32::try_from(cqe).map_err(|_| VerbError::new("ibv_create_cq", libc::EINVAL))?;
        let raw_channel = channel
            .as_ref()
            .map_or(std::ptr::null_mut(), |c| c.inner.raw);
        // SAFETY: live context and channel of the same table; the CQ keeps both alive.
        let raw = unsafe {
            (self.inner.symbols.ibv_create_cq)(self.inner.raw, cqe, id_context(id), raw_channel, 0)
        };
        if raw.is_null() {
            return Err(VerbError::last("ibv_create_cq"));
        }
        let context = Arc::clone(&self.inner);
        Ok(CompletionQueue {
            raw,
            inner: Arc::new(CqInner {
                context,
                raw,
                channel,
                id,
            }),
        })
    }
}

impl CompletionQueue {
    /// Returns a number that identifies this CQ in events; never reused in this process.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns the number of completions that the queue can hold.
    pub fn capacity(&self) -> u32 {
        // SAFETY: live CQ; only ibv_resize_cq changes `cqe`, and this API does not call it.
        u32::try_from(unsafe { (*self.inner.raw).cqe }).unwrap_or(0)
    }

    /// Takes up to `N` completions into `buffer`. An empty queue is no error: the iterator is
    /// empty.
    ///
    /// ```
    /// # let cq = verbs::Provider::softnic().device(None)?.open()?.create_cq(16)?;
    /// let mut buffer = verbs::WcBuffer::<16>::new();
    /// for wc in cq.poll(&mut buffer)? {
    ///     match wc {
    ///         Ok(wc) => println!("{}: {}", wc.wr_id(), wc.opcode()),
    ///         Err(failed) => println!("{}: {}", failed.wr_id(), failed.status()),
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The CQ is in error because it overran.
    #[inline]
    pub fn poll<'b, const N: usize>(
        &self,
        buffer: &'b mut WcBuffer<N>,
    ) -> Result<Completions<'b>, VerbError> {
        self.poll_up_to(N, buffer)
    }

    /// Takes completions as [`poll`](Self::poll) does, at most `most`.
    ///
    /// # Errors
    /// The CQ is in error because it overran.
    #[inline]
    pub fn poll_up_to<'b, const N: usize>(
        &self,
        most: usize,
        buffer: &'b mut WcBuffer<N>,
    ) -> Result<Completions<'b>, VerbError> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "checked by WcBuffer::new"
        )]
        let most = most.min(N) as i32;
        // SAFETY: live CQ, room for N completions.
        let n = unsafe { abi::ibv_poll_cq(self.raw, most, buffer.wc.as_mut_ptr().cast()) };
        let Ok(n) = usize::try_from(n) else {
            return Err(VerbError::new("ibv_poll_cq", crate::error::errno_of(n)));
        };
        // SAFETY: the provider has initialised the first n of N completions.
        let filled = unsafe {
            std::slice::from_raw_parts(buffer.wc.as_ptr().cast::<abi::ibv_wc>(), n.min(N))
        };
        Ok(Completions { wcs: filled })
    }

    /// Arms the CQ: the next completion makes its channel readable; with `solicited_only`, the next
    /// solicited or failed one. Poll once more after arming and before waiting, since earlier
    /// completions raise no event.
    ///
    /// # Errors
    /// [`VerbError`] if the provider refuses the verb.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbError> {
        // SAFETY: live CQ.
        let ret = unsafe { abi::ibv_req_notify_cq(self.inner.raw, solicited_only.into()) };
        VerbError::check("ibv_req_notify_cq", ret)
    }

    /// Returns the channel on which the CQ's events are reported.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.channel.as_ref()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CompletionQueue({}, {} entries)",
            self.id(),
            self.capacity()
        )
    }
}

impl CompletionChannel {
    /// Waits for an event of an armed CQ and returns that CQ's [id](CompletionQueue::id). The event is
    /// acknowledged here, so a CQ can be dropped at any time.
    ///
    /// ```
    /// # let context = verbs::Provider::softnic().device(None)?.open()?;
    /// use std::time::Duration;
    /// let channel = context.create_comp_channel()?;
    /// let cq = context.create_cq_with_channel(16, &channel)?;
    /// cq.req_notify(false)?;
    /// // nothing is posted, so nothing comes
    /// assert_eq!(channel.wait_timeout(Duration::from_millis(1))?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`VerbError`] if the provider refuses the verb, for example because a signal arrives.
    pub fn wait(&self) -> Result<u64, VerbError> {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let symbols = self.inner.context.symbols;
        // SAFETY: live channel, writable results.
        let ret = unsafe { (symbols.ibv_get_cq_event)(self.inner.raw, &mut cq, &mut context) };
        if ret != 0 {
            return Err(VerbError::last("ibv_get_cq_event"));
        }
        // SAFETY: ibv_destroy_cq waits until every event that was taken is acknowledged. So the CQ
        // still exists, even if another thread is dropping it.
        unsafe { (symbols.ibv_ack_cq_events)(cq, 1) };
        Ok(id_of(context))
    }

    /// Waits for an event for at most `timeout`; returns `None` after that time.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<u64>, VerbError> {
        if wait_readable(self.as_fd(), timeout) {
            self.wait().map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn raw(&self) -> *mut abi::ibv_comp_channel {
        self.inner.raw
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.inner.raw).fd) }
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel(fd {})", self.as_raw_fd())
    }
}

/// A buffer for `N` completions, reused for every poll.
pub struct WcBuffer<const N: usize> {
    wc: [MaybeUninit<abi::ibv_wc>; N],
}

impl<const N: usize> WcBuffer<N> {
    /// Makes a buffer; `N` is 1 to 65,536.
    pub const fn new() -> Self {
        const { assert!(N > 0 && N <= 65_536, "1 to 65,536 completions") };
        Self {
            wc: [const { MaybeUninit::uninit() }; N],
        }
    }
}

impl<const N: usize> Default for WcBuffer<N> {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: plain data.
unsafe impl<const N: usize> Send for WcBuffer<N> {}

impl<const N: usize> fmt::Debug for WcBuffer<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WcBuffer<{N}>")
    }
}

/// The completions of one poll.
#[derive(Clone)]
pub struct Completions<'b> {
    wcs: &'b [abi::ibv_wc],
}

impl<'b> Completions<'b> {
    /// Returns the number of remaining completions.
    #[inline]
    pub fn len(&self) -> usize {
        self.wcs.len()
    }

    /// Returns true if no completion remains.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.wcs.is_empty()
    }
}

impl<'b> Iterator for Completions<'b> {
    type Item = Result<WorkCompletion<'b>, FailedCompletion<'b>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (wc, rest) = self.wcs.split_first()?;
        self.wcs = rest;
        Some(if wc.status == abi::IBV_WC_SUCCESS {
            Ok(WorkCompletion { wc })
        } else {
            Err(FailedCompletion { wc })
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.wcs.len(), Some(self.wcs.len()))
    }
}

impl ExactSizeIterator for Completions<'_> {}

impl fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// A view of the completion of a work request that succeeded.
#[derive(Clone, Copy)]
pub struct WorkCompletion<'b> {
    wc: &'b abi::ibv_wc,
}

impl WorkCompletion<'_> {
    /// Returns the id of the WR.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// Returns the operation that completed.
    #[inline]
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.wc.opcode)
    }

    /// Returns true if this is the completion of a receive.
    #[inline]
    pub fn is_recv(&self) -> bool {
        self.wc.opcode & abi::IBV_WC_RECV != 0
    }

    /// Returns the number of bytes received (receives, READs, atomics); UD receives include the 40
    /// bytes of the GRH.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.wc.byte_len
    }

    /// Returns the immediate in host order, if the message had one.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        // SAFETY: with this flag the union holds the immediate; both members are u32 anyway.
        (self.wc.wc_flags & abi::IBV_WC_WITH_IMM != 0)
            .then(|| u32::from_be(unsafe { self.wc.imm.imm_data }))
    }

    /// Returns the number of the local queue pair.
    #[inline]
    pub fn qp_num(&self) -> Qpn {
        Qpn(self.wc.qp_num)
    }

    /// Returns the number of the queue pair that sent a datagram (UD receives).
    #[inline]
    pub fn src_qp(&self) -> Qpn {
        Qpn(self.wc.src_qp)
    }

    /// Returns the LID of the port that sent a datagram (UD receives on InfiniBand).
    pub fn slid(&self) -> Lid {
        Lid(self.wc.slid)
    }

    /// Returns true if the first 40 bytes of the buffer contain a GRH (UD receives).
    #[inline]
    pub fn has_grh(&self) -> bool {
        self.wc.wc_flags & abi::IBV_WC_GRH != 0
    }
}

impl fmt::Debug for WorkCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkCompletion")
            .field("wr_id", &self.wr_id())
            .field("opcode", &self.opcode())
            .field("byte_len", &self.byte_len())
            .field("imm", &self.imm())
            .field("qp_num", &self.qp_num())
            .finish_non_exhaustive()
    }
}

/// A view of the completion of a work request that failed, limited to the fields that are valid by
/// `ibv_poll_cq(3)`.
#[derive(Clone, Copy)]
pub struct FailedCompletion<'b> {
    wc: &'b abi::ibv_wc,
}

impl FailedCompletion<'_> {
    /// Returns the id of the WR.
    pub fn wr_id(&self) -> u64 {
        self.wc.wr_id
    }

    /// Returns the status: the reason of the failure.
    pub fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.wc.status)
    }

    /// Returns the number of the local queue pair.
    pub fn qp_num(&self) -> Qpn {
        Qpn(self.wc.qp_num)
    }

    /// Returns the vendor's error code.
    pub fn vendor_err(&self) -> u32 {
        self.wc.vendor_err
    }
}

impl fmt::Debug for FailedCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedCompletion")
            .field("wr_id", &self.wr_id())
            .field("status", &self.status())
            .field("qp_num", &self.qp_num())
            .field("vendor_err", &self.vendor_err())
            .finish()
    }
}

impl fmt::Display for FailedCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "WR {} on queue pair {} failed: {}",
            self.wr_id(),
            self.qp_num(),
            self.status()
        )
    }
}

impl std::error::Error for FailedCompletion<'_> {}

c_enum! {
    /// The operation of a successful completion.
    WcOpcode {
        /// A SEND.
        Send = abi::IBV_WC_SEND, "SEND";
        /// An RDMA WRITE.
        RdmaWrite = abi::IBV_WC_RDMA_WRITE, "RDMA_WRITE";
        /// An RDMA READ.
        RdmaRead = abi::IBV_WC_RDMA_READ, "RDMA_READ";
        /// A compare-and-swap.
        CompSwap = abi::IBV_WC_COMP_SWAP, "COMP_SWAP";
        /// A fetch-and-add.
        FetchAdd = abi::IBV_WC_FETCH_ADD, "FETCH_ADD";
        /// A memory window bind.
        BindMw = abi::IBV_WC_BIND_MW, "BIND_MW";
        /// A local invalidate.
        LocalInv = abi::IBV_WC_LOCAL_INV, "LOCAL_INV";
        /// A RECV.
        Recv = abi::IBV_WC_RECV, "RECV";
        /// A RECV consumed by an RDMA WRITE with immediate.
        RecvRdmaWithImm = abi::IBV_WC_RECV_RDMA_WITH_IMM, "RECV_RDMA_WITH_IMM";
    }
}

c_enum! {
    /// The status of a completion, displayed with the text of `ibv_wc_status_str`.
    WcStatus {
        /// The work request succeeded.
        Success = abi::IBV_WC_SUCCESS, "success";
        /// A message was longer than the buffer, or longer than allowed.
        LocLenErr = abi::IBV_WC_LOC_LEN_ERR, "local length error";
        /// A local inconsistency of the QP.
        LocQpOpErr = abi::IBV_WC_LOC_QP_OP_ERR, "local QP operation error";
        /// Deprecated.
        LocEecOpErr = abi::IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error";
        /// An SGE refers to memory that is not registered for this use.
        LocProtErr = abi::IBV_WC_LOC_PROT_ERR, "local protection error";
        /// The QP was in error before the work request was executed.
        WrFlushErr = abi::IBV_WC_WR_FLUSH_ERR, "Work Request Flushed Error";
        /// A memory window could not be bound.
        MwBindErr = abi::IBV_WC_MW_BIND_ERR, "memory management operation error";
        /// The responder sent something unexpected.
        BadRespErr = abi::IBV_WC_BAD_RESP_ERR, "bad response error";
        /// A protection error on a local buffer during a WRITE with immediate.
        LocAccessErr = abi::IBV_WC_LOC_ACCESS_ERR, "local access error";
        /// The responder found the request invalid.
        RemInvReqErr = abi::IBV_WC_REM_INV_REQ_ERR, "remote invalid request error";
        /// The responder's memory does not permit the access.
        RemAccessErr = abi::IBV_WC_REM_ACCESS_ERR, "remote access error";
        /// The responder could not finish the operation.
        RemOpErr = abi::IBV_WC_REM_OP_ERR, "remote operation error";
        /// The peer did not answer within timeout and retries.
        RetryExcErr = abi::IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded";
        /// The peer had no RECV posted within the RNR retries.
        RnrRetryExcErr = abi::IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded";
        /// Deprecated.
        LocRddViolErr = abi::IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation error";
        /// Deprecated.
        RemInvRdReqErr = abi::IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request";
        /// The responder aborted the operation.
        RemAbortErr = abi::IBV_WC_REM_ABORT_ERR, "aborted error";
        /// Deprecated.
        InvEecnErr = abi::IBV_WC_INV_EECN_ERR, "invalid EE context number";
        /// Deprecated.
        InvEecStateErr = abi::IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state";
        /// A fatal error of the device.
        FatalErr = abi::IBV_WC_FATAL_ERR, "fatal error";
        /// The peer's response was too late.
        RespTimeoutErr = abi::IBV_WC_RESP_TIMEOUT_ERR, "response timeout error";
        /// Anything else.
        GeneralErr = abi::IBV_WC_GENERAL_ERR, "general error";
        /// Tag matching.
        TmErr = abi::IBV_WC_TM_ERR, "TM error";
        /// Tag matching: software must finish the rendezvous.
        TmRndvIncomplete = abi::IBV_WC_TM_RNDV_INCOMPLETE, "TM software rendezvous";
    }
}

impl WcStatus {
    /// Returns the provider's text for a status number.
    pub fn provider_text(context: &Context, status: u32) -> String {
        // SAFETY: the function takes any number and returns a static string.
        let text = unsafe { (context.inner.symbols.ibv_wc_status_str)(status) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not NULL, so a C string with static lifetime.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}
