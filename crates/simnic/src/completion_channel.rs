//! Completion channels: the events of armed completion queues.

use std::collections::{HashMap, VecDeque};

use verbs_abi as abi;

use crate::event::SimulationEvent;
use crate::event_queue::{EventQueue, Ps};
use crate::thread::{SimulatedThread, wake_if_waiting};

/// Time from a completion until a sleeping thread has its event: interrupt, wake-up and return from the system call.
/// Assumed: no publication that this project uses has a measurement.
const EVENT_WAKE_UP_LATENCY: Ps = 5_000_000;

/// The completions that make the next event of a completion queue (`ibv_req_notify_cq(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arming {
    Disarmed,
    AnyCompletion,
    /// Completions of solicited messages, and failures.
    SolicitedOrFailed,
}

/// An event of a completion queue.
#[derive(Clone, Copy, Debug)]
struct CompletionEvent {
    visible_at: Ps,
    cq: *const abi::ibv_cq,
}

/// A completion channel.
#[derive(Debug)]
struct SimulatedCompletionChannel {
    /// The descriptor of the C structure.
    fd: i32,
    /// Events, in the order of their times.
    pending_events: VecDeque<CompletionEvent>,
    /// Threads that wait for an event. All of them wake at the next one, and the first takes it.
    waiting_threads: Vec<u32>,
}

/// The completion channels of a simulation, by index. Indexes are never reused.
#[derive(Debug, Default)]
pub(crate) struct CompletionChannels {
    channels: Vec<Option<SimulatedCompletionChannel>>,
    channel_by_cq: HashMap<u32, u32>,
}

impl CompletionChannels {
    /// Adds a channel with this descriptor; returns its index.
    pub(crate) fn add(&mut self, fd: i32) -> u32 {
        self.channels.push(Some(SimulatedCompletionChannel {
            fd,
            pending_events: VecDeque::new(),
            waiting_threads: Vec::new(),
        }));
        u32::try_from(self.channels.len() - 1).expect("fewer channels than descriptors")
    }

    pub(crate) fn remove(&mut self, channel: u32) {
        if let Some(slot) = self.channels.get_mut(channel as usize) {
            *slot = None;
        }
    }

    /// Returns the channel with this descriptor.
    pub(crate) fn index_of_descriptor(&self, fd: i32) -> Option<u32> {
        let mut channels = self.channels.iter();
        let index = channels.position(|channel| channel.as_ref().is_some_and(|c| c.fd == fd));
        index.and_then(|index| u32::try_from(index).ok())
    }

    /// Makes the events of completion queue `cq` go to `channel`.
    pub(crate) fn attach(&mut self, cq: u32, channel: u32) {
        self.channel_by_cq.insert(cq, channel);
    }

    /// Forgets a completion queue and its events.
    pub(crate) fn detach(&mut self, cq: u32, handle: *const abi::ibv_cq) {
        if let Some(channel) = self.channel_by_cq.remove(&cq)
            && let Some(channel) = self.get_mut(channel)
        {
            channel.pending_events.retain(|event| event.cq != handle);
        }
    }

    /// Adds the event for a completion that becomes visible at `completion_visible_at`, and wakes the threads that
    /// wait for it.
    #[cold]
    pub(crate) fn raise_event(
        &mut self,
        cq: u32,
        handle: *const abi::ibv_cq,
        completion_visible_at: Ps,
        threads: &mut [SimulatedThread],
        events: &mut EventQueue<SimulationEvent>,
    ) {
        let channel = self.channel_by_cq.get(&cq).copied();
        let Some(channel) = channel.and_then(|channel| self.get_mut(channel)) else {
            return;
        };
        let visible_at = completion_visible_at + EVENT_WAKE_UP_LATENCY;
        let position = channel
            .pending_events
            .partition_point(|event| event.visible_at <= visible_at);
        let event = CompletionEvent {
            visible_at,
            cq: handle,
        };
        channel.pending_events.insert(position, event);
        for thread in channel.waiting_threads.drain(..) {
            wake_if_waiting(threads, events, thread, visible_at);
        }
    }

    /// Returns the time at which the first event of a channel is visible; `Ps::MAX` if it has none.
    pub(crate) fn next_event_at(&self, channel: u32) -> Ps {
        let channel = self.channels.get(channel as usize).and_then(Option::as_ref);
        let first = channel.and_then(|channel| channel.pending_events.front());
        first.map_or(Ps::MAX, |event| event.visible_at)
    }

    /// Takes the first event of a channel, if it is visible at `now`. Returns its completion queue.
    pub(crate) fn take_event(&mut self, channel: u32, now: Ps) -> Option<*const abi::ibv_cq> {
        let events = &mut self.get_mut(channel)?.pending_events;
        let event = events.pop_front_if(|event| event.visible_at <= now)?;
        Some(event.cq)
    }

    /// Records that a thread waits for the events of a channel.
    pub(crate) fn add_waiting_thread(&mut self, channel: u32, thread: u32) {
        if let Some(channel) = self.get_mut(channel)
            && !channel.waiting_threads.contains(&thread)
        {
            channel.waiting_threads.push(thread);
        }
    }

    fn get_mut(&mut self, channel: u32) -> Option<&mut SimulatedCompletionChannel> {
        self.channels.get_mut(channel as usize)?.as_mut()
    }
}
