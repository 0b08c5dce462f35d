//! A client whose history is checked for linearizability: all operations on few keys, with a full window, and SCANs.
//!
//! The tree of a check has *stable* keys ([`stable_key_count`] of them, numbered as by `load::key_of`), which a server
//! loads and no client changes. Between the stable keys are groups of *judged* keys, whose histories are checked. Each
//! group has a hot key, on which clients always compete, and [`FILLERS_PER_HOT_KEY`] fillers around it. Fillers are
//! inserted for a while and deleted for a while, so that leaves split and merge. Every request for a judged key is
//! recorded ([`service::history`]). A SCAN is recorded as one read of each judged key of its range, because each leaf
//! is read atomically. The order and the stable keys of a SCAN are checked when its answer arrives.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lincheck::{OperationOutcome, RegisterAction, WriteCondition};
use service::ConnectError;
use service::history::{HistoryRecorder, ScanFault};
use service::random::Random;

use crate::ExecuteRequests;
use crate::client::{Answer, ClientError, Completion};
use crate::load::{self, STABLE_KEY_DISTANCE};
use crate::tree::PutCondition;
use crate::wire::Operation;

/// Fillers around a hot key.
pub const FILLERS_PER_HOT_KEY: u64 = 16;
/// Judged keys in a group.
const JUDGED_KEYS_PER_GROUP: u64 = 1 + FILLERS_PER_HOT_KEY;
/// Stable keys per group; the judged keys lie between two of them.
const STABLE_KEYS_PER_GROUP: u64 = 8;
/// Distance between the first keys of two groups.
const GROUP_DISTANCE: u64 = STABLE_KEYS_PER_GROUP * STABLE_KEY_DISTANCE;
/// Index of the group's stable key that precedes its judged keys.
const STABLE_INDEX_BEFORE_JUDGED: u64 = 3;
/// Duration of each phase of inserting fillers, and of deleting them.
const FILLER_PHASE: Duration = Duration::from_millis(40);
/// The limit of a SCAN that only its end limits.
const UNLIMITED_SCAN: u32 = u16::MAX as u32;

/// The parameters of a recording client.
#[derive(Debug, Clone, Copy)]
pub struct RecordingParameters {
    /// The number of the tree.
    pub tree: u8,
    /// Number of hot keys: few, so that clients compete.
    pub hot_keys: u64,
    /// The seed of the random choices.
    pub seed: u64,
}

/// Returns the number of stable keys of a tree with `keys` hot keys. Key number `i` has the value [`load::value_of`]
/// with stamp 0.
pub fn stable_key_count(keys: u64) -> u64 {
    keys * STABLE_KEYS_PER_GROUP
}

/// Returns the judged key with this number.
fn judged_key(number: u64) -> u64 {
    let place = match number % JUDGED_KEYS_PER_GROUP {
        0 => STABLE_KEY_DISTANCE / 2 - 1,
        filler => 8 * filler,
    };
    number / JUDGED_KEYS_PER_GROUP * GROUP_DISTANCE
        + STABLE_INDEX_BEFORE_JUDGED * STABLE_KEY_DISTANCE
        + place
}

/// Returns the number of a judged key, or `None` for other keys.
fn judged_key_number(key: u64) -> Option<u64> {
    let first = key / GROUP_DISTANCE * JUDGED_KEYS_PER_GROUP;
    (first..first + JUDGED_KEYS_PER_GROUP).find(|&number| judged_key(number) == key)
}

/// Sends requests until `stop` returns true and everything is answered, and records requests and answers.
///
/// # Errors
/// If the server cannot be reached any more, or the file cannot be written.
pub fn run_recording_client(
    requests: &mut impl ExecuteRequests,
    plan: &RecordingParameters,
    recorder: &mut HistoryRecorder,
    mut stop: impl FnMut() -> bool,
) -> Result<(), ClientError> {
    let mut requester = RequestChooserAndRecorder {
        plan,
        recorder,
        random: Random::new(plan.seed),
        last_value_number: 0,
        last_token: 0,
        outstanding_requests: HashMap::new(),
    };
    let (mut chosen, mut stopping) = (None, false);
    while !stopping || chosen.is_some() || requests.outstanding() > 0 {
        stopping |= stop();
        while requests.outstanding() < requests.window() && (chosen.is_some() || !stopping) {
            let (op, token) = match chosen.take() {
                Some(chosen) => chosen,
                None => requester
                    .choose_and_record_request()
                    .map_err(|e| file_write_error(&e))?,
            };
            if !requests.submit(plan.tree, &op, token)? {
                chosen = Some((op, token));
                break;
            }
        }
        let mut written = Ok(());
        requests.refresh_clock();
        requests.poll(|done| {
            let taken = requester.record_answer(&done);
            if written.is_ok() {
                written = taken;
            }
        })?;
        written.map_err(|e| file_write_error(&e))?;
    }
    Ok(())
}

fn file_write_error(e: &io::Error) -> ClientError {
    ConnectError::Config(format!("the history cannot be written: {e}")).into()
}

/// A SCAN that is outstanding.
#[derive(Debug)]
struct OutstandingScan {
    from: u64,
    end: Option<u64>,
    limit: u32,
    /// The history number of the SCAN itself, for faults of the answer as a whole.
    history_number: u64,
    /// Judged keys of the range, with the history numbers of their reads.
    judged_keys_and_history_numbers: Vec<(u64, u64)>,
}

/// An outstanding request.
#[derive(Debug)]
enum OutstandingRequest {
    /// A request for one judged key, with its history number.
    PointWithHistoryNumber(u64),
    Scan(OutstandingScan),
}

struct RequestChooserAndRecorder<'p> {
    plan: &'p RecordingParameters,
    recorder: &'p mut HistoryRecorder,
    random: Random,
    last_value_number: u64,
    last_token: u64,
    outstanding_requests: HashMap<u64, OutstandingRequest>,
}

impl RequestChooserAndRecorder<'_> {
    /// Chooses a request, records its call, and returns the request with its token.
    fn choose_and_record_request(&mut self) -> io::Result<(Operation, u64)> {
        let dice = self.random.next_below(32);
        let (op, asked) = match dice {
            0 => self.choose_and_record_scan()?,
            1..22 => {
                let number =
                    self.random.next_below(self.plan.hot_keys.max(1)) * JUDGED_KEYS_PER_GROUP;
                self.choose_and_record_point_request(number, dice)?
            }
            _ => {
                let group = self.random.next_below(self.plan.hot_keys.max(1));
                let filler = 1 + self.random.next_below(FILLERS_PER_HOT_KEY);
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                let wave = since.unwrap_or_default().as_millis() / FILLER_PHASE.as_millis();
                let what = match (dice, wave % 2) {
                    // A lookup, an update, and otherwise the present phase's operation.
                    (22..24, _) => 1,
                    (24, _) => 19,
                    (_, 0) => 17,
                    _ => 21,
                };
                self.choose_and_record_point_request(group * JUDGED_KEYS_PER_GROUP + filler, what)?
            }
        };
        self.last_token += 1;
        self.outstanding_requests.insert(self.last_token, asked);
        Ok((op, self.last_token))
    }

    /// Chooses a request for one judged key: `what` is 1 to 21, and half of the values are lookups.
    fn choose_and_record_point_request(
        &mut self,
        number: u64,
        what: u64,
    ) -> io::Result<(Operation, OutstandingRequest)> {
        let key = judged_key(number);
        self.last_value_number += 1;
        // No two values of a history are equal, so each identifies its write.
        let value =
            (self.recorder.client_number() + 1) << 32 | self.last_value_number & 0xffff_ffff;
        let write = |when, condition| {
            let action = RegisterAction::Write { value, condition };
            (Operation::Put { key, value, when }, action)
        };
        let (op, action) = match what {
            ..12 => (Operation::Get { key }, RegisterAction::Read),
            12..16 => write(PutCondition::Always, WriteCondition::Always),
            16..18 => write(PutCondition::Absent, WriteCondition::Absent),
            18..20 => write(PutCondition::Present, WriteCondition::Present),
            _ => (
                Operation::Delete { key },
                RegisterAction::Remove { version: None },
            ),
        };
        let number = self.recorder.record_call(number, action)?;
        Ok((op, OutstandingRequest::PointWithHistoryNumber(number)))
    }

    /// Chooses a SCAN of up to three groups, or of up to forty entries.
    fn choose_and_record_scan(&mut self) -> io::Result<(Operation, OutstandingRequest)> {
        let all = self.plan.hot_keys.max(1) * GROUP_DISTANCE;
        let from = self.random.next_below(all);
        let width = 1 + self.random.next_below(3 * GROUP_DISTANCE);
        let few = 1 + u32::try_from(self.random.next_below(40)).unwrap_or(0);
        let (end, limit) = match self.random.next_below(4) {
            0 => (None, few),
            1 => (Some(from + width), few),
            _ => (Some(from + width), UNLIMITED_SCAN),
        };
        // Forty entries span at most six groups, because each group has its stable keys.
        let until = end.unwrap_or(from + 6 * GROUP_DISTANCE).min(all);
        let number = self.recorder.record_call(0, RegisterAction::Scan)?;
        let mut reads = Vec::new();
        let numbers = from / GROUP_DISTANCE * JUDGED_KEYS_PER_GROUP
            ..until.div_ceil(GROUP_DISTANCE) * JUDGED_KEYS_PER_GROUP;
        for judged in numbers.filter(|&judged| (from..until).contains(&judged_key(judged))) {
            reads.push((
                judged_key(judged),
                self.recorder.record_call(judged, RegisterAction::Scan)?,
            ));
        }
        let scan = OutstandingScan {
            from,
            end,
            limit,
            history_number: number,
            judged_keys_and_history_numbers: reads,
        };
        Ok((
            Operation::Scan { from, end, limit },
            OutstandingRequest::Scan(scan),
        ))
    }

    /// Records an answer.
    fn record_answer(&mut self, done: &Completion<'_>) -> io::Result<()> {
        let asked = self.outstanding_requests.remove(&done.token);
        let asked = asked.ok_or_else(|| io::Error::other("an answer came to no request"))?;
        match (asked, done.answer) {
            // The outcome is unknown, so nothing is recorded.
            (_, Answer::NoAnswerInTime) => Ok(()),
            (OutstandingRequest::PointWithHistoryNumber(number), Answer::StoreFull) => {
                self.recorder.record_no_room(number)
            }
            (OutstandingRequest::PointWithHistoryNumber(number), Answer::Value(value)) => {
                let outcome = value.map_or(OperationOutcome::Absent, |value| {
                    OperationOutcome::FoundUnversioned { value }
                });
                self.recorder.record_answer(number, outcome)
            }
            (OutstandingRequest::PointWithHistoryNumber(number), Answer::Changed { found }) => {
                let outcome = OperationOutcome::UnversionedChangeAnswer { found };
                self.recorder.record_answer(number, outcome)
            }
            (OutstandingRequest::Scan(scan), Answer::Entries { entries, next }) => {
                if let Err((fault, key)) = scan.check_order_range_and_stable_keys(
                    entries,
                    next,
                    stable_key_count(self.plan.hot_keys),
                ) {
                    return self
                        .recorder
                        .record_wrong_scan(scan.history_number, fault, key);
                }
                let reads = &scan.judged_keys_and_history_numbers;
                let covered = reads
                    .iter()
                    .filter(|(key, _)| next.is_none_or(|n| *key < n));
                for &(key, number) in covered {
                    let outcome = match entries.binary_search_by_key(&key, |entry| entry.0) {
                        Ok(place) => OperationOutcome::FoundUnversioned {
                            value: entries[place].1,
                        },
                        Err(_) => OperationOutcome::Absent,
                    };
                    self.recorder.record_answer(number, outcome)?;
                }
                Ok(())
            }
            (asked, answer) => Err(io::Error::other(format!(
                "{asked:?} was answered by {answer:?}"
            ))),
        }
    }
}

impl OutstandingScan {
    /// Checks the order, the range and the stable keys of an answer. The recorded history covers the judged keys.
    fn check_order_range_and_stable_keys(
        &self,
        entries: &[(u64, u64)],
        next: Option<u64>,
        stable: u64,
    ) -> Result<(), (ScanFault, u64)> {
        let end = self.end.unwrap_or(u64::MAX);
        let mut stable_key = self.from.next_multiple_of(STABLE_KEY_DISTANCE);
        let mut least = self.from;
        for &(key, value) in entries {
            if key < least {
                return Err((ScanFault::OutOfOrderOrTwice, key));
            }
            let is_stable = key % STABLE_KEY_DISTANCE == 0 && key / STABLE_KEY_DISTANCE < stable;
            if key >= end || !is_stable && judged_key_number(key).is_none() {
                return Err((ScanFault::Foreign, key));
            }
            if key > stable_key {
                return Err((ScanFault::Missing, stable_key));
            }
            if is_stable {
                if value != load::value_of(key, 0) {
                    return Err((ScanFault::WrongValue, key));
                }
                stable_key += STABLE_KEY_DISTANCE;
            }
            least = key + 1;
        }
        // `next` tells which part of the range the answer leaves out.
        let until = match next {
            Some(next) if next < least => return Err((ScanFault::OutOfOrderOrTwice, next)),
            Some(next) if entries.len() < self.limit as usize => {
                return Err((ScanFault::Missing, next));
            }
            next => next.unwrap_or(end).min(stable * STABLE_KEY_DISTANCE),
        };
        if entries.len() > self.limit as usize {
            return Err((ScanFault::Foreign, least - 1));
        }
        if stable_key < until {
            return Err((ScanFault::Missing, stable_key));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use service::history::KeyHistories;

    use super::*;
    use crate::{ClientConfig, PipelinedClient, Server, ServerConfig, ServerStats};

    #[test]
    fn judged_keys_have_numbers_and_are_no_stable_ones() {
        let keys: BTreeSet<u64> = (0..10 * JUDGED_KEYS_PER_GROUP).map(judged_key).collect();
        assert_eq!(keys.len() as u64, 10 * JUDGED_KEYS_PER_GROUP);
        for number in 0..10 * JUDGED_KEYS_PER_GROUP {
            let key = judged_key(number);
            assert_eq!(judged_key_number(key), Some(number));
            assert!(
                !key.is_multiple_of(STABLE_KEY_DISTANCE)
                    && key < stable_key_count(10) * STABLE_KEY_DISTANCE
            );
        }
        assert_eq!(judged_key_number(judged_key(0) + 2), None);
    }

    #[test]
    fn what_is_wrong_with_a_scan_is_found() {
        let scan = |end, limit| OutstandingScan {
            from: load::stable_key(2) + 1,
            end,
            limit,
            history_number: 0,
            judged_keys_and_history_numbers: Vec::new(),
        };
        let stable = |i| (load::stable_key(i), load::value_of(load::stable_key(i), 0));
        let hot = (judged_key(0), 77);
        let all = [stable(3), hot, stable(4), stable(5)];
        let end = Some(load::stable_key(6));
        assert_eq!(
            scan(end, 100).check_order_range_and_stable_keys(&all, None, 8),
            Ok(())
        );
        assert_eq!(
            scan(None, 4).check_order_range_and_stable_keys(&all, Some(load::stable_key(6)), 8),
            Ok(()),
            "it may go on"
        );
        assert_eq!(
            scan(None, 100).check_order_range_and_stable_keys(&all, None, 6),
            Ok(()),
            "there are no more"
        );
        let fault = |end, limit, entries: &[(u64, u64)], next| {
            let fault = scan(end, limit).check_order_range_and_stable_keys(entries, next, 8);
            fault.expect_err("it is wrong")
        };
        let without_4 = [stable(3), hot, stable(5)];
        let missing = |i| (ScanFault::Missing, load::stable_key(i));
        assert_eq!(fault(end, 100, &without_4, None), missing(4));
        assert_eq!(fault(end, 100, &all[1..], None), missing(3));
        assert_eq!(fault(end, 100, &all[..3], None), missing(5));
        assert_eq!(fault(None, 100, &all, None), missing(6));
        let early = Some(load::stable_key(6));
        assert_eq!(fault(None, 100, &all, early), missing(6), "it had room");
        let twice = [stable(3), hot, hot];
        assert_eq!(
            fault(end, 100, &twice, None),
            (ScanFault::OutOfOrderOrTwice, hot.0)
        );
        let back = [stable(3), stable(4), hot];
        assert_eq!(
            fault(end, 100, &back, None),
            (ScanFault::OutOfOrderOrTwice, hot.0)
        );
        let out = (ScanFault::Foreign, load::stable_key(5));
        assert_eq!(fault(Some(load::stable_key(5)), 100, &all, None), out);
        let nobody = [stable(3), (hot.0 + 2, 1)];
        let out = (ScanFault::Foreign, hot.0 + 2);
        assert_eq!(fault(end, 100, &nobody, None), out);
        let wrong = [stable(3), (load::stable_key(4), 0)];
        let value = (ScanFault::WrongValue, load::stable_key(4));
        assert_eq!(fault(end, 100, &wrong, None), value);
        let next = Some(load::stable_key(5));
        let value = (ScanFault::OutOfOrderOrTwice, load::stable_key(5));
        assert_eq!(fault(None, 4, &all, next), value, "it goes back");
        let value = (ScanFault::Foreign, load::stable_key(5));
        assert_eq!(fault(end, 3, &all, None), value, "more than asked for");
    }

    /// A client of a real server: right answers are judged right, and SCANs run while nodes split and merge.
    #[test]
    fn what_a_client_sees_is_judged() {
        let config = ServerConfig {
            key_capacity: 10_000,
            node_bytes: 256,
            ..ServerConfig::default()
        };
        let server = Server::start(config).expect("starts");
        let entry = |i| (load::stable_key(i), load::value_of(load::stable_key(i), 0));
        let store = server.service().store();
        store
            .bulk_load(0, stable_key_count(2), 0.9, 1, entry)
            .expect("loads");
        let config = ClientConfig {
            server: server.address().to_string(),
            window: 8,
            ..ClientConfig::default()
        };
        let mut pipeline = PipelinedClient::connect(config).expect("connects");
        let folder = tempfile::tempdir().expect("a folder");
        let mut recorder = HistoryRecorder::create(folder.path(), 1).expect("a file");
        let plan = RecordingParameters {
            tree: 0,
            hot_keys: 2,
            seed: 1,
        };
        let mut polls = 0u32;
        let mut until = |enough: &dyn Fn(&ServerStats) -> bool| {
            run_recording_client(&mut pipeline, &plan, &mut recorder, || {
                polls += 1;
                polls.is_multiple_of(256) && enough(&server.stats())
            })
            .expect("goes on");
        };
        until(&|stats| stats.tree.splits > 2 && stats.tree.merges > 2 && stats.scans > 20);
        let verdict = KeyHistories::read(folder.path()).expect("read").check();
        assert!(verdict.is_linearizable(), "{:#?}", verdict.violations);
        assert_eq!(
            (verdict.keys, verdict.unknown_outcomes),
            (2 * JUDGED_KEYS_PER_GROUP, 0)
        );
        // A stable key is removed behind the client's back.
        store
            .remove(0, load::stable_key(1))
            .expect("it is not locked");
        let before = server.stats().scans;
        until(&|stats| stats.scans > before + 500);
        let verdict = KeyHistories::read(folder.path()).expect("read").check();
        let missing = "misses 0x100, which was there all the time";
        assert!(
            verdict.violations.iter().any(|v| v.contains(missing)),
            "{verdict:?}"
        );
    }
}
