//! The results of all designs: the table, and a comparison of the designs in words.

use anyhow::Result;
use bench::stats::MedianAndSpread;
use sequencer::Design;
use serde::Serialize;

use super::arguments::Args;
use super::round::Round;
use crate::output::{self, format_three_digits, format_time_ns, print_line};
use crate::side_by_side::{format_rate_mops, spread, yes_or_no};

/// A row of the table: one design.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) design: Design,
    pub(super) summary: &'static str,
    /// The kind of NIC that was measured.
    #[serde(rename = "kind")]
    pub(super) nic_kind: &'static str,
    pub(super) rate_per_s: MedianAndSpread,
    /// The rate divided by the rate of the table's first design in the same round.
    #[serde(rename = "ratio_to_first")]
    pub(super) rate_ratio_to_first_design: MedianAndSpread,
    pub(super) latency_ns_p50: f64,
    pub(super) latency_ns_p99: f64,
    /// Answers per doorbell of the server. With atomics no server answers; the number is then the
    /// requests per doorbell of the client.
    pub(super) requests_per_doorbell: f64,
    /// Doorbells of client and server, per request.
    pub(super) doorbells_per_request: f64,
    /// Cache lines that carry a request and its answer between client and server.
    pub(super) cache_lines_per_request: f64,
    #[serde(rename = "lost")]
    pub(super) lost_requests: u64,
    #[serde(rename = "verified")]
    pub(super) all_verified: bool,
}

/// Returns the number of cache lines that carry a request and its answer between client and server.
///
/// The software NIC writes 16 bytes for a message without payload, and 16 bytes more for each 16
/// bytes of inline payload. Four such pieces share a cache line. An RDMA WRITE writes only its
/// payload into the target's memory.
fn cache_lines_per_request(design: Design) -> f64 {
    const CACHE_LINE_BYTES: f64 = 64.0;
    const HEADER_ONLY: f64 = 16.0;
    const WITH_8_BYTES: f64 = 32.0;
    const REQUEST_SLOT: f64 = 8.0;
    match design {
        // The counter's cache line moves to the core that executes the atomic.
        Design::Atomics => 1.0,
        Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => {
            (REQUEST_SLOT + WITH_8_BYTES) / CACHE_LINE_BYTES
        }
        Design::SpecS0 => 2.0 * HEADER_ONLY / CACHE_LINE_BYTES,
    }
}

#[allow(clippy::cast_precision_loss)] // counts far below 2^52
/// Computes the row of `design` from its rounds.
pub(super) fn row(
    design: Design,
    first: Design,
    kind: &'static str,
    rounds: &[Round],
) -> Result<Row> {
    let of = |wanted: Design| rounds.iter().filter(move |round| round.design == wanted);
    let sum = |of: fn(&Round) -> u64| {
        rounds
            .iter()
            .filter(|r| r.design == design)
            .map(of)
            .sum::<u64>()
    };
    let requests = sum(|r| r.requests).max(1) as f64;
    let (client, server) = (
        sum(|r| r.client_doorbells) as f64,
        sum(|r| r.server_doorbells) as f64,
    );
    let answering = if server > 0.0 { server } else { client };
    Ok(Row {
        design,
        summary: design.summary(),
        nic_kind: kind,
        rate_per_s: spread(of(design).map(|r| r.rate_per_s))?,
        rate_ratio_to_first_design: spread(
            of(design)
                .zip(of(first))
                .map(|(round, first)| round.rate_per_s / first.rate_per_s),
        )?,
        latency_ns_p50: spread(of(design).map(|r| r.latency_ns_p50 as f64))?.median,
        latency_ns_p99: spread(of(design).map(|r| r.latency_ns_p99 as f64))?.median,
        requests_per_doorbell: requests / answering.max(1.0),
        doorbells_per_request: (client + server) / requests,
        cache_lines_per_request: cache_lines_per_request(design),
        lost_requests: sum(|r| r.lost_requests),
        all_verified: of(design).all(|round| round.verdict.ok),
    })
}

/// Prints the table, and the comparison of designs in words.
pub(super) fn print_comparison(
    args: &Args,
    kind: &str,
    device: &str,
    bounce_ns: Option<MedianAndSpread>,
    rows: &[Row],
) -> Result<()> {
    show_setup(args, kind, device, bounce_ns)?;
    let header = [
        "design",
        "requests/s",
        "to first",
        "median",
        "p99",
        "per doorbell",
        "doorbells",
        "cache lines",
        "verified",
    ];
    let mut table = output::table(header, &[1, 2, 3, 4, 5, 6, 7]);
    for row in rows {
        table.add_row([
            row.design.to_string(),
            format_rate_mops(row.rate_per_s),
            format!(
                "{} x",
                format_three_digits(row.rate_ratio_to_first_design.median)
            ),
            format_time_ns(row.latency_ns_p50),
            format_time_ns(row.latency_ns_p99),
            format_three_digits(row.requests_per_doorbell),
            format_three_digits(row.doorbells_per_request),
            format_three_digits(row.cache_lines_per_request),
            yes_or_no(row.all_verified).to_owned(),
        ]);
    }
    print_line(table)?;
    print_line(
        "\nmedian, p99: from the doorbell of a postlist to the last of its answers\n\
         per doorbell: requests answered with one doorbell (atomics: posted with one)\n\
         doorbells, cache lines: of both sides, for one request and its answer\n",
    )?;
    for row in rows {
        print_line(format_args!("{:<13} {}", row.design.name(), row.summary))?;
    }
    print_line("")?;
    for line in describe_design_differences(rows) {
        print_line(format_args!("- {line}"))?;
    }
    for row in rows.iter().filter(|row| row.lost_requests > 0) {
        eprintln!(
            "note: {}: {} answers were lost and asked for again",
            row.design, row.lost_requests
        );
    }
    Ok(())
}

/// Prints the settings, the NIC and the distance of the cores.
fn show_setup(
    args: &Args,
    kind: &str,
    device: &str,
    bounce_ns: Option<MedianAndSpread>,
) -> Result<()> {
    let bounce = bounce_ns.map_or_else(
        || "both sides share their only core".to_owned(),
        |ns| {
            let [median, min, max] = [ns.median, ns.min, ns.max].map(format_three_digits);
            format!("a cache line takes {median} ns ({min}..{max}) between the two sides' cores")
        },
    );
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    print_line(format_args!(
        "{kind} {device}: {} with {}, {} outstanding each, {} to a postlist; {}\n\
         median of {} rounds of {} ms, interleaved; {}\n",
        plural(args.clients(), "client process").replace("processs", "processes"),
        plural(args.threads, "thread"),
        args.window(),
        args.postlist,
        plural(args.workers, "worker"),
        args.rounds,
        args.duration().as_millis(),
        bounce,
    ))
}

/// Compares the designs in words, with their figures: which change gains and which does not. A
/// difference within the noise is called noise, and no cause is given for it.
fn describe_design_differences(rows: &[Row]) -> Vec<String> {
    let of = |design: Design| rows.iter().find(|row| row.design == design);
    let mut lines = Vec::new();
    let mut compare = |name: &str, from: &Row, to: &Row, why: String| {
        let differ = rate_difference(from, to);
        lines.push(match differ {
            RateDifference::WithinNoise(words) => format!("{name}: {words}."),
            RateDifference::BeyondNoise { words, .. } => format!("{name}: {why}: {words}."),
        });
    };
    if let (Some(from), Some(to)) = (of(Design::Rpc), of(Design::RpcBatch)) {
        let why = format!(
            "{} answers leave with one doorbell where rpc sends {}, and one atomic add serves them all",
            format_three_digits(to.requests_per_doorbell),
            format_three_digits(from.requests_per_doorbell),
        );
        compare("Doorbell batching", from, to, why);
    }
    if let (Some(from), Some(to)) = (of(Design::RpcBatch), of(Design::RpcBatchMq)) {
        let why = "a NIC's processing unit works on one queue pair at a time, so rotating over several lets more units \
                   work";
        compare("Several queue pairs", from, to, why.to_owned());
    }
    if let (Some(from), Some(to)) = (
        of(Design::RpcBatchMq).or(of(Design::RpcBatch)),
        of(Design::SpecS0),
    ) {
        let why = format!(
            "a request and its answer take {} cache lines instead of {}, with the number in the immediate",
            format_three_digits(to.cache_lines_per_request),
            format_three_digits(from.cache_lines_per_request),
        );
        compare("Header-only messages", from, to, why);
    }
    let others = rows.iter().filter(|row| row.design != Design::Atomics);
    if let (Some(atomics), Some(best)) = (
        of(Design::Atomics),
        others.max_by(|a, b| a.rate_per_s.median.total_cmp(&b.rate_per_s.median)),
    ) {
        lines.push(describe_gain_over_atomics(atomics, best));
    }
    lines
}

/// Compares the design with remote atomics with the best of all other designs.
fn describe_gain_over_atomics(atomics: &Row, best: &Row) -> String {
    let name = "Remote atomics need no server CPU";
    match rate_difference(atomics, best) {
        RateDifference::WithinNoise(words) => {
            format!("{name}: {} beside them is {words}.", best.design)
        }
        RateDifference::BeyondNoise { words, gain } => {
            let alone = if gain < 1.0 {
                " Few clients leave that line where it is; more of them (--clients) pull it to and fro."
            } else {
                ""
            };
            format!(
                "{name}, and each of them needs the counter's cache line to itself: against them, {} is {words}.{alone}",
                best.design
            )
        }
    }
}

/// The difference between two rates.
enum RateDifference {
    /// The ranges of the two rates overlap, so the difference may be noise.
    WithinNoise(String),
    /// The ranges of the two rates do not overlap.
    BeyondNoise {
        /// The ratio of the two median rates.
        gain: f64,
        words: String,
    },
}

fn rate_difference(from: &Row, to: &Row) -> RateDifference {
    let (before, after) = (from.rate_per_s, to.rate_per_s);
    if before.overlaps(&after) {
        let range = |of: MedianAndSpread| {
            format!(
                "{}..{}",
                format_three_digits(of.min / 1e6),
                format_three_digits(of.max / 1e6)
            )
        };
        let (before, after) = (range(before), range(after));
        return RateDifference::WithinNoise(format!(
            "within the noise ({after} M/s beside {before} M/s of {})",
            from.design
        ));
    }
    let gain = after.median / before.median;
    let words = if gain >= 1.0 {
        format!("{} x faster", format_three_digits(gain))
    } else {
        format!("{} x slower here", format_three_digits(1.0 / gain))
    };
    RateDifference::BeyondNoise { gain, words }
}

#[cfg(test)]
mod tests {
    use sequencer::NumberChecker;

    use super::*;

    fn round(number: u32, design: Design, rate_per_s: f64) -> Round {
        let mut checker = NumberChecker::new(0);
        checker.add_numbers("a", &(0..10).collect());
        Round {
            round: number,
            design,
            bounce_ns: Some(30.0),
            requests: 100,
            rate_per_s,
            latency_ns_p50: 1500,
            latency_ns_p99: 9000,
            client_doorbells: 10,
            server_doorbells: if design == Design::Atomics { 0 } else { 50 },
            wrong_guesses: 0,
            lost_requests: 0,
            verdict: checker.verdict(Some(10)),
        }
    }

    fn rows() -> Vec<Row> {
        let mut rounds = Vec::new();
        for number in 0..3 {
            for (place, design) in (1u32..).zip(Design::ALL) {
                let rate = f64::from(place) * (1.0 + f64::from(number) / 64.0);
                rounds.push(round(number, design, rate * 1e6));
            }
        }
        Design::ALL
            .iter()
            .map(|design| row(*design, Design::Atomics, "software NIC", &rounds).unwrap())
            .collect()
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let rows = rows();
        let ratio = rows[4].rate_ratio_to_first_design;
        assert_eq!((ratio.min, ratio.median, ratio.max), (5.0, 5.0, 5.0));
        assert_eq!(rows[0].rate_ratio_to_first_design.median, 1.0);
    }

    #[test]
    fn doorbells_are_counted_on_both_sides() {
        let rows = rows();
        assert_eq!(rows[0].requests_per_doorbell, 10.0);
        assert_eq!(rows[1].requests_per_doorbell, 2.0);
        assert_eq!(rows[1].doorbells_per_request, 0.6);
    }

    #[test]
    fn a_header_only_exchange_takes_the_fewest_lines() {
        let lines = Design::ALL.map(cache_lines_per_request);
        assert!(lines[4] < lines[3] && lines[3] < lines[0], "{lines:?}");
    }

    #[test]
    fn lessons_speak_of_what_ran() {
        let rows = rows();
        assert_eq!(describe_design_differences(&rows).len(), 4);
        assert!(
            describe_design_differences(&rows)[0].contains("1.50 x faster"),
            "{:?}",
            describe_design_differences(&rows)
        );
        assert!(describe_design_differences(&rows[..1]).is_empty());
    }

    #[test]
    fn what_overlaps_is_noise_and_has_no_cause() {
        let mut rows = rows();
        // Make the ranges of rpc and rpc-batch touch; the medians stay.
        rows[1].rate_per_s.max = rows[2].rate_per_s.min;
        let lines = describe_design_differences(&rows);
        assert!(
            lines[0].starts_with(
                "Doorbell batching: within the noise (3.00..3.09 M/s beside 2.00..3.00 M/s of rpc)"
            ),
            "{lines:?}"
        );
        assert!(!lines[0].contains("one doorbell"), "{lines:?}");
        rows[0].rate_per_s.max = 1e9;
        let lines = describe_design_differences(&rows);
        assert!(lines[3].contains("is within the noise ("), "{lines:?}");
        assert!(!lines[3].contains("cache line"), "{lines:?}");
    }

    #[test]
    fn one_number_twice_and_the_design_is_not_verified() {
        let mut bad = round(0, Design::Rpc, 1e6);
        bad.verdict.ok = false;
        let rounds = [round(0, Design::Rpc, 1e6), bad];
        assert!(
            !row(Design::Rpc, Design::Rpc, "software NIC", &rounds)
                .unwrap()
                .all_verified
        );
    }
}
