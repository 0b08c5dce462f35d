//! Completion queues, completion channels and completions.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs_abi as abi;

use crate::context::{Context, ContextRef};
use crate::cq_srq_ids::{context_from_id, id_from_context, next_cq_or_srq_id};
use crate::error::{
    CreateError, EventError, PollError, check_returned_errno, errno_of_return_value, invalid_input,
    last_error,
};
use crate::types::{Lid, Qpn};
use crate::wait::wait_readable;
use crate::wc_codes::{WcOpcode, WcStatus};

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
    /// - [`CreateError::TooManyFiles`] (`EMFILE`, `ENFILE`): a channel is a file descriptor.
    /// - [`CreateError::NoResources`] (`ENOMEM`).
    /// - [`CreateError::Refused`] (any other errno).
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, CreateError> {
        // SAFETY: live context.
        let raw = unsafe { (self.inner.symbols.ibv_create_comp_channel)(self.inner.raw) };
        if raw.is_null() {
            return Err(CreateError::of("ibv_create_comp_channel", last_error()));
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
    /// - [`CreateError::LimitExceeded`] (`EINVAL`): 0 completions, or more than `max_cqe` of the device.
    /// - [`CreateError::NoResources`] (`ENOMEM`): the device has no more queues.
    /// - [`CreateError::Refused`] (any other errno).
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue, CreateError> {
        self.create_cq_inner(cqe, None)
    }

    /// Creates a CQ for at least `cqe` completions, whose events are reported on `channel`.
    ///
    /// # Errors
    /// - [`CreateError::OtherContext`]: the channel belongs to another context.
    /// - As [`create_cq`](Self::create_cq).
    pub fn create_cq_with_channel(
        &self,
        cqe: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, CreateError> {
        if !Arc::ptr_eq(&channel.inner.context, &self.inner) {
            return Err(CreateError::OtherContext {
                verb: "ibv_create_cq",
                source: invalid_input("the completion channel belongs to another context"),
            });
        }
        self.create_cq_inner(cqe, Some(channel.clone()))
    }

    fn create_cq_inner(
        &self,
        cqe: u32,
        channel: Option<CompletionChannel>,
    ) -> Result<CompletionQueue, CreateError> {
        let id = next_cq_or_srq_id();
        let entries = i32::try_from(cqe)
            .map_err(|_| self.cq_creation_error(cqe, io::Error::from_raw_os_error(libc::EINVAL)))?;
        let raw_channel = channel
            .as_ref()
            .map_or(std::ptr::null_mut(), |c| c.inner.raw);
        // SAFETY: live context and channel of the same table; the CQ keeps both alive.
        let raw = unsafe {
            (self.inner.symbols.ibv_create_cq)(
                self.inner.raw,
                entries,
                context_from_id(id),
                raw_channel,
                0,
            )
        };
        if raw.is_null() {
            return Err(self.cq_creation_error(cqe, last_error()));
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

impl Context {
    #[cold]
    fn cq_creation_error(&self, cqe: u32, source: io::Error) -> CreateError {
        let most = self
            .query_device()
            .map_or(u32::MAX, |device| device.max_cqe);
        CreateError::of_sizes("ibv_create_cq", source, &[("cqe", cqe, most)])
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

    /// Takes up to `N` completions into `wc_buffer`. An empty queue is no error: the iterator is
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
    /// [`PollError::CqError`] (any errno): the CQ is in error because it overran.
    #[inline]
    pub fn poll<'b, const N: usize>(
        &self,
        wc_buffer: &'b mut WcBuffer<N>,
    ) -> Result<Completions<'b>, PollError> {
        self.poll_up_to(N, wc_buffer)
    }

    /// Takes completions as [`poll`](Self::poll) does, at most `most`.
    ///
    /// # Errors
    /// [`PollError::CqError`] (any errno): the CQ is in error because it overran.
    #[inline]
    pub fn poll_up_to<'b, const N: usize>(
        &self,
        most: usize,
        wc_buffer: &'b mut WcBuffer<N>,
    ) -> Result<Completions<'b>, PollError> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "checked by WcBuffer::new"
        )]
        let most = most.min(N) as i32;
        // SAFETY: live CQ, room for N completions.
        let n = unsafe { abi::ibv_poll_cq(self.raw, most, wc_buffer.wc.as_mut_ptr().cast()) };
        let Ok(n) = usize::try_from(n) else {
            return Err(poll_error(n));
        };
        // SAFETY: the provider has initialised the first n of N completions.
        let filled = unsafe {
            std::slice::from_raw_parts(wc_buffer.wc.as_ptr().cast::<abi::ibv_wc>(), n.min(N))
        };
        Ok(Completions { wcs: filled })
    }

    pub(crate) fn raw(&self) -> *mut abi::ibv_cq {
        self.raw
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.inner.context.provider.is_simulated()
    }

    /// Arms the CQ: the next completion makes its channel readable; with `solicited_only`, the next
    /// solicited or failed one. Poll once more after arming and before waiting, since earlier
    /// completions raise no event.
    ///
    /// # Errors
    /// [`EventError::Refused`] (any errno).
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), EventError> {
        // SAFETY: live CQ.
        let ret = unsafe { abi::ibv_req_notify_cq(self.inner.raw, solicited_only.into()) };
        check_returned_errno(ret).map_err(|e| EventError::of("ibv_req_notify_cq", e))
    }

    /// Returns the channel on which the CQ's events are reported.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.channel.as_ref()
    }
}

/// Returns the error of `ibv_poll_cq`, which returned `ret`.
#[cold]
fn poll_error(ret: i32) -> PollError {
    PollError::CqError {
        verb: "ibv_poll_cq",
        source: io::Error::from_raw_os_error(errno_of_return_value(ret)),
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
    /// assert_eq!(channel.wait_for_cq_event_timeout(Duration::from_millis(1))?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`EventError::Interrupted`] (`EINTR`): a signal came before an event.
    /// - [`EventError::WouldBlock`] (`EAGAIN`): the descriptor does not block, and no event is there.
    /// - [`EventError::Refused`] (any other errno).
    pub fn wait_for_cq_event(&self) -> Result<u64, EventError> {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let symbols = self.inner.context.symbols;
        // SAFETY: live channel, writable results.
        let ret = unsafe { (symbols.ibv_get_cq_event)(self.inner.raw, &mut cq, &mut context) };
        if ret != 0 {
            return Err(EventError::of("ibv_get_cq_event", last_error()));
        }
        // SAFETY: ibv_destroy_cq waits until every event that was taken is acknowledged. So the CQ
        // still exists, even if another thread is dropping it.
        unsafe { (symbols.ibv_ack_cq_events)(cq, 1) };
        Ok(id_from_context(context))
    }

    /// Waits for an event for at most `timeout`; returns `None` after that time.
    ///
    /// An event is gone if another thread takes it, or drops its CQ, just before this call takes it. The call then
    /// waits for the next one without a limit. After [`set_nonblocking`](Self::set_nonblocking) it returns
    /// [`EventError::WouldBlock`] instead.
    ///
    /// # Errors
    /// As [`wait_for_cq_event`](Self::wait_for_cq_event).
    pub fn wait_for_cq_event_timeout(&self, timeout: Duration) -> Result<Option<u64>, EventError> {
        if wait_readable(self.as_fd(), timeout) {
            self.wait_for_cq_event().map(Some)
        } else {
            Ok(None)
        }
    }

    /// Sets whether the descriptor blocks; a new channel's does. If it does not,
    /// [`wait_for_cq_event`](Self::wait_for_cq_event) fails at once with [`EventError::WouldBlock`] while no event is
    /// there.
    ///
    /// # Errors
    /// The error of `fcntl(2)`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(self)?;
        flags.set(OFlags::NONBLOCK, nonblocking);
        Ok(fcntl_setfl(self, flags)?)
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
