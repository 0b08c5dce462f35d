//! Measures LMDB behind TCP: `cargo run --release -p bench --example lmdb -- [KEYS] [SECONDS]`.
//!
//! The client runs on the first core that this process may use, the server on the second.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::core_pinning::{CorePair, run_pinned};
use bench::link::{WorkerCommand, WorkerLink};
use bench::peers::lmdb::{LmdbEntryKind, LmdbMeasurement, LmdbParameters, LmdbPeer};

/// Entries that each scan reads.
const ENTRIES: u32 = 100;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "worker") {
        return bench::worker::run_jobs(&mut WorkerLink::stdio(), None);
    }
    let number = |at: usize, default: u64| match arguments.get(at) {
        Some(text) => text
            .parse()
            .with_context(|| format!("{text:?} is no number")),
        None => Ok(default),
    };
    let (keys, seconds) = (number(0, 1_000_000)?, number(1, 2)?);
    let worker = WorkerCommand {
        path: std::env::current_exe()?,
        args: vec!["worker".to_owned()],
        envs: Vec::new(),
    };
    let cores = CorePair::first_two()?;
    let mut link = WorkerLink::spawn(&worker, cores.responder)?;
    run_pinned(cores.requester, || {
        measure(&mut link, keys, Duration::from_secs(seconds))
    })
}

fn measure(link: &mut WorkerLink, keys: u64, duration: Duration) -> Result<()> {
    let say = |what: &str, rate: &LmdbMeasurement| {
        println!(
            "{what:<10} {:>9.3} M/s  ({} operations, all checked, {:.2} s)",
            rate.requests_per_s() / 1e6,
            rate.operations,
            rate.elapsed_seconds
        );
    };
    let setup = LmdbParameters {
        loaded_key_count: keys,
        entry_kind: LmdbEntryKind::Numbers {
            value_of_key: service::random::mix_bits,
        },
        window: 64,
        seed: 1,
    };
    let mut lmdb = LmdbPeer::start(link, setup)?;
    say("load", &lmdb.measure_load()?);
    say("lookups", &lmdb.measure_lookups(duration)?);
    let scans = lmdb.measure_scans(ENTRIES, duration)?;
    say("scans", &scans);
    println!(
        "{:<10} {:>9.3} M/s",
        "entries",
        scans.requests_per_s() * f64::from(ENTRIES) / 1e6
    );
    say("inserts", &lmdb.measure_inserts(duration)?);
    lmdb.stop()
}
