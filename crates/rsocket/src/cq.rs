//! A completion queue with its channel, whose descriptor announces completions.

use std::ffi::c_int;
use std::ptr;

use rdmacm::device_port::{DevicePort, last_errno};
use rdmacm::errno::Result;
use verbs_abi::*;

/// Largest number of completions per poll.
const MAX_COMPLETIONS_PER_POLL: c_int = 32;

/// An array for the completions of one poll.
pub(crate) type CompletionArray = [ibv_wc; MAX_COMPLETIONS_PER_POLL.cast_unsigned() as usize];

/// An array of zeroed completions.
pub(crate) const ZEROED_COMPLETIONS: CompletionArray =
    [const { ibv_wc::zeroed() }; MAX_COMPLETIONS_PER_POLL.cast_unsigned() as usize];

/// A completion queue with its own channel, whose descriptor does not block. Queue pairs that use it must be destroyed
/// before it is dropped.
pub(crate) struct Cq {
    device: &'static DevicePort,
    channel: *mut ibv_comp_channel,
    raw: *mut ibv_cq,
}

// SAFETY: verbs' handles may be used from any thread.
unsafe impl Send for Cq {}

impl Cq {
    /// Makes a completion queue for `cqe` completions.
    ///
    /// # Errors
    /// The error of making the channel or the queue.
    pub(crate) fn new(device: &'static DevicePort, cqe: c_int) -> Result<Self> {
        let mut made = Self {
            device,
            channel: nonblocking_channel(device)?,
            raw: ptr::null_mut(),
        };
        let create = device.verbs.ibv_create_cq;
        // SAFETY: the device is open and never closed, and the channel was just made.
        made.raw = unsafe { create(device.context, cqe, ptr::null_mut(), made.channel, 0) };
        if made.raw.is_null() {
            return Err(last_errno());
        }
        Ok(made)
    }

    /// Returns the handle of the queue, which lives as long as this value.
    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.raw
    }

    /// Polls the queue; returns the number of completions in `wcs`.
    pub(crate) fn poll(&self, wcs: &mut CompletionArray) -> usize {
        // SAFETY: the completion queue is live, and `wcs` has room for POLL completions.
        let n = unsafe { ibv_poll_cq(self.raw, MAX_COMPLETIONS_PER_POLL, wcs.as_mut_ptr()) };
        usize::try_from(n).unwrap_or(0)
    }

    /// Arms the queue: its channel becomes readable at the next completion.
    pub(crate) fn arm(&self) {
        // SAFETY: a live completion queue.
        unsafe { ibv_req_notify_cq(self.raw, 0) };
    }

    /// Takes and acknowledges the events of the channel.
    pub(crate) fn take_and_ack_channel_events(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.device.verbs;
        // SAFETY: a live channel, whose descriptor does not block, and places for the results.
        unsafe {
            while (verbs.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (verbs.ibv_ack_cq_events)(cq, 1);
            }
        }
    }

    /// Returns the channel's descriptor, which becomes readable after a completion.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: a live channel.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let verbs = self.device.verbs;
        // SAFETY: `new` made both objects, each is destroyed once, and the queue that uses the channel is destroyed
        // first.
        unsafe {
            if !self.raw.is_null() {
                (verbs.ibv_destroy_cq)(self.raw);
            }
            (verbs.ibv_destroy_comp_channel)(self.channel);
        }
    }
}

/// Makes a completion channel whose descriptor does not block.
fn nonblocking_channel(device: &DevicePort) -> Result<*mut ibv_comp_channel> {
    // SAFETY: the device is open, and the descriptor belongs to a live channel.
    unsafe {
        let channel = (device.verbs.ibv_create_comp_channel)(device.context);
        if channel.is_null() {
            return Err(last_errno());
        }
        let flags = libc::fcntl((*channel).fd, libc::F_GETFL);
        libc::fcntl((*channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        Ok(channel)
    }
}
