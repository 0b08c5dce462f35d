//! Completion channels and completion queues.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use verbs_abi::*;

use super::{
    Channel, Context, Cq, QUIET_PERIOD, becomes_readable_within, expect_ok, has_poll_event_within,
    last_errno, set_errno, set_nonblocking,
};
use crate::progress_notes::{record_awaited_event, record_progress, wait_limit};
use crate::wr::Wc;
use crate::xrc::extended_ops;

impl Channel {
    fn fd(&self) -> c_int {
        // SAFETY: the channel is live.
        unsafe { (*self.raw()).fd }
    }

    /// Returns true if an event is waiting or occurs within `wait`.
    #[must_use]
    pub fn has_event_within(&self, wait: Duration) -> bool {
        becomes_readable_within(self.fd(), wait)
    }

    /// Returns true if poll(2) says that the descriptor is ready to write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        has_poll_event_within(self.fd(), PollFlags::OUT, Duration::ZERO)
    }

    /// Sets or clears `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        set_nonblocking(self.fd(), on);
    }

    /// Calls `ibv_get_cq_event`, and returns the raw CQ and its `cq_context`. The event is not acknowledged.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn take_unacked_event(&self) -> Result<(*mut ibv_cq, usize), i32> {
        let mut cq = std::ptr::null_mut();
        let mut cq_context = std::ptr::null_mut();
        set_errno(0);
        // SAFETY: a live channel, writable results.
        let result = unsafe {
            (self.0.symbols.ibv_get_cq_event)(self.raw(), &raw mut cq, &raw mut cq_context)
        };
        if result == 0 {
            Ok((cq, cq_context.addr()))
        } else {
            Err(last_errno())
        }
    }

    /// Waits for an event of `cq` and acknowledges it.
    #[track_caller]
    pub fn await_and_ack_event(&self, cq: &Cq) {
        self.set_nonblocking(true);
        record_awaited_event("waiting for a CQ event");
        assert!(self.has_event_within(wait_limit()), "no CQ event came");
        record_awaited_event("");
        let (raw, _) = expect_ok("ibv_get_cq_event", self.take_unacked_event());
        assert_eq!(raw, cq.raw(), "the event is another CQ's");
        cq.ack(1);
    }

    /// Panics if an event is waiting or occurs within a moment.
    #[track_caller]
    pub fn expect_no_event(&self) {
        assert!(!self.has_event_within(QUIET_PERIOD), "a CQ event came");
        self.set_nonblocking(true);
        assert_eq!(self.take_unacked_event(), Err(libc::EAGAIN));
    }
}
impl Cq {
    /// Calls `ibv_create_cq_ex` through the context's operation.
    ///
    /// # Errors
    /// Returns the errno of the call; EOPNOTSUPP if the context lacks the operation.
    pub fn try_create_extended(ctx: &Context, attr: &mut ibv_cq_init_attr_ex) -> Result<Self, i32> {
        let create = extended_ops(ctx).create_cq_ex.ok_or(libc::EOPNOTSUPP)?;
        set_errno(0);
        // SAFETY: a live context, readable attributes without a channel.
        let raw = unsafe { create(ctx.raw(), attr) };
        Self::wrap(ctx.symbols(), raw.cast(), ctx.clone(), None)
    }

    /// Calls `ibv_resize_cq`, and returns the call's errno.
    #[must_use]
    pub fn try_resize(&self, cqe: c_int) -> i32 {
        // SAFETY: a live CQ.
        unsafe { (self.0.symbols.ibv_resize_cq)(self.raw(), cqe) }
    }

    /// Returns the capacity.
    #[must_use]
    pub fn cqe(&self) -> usize {
        // SAFETY: the CQ is live.
        usize::try_from(unsafe { (*self.raw()).cqe }).expect("a capacity is not negative")
    }

    /// Calls `ibv_poll_cq` for up to `max` completions.
    #[must_use]
    #[track_caller]
    pub fn poll(&self, max: usize) -> Vec<Wc> {
        let mut wcs = vec![ibv_wc::zeroed(); max];
        for wc in &mut wcs {
            // SAFETY: completions are plain numbers. The value marks fields that the call leaves unwritten.
            unsafe { std::ptr::from_mut(wc).write_bytes(0xa5, 1) };
        }
        let count = c_int::try_from(max).expect("few");
        // SAFETY: a live CQ, room for `max` completions.
        let got = unsafe { ibv_poll_cq(self.raw(), count, wcs.as_mut_ptr()) };
        assert!(
            (0..=count).contains(&got),
            "ibv_poll_cq({count}) returned {got}"
        );
        wcs.truncate(usize::try_from(got).expect("not negative"));
        wcs.into_iter().map(Wc).collect()
    }

    /// Returns the result of `ibv_poll_cq` for a count of at most 1, with room for one completion.
    #[must_use]
    pub fn poll_result_code(&self, count: c_int) -> c_int {
        assert!(count <= 1);
        let mut wc = ibv_wc::zeroed();
        // SAFETY: a live CQ, room for one completion.
        unsafe { ibv_poll_cq(self.raw(), count, &raw mut wc) }
    }

    /// Waits for `n` completions. The wait fails if no completion comes for [`wait_limit`].
    #[must_use]
    #[track_caller]
    pub fn wait_for_completions(&self, n: usize) -> Vec<Wc> {
        let mut deadline = Instant::now() + wait_limit();
        let mut wcs: Vec<Wc> = Vec::with_capacity(n);
        record_awaited_event(&format!("waiting for {n} completions"));
        let mut idle = 0u32;
        while wcs.len() < n {
            let more = self.poll((n - wcs.len()).min(64));
            if more.is_empty() {
                idle += 1;
                // The NIC may need this core to produce the completion.
                if idle.is_multiple_of(64) {
                    std::thread::sleep(Duration::from_micros(50));
                } else {
                    std::thread::yield_now();
                }
                if idle.is_multiple_of(1024) {
                    assert!(
                        Instant::now() < deadline,
                        "{} of {n} completions came: {wcs:?}",
                        wcs.len()
                    );
                }
            } else {
                idle = 0;
                wcs.extend(more);
                deadline = Instant::now() + wait_limit();
                record_progress();
            }
        }
        record_awaited_event("");
        wcs
    }

    /// Waits for one completion.
    #[must_use]
    #[track_caller]
    pub fn await_completion(&self) -> Wc {
        self.wait_for_completions(1)[0]
    }

    /// Polls the CQ for a moment, and returns all completions that were found.
    #[must_use]
    #[track_caller]
    pub fn poll_for_quiet_period(&self) -> Vec<Wc> {
        let end = Instant::now() + QUIET_PERIOD;
        let mut wcs = Vec::new();
        loop {
            wcs.extend(self.poll(64));
            if Instant::now() > end {
                return wcs;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Panics if the CQ has a completion or gets one within a moment.
    #[track_caller]
    pub fn expect_empty(&self) {
        let wcs = self.poll_for_quiet_period();
        assert!(wcs.is_empty(), "completions that should not be: {wcs:?}");
    }

    /// Calls `ibv_req_notify_cq`.
    #[track_caller]
    pub fn arm(&self, solicited_only: bool) {
        // SAFETY: a live CQ.
        let errno = unsafe { ibv_req_notify_cq(self.raw(), solicited_only.into()) };
        assert_eq!(errno, 0, "ibv_req_notify_cq");
    }

    /// Calls `ibv_ack_cq_events`.
    pub fn ack(&self, events: u32) {
        // SAFETY: a live CQ.
        unsafe { (self.0.symbols.ibv_ack_cq_events)(self.raw(), events) };
    }
}
