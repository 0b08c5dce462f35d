//! The load generator: asks a tree for keys, and checks that every answer is what it must be.
//!
//! A workload has *stable* keys, which are in the tree all the time, and *own* keys, which one client alone inserts and
//! deletes. Stable key number `i` is `i * 256`; the own keys of a client lie between, so inserts and deletes go to all leaves
//! alike. A value follows from its key and a stamp ([`value_of`]), so a value of another key is found. Checked is:
//!
//! - Every lookup of a stable key finds a value of that key.
//! - A client finds an own key exactly when its last change of that key put it there: deleted keys stay away.
//! - A SCAN begins where it was asked to, is in ascending order, and has every stable key in between, once.

mod run;

use serde::{Deserialize, Serialize};
use service::random::mix;

use crate::{ClientStats, Latency};

pub use run::{Until, fill, run};
pub use service::workload::Popularity;

/// The distance of stable keys.
pub const STRIDE: u64 = 256;
/// Clients with own keys of their own.
pub const MAX_CLIENTS: u64 = STRIDE - 1;

/// Stable key number `i`.
#[inline]
pub fn key_of(i: u64) -> u64 {
    i * STRIDE
}

/// The value that belongs to a key and a stamp, which says who put it and when: the stamp in the lower half.
#[inline]
pub fn value_of(key: u64, stamp: u32) -> u64 {
    let stamp = u64::from(stamp);
    mix(key ^ stamp.rotate_left(40)) << 32 | stamp
}

/// Whether a value belongs to a key.
#[inline]
pub fn is_of(key: u64, value: u64) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let stamp = value as u32;
    value_of(key, stamp) == value
}

/// What a load does. The shares are of all operations; what they leave is lookups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The tree.
    pub tree: u8,
    /// Stable keys, 1 to 2^40.
    pub keys: u64,
    /// Which keys.
    pub popularity: Popularity,
    /// The share of updates of stable keys, 0 to 1.
    pub updates: f64,
    /// The share of inserts of own keys, and of deletes of those that are there, 0 to 1.
    pub inserts: f64,
    /// The share of lookups of own keys, 0 to 1.
    pub own_lookups: f64,
    /// The share of SCANs, 0 to 1.
    pub scans: f64,
    /// Entries of a SCAN: from 1 to so many, or always so many.
    pub scan_length: u32,
    /// Whether SCANs have any length up to that.
    pub scans_vary: bool,
    /// The share of read-modify-writes: a lookup of a stable key, and then its update; 0 to 1.
    pub read_updates: f64,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            tree: 0,
            keys: 1 << 20,
            popularity: Popularity::Uniform,
            updates: 0.0,
            inserts: 0.0,
            own_lookups: 0.0,
            scans: 0.0,
            scan_length: 100,
            scans_vary: false,
            read_updates: 0.0,
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
    /// A workload of YCSB by its letter; its keys are of `self`.
    #[must_use]
    pub fn ycsb(self, letter: Ycsb) -> Self {
        const EXPONENT: f64 = 0.99;
        let popularity = match letter {
            Ycsb::D => Popularity::Latest(EXPONENT),
            _ => Popularity::Zipf(EXPONENT),
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
                updates: 0.5,
                ..plain
            },
            Ycsb::B => Self {
                updates: 0.05,
                ..plain
            },
            Ycsb::C => plain,
            Ycsb::D => Self {
                inserts: 0.05,
                own_lookups: 0.95,
                ..plain
            },
            Ycsb::E => Self {
                inserts: 0.05,
                scans: 0.95,
                scan_length: 100,
                scans_vary: true,
                ..plain
            },
            Ycsb::F => Self {
                read_updates: 0.5,
                ..plain
            },
        }
    }
}

/// What a client got.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// How long it took.
    pub seconds: f64,
    /// Operations a second.
    pub rate: f64,
    /// Operations that were answered.
    pub operations: u64,
    /// Lookups among them.
    pub lookups: u64,
    /// Changes among them.
    pub changes: u64,
    /// SCANs among them.
    pub scans: u64,
    /// Entries that SCANs returned.
    pub scanned: u64,
    /// Answers that were checked.
    pub verified: u64,
    /// Values of other keys.
    pub wrong_values: u64,
    /// Keys that were not found though they must be there.
    pub missing: u64,
    /// Keys that were found though they were deleted.
    pub ghosts: u64,
    /// SCANs out of order, with a gap, or with a key twice.
    pub wrong_scans: u64,
    /// Changes that were refused as the store was full.
    pub full: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// From when a request was submitted until its answer was seen.
    pub latency: Latency,
    /// Doorbells that requests took.
    pub doorbells: u64,
    /// What the client had to do besides.
    pub client: ClientStats,
}

impl LoadReport {
    /// Whether everything that came was right.
    pub fn is_right(&self) -> bool {
        self.wrong() == 0
    }

    /// Answers that were not right.
    pub fn wrong(&self) -> u64 {
        self.wrong_values + self.missing + self.ghosts + self.wrong_scans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_belongs_to_one_key() {
        for key in (0..1000).map(key_of) {
            let value = value_of(key, 77);
            assert!(is_of(key, value) && !is_of(key + 1, value) && !is_of(key, value ^ 1 << 40));
        }
    }

    #[test]
    fn workloads_of_ycsb_are_known_by_their_letters() {
        let e = Workload::default().ycsb("e".parse().expect("known"));
        assert!(e.scans > 0.9 && e.scans_vary);
        assert!("x".parse::<Ycsb>().is_err());
    }
}
