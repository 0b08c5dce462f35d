//! Event channels: queues of events that a file descriptor announces.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use verbs_abi::rdma_cm_event_type;

use crate::endpoint::Endpoint;
use crate::errno::{Errno, Result};
use crate::lock;
use crate::multicast::Membership;
use crate::wire::{Params, QpAddress, Request};

/// Something that happened to an id.
pub(crate) struct Event {
    /// Of the id that it happened to; of the listener, for a request.
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) kind: rdma_cm_event_type,
    /// 0, a negative errno, or a reason for a refusal.
    pub(crate) status: c_int,
    pub(crate) detail: Detail,
}

/// What an [`Event`] brings.
pub(crate) enum Detail {
    Nothing,
    /// What the peer of a connection said.
    Connection {
        qpn: u32,
        params: Params,
        private_data: Vec<u8>,
    },
    /// How to reach a datagram service.
    Datagram {
        qp: QpAddress,
        private_data: Vec<u8>,
    },
    /// Somebody asks for a connection: its end here, for which there is no id yet, and what was asked.
    Request {
        new: Arc<Endpoint>,
        request: Box<Request>,
    },
    /// A multicast group was joined.
    Joined(Arc<Membership>),
}

/// An event channel.
///
/// Its eventfd is readable if and only if the queue is not empty: programs wait for it with `poll(2)` and its
/// kin, and switch [`Channel::next`] to not waiting by `O_NONBLOCK`.
pub(crate) struct Channel {
    fd: OwnedFd,
    queue: Mutex<VecDeque<Event>>,
}

impl Channel {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // O_NONBLOCK is the program's, so reads of the descriptor must not depend on it: see `settle`.
        Ok(Arc::new(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC)?,
            queue: Mutex::new(VecDeque::new()),
        }))
    }

    pub(crate) fn raw_fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, event: Event) {
        let mut queue = lock(&self.queue);
        queue.push_back(event);
        // At every event, so that edge-triggered waiters are woken. The count cannot overflow.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// The next event, which counts as reported to the program from now on. Waits for it unless the descriptor
    /// has `O_NONBLOCK`.
    ///
    /// `prepare` sees the event before any other thread can take one behind it; it must take no locks.
    ///
    /// # Errors
    /// `EAGAIN` where there is none and the descriptor does not block, `EINTR` when a signal came.
    pub(crate) fn next(&self, prepare: impl Fn(&Event)) -> Result<Event> {
        loop {
            {
                let mut queue = lock(&self.queue);
                if let Some(event) = queue.pop_front() {
                    // Before the queue is unlocked, so that nobody destroys the id in between.
                    event.endpoint.reported();
                    prepare(&event);
                    self.settle(&queue);
                    return Ok(event);
                }
            }
            let blocks = !fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK);
            if !blocks || cancellation::waits_outside(self.fd.as_raw_fd()) {
                return Err(Errno(libc::EAGAIN));
            }
            poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None)?;
        }
    }

    /// Whether there is no event.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    /// Takes the events of `endpoint` out: they will not be reported from here.
    pub(crate) fn take(&self, endpoint: &Arc<Endpoint>) -> Vec<Event> {
        let mut queue = lock(&self.queue);
        let (taken, kept) = queue
            .drain(..)
            .partition(|event| Arc::ptr_eq(&event.endpoint, endpoint));
        *queue = kept;
        self.settle(&queue);
        Vec::from(taken)
    }

    /// Makes the descriptor unreadable when nothing is left. Does not wait if it is so already.
    fn settle(&self, queue: &VecDeque<Event>) {
        if queue.is_empty() {
            let readable = poll(
                &mut [PollFd::new(&self.fd, PollFlags::IN)],
                Some(&Timespec::default()),
            );
            if readable.is_ok_and(|n| n > 0) {
                let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
            }
        }
    }
}
