//! The load generator: sends requests to a tree, and checks every answer.
//!
//! A workload has *stable* keys, which are in the tree all the time, and *own* keys, which only one client inserts and
//! deletes. Stable key number `i` is `i * 256`. In a tree of byte strings, [`NumberStrings`] stand for all numbers. The
//! own keys of clients lie between the stable keys, so inserts and deletes spread over all leaves. A value is computed
//! from its key and a stamp ([`value_of`]), so the value of a wrong key is detected. The checks are:
//!
//! - Every lookup of a stable key finds a value of that key.
//! - A client finds an own key exactly if its last change of that key inserted it.
//! - A SCAN begins at the requested key, ascends, and has every stable key of its range exactly once.

mod run;
mod strings;

use serde::{Deserialize, Serialize};
use service::random::mix_bits;

use crate::{ClientStats, LatencySummary};

pub use run::{LoadEnd, put_stable_keys, run};
pub use service::workload::Popularity;
pub use strings::{MIN_STRING_BYTES, NumberStrings, NumberedClient};

/// The distance between stable keys.
pub const STABLE_KEY_DISTANCE: u64 = 256;
/// Largest number of clients with own keys.
pub const MAX_OWN_KEY_CLIENTS: u64 = STABLE_KEY_DISTANCE - 1;

/// Returns stable key number `i`.
#[inline]
pub fn stable_key(i: u64) -> u64 {
    i * STABLE_KEY_DISTANCE
}

/// Returns the value for a key and a stamp. The lower half is the stamp, which identifies the writer and the write.
#[inline]
pub fn value_of(key: u64, stamp: u32) -> u64 {
    let stamp = u64::from(stamp);
    mix_bits(key ^ stamp.rotate_left(40)) << 32 | stamp
}

/// Returns true if [`value_of`] can have made this value for this key.
#[inline]
pub fn value_belongs_to_key(key: u64, value: u64) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let stamp = value as u32;
    value_of(key, stamp) == value
}

/// A mix of operations. The fractions are of all operations; lookups of stable keys make up the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The number of the tree.
    pub tree: u8,
    /// Number of stable keys, 1 to 2^40.
    pub keys: u64,
    /// The distribution of the keys.
    pub popularity: Popularity,
    /// Fraction of updates of stable keys, 0 to 1.
    #[serde(rename = "updates")]
    pub update_fraction: f64,
    /// Fraction of inserts of own keys and deletes of present ones, 0 to 1.
    #[serde(rename = "inserts")]
    pub insert_fraction: f64,
    /// Fraction of lookups of own keys, 0 to 1.
    #[serde(rename = "own_lookups")]
    pub own_lookup_fraction: f64,
    /// Fraction of SCANs, 0 to 1.
    #[serde(rename = "scans")]
    pub scan_fraction: f64,
    /// Number of entries of a SCAN, or its maximum if `has_random_scan_lengths`.
    pub scan_length: u32,
    /// True if each SCAN's length is random, from 1 to `scan_length`.
    #[serde(rename = "scans_vary")]
    pub has_random_scan_lengths: bool,
    /// Fraction of read-modify-writes, 0 to 1: a lookup of a stable key, and then its update.
    #[serde(rename = "read_updates")]
    pub read_update_fraction: f64,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            tree: 0,
            keys: 1 << 20,
            popularity: Popularity::Uniform,
            update_fraction: 0.0,
            insert_fraction: 0.0,
            own_lookup_fraction: 0.0,
            scan_fraction: 0.0,
            scan_length: 100,
            has_random_scan_lengths: false,
            read_update_fraction: 0.0,
        }
    }
}

/// A workload of YCSB (Cooper et al., SoCC 2010).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ycsb {
    /// Half lookups, half updates.
    A,
    /// 95 % lookups, 5 % updates.
    B,
    /// Lookups only.
    C,
    /// 95 % lookups of the latest keys, 5 % inserts.
    D,
    /// 95 % SCANs of up to 100 entries, 5 % inserts.
    E,
    /// Half lookups, half read-modify-writes.
    F,
}

impl std::str::FromStr for Ycsb {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let all = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];
        all.into_iter()
            .find(|letter| format!("{letter:?}").eq_ignore_ascii_case(s))
            .ok_or_else(|| format!("{s:?} is no workload of YCSB: they are A, B, C, D, E and F"))
    }
}

impl Workload {
    /// Returns a workload of YCSB; `self` gives the tree and the number of keys.
    #[must_use]
    pub fn ycsb(self, letter: Ycsb) -> Self {
        const ZIPF_EXPONENT: f64 = 0.99;
        let popularity = match letter {
            Ycsb::D => Popularity::Latest(ZIPF_EXPONENT),
            _ => Popularity::Zipf(ZIPF_EXPONENT),
        };
        let plain = Self {
            popularity,
            ..Self {
                tree: self.tree,
                keys: self.keys,
                ..Self::default()
            }
        };
        match letter {
            Ycsb::A => Self {
                update_fraction: 0.5,
                ..plain
            },
            Ycsb::B => Self {
                update_fraction: 0.05,
                ..plain
            },
            Ycsb::C => plain,
            Ycsb::D => Self {
                insert_fraction: 0.05,
                own_lookup_fraction: 0.95,
                ..plain
            },
            Ycsb::E => Self {
                insert_fraction: 0.05,
                scan_fraction: 0.95,
                scan_length: 100,
                has_random_scan_lengths: true,
                ..plain
            },
            Ycsb::F => Self {
                read_update_fraction: 0.5,
                ..plain
            },
        }
    }
}

/// The results of one client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Duration in seconds.
    pub seconds: f64,
    /// Operations per second.
    #[serde(rename = "rate")]
    pub operations_per_s: f64,
    /// Number of operations that were answered.
    pub operations: u64,
    /// Lookups among them.
    pub lookups: u64,
    /// Changes among them.
    pub changes: u64,
    /// SCANs among them.
    pub scans: u64,
    /// Entries that SCANs returned.
    #[serde(rename = "scanned")]
    pub scanned_entries: u64,
    /// Answers that were checked.
    #[serde(rename = "verified")]
    pub checked_answers: u64,
    /// Answers with the value of another key, or of another kind than requested.
    pub wrong_values: u64,
    /// Keys that were not found although they must exist.
    #[serde(rename = "missing")]
    pub missing_keys: u64,
    /// Keys that were found although they were deleted.
    #[serde(rename = "ghosts")]
    pub deleted_keys_found: u64,
    /// SCANs out of order, with a gap, or with a key twice.
    pub wrong_scans: u64,
    /// Changes that were refused because the store was full.
    #[serde(rename = "full")]
    pub changes_refused_as_full: u64,
    /// Answers that another server has the key, which the client was not told of.
    #[serde(rename = "moved")]
    pub answers_about_other_servers: u64,
    /// Requests without an answer.
    #[serde(rename = "lost")]
    pub unanswered_requests: u64,
    /// Latency from the submission of a request until its answer was seen.
    pub latency: LatencySummary,
    /// Doorbells for requests.
    pub doorbells: u64,
    /// The client's own statistics, such as retries.
    #[serde(rename = "client")]
    pub client_stats: ClientStats,
}

impl LoadReport {
    /// Returns true if every answer was right.
    pub fn has_no_wrong_answers(&self) -> bool {
        self.wrong_answers() == 0
    }

    /// Returns the number of wrong answers.
    pub fn wrong_answers(&self) -> u64 {
        self.wrong_values + self.missing_keys + self.deleted_keys_found + self.wrong_scans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_belongs_to_one_key() {
        for key in (0..1000).map(stable_key) {
            let value = value_of(key, 77);
            assert!(
                value_belongs_to_key(key, value)
                    && !value_belongs_to_key(key + 1, value)
                    && !value_belongs_to_key(key, value ^ 1 << 40)
            );
        }
    }

    #[test]
    fn workloads_of_ycsb_are_known_by_their_letters() {
        let e = Workload::default().ycsb("e".parse().expect("known"));
        assert!(e.scan_fraction > 0.9 && e.has_random_scan_lengths);
        assert!("x".parse::<Ycsb>().is_err());
    }
}
