//! Worker threads: each owns its queue pairs, and serves its clients until it gets the stop command.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpc::{Request, RequestReplier, RpcError, RpcHandler, RpcWorkerCounts, datagram, herd};
use rustix::event::{PollFd, PollFlags, poll};
use service::worker::{self, Mailbox, ResultSender, WakeEventfd, WorkerLoop, lock};
use verbs::{QpEndpoint, QueuePair, Uc, UdDestination, Waiter};

use crate::counter::{Counter, NumberRefusal, USED_UP_ANSWER};

/// The part of a worker that the rest of the server can access.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    /// Endpoints to which clients send (`spec-s0`): the client with index `i` uses the one at `i` modulo their number.
    pub(crate) endpoints: Vec<QpEndpoint>,
    /// The request region and its layout (`rpc` designs).
    pub(crate) request_region: Option<(verbs::RemoteMemory, herd::RequestRegionLayout)>,
    pub(crate) client_slots: Mutex<ClientSlots>,
    pub(crate) mailbox: Mailbox<Command, RpcWorkerCounts>,
}

/// Free client slots of a worker.
#[derive(Debug)]
pub(crate) struct ClientSlots {
    /// Free client indices.
    free_indices: Vec<u32>,
    /// Free request capacity of each queue pair to which clients send; of the worker if clients WRITE.
    free_request_capacity_by_qp: Vec<usize>,
    pub(crate) client_count: usize,
}

impl ClientSlots {
    /// Returns the position in `free_indices` of an index whose queue pair has room for a window.
    fn position_of_free_index_for_window(&self, window: usize) -> Option<usize> {
        let room = |index: &u32| {
            self.free_request_capacity_by_qp
                [*index as usize % self.free_request_capacity_by_qp.len()]
        };
        self.free_indices
            .iter()
            .rposition(|index| room(index) >= window)
    }

    /// Returns true if a client with this window can be accepted.
    pub(crate) fn has_room(&self, window: usize) -> bool {
        self.position_of_free_index_for_window(window).is_some()
    }

    /// Takes a client index; returns `None` if no queue pair has room.
    pub(crate) fn reserve_client_index(&mut self, window: usize) -> Option<u32> {
        let index = self
            .free_indices
            .remove(self.position_of_free_index_for_window(window)?);
        let queue = index as usize % self.free_request_capacity_by_qp.len();
        self.free_request_capacity_by_qp[queue] -= window;
        self.client_count += 1;
        Some(index)
    }

    fn release_client_index(&mut self, index: u32, window: usize) {
        self.free_indices.push(index);
        let queue = index as usize % self.free_request_capacity_by_qp.len();
        self.free_request_capacity_by_qp[queue] += window;
        self.client_count -= 1;
    }
}

#[derive(Debug)]
pub(crate) enum Command {
    AddDatagramClient {
        index: u32,
        to: UdDestination,
        done: ResultSender,
    },
    AddHerdClient {
        index: u32,
        /// The client's queue pair, which other workers may share.
        qp: Arc<QueuePair<Uc>>,
        to: UdDestination,
        /// The number of slots that the client uses, and the tag that answers carry besides the number.
        slots: (u32, herd::WorkerTag),
        done: ResultSender,
    },
    RemoveClient {
        index: u32,
        window: usize,
    },
    Stop,
}

impl WorkerShared {
    pub(crate) fn new(
        endpoints: Vec<QpEndpoint>,
        region: Option<(verbs::RemoteMemory, herd::RequestRegionLayout)>,
        max_clients: usize,
        window: usize,
    ) -> std::io::Result<Self> {
        let max_clients = u32::try_from(max_clients).unwrap_or(u32::MAX);
        let free_capacity = vec![window; endpoints.len().max(1)];
        Ok(Self {
            endpoints,
            request_region: region,
            client_slots: Mutex::new(ClientSlots {
                free_indices: (0..max_clients).rev().collect(),
                free_request_capacity_by_qp: free_capacity,
                client_count: 0,
            }),
            mailbox: Mailbox::new()?,
        })
    }

    fn release_client_slot(&self, index: u32, window: usize) {
        lock(&self.client_slots).release_client_index(index, window);
    }
}

/// One of the two servers of the `rpc` crate.
#[derive(Debug)]
pub enum RpcServer {
    /// One server for each receiving queue pair.
    Datagram(Vec<datagram::Server>, verbs::CompletionChannel),
    Herd(Box<herd::Server>),
}

impl RpcServer {
    fn counts(&self) -> RpcWorkerCounts {
        let mut sum = RpcWorkerCounts::default();
        match self {
            Self::Datagram(servers, _) => servers.iter().for_each(|s| sum.add(s.counts())),
            Self::Herd(s) => sum.add(s.counts()),
        }
        sum
    }

    #[inline]
    fn poll(&mut self, handler: &mut NumberHandler<'_>) -> Result<usize, RpcError> {
        match self {
            Self::Datagram(servers, _) => {
                let mut received = 0;
                for server in servers {
                    received += server.poll(handler)?;
                }
                Ok(received)
            }
            Self::Herd(s) => s.poll(handler),
        }
    }

    fn add_client(&mut self, command: Command) {
        let done = match (self, command) {
            (Self::Datagram(servers, _), Command::AddDatagramClient { index, to, done }) => {
                let added = server_of_client(servers, index).add_client_if_qpn_free(index, to);
                (
                    done,
                    if added {
                        Ok(())
                    } else {
                        Err("the queue pair number is taken by another client".to_owned())
                    },
                )
            }
            (
                Self::Herd(s),
                Command::AddHerdClient {
                    index,
                    qp,
                    to,
                    slots,
                    done,
                },
            ) => (
                done,
                s.add_client_of_many_workers(index, qp, to, slots)
                    .map_err(|e| e.to_string()),
            ),
            _ => return,
        };
        // The client may be gone already.
        let _ = done.0.send(done.1);
    }

    fn remove_client(&mut self, index: u32) {
        match self {
            Self::Datagram(servers, _) => server_of_client(servers, index).remove_client(index),
            Self::Herd(s) => s.remove_client(index),
        }
    }
}

/// Returns the server of the client with this index.
fn server_of_client(servers: &mut [datagram::Server], index: u32) -> &mut datagram::Server {
    let n = servers.len();
    &mut servers[index as usize % n]
}

/// Serves requests until the worker gets the stop command.
pub(crate) fn run_until_stop_command(
    engine: RpcServer,
    shared: &WorkerShared,
    counter: &Counter,
    speculate: bool,
) -> Result<(), RpcError> {
    let handler = NumberHandler {
        counter,
        answers_header_only_if_guess_is_right: speculate,
    };
    let mut running = RunningWorker {
        rpc_server: engine,
        shared,
        handler,
    };
    worker::run(&mut running, &shared.mailbox)
}

struct RunningWorker<'r> {
    rpc_server: RpcServer,
    shared: &'r WorkerShared,
    handler: NumberHandler<'r>,
}

impl WorkerLoop for RunningWorker<'_> {
    type Error = RpcError;
    type Command = Command;
    type Counts = RpcWorkerCounts;

    #[cold]
    fn execute_and_continue(&mut self, command: Command) -> bool {
        match command {
            Command::Stop => return false,
            Command::RemoveClient { index, window } => {
                self.rpc_server.remove_client(index);
                self.shared.release_client_slot(index, window);
            }
            add => self.rpc_server.add_client(add),
        }
        true
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, RpcError> {
        self.rpc_server.poll(&mut self.handler)
    }

    fn counts(&self) -> RpcWorkerCounts {
        self.rpc_server.counts()
    }

    #[inline]
    fn wait_briefly(&self, waiter: &mut Waiter) {
        match &self.rpc_server {
            RpcServer::Datagram(..) => waiter.idle(),
            RpcServer::Herd(s) => waiter.idle_polling_memory(s.polled_memory()),
        }
    }

    /// Sleeps until a datagram or a command arrives. With HERD, whose requests generate no event, the sleep has a time
    /// limit.
    #[cold]
    fn sleep(&mut self, wake: &WakeEventfd, waiter: &mut Waiter) -> Result<(), RpcError> {
        match &mut self.rpc_server {
            RpcServer::Datagram(servers, channel) => {
                // The CQ is armed first, polled once more, and only then waited for, so that no datagram is missed in
                // between.
                if !was_cq_armed_in_previous_round(waiter) {
                    for server in servers {
                        server.ud_qp().recv_cq().req_notify(false)?;
                    }
                    waiter.record_external_wait();
                    return Ok(());
                }
                let mut fds = [
                    PollFd::new(&*channel, PollFlags::IN),
                    PollFd::new(wake, PollFlags::IN),
                ];
                // After an interrupted wait the worker polls and sleeps again.
                let woken = poll(&mut fds, None).is_ok();
                if woken && fds[0].revents().contains(PollFlags::IN) {
                    channel.wait_for_cq_event()?;
                }
                waiter.reset();
                wake.drain();
            }
            RpcServer::Herd(s) => {
                wake.wait(s.has_clients().then(|| waiter.next_sleep()));
                waiter.record_external_wait();
            }
        }
        Ok(())
    }
}

/// Returns true if the CQ was armed in the previous round: the first idle round arms it.
fn was_cq_armed_in_previous_round(waiter: &Waiter) -> bool {
    waiter.next_sleep() > Duration::from_micros(50)
}

/// The request handler of all designs with workers: gives numbers.
struct NumberHandler<'c> {
    counter: &'c Counter,
    answers_header_only_if_guess_is_right: bool,
}

/// A range of numbers for a batch of requests. One atomic operation takes them all, or as many as remain below the
/// counter's limit. The worker takes the others when the limit has been raised.
struct BatchNumbers {
    next_number: u64,
    remaining_numbers: u64,
    unserved_requests: u64,
}

impl NumberHandler<'_> {
    #[inline]
    fn next_number_unless_stopped(&self, batch: &mut BatchNumbers) -> Option<u64> {
        if batch.remaining_numbers == 0 && !self.refill_unless_stopped(batch) {
            return None;
        }
        let n = batch.next_number;
        batch.next_number = n.wrapping_add(1);
        batch.remaining_numbers -= 1;
        batch.unserved_requests = batch.unserved_requests.saturating_sub(1);
        Some(n)
    }

    /// Takes the missing numbers, and waits for a higher limit if necessary. Returns false if the server stops.
    #[cold]
    fn refill_unless_stopped(&self, batch: &mut BatchNumbers) -> bool {
        let mut waiter = Waiter::new().with_sleep_max(Duration::from_millis(1));
        loop {
            match self.counter.take_numbers(batch.unserved_requests.max(1)) {
                Ok((first, n)) => {
                    (batch.next_number, batch.remaining_numbers) = (first, n);
                    return true;
                }
                Err(NumberRefusal::NumbersUsedUp) => {
                    (batch.next_number, batch.remaining_numbers) = (USED_UP_ANSWER, 1);
                    return true;
                }
                Err(NumberRefusal::ServerStopping) => return false,
                Err(NumberRefusal::LimitReached) => waiter.idle(),
            }
        }
    }
}

impl RpcHandler for NumberHandler<'_> {
    type BatchState = BatchNumbers;

    #[inline]
    fn prepare_batch(&mut self, requests: usize) -> BatchNumbers {
        verbs::time::charge_server_requests(requests);
        let wanted = requests as u64;
        match self.counter.take_numbers(wanted) {
            Ok((first, left)) => BatchNumbers {
                next_number: first,
                remaining_numbers: left,
                unserved_requests: wanted,
            },
            Err(_) => BatchNumbers {
                next_number: 0,
                remaining_numbers: 0,
                unserved_requests: wanted,
            },
        }
    }

    #[inline]
    fn handle(
        &mut self,
        batch: &mut BatchNumbers,
        request: Request<'_>,
        reply: RequestReplier<'_>,
    ) {
        let Some(n) = self.next_number_unless_stopped(batch) else {
            return;
        };
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        if self.answers_header_only_if_guess_is_right
            && n >> 32 == u64::from(request.imm)
            && n != USED_UP_ANSWER
        {
            reply.send_header_only_with_imm(n as u32);
        } else {
            reply.send_payload(&n.to_le_bytes());
        }
    }
}
