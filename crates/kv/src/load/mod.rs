//! The load generator: sends requests, and checks every answer.
//!
//! Keys are numbers. A value begins with a stamp, which identifies the writer and the write; all its other bytes are
//! computed from key and stamp. So a value that is a mixture of two, of another key, or truncated is detected, whoever
//! wrote it. In addition a client remembers the highest version of every 64th key: a lower version later means that the
//! store went back in time.

use std::time::Instant;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use service::workload::KeyGenerator;
use verbs::time;

use crate::LatencySummary;
use crate::client::{Answer, ClientError, ClientStats, PipelinedClient};
use crate::store::SetCondition;
use crate::wire::Op;

pub use service::random::Random;
pub use service::workload::{Popularity, verified_stamp, write_key_bytes, write_value_bytes};

/// The parameters of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Number of keys: each is a number below this; at most 2^32.
    pub keys: u64,
    /// Bytes of a key, 4 or more.
    pub key_bytes: usize,
    /// Bytes of a value; all checks need 16 or more.
    pub value_bytes: usize,
    /// The distribution of the keys.
    pub popularity: Popularity,
    /// Fraction of PUTs, 0 to 1.
    #[serde(rename = "puts")]
    pub put_fraction: f64,
    /// Fraction of read-modify-writes: a GET, then a compare-and-set of the found version (YCSB F).
    #[serde(rename = "updates")]
    pub read_modify_write_fraction: f64,
    /// True if PUTs go to keys in order, each newer than all before (YCSB D), instead of to popular keys.
    #[serde(rename = "inserts")]
    pub puts_go_to_new_keys: bool,
    /// True if a client sends a whole window, then waits for all answers before the next window. Otherwise a client
    /// sends a new request for each answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "stop_and_go")]
    pub waits_for_whole_window: bool,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            keys: 1 << 20,
            key_bytes: 16,
            value_bytes: 32,
            popularity: Popularity::Uniform,
            put_fraction: 0.05,
            read_modify_write_fraction: 0.0,
            puts_go_to_new_keys: false,
            waits_for_whole_window: false,
        }
    }
}

impl Workload {
    /// Returns a workload of YCSB (Cooper et al., SoCC 2010); `self` gives the number of keys and the sizes. Workload E
    /// is missing, because a hash table cannot scan.
    #[must_use]
    pub fn ycsb(self, letter: Ycsb) -> Self {
        const ZIPF_EXPONENT: f64 = 0.99;
        let (popularity, puts, updates) = match letter {
            Ycsb::A => (Popularity::Zipf(ZIPF_EXPONENT), 0.5, 0.0),
            Ycsb::B => (Popularity::Zipf(ZIPF_EXPONENT), 0.05, 0.0),
            Ycsb::C => (Popularity::Zipf(ZIPF_EXPONENT), 0.0, 0.0),
            Ycsb::D => (Popularity::Latest(ZIPF_EXPONENT), 0.05, 0.0),
            Ycsb::F => (Popularity::Zipf(ZIPF_EXPONENT), 0.0, 0.5),
        };
        Self {
            popularity,
            put_fraction: puts,
            read_modify_write_fraction: updates,
            puts_go_to_new_keys: letter == Ycsb::D,
            ..self
        }
    }
}

/// A workload of YCSB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ycsb {
    /// Half GETs, half PUTs.
    A,
    /// 95 % GETs.
    B,
    /// GETs only.
    C,
    /// 95 % GETs, mostly of the latest PUTs.
    D,
    /// Half GETs, half read-modify-writes.
    F,
}

impl std::str::FromStr for Ycsb {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s.to_ascii_uppercase().as_str() {
            "A" => Ok(Self::A),
            "B" => Ok(Self::B),
            "C" => Ok(Self::C),
            "D" => Ok(Self::D),
            "E" => Err("workload E scans ranges of keys, which a hash table cannot".to_owned()),
            "F" => Ok(Self::F),
            _ => Err(format!(
                "no workload of YCSB is called {s:?}: A, B, C, D or F"
            )),
        }
    }
}

/// The end of a load.
#[derive(Debug, Clone, Copy)]
pub enum LoadEnd {
    /// At this time of [`verbs::time::now`].
    At(Instant),
    /// At this time, or when the function returns true, if that is earlier. The function is called whenever the load
    /// reads the clock.
    AtOrWhen(Instant, fn() -> bool),
    /// After this number of operations.
    AfterOperations(u64),
}

/// The results of one client, including the checks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Number of operations that were answered; a read-modify-write counts as two.
    pub operations: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Operations per second.
    #[serde(rename = "rate")]
    pub operations_per_s: f64,
    /// GETs that were answered.
    pub gets: u64,
    /// GETs that did not find their key.
    pub misses: u64,
    /// PUTs and updates that were executed.
    pub changes: u64,
    /// Updates that were refused because the key had changed since their GET.
    pub conflicts: u64,
    /// Changes that were refused because the store was full or the item too long.
    #[serde(rename = "full")]
    pub changes_refused_as_full: u64,
    /// Requests without an answer.
    #[serde(rename = "lost")]
    pub unanswered_requests: u64,
    /// Values that were checked.
    #[serde(rename = "verified")]
    pub checked_values: u64,
    /// Values that were wrong; any such value shows that the store is broken.
    pub wrong_values: u64,
    /// Versions that were lower than an earlier one; any such version shows that the store is broken.
    pub wrong_versions: u64,
    /// Latencies, measured from the clock reading at the poll before the request was sent.
    pub latency: LatencySummary,
    /// Doorbells for requests.
    pub doorbells: u64,
    /// The client's own statistics, such as retries.
    #[serde(rename = "trouble")]
    pub client_stats: ClientStats,
}

impl LoadReport {
    /// Returns true if all checked values and versions were right.
    pub fn all_checks_passed(&self) -> bool {
        self.wrong_values == 0 && self.wrong_versions == 0
    }
}

/// The token of a request: its kind in bits 63..62, [`LoadRun::flips_at_server_replacement`] in bit 61, the key's
/// number in bits 31..0. Bits 60..32 hold the lower bits of the lowest allowed version of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoadToken(u64);

const KIND_GET: u64 = 0;
const KIND_PUT: u64 = 1;
/// The GET of a read-modify-write.
const KIND_RMW_GET: u64 = 2;
/// The compare-and-set of a read-modify-write.
const KIND_RMW_WRITE: u64 = 3;

impl LoadToken {
    const MIN_VERSION_MASK: u64 = (1 << 29) - 1;

    #[inline]
    fn new(kind: u64, other: bool, floor: u64, key: u64) -> Self {
        let floor = floor.min(Self::MIN_VERSION_MASK);
        Self(kind << 62 | u64::from(other) << 61 | floor << 32 | key & 0xffff_ffff)
    }

    #[inline]
    fn kind(self) -> u64 {
        self.0 >> 62
    }

    #[inline]
    fn flips_at_server_replacement(self) -> bool {
        self.0 >> 61 & 1 != 0
    }

    #[inline]
    fn low_bits_of_min_allowed_version(self) -> u64 {
        self.0 >> 32 & Self::MIN_VERSION_MASK
    }

    #[inline]
    fn key(self) -> u64 {
        self.0 & 0xffff_ffff
    }
}

/// Versions are checked for one in so many keys.
const KEYS_PER_VERSION_CHECKED_KEY: u64 = 64;

/// A run of a load over one client.
#[derive(Debug)]
struct LoadRun<'w> {
    workload: &'w Workload,
    key_generator: KeyGenerator,
    /// The writer's number in the upper half of stamps.
    writer_number_in_upper_half: u64,
    puts_started: u64,
    last_stamp: u64,
    newest_key: u64,
    put_share_of_u32_range: u64,
    put_or_update_share_of_u32_range: u64,
    key_buffer: Vec<u8>,
    value_buffer: Vec<u8>,
    /// The highest versions of watched keys.
    highest_versions_of_checked_keys: Vec<u64>,
    /// The server's identity, and a flag that flips whenever another server replaces it.
    last_server_incarnation: u64,
    flips_at_server_replacement: bool,
    latency_ns: Histogram<u64>,
    report: LoadReport,
    /// Read-modify-writes whose GET was answered: key and version.
    keys_awaiting_update: Vec<(u64, u64)>,
    /// With stop-and-go: true while more requests of the present window may be sent.
    may_fill_window: bool,
}

/// Puts keys number `from`, `from + step`, and so on, once each.
///
/// # Errors
/// If the server cannot be reached any more.
pub fn put_every_nth_key_once(
    pipeline: &mut PipelinedClient,
    workload: &Workload,
    (from, step): (u64, u64),
) -> Result<LoadReport, ClientError> {
    let mut run = LoadRun::new(pipeline, workload, 0);
    let started = time::now();
    pipeline.refresh_clock();
    let mut next = from;
    while next < workload.keys || pipeline.outstanding() > 0 {
        while next < workload.keys && run.start_unconditional_put(pipeline, next)? {
            next += step.max(1);
        }
        run.poll_and_check_answers(pipeline)?;
    }
    Ok(run.into_report(pipeline, started))
}

/// Runs a load; `seed` must differ between clients.
///
/// # Errors
/// If the server cannot be reached any more.
pub fn run(
    pipeline: &mut PipelinedClient,
    workload: &Workload,
    until: LoadEnd,
    seed: u64,
) -> Result<LoadReport, ClientError> {
    run_with_progress(pipeline, workload, until, seed, |_| {})
}

/// Does the same as [`run`], and calls `count` with the number of newly completed operations after each poll.
///
/// # Errors
/// If the server cannot be reached any more.
pub fn run_with_progress(
    pipeline: &mut PipelinedClient,
    workload: &Workload,
    until: LoadEnd,
    seed: u64,
    mut count: impl FnMut(u64),
) -> Result<LoadReport, ClientError> {
    let mut run = LoadRun::new(pipeline, workload, seed);
    let started = time::now();
    pipeline.refresh_clock();
    let (most, end, should_end): (_, _, fn() -> bool) = match until {
        LoadEnd::AfterOperations(n) => (n, None, || false),
        LoadEnd::At(end) => (u64::MAX, Some(end), || false),
        LoadEnd::AtOrWhen(end, should_end) => (u64::MAX, Some(end), should_end),
    };
    let (mut stopping, mut rounds) = (false, 0u32);
    let mut begun = 0;
    loop {
        while !stopping && begun < most && run.start_operation(pipeline)? {
            begun += 1;
        }
        let before = run.report.operations;
        let seen = run.poll_and_check_answers(pipeline)?;
        count(run.report.operations - before);
        rounds = rounds.wrapping_add(1);
        // While answers arrive, the pipeline reads the clock once for every few of them.
        let now = match seen {
            None if rounds.is_multiple_of(256) => Some(time::now()),
            seen => seen,
        };
        stopping |= now.is_some_and(|now| end.is_some_and(|end| now >= end) || should_end());
        if (stopping || begun >= most)
            && pipeline.outstanding() == 0
            && run.keys_awaiting_update.is_empty()
        {
            return Ok(run.into_report(pipeline, started));
        }
    }
}

impl<'w> LoadRun<'w> {
    fn new(pipeline: &PipelinedClient, workload: &'w Workload, seed: u64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "shares of 2^32"
        )]
        let share = |of: f64| (of.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        let watched =
            usize::try_from(workload.keys / KEYS_PER_VERSION_CHECKED_KEY + 1).unwrap_or(1);
        Self {
            workload,
            key_generator: KeyGenerator::new(workload.keys, workload.popularity, seed),
            writer_number_in_upper_half: Random::new(seed ^ 0x5eed).next_u64() << 32,
            puts_started: 0,
            last_stamp: 0,
            newest_key: 0,
            put_share_of_u32_range: share(workload.put_fraction),
            put_or_update_share_of_u32_range: share(
                workload.put_fraction + workload.read_modify_write_fraction,
            ),
            key_buffer: vec![0; workload.key_bytes],
            value_buffer: vec![0; workload.value_bytes],
            highest_versions_of_checked_keys: vec![0; watched],
            last_server_incarnation: pipeline.server_incarnation(),
            flips_at_server_replacement: false,
            latency_ns: Histogram::new(3).expect("3 is a number of digits"),
            report: LoadReport::default(),
            keys_awaiting_update: Vec::new(),
            may_fill_window: false,
        }
    }

    /// Starts an operation if the window has room and, in stop-and-go mode, all answers to the last window have come.
    /// Returns true if it did.
    #[inline]
    fn start_operation(&mut self, pipeline: &mut PipelinedClient) -> Result<bool, ClientError> {
        if self.workload.waits_for_whole_window {
            self.may_fill_window |= pipeline.outstanding() == 0;
            self.may_fill_window =
                self.may_fill_window && self.start_if_window_has_room(pipeline)?;
            return Ok(self.may_fill_window);
        }
        self.start_if_window_has_room(pipeline)
    }

    /// Starts an operation if the window has room. Returns true if it did.
    #[inline]
    fn start_if_window_has_room(
        &mut self,
        pipeline: &mut PipelinedClient,
    ) -> Result<bool, ClientError> {
        if pipeline.outstanding() + self.keys_awaiting_update.len() >= pipeline.config().window {
            return Ok(false);
        }
        let dice = self.key_generator.draw_u32_as_u64();
        let key = self.key_generator.next(self.newest_key);
        if dice < self.put_share_of_u32_range {
            if self.workload.puts_go_to_new_keys {
                let key = (self.newest_key + 1) % self.workload.keys;
                let begun = self.start_unconditional_put(pipeline, key)?;
                self.newest_key = if begun { key } else { self.newest_key };
                return Ok(begun);
            }
            return self.start_unconditional_put(pipeline, key);
        }
        let kind = if dice < self.put_or_update_share_of_u32_range {
            KIND_RMW_GET
        } else {
            KIND_GET
        };
        write_key_bytes(key, &mut self.key_buffer);
        let token = self.make_token(kind, key);
        pipeline.submit(
            &Op::Get {
                key: &self.key_buffer,
            },
            token.0,
        )
    }

    fn start_unconditional_put(
        &mut self,
        pipeline: &mut PipelinedClient,
        key: u64,
    ) -> Result<bool, ClientError> {
        self.start_put(pipeline, key, KIND_PUT, SetCondition::Always)
    }

    fn start_put(
        &mut self,
        pipeline: &mut PipelinedClient,
        key: u64,
        kind: u64,
        condition: SetCondition,
    ) -> Result<bool, ClientError> {
        write_key_bytes(key, &mut self.key_buffer);
        self.puts_started = self.puts_started.wrapping_add(1);
        self.last_stamp = self.writer_number_in_upper_half | (self.puts_started & 0xffff_ffff);
        write_value_bytes(key, self.last_stamp, &mut self.value_buffer);
        let op = Op::Put {
            key: &self.key_buffer,
            value: &self.value_buffer,
            condition,
            ttl_ms: 0,
        };
        let token = self.make_token(kind, key);
        pipeline.submit(&op, token.0)
    }

    #[inline]
    fn make_token(&self, kind: u64, key: u64) -> LoadToken {
        let floor = if key.is_multiple_of(KEYS_PER_VERSION_CHECKED_KEY) {
            self.highest_versions_of_checked_keys[(key / KEYS_PER_VERSION_CHECKED_KEY) as usize]
        } else {
            0
        };
        LoadToken::new(kind, self.flips_at_server_replacement, floor, key)
    }

    /// Takes and checks answers. Returns the time of the last one, if any arrived.
    #[inline]
    fn poll_and_check_answers(
        &mut self,
        pipeline: &mut PipelinedClient,
    ) -> Result<Option<Instant>, ClientError> {
        let (report, latency, found) = (
            &mut self.report,
            &mut self.latency_ns,
            &mut self.keys_awaiting_update,
        );
        let (versions, length) = (
            &mut self.highest_versions_of_checked_keys,
            self.workload.value_bytes,
        );
        let other = self.flips_at_server_replacement;
        let mut seen = None;
        pipeline.poll(|done| {
            seen = Some(done.completed_at);
            report.operations += u64::from(done.answer != Answer::NoAnswerInTime);
            let token = LoadToken(done.token);
            let key = token.key();
            let version = match done.answer {
                Answer::Value { value, version } => {
                    report.gets += 1;
                    report.checked_values += 1;
                    if value.len() != length || verified_stamp(key, value).is_none() {
                        report.wrong_values += 1;
                    }
                    if token.kind() == KIND_RMW_GET {
                        found.push((key, version));
                    }
                    version
                }
                Answer::Changed { version } => {
                    report.changes += 1;
                    version
                }
                Answer::NotFound => {
                    report.gets += 1;
                    report.misses += 1;
                    0
                }
                Answer::ConditionNotMet { .. } => {
                    report.conflicts += 1;
                    0
                }
                Answer::StoreFull | Answer::TooLong => {
                    report.changes_refused_as_full += 1;
                    0
                }
                Answer::NoAnswerInTime => {
                    report.unanswered_requests += 1;
                    0
                }
            };
            if key.is_multiple_of(KEYS_PER_VERSION_CHECKED_KEY)
                && version != 0
                && token.flips_at_server_replacement() == other
            {
                if version < token.low_bits_of_min_allowed_version() {
                    report.wrong_versions += 1;
                }
                let highest = &mut versions[(key / KEYS_PER_VERSION_CHECKED_KEY) as usize];
                *highest = version.max(*highest);
            }
            let nanos = done
                .completed_at
                .duration_since(done.submitted_at)
                .as_nanos();
            let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
            // Latencies are capped at a minute.
            *latency += nanos.min(60_000_000_000);
        })?;
        if pipeline.server_incarnation() != self.last_server_incarnation {
            // The new server does not know the earlier versions.
            self.last_server_incarnation = pipeline.server_incarnation();
            self.flips_at_server_replacement = !self.flips_at_server_replacement;
            self.highest_versions_of_checked_keys.fill(0);
        }
        while let Some((key, version)) = self.keys_awaiting_update.pop() {
            let condition = SetCondition::Version(version);
            if !self.start_put(pipeline, key, KIND_RMW_WRITE, condition)? {
                self.keys_awaiting_update.push((key, version));
                break;
            }
        }
        Ok(seen)
    }

    fn into_report(mut self, pipeline: &PipelinedClient, started: Instant) -> LoadReport {
        let seconds = time::now().duration_since(started).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = self.report.operations as f64 / seconds.max(1e-9);
        (self.report.seconds, self.report.operations_per_s) = (seconds, rate);
        self.report.latency = LatencySummary::from_histogram(&self.latency_ns);
        self.report.doorbells = pipeline.doorbells();
        self.report.client_stats = pipeline.stats().clone();
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_hold_what_is_put_in() {
        for kind in [KIND_GET, KIND_PUT, KIND_RMW_GET, KIND_RMW_WRITE] {
            let token = LoadToken::new(kind, kind == KIND_PUT, 12_345, 0xffff_fffe);
            assert_eq!(
                (token.kind(), token.flips_at_server_replacement()),
                (kind, kind == KIND_PUT)
            );
            assert_eq!(
                (token.low_bits_of_min_allowed_version(), token.key()),
                (12_345, 0xffff_fffe)
            );
        }
    }

    #[test]
    fn workloads_of_ycsb_are_known_by_their_letters() {
        let d = Workload::default().ycsb("d".parse().expect("known"));
        assert!(d.puts_go_to_new_keys && matches!(d.popularity, Popularity::Latest(_)));
        assert!("E".parse::<Ycsb>().expect_err("scans").contains("scans"));
        assert!("x".parse::<Ycsb>().is_err());
    }
}
