//! Round trips between two processes that wait: completion channels compared with TCP and Unix
//! sockets.
//!
//! Each side is an event-driven program. It waits in `epoll_wait(2)` for one descriptor, takes the
//! message, answers, and waits again. One request of 64 bytes is under way at a time. Both sides
//! check every message.

mod completion_channel;
mod ping_pong;
mod socket;
pub(crate) mod transport_and_placement;

use std::time::Duration;

use anyhow::Result;

use self::ping_pong::{SleepingEndpoint, answer_until_last_request, measure_round_trips};
use crate::core_pinning::{CorePair, run_pinned};
use crate::job::{EventsJob, Job};
use crate::link::{WorkerCommand, WorkerLink};
use crate::open_nic::NicChoice;

pub use self::ping_pong::{PING_PONG_MESSAGE_BYTES, RoundTripResult};
pub use self::transport_and_placement::{CorePlacement, Transport};

/// Starts a worker process and measures round trips for `duration`.
///
/// # Errors
/// When a verb or a socket fails, a message has wrong bytes, or no message arrives for 10 s.
pub fn measure_with_worker(
    cores: CorePair,
    worker: &WorkerCommand,
    nic: &NicChoice,
    transport: Transport,
    placement: CorePlacement,
    duration: Duration,
) -> Result<RoundTripResult> {
    let responder = match placement {
        CorePlacement::TwoCores => cores.responder,
        CorePlacement::OneCore => cores.requester,
    };
    run_pinned(cores.requester, || {
        let mut link = WorkerLink::spawn(worker, responder)?;
        let order = EventsJob {
            nic: nic.clone(),
            transport,
        };
        link.send(&Job::Events(order.clone()))?;
        run_driver_side(&mut link, &order, duration)
    })
}

fn run_driver_side(
    link: &mut WorkerLink,
    order: &EventsJob,
    duration: Duration,
) -> Result<RoundTripResult> {
    match order.transport {
        Transport::Verbs => measure_round_trips(
            link,
            completion_channel::EventDrivenQp::open_and_connect,
            &order.nic,
            duration,
        ),
        Transport::Tcp => {
            measure_round_trips(link, |link, ()| socket::connect_tcp(link), &(), duration)
        }
        Transport::Unix => {
            measure_round_trips(link, |link, ()| socket::connect_unix(link), &(), duration)
        }
    }
}

/// Runs the answering end in the worker process.
///
/// # Errors
/// As [`measure_with_worker`].
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: &EventsJob) -> Result<()> {
    let mut end: Box<dyn SleepingEndpoint> = match order.transport {
        Transport::Verbs => Box::new(completion_channel::EventDrivenQp::open_and_connect(
            link, &order.nic,
        )?),
        Transport::Tcp => Box::new(socket::listen_and_accept_tcp(link)?),
        Transport::Unix => Box::new(socket::listen_and_accept_unix(link)?),
    };
    let answered = answer_until_last_request(&mut *end)?;
    link.send(&answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_answers_every_request() {
        for transport in Transport::ALL {
            let order = EventsJob {
                nic: NicChoice::first_device_of("softnic"),
                transport,
            };
            let (mut left, mut right) = WorkerLink::pair().expect("pipes");
            let measured = std::thread::scope(|scope| {
                let worker = scope.spawn(|| run_worker_side(&mut right, &order));
                let measured = run_driver_side(&mut left, &order, Duration::from_millis(20));
                worker.join().expect("no panic").expect("the worker works");
                measured.expect("the driver works")
            });
            assert!(measured.round_trips > 0, "{transport:?}");
            assert!(
                measured.round_trips_per_s > 0.0,
                "{transport:?}: {measured:?}"
            );
        }
    }
}
