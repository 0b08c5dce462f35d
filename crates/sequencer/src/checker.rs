//! Checks the output of a sequencer: no number is given twice or skipped without a reason, and numbers increase at
//! every client.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ClientReport, NumberSet};

/// Collects the numbers of all clients.
///
/// ```
/// use sequencer::{NumberChecker, NumberSet};
/// let mut checker = NumberChecker::new(100);
/// checker.add_numbers("a", &(100..150).collect::<NumberSet>());
/// checker.add_numbers("b", &(150..200).collect::<NumberSet>());
/// let verdict = checker.verdict(Some(200));
/// assert!(verdict.ok);
/// ```
#[derive(Debug, Clone)]
pub struct NumberChecker {
    first_number: u64,
    number_set: NumberSet,
    checked_client_count: usize,
    duplicate_count: u64,
    duplicate_example: Option<(String, u64)>,
    out_of_order_count: u64,
    lost_message_count: u64,
    dead_client_count: usize,
    server_restart_count: usize,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberVerdict {
    /// True if all checks passed and at least one number was checked.
    pub ok: bool,
    /// Number of clients whose numbers were checked.
    #[serde(rename = "clients")]
    pub checked_clients: usize,
    /// Number of values that were checked.
    #[serde(rename = "numbers")]
    pub checked_numbers: u64,
    /// Numbers that were given more than once.
    pub duplicates: u64,
    /// An example of a duplicate: the client that got the number again, and the number.
    #[serde(rename = "duplicate")]
    pub duplicate_example: Option<(String, u64)>,
    /// Numbers that arrived at a client out of order.
    #[serde(rename = "not_increasing")]
    pub not_increasing_numbers: u64,
    /// Numbers below the server's next one that no client reported.
    pub skipped: u64,
    /// Requests or answers that were lost or discarded: each may have skipped a number.
    #[serde(rename = "lost")]
    pub lost_messages: u64,
    /// Clients that died: their numbers are not known.
    #[serde(rename = "died")]
    pub dead_clients: usize,
    /// Restarts of the server: each may have skipped the reserved numbers.
    pub restarts: usize,
    /// Numbers below the start, or not below the server's next number.
    #[serde(rename = "outside")]
    pub out_of_range_numbers: u64,
}

impl NumberChecker {
    /// Creates a checker for a server whose first number is `start`.
    pub fn new(start: u64) -> Self {
        Self {
            first_number: start,
            number_set: NumberSet::new(),
            checked_client_count: 0,
            duplicate_count: 0,
            duplicate_example: None,
            out_of_order_count: 0,
            lost_message_count: 0,
            dead_client_count: 0,
            server_restart_count: 0,
        }
    }

    /// Adds a client's report.
    pub fn add_report(&mut self, name: &str, report: &ClientReport) {
        self.add_numbers(name, &report.number_set);
        self.duplicate_count += report.duplicates;
        self.out_of_order_count += report.not_increasing_numbers;
        self.lost_message_count += report.failures.lost + report.failures.discarded;
    }

    /// Adds the numbers of a client.
    pub fn add_numbers(&mut self, name: &str, numbers: &NumberSet) {
        self.checked_client_count += 1;
        let (duplicates, example) = self.number_set.merge_and_count_duplicates(numbers);
        self.duplicate_count += duplicates;
        if let (None, Some(n)) = (&self.duplicate_example, example) {
            self.duplicate_example = Some((name.to_owned(), n));
        }
    }

    /// Records that a client died without a report.
    pub fn record_client_death(&mut self) {
        self.dead_client_count += 1;
    }

    /// Records that the server was restarted.
    pub fn record_server_restart(&mut self) {
        self.server_restart_count += 1;
    }

    /// Returns the verdict; `next` is the server's next number, if known.
    pub fn verdict(&self, next: Option<u64>) -> NumberVerdict {
        let bounds = self.number_set.min_and_max();
        let end = next.unwrap_or_else(|| {
            bounds.map_or(self.first_number, |(_, last)| last.saturating_add(1))
        });
        let count = |from: u64, to: u64| -> u64 {
            // `to` is exclusive; runs are inclusive.
            self.number_set
                .runs()
                .iter()
                .filter(|r| r.1 >= from && r.0 < to)
                .map(|r| r.1.min(to - 1) - r.0.max(from) + 1)
                .sum()
        };
        let inside = if end > self.first_number {
            count(self.first_number, end)
        } else {
            0
        };
        let numbers = self.number_set.len();
        let outside = numbers - inside;
        let skipped = end.saturating_sub(self.first_number).saturating_sub(inside);
        let excused = skipped <= self.lost_message_count
            || self.dead_client_count > 0
            || self.server_restart_count > 0;
        NumberVerdict {
            ok: numbers > 0
                && self.duplicate_count == 0
                && self.out_of_order_count == 0
                && outside == 0
                && excused,
            checked_clients: self.checked_client_count,
            checked_numbers: numbers,
            duplicates: self.duplicate_count,
            duplicate_example: self.duplicate_example.clone(),
            not_increasing_numbers: self.out_of_order_count,
            skipped,
            lost_messages: self.lost_message_count,
            dead_clients: self.dead_client_count,
            restarts: self.server_restart_count,
            out_of_range_numbers: outside,
        }
    }
}

impl fmt::Display for NumberVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            checked_clients: clients,
            checked_numbers: numbers,
            skipped,
            lost_messages: lost,
            dead_clients,
            restarts,
            ..
        } = self;
        let s = if *clients == 1 { "" } else { "s" };
        write!(
            f,
            "{}: {numbers} numbers of {clients} client{s}",
            if self.ok { "verified" } else { "FAILED" }
        )?;
        match (&self.duplicate_example, self.duplicates) {
            (_, 0) => write!(f, ", none twice")?,
            (Some((who, n)), d) => write!(f, ", {d} TWICE (such as {n}, again at {who})")?,
            (None, d) => write!(f, ", {d} TWICE at the same client")?,
        }
        match self.not_increasing_numbers {
            0 => write!(f, ", increasing for every client")?,
            n => write!(f, ", {n} NOT INCREASING")?,
        }
        match skipped {
            0 => write!(f, ", none skipped")?,
            n => write!(
                f,
                ", {n} skipped ({lost} lost messages, {dead_clients} dead clients, {restarts} restarts)"
            )?,
        }
        if self.out_of_range_numbers > 0 {
            write!(
                f,
                ", {} OUTSIDE of what the server gave",
                self.out_of_range_numbers
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(range: std::ops::Range<u64>) -> NumberSet {
        range.collect()
    }

    #[test]
    fn a_good_run_is_verified() {
        let mut c = NumberChecker::new(10);
        c.add_numbers("a", &(10..1_000_000).step_by(2).collect());
        c.add_numbers("b", &(11..1_000_000).step_by(2).collect());
        let v = c.verdict(Some(1_000_000));
        assert!(v.ok, "{v}");
        assert_eq!(
            v.to_string(),
            "verified: 999990 numbers of 2 clients, none twice, increasing for every client, none skipped"
        );
    }

    #[test]
    fn a_planted_duplicate_is_found() {
        let mut c = NumberChecker::new(0);
        c.add_numbers("a", &set(0..500));
        c.add_numbers("b", &set(499..900));
        let v = c.verdict(Some(900));
        assert!(!v.ok);
        assert_eq!(
            (v.duplicates, v.duplicate_example),
            (1, Some(("b".to_owned(), 499)))
        );
    }

    #[test]
    fn a_planted_gap_is_found_and_excused_only_by_a_reason() {
        let mut c = NumberChecker::new(0);
        c.add_numbers("a", &set(0..500));
        c.add_numbers("b", &set(502..900));
        assert_eq!(
            (c.verdict(Some(900)).ok, c.verdict(Some(900)).skipped),
            (false, 2)
        );
        c.lost_message_count = 1;
        assert!(!c.verdict(Some(900)).ok);
        c.lost_message_count = 2;
        assert!(c.verdict(Some(900)).ok);
        c.lost_message_count = 0;
        c.record_client_death();
        assert!(c.verdict(Some(900)).ok);
    }

    #[test]
    fn numbers_that_the_server_never_gave_are_found() {
        let mut c = NumberChecker::new(100);
        c.add_numbers("a", &set(99..200));
        assert_eq!(
            (
                c.verdict(Some(200)).ok,
                c.verdict(Some(200)).out_of_range_numbers
            ),
            (false, 1)
        );
        assert_eq!(
            (
                c.verdict(Some(150)).ok,
                c.verdict(Some(150)).out_of_range_numbers
            ),
            (false, 51)
        );
    }

    #[test]
    fn order_violations_fail() {
        let mut c = NumberChecker::new(0);
        c.add_numbers("a", &set(0..10));
        c.out_of_order_count = 1;
        assert!(!c.verdict(None).ok);
    }
}
