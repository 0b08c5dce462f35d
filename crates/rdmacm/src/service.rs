//! The sleeping thread of a process: it reads what peers send and minds the time.
//!
//! One thread waits in `epoll_wait(2)` for all connections and listeners of the process. It never calls into
//! the program and touches none of its memory: what happens becomes an event in a channel's queue, which the
//! program takes out with `rdma_get_cm_event`.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::endpoint::Endpoint;
use crate::errno::Result;
use crate::{fork, lock};

/// What a timer reminds an endpoint of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// The listener took no more, or was not there: ask again.
    AskAgain,
    /// There was no descriptor for a request: look whether there is one now.
    AcceptAgain,
    /// The peer should have answered this question by now.
    AnswerOverdue(u64),
    /// No packet of the connection can be on its way any more.
    TimewaitOver,
}

/// What is to happen when; the number keeps apart what is due at the same time.
type Timers = BTreeMap<(Instant, u64), (Weak<Endpoint>, Alarm)>;

/// The thread, as the rest of the process sees it.
pub(crate) struct Service {
    epoll: OwnedFd,
    wake: OwnedFd,
    endpoints: Mutex<HashMap<u64, Arc<Endpoint>>>,
    timers: Mutex<Timers>,
    next: AtomicU64,
}

/// Token of the eventfd that wakes the thread; endpoints have others.
const WAKE: u64 = 0;

impl Service {
    /// Starts the thread.
    pub(crate) fn start() -> Result<&'static Self> {
        fork::prepare_replacement()?;
        // The program's signals are the program's: its threads must get them, not this one.
        let mask = fork::block_signals();
        let builder = std::thread::Builder::new().name("rdmacm".to_owned());
        let (sender, receiver) = channel::<&'static Self>();
        let started = builder.spawn(move || {
            if let Ok(service) = receiver.recv() {
                service.run();
            }
        });
        fork::restore_signals(&mask);
        started?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        let service: &'static Self = Box::leak(Box::new(Self {
            epoll,
            wake,
            endpoints: Mutex::default(),
            timers: Mutex::default(),
            next: AtomicU64::new(WAKE + 1),
        }));
        fork::close_in_children(&service.epoll);
        fork::close_in_children(&service.wake);
        // The thread lives until it has received this.
        let _ = sender.send(service);
        Ok(service)
    }

    /// A number that no endpoint had before.
    pub(crate) fn new_token(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls [`Endpoint::on_readable`] whenever `socket` is.
    pub(crate) fn watch(&self, socket: &OwnedFd, endpoint: &Arc<Endpoint>) -> Result {
        fork::close_in_children(socket);
        lock(&self.endpoints).insert(endpoint.token, Arc::clone(endpoint));
        let data = epoll::EventData::new_u64(endpoint.token);
        let added = epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN);
        if added.is_err() {
            self.unwatch(socket, endpoint);
        }
        Ok(added?)
    }

    /// Ends what [`Service::watch`] began. The socket may be closed afterwards.
    pub(crate) fn unwatch(&self, socket: &OwnedFd, endpoint: &Endpoint) {
        let _ = epoll::delete(&self.epoll, socket.as_fd());
        lock(&self.endpoints).remove(&endpoint.token);
        fork::keep_in_children(socket);
    }

    /// Does not call [`Endpoint::on_readable`] for a socket that is watched, or does so again.
    pub(crate) fn mute(&self, socket: &OwnedFd, endpoint: &Endpoint, mute: bool) {
        let data = epoll::EventData::new_u64(endpoint.token);
        let events = if mute {
            epoll::EventFlags::empty()
        } else {
            epoll::EventFlags::IN
        };
        let _ = epoll::modify(&self.epoll, socket, data, events);
    }

    /// Calls [`Endpoint::on_alarm`] when `delay` has passed, if the endpoint still exists.
    pub(crate) fn after(&self, delay: Duration, endpoint: &Arc<Endpoint>, alarm: Alarm) {
        let at = Instant::now() + delay;
        let mut timers = lock(&self.timers);
        let key = (at, self.new_token());
        timers.insert(key, (Arc::downgrade(endpoint), alarm));
        if timers
            .first_key_value()
            .is_some_and(|(first, _)| *first == key)
        {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.until_next_alarm();
            let waited = epoll::wait(
                &self.epoll,
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
                if token == WAKE {
                    let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    continue;
                }
                let endpoint = lock(&self.endpoints).get(&token).cloned();
                if let Some(endpoint) = endpoint {
                    endpoint.on_readable();
                }
            }
            self.ring_alarms();
        }
    }

    fn until_next_alarm(&self) -> Option<Timespec> {
        let timers = lock(&self.timers);
        let (&(at, _), _) = timers.first_key_value()?;
        let left = at.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }

    fn ring_alarms(&self) {
        loop {
            let due = {
                let mut timers = lock(&self.timers);
                match timers.first_entry() {
                    Some(first) if first.key().0 <= Instant::now() => first.remove(),
                    _ => return,
                }
            };
            if let (Some(endpoint), alarm) = (due.0.upgrade(), due.1) {
                endpoint.on_alarm(alarm);
            }
        }
    }
}
