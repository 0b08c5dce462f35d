//! The connection manager thread of a process: it reads the peers' messages and applies timers.
//!
//! One thread waits in `epoll_wait(2)` for all connections and listeners of the process. It never calls the program and
//! never accesses its memory. It queues events in channels, from which the program takes them with `rdma_get_cm_event`.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use liveness::descriptors_replaced_in_children::{
    replace_by_dev_null_in_children, stop_replacing_in_children,
};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::errno::Result;
use crate::libc_calls;
use crate::lock::lock;

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerPurpose {
    /// Send the REQ again: the listener was missing or its queue was full.
    RetryRequest,
    /// Accept requests again: no descriptor was available.
    RetryAccept,
    /// Check if the peer has responded; the value is the number of the timer.
    ResponseTimeout(u64),
    /// End TIMEWAIT: no packet of the connection can be in flight.
    TimeWaitExit,
    /// Repeat a message of a connection by MADs, or end that connection; the value is the number of the alarm.
    MadConnectionAlarm(u64),
    /// Look again for the listeners of queued requests by MADs.
    RetryQueuedMadRequests,
    /// Look for peers of connections by MADs that have ended without a message.
    CheckMadPeers,
}

/// An object whose socket and timers the connection manager thread handles.
pub(crate) trait SocketAndTimerHandler: Send + Sync {
    /// Returns the token that identifies the object: [`CmThread::new_token`].
    fn token(&self) -> u64;

    /// Handles a readable socket.
    fn on_readable(self: Arc<Self>);

    /// Handles an expired timer.
    fn on_alarm(self: Arc<Self>, alarm: TimerPurpose);
}

/// The timers by expiry; a number distinguishes timers with the same expiry.
type Timers = BTreeMap<(Instant, u64), (Weak<dyn SocketAndTimerHandler>, TimerPurpose)>;

/// The handle of the thread that reads the peers' CM messages and applies timers.
pub(crate) struct CmThread {
    epoll_fd: OwnedFd,
    wake_eventfd: OwnedFd,
    watched_handlers: Mutex<HashMap<u64, Arc<dyn SocketAndTimerHandler>>>,
    timers: Mutex<Timers>,
    next_token: AtomicU64,
}

/// Token of the eventfd that wakes the thread; watched objects have other tokens.
const WAKE_TOKEN: u64 = 0;

impl CmThread {
    /// Starts the thread.
    pub(crate) fn start() -> Result<&'static Self> {
        // Signals must be delivered to the program's threads, not to this one.
        let mask = libc_calls::block_signals();
        let builder = std::thread::Builder::new().name("rdmacm".to_owned());
        let (sender, receiver) = channel::<&'static Self>();
        let started = builder.spawn(move || {
            if let Ok(cm_thread) = receiver.recv() {
                cm_thread.run();
            }
        });
        libc_calls::restore_signals(&mask);
        started?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(WAKE_TOKEN);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        let cm_thread: &'static Self = Box::leak(Box::new(Self {
            epoll_fd: epoll,
            wake_eventfd: wake,
            watched_handlers: Mutex::default(),
            timers: Mutex::default(),
            next_token: AtomicU64::new(WAKE_TOKEN + 1),
        }));
        replace_by_dev_null_in_children(&cm_thread.epoll_fd)?;
        replace_by_dev_null_in_children(&cm_thread.wake_eventfd)?;
        // The send succeeds: the thread runs until it has received its handle.
        let _ = sender.send(cm_thread);
        Ok(cm_thread)
    }

    /// Returns a number that was never used as a token.
    pub(crate) fn new_token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls [`SocketAndTimerHandler::on_readable`] whenever `socket` is readable.
    pub(crate) fn watch<W: SocketAndTimerHandler + 'static>(
        &self,
        socket: &OwnedFd,
        watched: &Arc<W>,
    ) -> Result {
        replace_by_dev_null_in_children(socket)?;
        let token = watched.token();
        lock(&self.watched_handlers)
            .insert(token, Arc::clone(watched) as Arc<dyn SocketAndTimerHandler>);
        let data = epoll::EventData::new_u64(token);
        let added = epoll::add(&self.epoll_fd, socket, data, epoll::EventFlags::IN);
        if added.is_err() {
            self.unwatch(socket, token);
        }
        Ok(added?)
    }

    /// Undoes [`CmThread::watch`]. The socket may be closed afterwards.
    pub(crate) fn unwatch(&self, socket: &OwnedFd, token: u64) {
        let _ = epoll::delete(&self.epoll_fd, socket.as_fd());
        lock(&self.watched_handlers).remove(&token);
        stop_replacing_in_children(socket);
    }

    /// Suspends calls of [`SocketAndTimerHandler::on_readable`] for a watched socket, or resumes them.
    pub(crate) fn set_reading_paused(&self, socket: &OwnedFd, token: u64, pause_reading: bool) {
        let data = epoll::EventData::new_u64(token);
        let events = if pause_reading {
            epoll::EventFlags::empty()
        } else {
            epoll::EventFlags::IN
        };
        let _ = epoll::modify(&self.epoll_fd, socket, data, events);
    }

    /// Calls [`SocketAndTimerHandler::on_alarm`] after `delay`, if `watched` still exists.
    pub(crate) fn set_alarm<W: SocketAndTimerHandler + 'static>(
        &self,
        delay: Duration,
        watched: &Arc<W>,
        alarm: TimerPurpose,
    ) {
        let at = Instant::now() + delay;
        let mut timers = lock(&self.timers);
        let key = (at, self.new_token());
        timers.insert(
            key,
            (
                Arc::downgrade(watched) as Weak<dyn SocketAndTimerHandler>,
                alarm,
            ),
        );
        if timers
            .first_key_value()
            .is_some_and(|(first, _)| *first == key)
        {
            let _ = rustix::io::write(&self.wake_eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Returns the number of timers that have not expired.
    #[cfg(test)]
    pub(crate) fn pending_timer_count(&self) -> usize {
        lock(&self.timers).len()
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.time_until_next_alarm();
            let waited = epoll::wait(
                &self.epoll_fd,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            match waited {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("connection management has stopped: epoll_wait: {e}");
                    return;
                }
            }
            for event in &events {
                let token = event.data.u64();
                if token == WAKE_TOKEN {
                    let _ = rustix::io::read(&self.wake_eventfd, &mut [0; 8]);
                    continue;
                }
                let watched = lock(&self.watched_handlers).get(&token).cloned();
                if let Some(watched) = watched {
                    watched.on_readable();
                }
            }
            self.handle_expired_alarms();
        }
    }

    fn time_until_next_alarm(&self) -> Option<Timespec> {
        let timers = lock(&self.timers);
        let (&(at, _), _) = timers.first_key_value()?;
        let left = at.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }

    fn handle_expired_alarms(&self) {
        loop {
            let due = {
                let mut timers = lock(&self.timers);
                match timers.first_entry() {
                    Some(first) if first.key().0 <= Instant::now() => first.remove(),
                    _ => return,
                }
            };
            if let (Some(watched), alarm) = (due.0.upgrade(), due.1) {
                watched.on_alarm(alarm);
            }
        }
    }
}
