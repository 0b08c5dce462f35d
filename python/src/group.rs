//! A rank of a group of processes: collectives, and messages between two ranks, on memory of Python's.
//!
//! A thread of the group runs collectives in the order in which they were begun. Another one moves messages, so that a
//! receive that waits holds up no collective.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use collective::{Config, DataType, Error, PreparedGroup, RankMessenger, Reduction};
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use service::NicConfig;
use verbs::Waiter;

use crate::buffer::HostMemory;
use crate::errors::{
    closed_peer_exception, exception_of_argument_error, exception_of_system_error,
};
use crate::process::attach_until_exit;

/// How often a blocking call looks whether a signal has come.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The longest sleep of the thread that moves messages while none moves.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The exception for an error of a group.
fn exception_of_group_error(error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Timeout { .. } => PyTimeoutError::new_err(text),
        Error::PeerGone(_) | Error::Completion { .. } | Error::Rendezvous { .. } => {
            PyConnectionError::new_err(text)
        }
        Error::InvalidRange(_) | Error::MessageTooLong { .. } | Error::CallsDiffer { .. } => {
            PyValueError::new_err(text)
        }
        _ => PyRuntimeError::new_err(text),
    }
}

/// A collective or a message that was begun.
#[derive(Default)]
struct TaskState {
    outcome: Mutex<Option<Result<(), Error>>>,
    done: Condvar,
}

/// A collective or a message that was begun.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Task(Arc<TaskState>);

#[pymethods]
impl Task {
    /// Whether it is done within `timeout` seconds; raises its error.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
        let begun = Instant::now();
        loop {
            let turn = SIGNAL_CHECK_INTERVAL.min(timeout.saturating_sub(begun.elapsed()));
            let outcome = py.detach(|| self.0.wait(turn));
            if let Some(outcome) = outcome {
                return outcome
                    .map(|()| true)
                    .map_err(|e| exception_of_group_error(&e));
            }
            py.check_signals()?;
            if begun.elapsed() >= timeout {
                return Ok(false);
            }
        }
    }
}

impl TaskState {
    fn wait(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .done
            .wait_timeout_while(outcome, timeout, |o| o.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// Whom to tell the outcome: Python's callback first, then threads that wait.
struct OutcomeReport {
    state: Arc<TaskState>,
    callback: Py<PyAny>,
}

impl OutcomeReport {
    /// `memory` is dropped before anybody is told.
    fn tell(self, memory: impl Send, outcome: Result<(), Error>) {
        let mut unfreed = Some((memory, self.callback));
        attach_until_exit(|py| {
            let Some((memory, callback)) = unfreed.take() else {
                return;
            };
            drop(memory);
            let error = outcome.as_ref().err().map(exception_of_group_error);
            if let Err(e) = callback.call1(py, (error,)) {
                e.write_unraisable(py, None);
            }
        });
        // The interpreter ends: it frees nothing any more.
        std::mem::forget(unfreed);
        let slot = self.state.outcome.lock();
        *slot.unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.state.done.notify_all();
    }
}

type RunCollective =
    Box<dyn FnOnce(&mut collective::Group) -> (Vec<HostMemory>, Result<(), Error>) + Send>;

/// A collective that waits for its turn.
struct QueuedCollective {
    run: RunCollective,
    report: OutcomeReport,
}

/// Runs collectives until nobody can begin one any more. After an error the connections are closed: other ranks then
/// fail, too.
fn run_collectives(group: collective::Group, begun: &Receiver<QueuedCollective>) {
    let mut group = Ok(group);
    while let Ok(QueuedCollective { run, report }) = begun.recv() {
        let (memory, outcome) = match &mut group {
            Ok(group) => run(group),
            Err(error) => (Vec::new(), Err(Error::clone(error))),
        };
        if let Err(error) = &outcome {
            group = Err(error.clone());
        }
        report.tell(memory, outcome);
    }
}

/// A message that is to be begun.
struct QueuedMessage {
    sends: bool,
    peer: usize,
    tag: u32,
    memory: HostMemory,
    report: OutcomeReport,
}

fn begin_message(messages: &mut RankMessenger, message: QueuedMessage) {
    let QueuedMessage {
        sends,
        peer,
        tag,
        memory,
        report,
    } = message;
    let done = Box::new(move |memory: Box<dyn collective::MessageMemory>, outcome| {
        report.tell(memory, outcome);
    });
    if sends {
        messages.send(peer, Box::new(memory), tag, done);
    } else {
        messages.recv(peer, Box::new(memory), tag, done);
    }
}

/// Moves messages until nobody can begin one any more and none is under way, or none has moved for so long.
fn move_messages(mut messages: RankMessenger, begun: &Receiver<QueuedMessage>, timeout: Duration) {
    let mut waiter = Waiter::new().with_sleep_max(SLEEP_MAX);
    let mut moved = Instant::now();
    loop {
        if messages.is_idle() {
            match begun.recv_timeout(Duration::from_secs(3600)) {
                Ok(message) => begin_message(&mut messages, message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        let over = loop {
            match begun.try_recv() {
                Ok(message) => begin_message(&mut messages, message),
                Err(TryRecvError::Empty) => break false,
                Err(TryRecvError::Disconnected) => break true,
            }
        };
        if messages.progress_all_peers() {
            waiter.reset();
            moved = Instant::now();
        } else {
            waiter.idle();
            if over && moved.elapsed() > timeout {
                return;
            }
        }
    }
}

/// A rank that others can connect to.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct GroupListener {
    prepared: Mutex<Option<PreparedGroup>>,
    address: Vec<u8>,
}

#[pymethods]
impl GroupListener {
    #[new]
    fn new(
        py: Python<'_>,
        rank: usize,
        ranks: usize,
        host: &str,
        provider: String,
        device: Option<String>,
    ) -> PyResult<Self> {
        let host: IpAddr = host.parse().map_err(exception_of_argument_error)?;
        let nic = NicConfig {
            provider,
            device,
            ..NicConfig::default()
        };
        py.detach(|| {
            let context = nic.open().map_err(exception_of_system_error)?;
            let port = nic
                .port_and_gid(&context, None)
                .map_err(exception_of_system_error)?;
            let config = Config {
                port_num: port.port_num,
                gid_index: Some(port.gid_index),
                ..Config::default()
            };
            let pd = context.alloc_pd().map_err(exception_of_system_error)?;
            let prepared = PreparedGroup::new(&pd, &config, (rank, ranks), host);
            let prepared = prepared.map_err(|e| exception_of_group_error(&e))?;
            Ok(Self {
                address: prepared.listener_handles_as_bytes(),
                prepared: Mutex::new(Some(prepared)),
            })
        })
    }

    /// The data that the other ranks need to connect.
    #[getter]
    fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    /// Connects with all ranks within `timeout` seconds, once. A signal whose handler raises ends the rendezvous.
    fn connect(&self, py: Python<'_>, addresses: Vec<Vec<u8>>, timeout: f64) -> PyResult<Group> {
        let taken = self.prepared.lock().map(|mut p| p.take());
        let prepared = taken.unwrap_or_else(|p| p.into_inner().take());
        let prepared = prepared.ok_or_else(closed_peer_exception)?;
        let timeout = Duration::try_from_secs_f64(timeout).map_err(exception_of_argument_error)?;
        let mut checked = Instant::now();
        let mut signal = Ok(());
        let connected = py.detach(|| {
            prepared.connect_while(&addresses, timeout, || {
                if checked.elapsed() >= SIGNAL_CHECK_INTERVAL {
                    checked = Instant::now();
                    signal = Python::attach(|py| py.check_signals());
                }
                signal.is_ok()
            })
        });
        signal?;
        let (group, messages) = connected.map_err(|e| exception_of_group_error(&e))?;
        let (collectives, begun) = channel();
        let thread = std::thread::Builder::new().name("vb-collectives".to_owned());
        thread
            .spawn(move || run_collectives(group, &begun))
            .map_err(exception_of_system_error)?;
        let (to_move, begun) = channel();
        let thread = std::thread::Builder::new().name("vb-messages".to_owned());
        thread
            .spawn(move || move_messages(messages, &begun, timeout))
            .map_err(exception_of_system_error)?;
        Ok(Group {
            collectives: Mutex::new(Some(collectives)),
            messages: Mutex::new(Some(to_move)),
        })
    }
}

/// A rank of a group. Its threads end when it is dropped and what was begun is done.
#[pyclass(frozen, module = "verbatim._native")]
pub(crate) struct Group {
    collectives: Mutex<Option<Sender<QueuedCollective>>>,
    messages: Mutex<Option<Sender<QueuedMessage>>>,
}

/// Gives something to the thread that does it.
fn send_to_worker<T>(to: &Mutex<Option<Sender<T>>>, what: T) -> PyResult<()> {
    let to = to.lock().unwrap_or_else(PoisonError::into_inner);
    let to = to.as_ref().ok_or_else(closed_peer_exception)?;
    to.send(what).map_err(|_| closed_peer_exception())
}

fn named<T: Copy>(all: &[(&str, T)], name: &str) -> PyResult<T> {
    let found = all.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| PyValueError::new_err(format!("there is no {name:?}")))
}

impl Group {
    fn begin_collective(
        &self,
        callback: Py<PyAny>,
        run: impl FnOnce(&mut collective::Group) -> (Vec<HostMemory>, Result<(), Error>)
        + Send
        + 'static,
    ) -> PyResult<Task> {
        let state = Arc::new(TaskState::default());
        let report = OutcomeReport {
            state: Arc::clone(&state),
            callback,
        };
        let run = Box::new(run);
        send_to_worker(&self.collectives, QueuedCollective { run, report })?;
        Ok(Task(state))
    }

    fn begin_message_task(
        &self,
        sends: bool,
        peer: usize,
        tag: u32,
        memory: HostMemory,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        let state = Arc::new(TaskState::default());
        let report = OutcomeReport {
            state: Arc::clone(&state),
            callback,
        };
        let message = QueuedMessage {
            sends,
            peer,
            tag,
            memory,
            report,
        };
        send_to_worker(&self.messages, message)?;
        Ok(Task(state))
    }
}

/// Memory that is read, and memory that is written; no two parts of the latter overlap.
fn read_and_written_memory(
    inputs: &[Bound<'_, PyAny>],
    outputs: &[Bound<'_, PyAny>],
) -> PyResult<(Vec<HostMemory>, Vec<HostMemory>)> {
    let of = |objects: &[Bound<'_, PyAny>], writable| {
        let each = objects.iter().map(|o| HostMemory::new(o, writable));
        each.collect::<PyResult<Vec<_>>>()
    };
    let (inputs, outputs) = (of(inputs, false)?, of(outputs, true)?);
    let clash = (1..outputs.len()).any(|i| outputs[..i].iter().any(|o| o.overlaps(&outputs[i])));
    if clash {
        return Err(PyValueError::new_err(
            "outputs overlap: give each one memory of its own",
        ));
    }
    Ok((inputs, outputs))
}

/// Calls `work` with the bytes of inputs and outputs. Inputs that share memory with an output are copied.
fn with_bytes(
    inputs: Vec<HostMemory>,
    mut outputs: Vec<HostMemory>,
    work: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> Result<(), Error>,
) -> (Vec<HostMemory>, Result<(), Error>) {
    let copy = |input: &HostMemory| {
        let shared = outputs.iter().any(|output| output.overlaps(input));
        shared.then(|| input.as_slice().to_vec())
    };
    let copies: Vec<_> = inputs.iter().map(copy).collect();
    let parts = inputs.iter().zip(&copies);
    let parts = parts.map(|(input, copy)| copy.as_deref().unwrap_or_else(|| input.as_slice()));
    let parts: Vec<&[u8]> = parts.collect();
    let mut into: Vec<&mut [u8]> = outputs.iter_mut().map(HostMemory::as_mut_slice).collect();
    let outcome = work(&parts, &mut into);
    drop(into);
    outputs.extend(inputs);
    (outputs, outcome)
}

#[pymethods]
impl Group {
    /// Reduces memory over all ranks, in place. `callback` is called with the error or nothing.
    fn all_reduce(
        &self,
        bytes: &Bound<'_, PyAny>,
        data: &str,
        op: &str,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        let (data, op) = (
            named(&DataType::ALL_WITH_NAMES, data)?,
            named(&Reduction::ALL_WITH_NAMES, op)?,
        );
        let mut memory = HostMemory::new(bytes, true)?;
        self.begin_collective(callback, move |group| {
            let outcome = group.all_reduce(memory.as_mut_slice(), data, op);
            (vec![memory], outcome)
        })
    }

    /// Copies memory of rank `root` to all ranks.
    fn broadcast(
        &self,
        bytes: &Bound<'_, PyAny>,
        root: usize,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        let mut memory = HostMemory::new(bytes, true)?;
        self.begin_collective(callback, move |group| {
            let outcome = group.broadcast(memory.as_mut_slice(), root);
            (vec![memory], outcome)
        })
    }

    /// Copies `input` of each rank to `outputs` of all ranks.
    fn all_gather(
        &self,
        input: Bound<'_, PyAny>,
        outputs: Vec<Bound<'_, PyAny>>,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        let (inputs, outputs) = read_and_written_memory(&[input], &outputs)?;
        self.begin_collective(callback, move |group| {
            with_bytes(inputs, outputs, |inputs, outputs| {
                group.all_gather(inputs[0], outputs)
            })
        })
    }

    /// Reduces `inputs[r]` of all ranks into `output` of rank `r`.
    fn reduce_scatter(
        &self,
        inputs: Vec<Bound<'_, PyAny>>,
        output: Bound<'_, PyAny>,
        data: &str,
        op: &str,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        let (data, op) = (
            named(&DataType::ALL_WITH_NAMES, data)?,
            named(&Reduction::ALL_WITH_NAMES, op)?,
        );
        let (inputs, outputs) = read_and_written_memory(&inputs, &[output])?;
        self.begin_collective(callback, move |group| {
            with_bytes(inputs, outputs, |inputs, outputs| {
                group.reduce_scatter(inputs, outputs[0], data, op)
            })
        })
    }

    /// Copies `inputs[r]` of each rank to `outputs` of rank `r`.
    fn all_to_all(
        &self,
        inputs: Vec<Bound<'_, PyAny>>,
        outputs: Vec<Bound<'_, PyAny>>,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        let (inputs, outputs) = read_and_written_memory(&inputs, &outputs)?;
        self.begin_collective(callback, move |group| {
            with_bytes(inputs, outputs, |inputs, outputs| {
                group.all_to_all(inputs, outputs)
            })
        })
    }

    /// Waits for all ranks.
    fn barrier(&self, callback: Py<PyAny>) -> PyResult<Task> {
        self.begin_collective(callback, |group| (Vec::new(), group.barrier()))
    }

    /// Sends memory to a rank.
    fn send(
        &self,
        bytes: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        self.begin_message_task(true, to, tag, HostMemory::new(bytes, false)?, callback)
    }

    /// Receives memory of a rank.
    fn recv(
        &self,
        bytes: &Bound<'_, PyAny>,
        from: usize,
        tag: u32,
        callback: Py<PyAny>,
    ) -> PyResult<Task> {
        self.begin_message_task(false, from, tag, HostMemory::new(bytes, true)?, callback)
    }
}
