//! One client's run of a workload.

use std::time::Instant;

use hdrhistogram::Histogram;
use service::random::Random;
use service::workload::KeyGenerator;
use verbs::time;

use super::{
    LoadReport, MAX_OWN_KEY_CLIENTS, Workload, stable_key, value_belongs_to_key, value_of,
};
use crate::{Answer, ClientError, ExecuteRequests, LatencySummary, Operation, PutCondition};

/// The end of a load.
#[derive(Debug, Clone, Copy)]
pub enum LoadEnd {
    /// After this number of operations.
    Count(u64),
    /// At this time, on the clock of [`verbs::time`].
    At(Instant),
    /// At this time, or when the function returns true, if that is earlier. The function is called whenever the load
    /// reads the clock.
    AtOrWhen(Instant, fn() -> bool),
}

/// The presence of an own key in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Absent,
    Present,
    /// A change of the key is outstanding, or its result was lost.
    Unknown,
}

/// A key that only this client inserts and deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OwnKey {
    presence: Presence,
    /// Counts the submitted changes of the key, modulo 2^15. A lookup is checked only if this count is the same at its
    /// submission and at its completion.
    submitted_change_count: u16,
}

impl OwnKey {
    const NEVER_INSERTED: Self = Self {
        presence: Presence::Absent,
        submitted_change_count: 0,
    };

    /// Returns the kind of a lookup of the key, or `None` if its presence is unknown.
    fn lookup_kind(self) -> Option<RequestKind> {
        let present = match self.presence {
            Presence::Absent => false,
            Presence::Present => true,
            Presence::Unknown => return None,
        };
        let changes = self.submitted_change_count;
        Some(RequestKind::OwnLookup { present, changes })
    }

    fn begin_change(&mut self) {
        self.presence = Presence::Unknown;
        self.submitted_change_count = (self.submitted_change_count + 1) & 0x7fff;
    }
}

/// The kind of a request, encoded in its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Lookup,
    /// A lookup that is followed by an update of the same key.
    ReadUpdate,
    Update,
    Insert,
    Delete,
    /// A lookup of an own key, with its expected presence and the count of its changes, below 2^15.
    OwnLookup {
        present: bool,
        changes: u16,
    },
    Scan {
        limit: u16,
    },
}

impl RequestKind {
    /// Returns the token for this kind and the number of a key, below 2^40.
    fn encode_token(self, i: u64) -> u64 {
        let (kind, more) = match self {
            Self::Lookup => (0, 0),
            Self::ReadUpdate => (1, 0),
            Self::Update => (2, 0),
            Self::Insert => (3, 0),
            Self::Delete => (4, 0),
            Self::OwnLookup { present, changes } => {
                (5, u64::from(changes << 1 | u16::from(present)))
            }
            Self::Scan { limit } => (6, u64::from(limit)),
        };
        kind << 56 | more << 40 | i
    }

    #[expect(clippy::cast_possible_truncation, reason = "16 bits")]
    fn decode_token(token: u64) -> (Self, u64) {
        let more = (token >> 40) as u16;
        let kind = match token >> 56 {
            0 => Self::Lookup,
            1 => Self::ReadUpdate,
            2 => Self::Update,
            3 => Self::Insert,
            4 => Self::Delete,
            5 => Self::OwnLookup {
                present: more & 1 != 0,
                changes: more >> 1,
            },
            _ => Self::Scan { limit: more },
        };
        (kind, token & ((1 << 40) - 1))
    }
}

/// Cumulative upper bounds of a random 32-bit number, by which an operation is chosen.
#[derive(Debug)]
struct OperationChoiceBounds {
    update_bound: u64,
    insert_bound: u64,
    own_lookup_bound: u64,
    scan_bound: u64,
    read_update_bound: u64,
}

impl OperationChoiceBounds {
    fn of_workload(w: &Workload) -> Self {
        let mut sum = 0.0;
        let mut next = |share: f64| {
            sum += share.clamp(0.0, 1.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "shares of 2^32"
            )]
            let bound = (sum * 4_294_967_296.0) as u64;
            bound
        };
        Self {
            update_bound: next(w.update_fraction),
            insert_bound: next(w.insert_fraction),
            own_lookup_bound: next(w.own_lookup_fraction),
            scan_bound: next(w.scan_fraction),
            read_update_bound: next(w.read_update_fraction),
        }
    }
}

struct LoadRun<'w> {
    workload: &'w Workload,
    key_generator: KeyGenerator,
    bounds: OperationChoiceBounds,
    /// Offset of this client's own keys from the stable keys.
    own_key_offset: u64,
    own_keys: Vec<OwnKey>,
    /// The number of the own key that was inserted or deleted last.
    last_changed_own_key: u64,
    last_stamp: u32,
    scan_length_random: Random,
    /// Numbers of the keys that were read by a read-modify-write and are not yet updated.
    keys_awaiting_update: Vec<u64>,
    latency_ns: Histogram<u64>,
    report: LoadReport,
}

/// Puts stable keys number `from`, `from + step`, and so on, once each.
///
/// # Errors
/// If the server cannot be reached any more.
pub fn put_stable_keys(
    requests: &mut impl ExecuteRequests,
    workload: &Workload,
    (from, step): (u64, u64),
) -> Result<LoadReport, ClientError> {
    let mut run = LoadRun::new(workload, 0);
    let started = time::now();
    requests.refresh_clock();
    let mut next = from;
    while next < workload.keys || requests.outstanding() > 0 {
        while next < workload.keys && run.submit_stable_key_update(requests, next)? {
            next += step.max(1);
        }
        run.poll_and_check_answers_returning_last_time(requests)?;
    }
    Ok(run.into_report(requests, started, time::now()))
}

/// Runs a load. `seed` must differ between clients: `seed` modulo [`MAX_OWN_KEY_CLIENTS`] selects the client's own
/// keys.
///
/// # Errors
/// If the server cannot be reached any more.
pub fn run(
    requests: &mut impl ExecuteRequests,
    workload: &Workload,
    until: LoadEnd,
    seed: u64,
) -> Result<LoadReport, ClientError> {
    let mut run = LoadRun::new(workload, seed);
    let started = time::now();
    requests.refresh_clock();
    let (most, end, should_end): (_, _, fn() -> bool) = match until {
        LoadEnd::Count(n) => (n, None, || false),
        LoadEnd::At(end) => (u64::MAX, Some(end), || false),
        LoadEnd::AtOrWhen(end, should_end) => (u64::MAX, Some(end), should_end),
    };
    let (mut stopping, mut rounds) = (false, 0u32);
    let mut begun = 0;
    loop {
        while !stopping && begun < most && run.try_start_operation(requests)? {
            begun += 1;
        }
        let seen = run.poll_and_check_answers_returning_last_time(requests)?;
        rounds = rounds.wrapping_add(1);
        // While answers arrive, the pipeline reads the clock once for every few of them.
        let now = match seen {
            None if rounds.is_multiple_of(256) => Some(time::now()),
            seen => seen,
        };
        stopping |= now.is_some_and(|now| end.is_some_and(|end| now >= end) || should_end());
        if (stopping || begun >= most)
            && requests.outstanding() == 0
            && run.keys_awaiting_update.is_empty()
        {
            let ended = time::now();
            run.delete_own_keys(requests)?;
            return Ok(run.into_report(requests, started, ended));
        }
    }
}

impl<'w> LoadRun<'w> {
    fn new(workload: &'w Workload, seed: u64) -> Self {
        let has_own = workload.insert_fraction > 0.0;
        let own = if has_own { workload.keys } else { 0 };
        Self {
            workload,
            key_generator: KeyGenerator::new(workload.keys, workload.popularity, seed),
            bounds: OperationChoiceBounds::of_workload(workload),
            own_key_offset: 1 + seed % MAX_OWN_KEY_CLIENTS,
            own_keys: vec![OwnKey::NEVER_INSERTED; usize::try_from(own).unwrap_or(0)],
            last_changed_own_key: 0,
            last_stamp: u32::try_from(seed & 0xff).unwrap_or(0) << 24,
            scan_length_random: Random::new(seed ^ 0x5ca1ab1e),
            keys_awaiting_update: Vec::new(),
            latency_ns: Histogram::new(3).expect("3 is a number of digits"),
            report: LoadReport::default(),
        }
    }

    /// Starts an operation if the window has room. Returns true if it did.
    #[inline]
    fn try_start_operation(
        &mut self,
        requests: &mut impl ExecuteRequests,
    ) -> Result<bool, ClientError> {
        if requests.outstanding() + self.keys_awaiting_update.len() >= requests.window() {
            return Ok(false);
        }
        let dice = self.key_generator.draw_u32_as_u64();
        let i = self.key_generator.next(self.last_changed_own_key);
        let tree = self.workload.tree;
        let (lookup, kind) = (Operation::Get { key: stable_key(i) }, RequestKind::Lookup);
        if dice < self.bounds.update_bound {
            return self.submit_stable_key_update(requests, i);
        }
        if dice < self.bounds.insert_bound {
            return self.toggle_next_own_key(requests);
        }
        let (op, kind) = if dice < self.bounds.own_lookup_bound {
            let own = self.own_keys.get(usize::try_from(i).unwrap_or(usize::MAX));
            match own.and_then(|own| own.lookup_kind()) {
                Some(kind) => {
                    let key = stable_key(i) + self.own_key_offset;
                    (Operation::Get { key }, kind)
                }
                None => (lookup, kind),
            }
        } else if dice < self.bounds.scan_bound {
            let most = self.workload.scan_length.clamp(1, u16::MAX.into());
            let limit = if self.workload.has_random_scan_lengths {
                1 + self.scan_length_random.next_below(most.into())
            } else {
                most.into()
            };
            let limit = u16::try_from(limit).unwrap_or(u16::MAX);
            let scan = Operation::Scan {
                from: stable_key(i),
                end: None,
                limit: limit.into(),
            };
            (scan, RequestKind::Scan { limit })
        } else if dice < self.bounds.read_update_bound {
            (lookup, RequestKind::ReadUpdate)
        } else {
            (lookup, kind)
        };
        requests.submit(tree, &op, kind.encode_token(i))
    }

    fn submit_stable_key_update(
        &mut self,
        requests: &mut impl ExecuteRequests,
        i: u64,
    ) -> Result<bool, ClientError> {
        let key = stable_key(i);
        self.last_stamp = self.last_stamp.wrapping_add(1);
        let op = Operation::Put {
            key,
            value: value_of(key, self.last_stamp),
            when: PutCondition::Always,
        };
        requests.submit(self.workload.tree, &op, RequestKind::Update.encode_token(i))
    }

    /// Inserts the next own key, or deletes it if it is there.
    fn toggle_next_own_key(
        &mut self,
        requests: &mut impl ExecuteRequests,
    ) -> Result<bool, ClientError> {
        let i = (self.last_changed_own_key + 1) % self.workload.keys;
        let begun = self.try_toggle_own_key(requests, i)?;
        if begun {
            self.last_changed_own_key = i;
        }
        Ok(begun)
    }

    fn try_toggle_own_key(
        &mut self,
        requests: &mut impl ExecuteRequests,
        i: u64,
    ) -> Result<bool, ClientError> {
        let key = stable_key(i) + self.own_key_offset;
        let place = usize::try_from(i).unwrap_or(usize::MAX);
        let Some(own) = self.own_keys.get_mut(place) else {
            return Ok(true);
        };
        let (op, kind) = match own.presence {
            Presence::Absent => {
                self.last_stamp = self.last_stamp.wrapping_add(1);
                let value = value_of(key, self.last_stamp);
                let when = PutCondition::Absent;
                (Operation::Put { key, value, when }, RequestKind::Insert)
            }
            Presence::Present => (Operation::Delete { key }, RequestKind::Delete),
            Presence::Unknown => return Ok(true),
        };
        let begun = requests.submit(self.workload.tree, &op, kind.encode_token(i))?;
        if begun {
            own.begin_change();
        }
        Ok(begun)
    }

    /// Deletes the own keys that are present, so that the next load finds the same tree. The answers are checked, and are
    /// no part of the load.
    fn delete_own_keys(&mut self, requests: &mut impl ExecuteRequests) -> Result<(), ClientError> {
        let (operations, changes) = (self.report.operations, self.report.changes);
        let latency_ns = self.latency_ns.clone();
        let mut i = 0;
        while i < self.own_keys.len() || requests.outstanding() > 0 {
            while i < self.own_keys.len()
                && (self.own_keys[i].presence != Presence::Present
                    || self.try_toggle_own_key(requests, i as u64)?)
            {
                i += 1;
            }
            self.poll_and_check_answers_returning_last_time(requests)?;
        }
        (self.report.operations, self.report.changes) = (operations, changes);
        self.latency_ns = latency_ns;
        Ok(())
    }

    /// Takes and checks answers. Returns the time of the last one, if any arrived.
    #[inline]
    fn poll_and_check_answers_returning_last_time(
        &mut self,
        requests: &mut impl ExecuteRequests,
    ) -> Result<Option<Instant>, ClientError> {
        let mut seen = None;
        let (report, own, found) = (
            &mut self.report,
            &mut self.own_keys,
            &mut self.keys_awaiting_update,
        );
        let (latency, offset) = (&mut self.latency_ns, self.own_key_offset);
        requests.poll(|done| {
            seen = Some(done.completed_at);
            report.operations += u64::from(done.answer != Answer::NoAnswerInTime);
            let (kind, i) = RequestKind::decode_token(done.token);
            check_answer(report, own, offset, kind, i, done.answer);
            if kind == RequestKind::ReadUpdate {
                found.push(i);
            }
            let nanos = done
                .completed_at
                .duration_since(done.submitted_at)
                .as_nanos();
            let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
            // Latencies are capped at a minute.
            *latency += nanos.min(60_000_000_000);
        })?;
        while let Some(i) = self.keys_awaiting_update.pop() {
            if !self.submit_stable_key_update(requests, i)? {
                self.keys_awaiting_update.push(i);
                break;
            }
        }
        Ok(seen)
    }

    fn into_report(
        mut self,
        requests: &impl ExecuteRequests,
        started: Instant,
        ended: Instant,
    ) -> LoadReport {
        let seconds = ended.duration_since(started).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = self.report.operations as f64 / seconds.max(1e-9);
        (self.report.seconds, self.report.operations_per_s) = (seconds, rate);
        self.report.latency = LatencySummary::from_histogram(&self.latency_ns);
        self.report.doorbells = requests.doorbells();
        self.report.client_stats = requests.stats();
        self.report
    }
}

/// Checks one answer and counts it.
#[inline]
fn check_answer(
    report: &mut LoadReport,
    own: &mut [OwnKey],
    offset: u64,
    kind: RequestKind,
    i: u64,
    answer: Answer<'_>,
) {
    let mut value_is_right = |value: u64, key: u64| {
        report.wrong_values += u64::from(!value_belongs_to_key(key, value));
    };
    let place = usize::try_from(i).unwrap_or(usize::MAX);
    match (kind, answer) {
        (RequestKind::Lookup | RequestKind::ReadUpdate, Answer::Value(value)) => {
            match value {
                Some(value) => value_is_right(value, stable_key(i)),
                None => report.missing_keys += 1,
            }
            report.lookups += 1;
            report.checked_answers += 1;
        }
        (RequestKind::OwnLookup { present, .. }, Answer::Value(value)) => {
            if let Some(value) = value {
                value_is_right(value, stable_key(i) + offset);
            }
            // A change that was requested meanwhile may have been executed first; then the answer is not checked. The
            // key may have been deleted and inserted again since, so its presence alone does not show that.
            if own.get(place).and_then(|own| own.lookup_kind()) == Some(kind) {
                report.missing_keys += u64::from(present && value.is_none());
                report.deleted_keys_found += u64::from(!present && value.is_some());
                report.checked_answers += 1;
            }
            report.lookups += 1;
        }
        (RequestKind::Update, Answer::Changed { .. }) => report.changes += 1,
        (RequestKind::Insert | RequestKind::Delete, Answer::Changed { found }) => {
            let inserted = kind == RequestKind::Insert;
            // An inserted key must have been absent, and a deleted key present.
            report.deleted_keys_found += u64::from(inserted && found);
            report.missing_keys += u64::from(!inserted && !found);
            report.checked_answers += 1;
            report.changes += 1;
            if let Some(own) = own.get_mut(place) {
                own.presence = if inserted {
                    Presence::Present
                } else {
                    Presence::Absent
                };
            }
        }
        (RequestKind::Scan { limit }, Answer::Entries { entries, next }) => {
            report.scans += 1;
            report.scanned_entries += entries.len() as u64;
            report.checked_answers += 1;
            if !scan_is_right(i, limit, entries, next) {
                report.wrong_scans += 1;
            }
        }
        (RequestKind::Insert, Answer::StoreFull) => {
            report.changes_refused_as_full += 1;
            if let Some(own) = own.get_mut(place) {
                own.presence = Presence::Absent;
            }
        }
        (_, Answer::StoreFull) => report.changes_refused_as_full += 1,
        (_, Answer::NoAnswerInTime) => report.unanswered_requests += 1,
        (_, Answer::Moved(_)) => report.answers_about_other_servers += 1,
        // The answer is of another kind than the request.
        _ => report.wrong_values += 1,
    }
}

/// Returns true if a SCAN from stable key number `i` is right. Such a SCAN begins with that key, and has all following
/// stable keys in order with values that fit their keys. It must have `limit` entries unless the tree ends.
fn scan_is_right(i: u64, limit: u16, entries: &[(u64, u64)], next: Option<u64>) -> bool {
    let mut stable = i;
    let mut last = None;
    let right = entries.iter().all(|&(key, value)| {
        let ascends = last.is_none_or(|last| key > last);
        last = Some(key);
        // Between stable keys lie own keys of clients.
        let expected = if key % super::STABLE_KEY_DISTANCE == 0 {
            stable += 1;
            key == stable_key(stable - 1)
        } else {
            key > stable_key(i) && key / super::STABLE_KEY_DISTANCE == stable - 1
        };
        ascends && expected && value_belongs_to_key(key, value)
    });
    let begins = entries
        .first()
        .is_some_and(|(key, _)| *key == stable_key(i));
    let enough = next.is_none() || entries.len() == usize::from(limit);
    right && begins && enough
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_lookup(present: bool, changes: u16) -> RequestKind {
        RequestKind::OwnLookup { present, changes }
    }

    #[test]
    fn tokens_hold_what_is_put_in() {
        let all = [
            RequestKind::Lookup,
            RequestKind::ReadUpdate,
            RequestKind::Update,
            RequestKind::Insert,
            RequestKind::Delete,
            own_lookup(true, 0x7fff),
            own_lookup(false, 3),
            RequestKind::Scan { limit: 65_535 },
        ];
        for kind in all {
            let i = (1 << 40) - 3;
            assert_eq!(RequestKind::decode_token(kind.encode_token(i)), (kind, i));
        }
    }

    #[test]
    fn gaps_repetitions_and_foreign_values_of_a_scan_are_found() {
        let entry = |key| (key, value_of(key, 1));
        let right: Vec<_> = [
            stable_key(5),
            stable_key(5) + 3,
            stable_key(6),
            stable_key(7),
        ]
        .map(entry)
        .into();
        let next = Some(stable_key(8));
        assert!(scan_is_right(5, 4, &right, next));
        assert!(!scan_is_right(5, 5, &right, next), "too few");
        assert!(scan_is_right(5, 5, &right, None), "there are no more");
        for wrong in [
            vec![entry(stable_key(5)), entry(stable_key(7))],
            vec![entry(stable_key(5)), entry(stable_key(5))],
            vec![entry(stable_key(6)), entry(stable_key(7))],
            vec![
                entry(stable_key(5)),
                entry(stable_key(6) + 1),
                entry(stable_key(6)),
            ],
            vec![
                entry(stable_key(5)),
                (stable_key(6), value_of(stable_key(5), 1)),
            ],
            vec![],
        ] {
            let limit = u16::try_from(wrong.len()).expect("small");
            assert!(!scan_is_right(5, limit, &wrong, next), "{wrong:?}");
        }
    }

    #[test]
    fn a_ghost_and_a_missing_key_are_found() {
        let mut report = LoadReport::default();
        let present = OwnKey {
            presence: Presence::Present,
            submitted_change_count: 1,
        };
        let mut own = [OwnKey::NEVER_INSERTED, present];
        let mut check_answer =
            |kind, i, answer| check_answer(&mut report, &mut own, 7, kind, i, answer);
        check_answer(own_lookup(false, 0), 0, Answer::Value(Some(value_of(7, 1))));
        check_answer(own_lookup(true, 1), 1, Answer::Value(None));
        check_answer(RequestKind::Lookup, 1, Answer::Value(None));
        check_answer(
            RequestKind::Lookup,
            1,
            Answer::Value(Some(value_of(stable_key(2), 1))),
        );
        assert_eq!(
            (
                report.deleted_keys_found,
                report.missing_keys,
                report.wrong_values
            ),
            (1, 2, 1)
        );
    }

    /// A lookup may be answered so late that its key was deleted and inserted again meanwhile.
    #[test]
    fn a_lookup_that_was_outstanding_while_its_key_changed_twice_is_not_checked() {
        let mut report = LoadReport::default();
        let mut own = [OwnKey {
            presence: Presence::Present,
            submitted_change_count: 0x7fff,
        }];
        let late = own[0].lookup_kind().expect("its presence is known");
        for kind in [RequestKind::Delete, RequestKind::Insert] {
            own[0].begin_change();
            let found = kind == RequestKind::Delete;
            check_answer(&mut report, &mut own, 7, kind, 0, Answer::Changed { found });
        }
        assert_eq!(own[0].presence, Presence::Present);
        check_answer(&mut report, &mut own, 7, late, 0, Answer::Value(None));
        assert!(report.has_no_wrong_answers(), "{report:?}");
    }
}
