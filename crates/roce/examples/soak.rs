//! Sends many messages over a faulty network, and measures the packets per second of one core.
//!
//! `cargo run --release -p verbatim-roce --example soak -- --messages 10000000 --fault 0.01 --seed 1`

#[path = "../tests/simulation/world/mod.rs"]
mod world;

use std::process::ExitCode;
use std::time::Instant;

use world::{Plan, World};

fn main() -> ExitCode {
    let Some(plan) = plan(std::env::args().skip(1)) else {
        eprintln!("usage: soak [--messages N] [--fault PROBABILITY] [--seed N]");
        return ExitCode::from(2);
    };
    println!("{plan}");
    let start = Instant::now();
    let report = match World::new(plan).run() {
        Ok(report) => report,
        Err(violation) => {
            eprintln!("{violation}");
            return ExitCode::FAILURE;
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    println!("{report:#?}");
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    let mega = |count: u64| count as f64 / seconds / 1e6;
    println!(
        "{seconds:.1} s, {:.2} M packets/s sent, {:.2} M messages/s",
        mega(report.counts.sent),
        mega(report.messages),
    );
    ExitCode::SUCCESS
}

/// Parses the command line into a plan; `None` if it is not understood.
fn plan(mut arguments: impl Iterator<Item = String>) -> Option<Plan> {
    let mut plan = Plan {
        seed: 1,
        messages: 100_000,
        fault: 0.01,
    };
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        match name.as_str() {
            "--messages" => plan.messages = value.parse().ok()?,
            "--fault" => plan.fault = value.parse().ok().filter(|p| (0.0..=0.3).contains(p))?,
            "--seed" => plan.seed = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(plan)
}
