//! Takes ranges of keys from other servers: the taker's side of a handover (see [`crate::tree`]).
//!
//! A range is taken from the left in chunks of some thousand entries; each chunk is frozen for some hundred
//! microseconds. If the giver fails midway, its remaining keys are lost with it, and the copied chunk is adopted. If
//! this server fails, the giver thaws the chunk, unless it has ceded the chunk already.
//!
//! A chunk that cannot be taken at the moment is tried again after a pause. After [`MAX_ATTEMPTS_PER_CHUNK`] attempts
//! the rest of the range stays where it is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs::{Waiter, time};

use super::handovers_and_load_meter::{Handovers, TakeRequest};
use crate::client::{Answer, ClientError, PipelinedClient, send_request_and_wait};
use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::tree::{MovedRange, Refusal, Store};
use crate::wire::{HandoverStep, Operation};

/// Entries of a chunk.
const CHUNK_ENTRIES: u32 = 2_000;

/// Largest number of attempts to take a chunk.
const MAX_ATTEMPTS_PER_CHUNK: u32 = 10;
/// The pause after the first failed attempt; each further pause is twice as long.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The outcome of an attempt to take a chunk.
enum ChunkOutcome<T> {
    /// The rest of the range begins at this key.
    RestFrom(T),
    /// The range is complete.
    Complete,
    /// A later attempt may succeed.
    TryLater(String),
    /// The range cannot be taken.
    Impossible(String),
}

/// The result of a step at the giver: the server that hands a range over.
enum StepResult {
    /// The giver executed the step. The range then has this version.
    DoneWithVersion(u64),
    /// The giver refused: it does not have the range, or has thawed it.
    Refused,
    /// The result is not known.
    Unknown,
}

/// A function that connects to a server by its number.
type ConnectToServer<T> = Box<dyn FnMut(u16) -> Result<PipelinedClient<T>, ClientError> + Send>;

/// Executes the takes that its server was asked for.
pub struct RangeMover<T: KeyOrValue = u64> {
    store: Arc<Store<T>>,
    handovers: Arc<Handovers<T>>,
    /// The number of the mover's own server.
    server_number: u16,
    connect_to_server: ConnectToServer<T>,
    giver_clients: HashMap<u16, PipelinedClient<T>>,
    /// The part of the current range that is not yet taken.
    remaining_take: Option<TakeRequest<T>>,
    /// Failed attempts to take the next chunk.
    failed_attempts: u32,
    /// The limit of the transfer rate in bytes per second.
    max_bytes_per_s: u32,
    /// The earliest time of the next chunk.
    next_chunk_at: Instant,
}

impl<T: KeyOrValue> RangeMover<T> {
    /// Creates the mover of the server with number `server_number`, which takes at most `max_bytes_per_s` bytes per
    /// second. `connect` connects to a server by its number.
    pub(super) fn new(
        (store, handovers): (Arc<Store<T>>, Arc<Handovers<T>>),
        (server_number, rate): (u16, u32),
        connect: impl FnMut(u16) -> Result<PipelinedClient<T>, ClientError> + Send + 'static,
    ) -> Self {
        Self {
            store,
            handovers,
            server_number,
            max_bytes_per_s: rate.max(1),
            connect_to_server: Box::new(connect),
            giver_clients: HashMap::new(),
            remaining_take: None,
            failed_attempts: 0,
            next_chunk_at: time::now(),
        }
    }

    /// Takes a chunk if a take is pending and the rate limit allows. Returns true if it tried a chunk.
    pub fn attempt_chunk_if_due(&mut self) -> bool {
        if self.remaining_take.is_none() {
            self.remaining_take = self.handovers.pop_waiting_take();
        }
        let Some(take) = self.remaining_take else {
            return false;
        };
        let now = time::now();
        if now < self.next_chunk_at {
            return false;
        }
        let outcome = match self.take_first_chunk(take) {
            Ok(outcome) => outcome,
            Err(e @ (ClientError::KeyOrValueLimitsDiffer(..) | ClientError::OtherKeyType(_))) => {
                ChunkOutcome::Impossible(e.to_string())
            }
            Err(e) => ChunkOutcome::TryLater(e.to_string()),
        };
        let failed_attempts = std::mem::take(&mut self.failed_attempts) + 1;
        self.remaining_take = match outcome {
            ChunkOutcome::RestFrom(from) => Some(TakeRequest {
                first_key: from,
                ..take
            }),
            ChunkOutcome::Complete => None,
            ChunkOutcome::TryLater(why) if failed_attempts < MAX_ATTEMPTS_PER_CHUNK => {
                tracing::info!("keys from {} on are taken later: {why}", take.first_key);
                self.failed_attempts = failed_attempts;
                self.next_chunk_at = now + FIRST_RETRY_PAUSE * (1 << (failed_attempts - 1));
                Some(take)
            }
            ChunkOutcome::TryLater(why) | ChunkOutcome::Impossible(why) => {
                tracing::warn!("keys from {} on are not taken: {why}", take.first_key);
                None
            }
        };
        if self.remaining_take.is_none() {
            self.handovers.record_take_finished();
        }
        true
    }

    /// Takes the first chunk of a range.
    fn take_first_chunk(&mut self, take: TakeRequest<T>) -> Result<ChunkOutcome<T>, ClientError> {
        let rest_from = |end: Option<T>| {
            let rest = end.filter(|end| take.end_key.is_none_or(|last| *end < last));
            rest.map_or(ChunkOutcome::Complete, ChunkOutcome::RestFrom)
        };
        let later = |why: &str| Ok(ChunkOutcome::TryLater(why.to_owned()));
        let giver = match self.giver_clients.entry(take.giver) {
            Entry::Occupied(giver) => giver.into_mut(),
            Entry::Vacant(place) => {
                let giver = (self.connect_to_server)(take.giver)?;
                giver.check_key_and_value_limits(self.store.key_and_value_limits())?;
                place.insert(giver)
            }
        };
        let tree = take.tree;
        // The first scan finds the end of the chunk.
        let next = match scan_at_giver(giver, tree, (take.first_key, take.end_key))? {
            Ok((_, next)) => next,
            // An earlier take got these keys.
            Err(moved) if moved.owner.server_number == self.server_number => {
                return Ok(rest_from(moved.end_key));
            }
            Err(moved) => {
                let why = format!("server {} owns them", moved.owner.server_number);
                return Ok(ChunkOutcome::Impossible(why));
            }
        };
        let end = next.or(take.end_key);
        let range = (take.first_key, end);
        let incarnation = giver.server_incarnation();
        if !matches!(
            request_handover_step(giver, tree, HandoverStep::Freeze, range)?,
            StepResult::DoneWithVersion(_)
        ) {
            return later("the giver does not freeze them");
        }
        let mut entries = Vec::new();
        let mut from = take.first_key;
        while let Ok((found, next)) = scan_at_giver(giver, tree, (from, end))? {
            entries.extend(found);
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        let Ok(mut reserved) = self.store.reserve_nodes(entries.len()) else {
            request_handover_step(giver, tree, HandoverStep::Thaw, range)?;
            return later("this server has no memory for them");
        };
        let to = self.server_number;
        let mut ceded = request_handover_step(giver, tree, HandoverStep::Cede { to }, range)?;
        // The giver may never answer again. A server that stops takes no more keys.
        while matches!(ceded, StepResult::Unknown) && !self.handovers.is_stopping() {
            ceded = query_cession_outcome(giver, (tree, take.first_key), to, incarnation);
        }
        let StepResult::DoneWithVersion(version) = ceded else {
            self.store.release_nodes(reserved);
            return later("the giver does not cede them");
        };
        self.handovers.raise_last_version(version);
        // Between cession and adoption no server has the range, so adoption is retried until it succeeds.
        let tree = usize::from(tree);
        let mut waiter = Waiter::never_sleeping();
        while let Err(e) = self.store.adopt(tree, range, &entries, &mut reserved) {
            if e == Refusal::StoreFull {
                tracing::error!("no memory for keys from {} on: lost", take.first_key);
                break;
            }
            // Without workers, the lock of a stopped client is never freed.
            if self.handovers.is_stopping() {
                break;
            }
            waiter.idle();
        }
        self.store.release_nodes(reserved);
        let (key_bytes, value_bytes) = self.store.key_and_value_limits().max_encoded_bytes();
        let bytes = entries.len() * (key_bytes + value_bytes);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.handovers.add_taken_entries(entries.len() as u64);
        let pause = Duration::from_secs_f64(f64::from(bytes) / f64::from(self.max_bytes_per_s));
        self.next_chunk_at = time::now() + pause;
        Ok(rest_from(end))
    }
}

/// The result of a SCAN: entries, and the key at which to continue.
type ScanResult<T> = (Vec<(T, T)>, Option<T>);

/// Scans a range at the giver. Returns the entries and the key where the rest begins, or the owner of the first keys if
/// the giver does not own them.
fn scan_at_giver<T: KeyOrValue>(
    giver: &mut PipelinedClient<T>,
    tree: u8,
    (from, end): (T, Option<T>),
) -> Result<Result<ScanResult<T>, MovedRange<T>>, ClientError> {
    let limit = CHUNK_ENTRIES;
    send_request_and_wait(
        giver,
        tree,
        &Operation::Scan { from, end, limit },
        |answer| match answer {
            Answer::Entries { entries, next } => Ok(Ok((entries.to_vec(), next))),
            Answer::Moved(moved) => Ok(Err(moved)),
            _ => Err(ClientError::NoAnswerInTime),
        },
    )?
}

/// Asks the giver to execute a step.
fn request_handover_step<T: KeyOrValue>(
    giver: &mut PipelinedClient<T>,
    tree: u8,
    step: HandoverStep,
    (from, end): (T, Option<T>),
) -> Result<StepResult, ClientError> {
    let asked = send_request_and_wait(
        giver,
        tree,
        &Operation::Handover { step, from, end },
        |answer| match answer {
            Answer::HandoverStepDone { version } => StepResult::DoneWithVersion(version),
            Answer::NoAnswerInTime => StepResult::Unknown,
            _ => StepResult::Refused,
        },
    );
    match asked {
        Err(_) if matches!(step, HandoverStep::Cede { .. }) => Ok(StepResult::Unknown),
        asked => asked,
    }
}

/// Asks for the first key of a range to find out whether the giver has ceded it.
fn query_cession_outcome<T: KeyOrValue>(
    giver: &mut PipelinedClient<T>,
    (tree, key): (u8, T),
    to: u16,
    incarnation: u64,
) -> StepResult {
    let asked = send_request_and_wait(
        giver,
        tree,
        &Operation::Get { key },
        |answer| match answer {
            Answer::Moved(moved) if moved.owner.server_number == to => {
                StepResult::DoneWithVersion(moved.owner.version)
            }
            Answer::NoAnswerInTime => StepResult::Unknown,
            _ => StepResult::Refused,
        },
    );
    let asked = asked.unwrap_or(StepResult::Unknown);
    if giver.server_incarnation() != incarnation {
        // The giver died: only this server still has the copied entries.
        return StepResult::DoneWithVersion(0);
    }
    asked
}
