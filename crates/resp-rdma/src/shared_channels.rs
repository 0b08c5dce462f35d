//! The descriptors that many connections share: a completion channel and an event channel of connection management.
//!
//! A connection with channels of its own takes several descriptors, and a server of 10,000 connections has not that many.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs::{CompletionChannel, ProtectionDomain};

use crate::cm::{CmChannel, CmEventKind};
use crate::connected_qp::create_nonblocking_channel;
use crate::error::SetupError;

/// The shared channels, and the connections that use them.
pub(crate) struct SharedChannels {
    completion_channel: CompletionChannel,
    cm_channel: Arc<CmChannel>,
    members: Mutex<MembersById>,
}

#[derive(Default)]
struct MembersById {
    by_cq: HashMap<u64, Arc<Member>>,
    by_cm_id: HashMap<usize, Arc<Member>>,
}

/// A connection on shared channels.
#[derive(Default)]
pub(crate) struct Member {
    /// The key by which the program knows the connection.
    key: AtomicUsize,
    /// Events of connection management that the connection has not processed yet.
    cm_events: Mutex<VecDeque<CmEventKind>>,
}

/// The membership of a connection, which ends when this value is dropped.
pub(crate) struct Membership {
    channels: Arc<SharedChannels>,
    member: Arc<Member>,
    cq_id: u64,
    cm_id: usize,
}

impl SharedChannels {
    pub(crate) fn new(pd: &ProtectionDomain) -> Result<Self, SetupError> {
        let cm_channel = CmChannel::new().map_err(SetupError::from_cm_error_in_step(
            "rdma_create_event_channel",
        ))?;
        Ok(Self {
            completion_channel: create_nonblocking_channel(pd)?,
            cm_channel: Arc::new(cm_channel),
            members: Mutex::default(),
        })
    }

    pub(crate) fn completion_channel(&self) -> &CompletionChannel {
        &self.completion_channel
    }

    pub(crate) fn cm_channel(&self) -> &Arc<CmChannel> {
        &self.cm_channel
    }

    /// Returns the descriptors of both channels.
    pub(crate) fn fds(&self) -> [RawFd; 2] {
        [self.completion_channel.as_raw_fd(), self.cm_channel.fd()]
    }

    /// Adds the connection of a completion queue and of an id. The id may still be on another channel.
    pub(crate) fn join(self: Arc<Self>, cq_id: u64, cm_id: usize) -> Membership {
        let member = Arc::new(Member::default());
        let mut members = lock(&self.members);
        members.by_cq.insert(cq_id, Arc::clone(&member));
        members.by_cm_id.insert(cm_id, Arc::clone(&member));
        drop(members);
        Membership {
            channels: self,
            member,
            cq_id,
            cm_id,
        }
    }

    /// Takes all events of both channels, and passes the keys of their connections to `ready`.
    pub(crate) fn take_ready(&self, mut ready: impl FnMut(usize)) {
        let members = lock(&self.members);
        // Events of connections that are gone have no member.
        while let Ok(cq_id) = self.completion_channel.wait_for_cq_event() {
            if let Some(member) = members.by_cq.get(&cq_id) {
                ready(member.key.load(Ordering::Relaxed));
            }
        }
        self.cm_channel.take_events(|kind, cm_id| {
            if let Some(member) = members.by_cm_id.get(&cm_id) {
                lock(&member.cm_events).push_back(kind);
                ready(member.key.load(Ordering::Relaxed));
            }
        });
    }
}

impl Membership {
    /// Sets the key that [`SharedChannels::take_ready`] reports for the connection.
    pub(crate) fn set_key(&self, key: usize) {
        self.member.key.store(key, Ordering::Relaxed);
    }

    /// Returns the next event of connection management that was taken.
    pub(crate) fn next_cm_event(&self) -> Option<CmEventKind> {
        lock(&self.member.cm_events).pop_front()
    }

    pub(crate) fn fds(&self) -> [RawFd; 2] {
        self.channels.fds()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = lock(&self.channels.members);
        members.by_cq.remove(&self.cq_id);
        members.by_cm_id.remove(&self.cm_id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
