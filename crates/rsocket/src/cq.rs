//! A completion queue, and the channel whose descriptor says that something has completed.

use std::ffi::c_int;
use std::ptr;

use rdmacm::device::{Device, last_errno};
use rdmacm::errno::Result;
use verbs_abi::*;

/// Completions taken at once.
const POLL: c_int = 32;

/// Room for them.
pub(crate) type Completions = [ibv_wc; POLL.cast_unsigned() as usize];

/// Room without completions.
pub(crate) const NO_COMPLETIONS: Completions =
    [const { ibv_wc::zeroed() }; POLL.cast_unsigned() as usize];

/// A completion queue with a channel of its own, whose descriptor does not block. Queue pairs that use it are gone before
/// it is dropped.
pub(crate) struct Cq {
    device: &'static Device,
    channel: *mut ibv_comp_channel,
    raw: *mut ibv_cq,
}

// SAFETY: verbs' handles may be used from any thread.
unsafe impl Send for Cq {}

impl Cq {
    /// For `cqe` completions.
    ///
    /// # Errors
    /// What making the channel or the queue says.
    pub(crate) fn new(device: &'static Device, cqe: c_int) -> Result<Self> {
        let mut made = Self {
            device,
            channel: nonblocking_channel(device)?,
            raw: ptr::null_mut(),
        };
        let create = device.verbs.ibv_create_cq;
        // SAFETY: the open device, which is never closed, and the channel that was just made.
        made.raw = unsafe { create(device.context, cqe, ptr::null_mut(), made.channel, 0) };
        if made.raw.is_null() {
            return Err(last_errno());
        }
        Ok(made)
    }

    /// Its handle, which lives as long as this value.
    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.raw
    }

    /// Takes what has completed: how many of `wcs` are filled.
    pub(crate) fn poll(&self, wcs: &mut Completions) -> usize {
        // SAFETY: a live completion queue, and as many places as are said.
        let n = unsafe { ibv_poll_cq(self.raw, POLL, wcs.as_mut_ptr()) };
        usize::try_from(n).unwrap_or(0)
    }

    /// Arms it: its channel becomes readable at the next completion.
    pub(crate) fn arm(&self) {
        // SAFETY: a live completion queue.
        unsafe { ibv_req_notify_cq(self.raw, 0) };
    }

    /// Takes the events of the channel.
    pub(crate) fn take_events(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.device.verbs;
        // SAFETY: a live channel, whose descriptor does not block, and places for the results.
        unsafe {
            while (verbs.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (verbs.ibv_ack_cq_events)(cq, 1);
            }
        }
    }

    /// The descriptor that says that something has completed.
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: a live channel.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let verbs = self.device.verbs;
        // SAFETY: what `new` made, each once, and that which names the other first.
        unsafe {
            if !self.raw.is_null() {
                (verbs.ibv_destroy_cq)(self.raw);
            }
            (verbs.ibv_destroy_comp_channel)(self.channel);
        }
    }
}

/// A completion channel whose descriptor does not block.
fn nonblocking_channel(device: &Device) -> Result<*mut ibv_comp_channel> {
    // SAFETY: an open device; the descriptor of a live channel.
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
