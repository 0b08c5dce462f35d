//! `verbatim bench peers --breakdown`: the time of each phase of a message.

use anyhow::{Result, bail};
use bench::goal::Row;
use bench::message_time_breakdown::{
    MeasuredImplementation, MessageTimeBreakdown, TimesAtOneDistance,
};
use bench::run::BenchSetup;
use comfy_table::Table;

use crate::CommandOutcome;
use crate::output::{self, format_three_digits, print_line, print_typed_json};
use crate::steps::{CommandSteps, is_interrupted};

pub(super) fn run(bench: &BenchSetup, json: bool) -> Result<CommandOutcome> {
    if bench.settings.rows.is_empty() {
        bail!("none of these rows has phases to break down; take verbatim bench peers --breakdown");
    }
    let count = u64::from(bench.settings.rounds) * bench.settings.rows.len() as u64;
    let steps = CommandSteps::new(count)?;
    let mut is_running = false;
    let on_row = |row: Row| {
        if std::mem::replace(&mut is_running, true) {
            steps.complete_step();
        }
        steps.show_step(row.name());
    };
    let results = bench::message_time_breakdown::run(bench, on_row, is_interrupted)?;
    drop(steps);
    if json {
        for result in &results {
            print_typed_json("breakdown", result)?;
        }
        return Ok(CommandOutcome::Done);
    }
    if results.is_empty() {
        return Ok(CommandOutcome::Done);
    }
    let counters = results
        .iter()
        .any(|r| r.one_core.instructions_per_message.is_some());
    print_line(format_args!(
        "ns a message, medians of {} rounds. Measured: phases of 256 messages on core {}, and messages between cores {} \
         and {}. Derived: waiting is two cores less the busier end on one core: for lines, for the other end, for its \
         credits. Modelled: lines of the record and of the receiver's position, and these times a bounce.{}\n",
        bench.settings.rounds,
        bench.cores.requester,
        bench.cores.requester,
        bench.cores.responder,
        if counters {
            ""
        } else {
            " This processor's counters cannot be read: no instructions and cycles."
        },
    ))?;
    print_line(phase_time_table(&results))?;
    if counters {
        print_line(format_args!("\n{}", instruction_cycle_table(&results)))?;
    }
    Ok(CommandOutcome::Done)
}

fn side_name(side: MeasuredImplementation) -> &'static str {
    match side {
        MeasuredImplementation::Ours => "NIC",
        MeasuredImplementation::Limit => "bare ring",
    }
}

fn phase_time_table(results: &[MessageTimeBreakdown]) -> Table {
    let header = [
        "what",
        "of",
        "post",
        "poll",
        "receive",
        "post RECVs",
        "cores",
        "two cores",
        "waiting",
        "lines",
        "lines x bounce",
    ];
    let mut table = output::table(header, &[2, 3, 4, 5, 7, 8, 9, 10]);
    for result in results {
        let ns = result.one_core.ns_per_message;
        let phases = [ns.post, ns.poll, ns.receive, ns.post_recv].map(format_three_digits);
        let both = [("near", result.near_cores), ("far", result.far_cores)];
        let mut both: Vec<(&str, Option<TimesAtOneDistance>)> =
            both.into_iter().filter(|(_, two)| two.is_some()).collect();
        if both.is_empty() {
            both.push(("moved", None));
        }
        for (cores, two) in both {
            let of = |value: fn(TimesAtOneDistance) -> f64| {
                two.map_or_else(|| "-".to_owned(), |two| format_three_digits(value(two)))
            };
            let mut cells = vec![
                result.row.label(),
                side_name(result.implementation).to_owned(),
            ];
            cells.extend(phases.iter().cloned());
            cells.extend([
                cores.to_owned(),
                of(|two| two.ns_per_message),
                of(|two| two.waiting_ns_per_message),
                format_three_digits(result.cache_lines_per_message),
                of(|two| two.modelled_line_transfer_ns),
            ]);
            table.add_row(cells);
        }
    }
    table
}

/// Returns a table of the numbers of instructions and cycles in each phase.
fn instruction_cycle_table(results: &[MessageTimeBreakdown]) -> Table {
    let header = [
        "what",
        "of",
        "a message",
        "post",
        "poll",
        "receive",
        "post RECVs",
    ];
    let mut table = output::table(header, &[3, 4, 5, 6]);
    for result in results {
        let both = [
            ("instructions", result.one_core.instructions_per_message),
            ("cycles", result.one_core.cycles_per_message),
        ];
        for (what, phases) in both {
            if let Some(phases) = phases {
                let figures = [phases.post, phases.poll, phases.receive, phases.post_recv];
                let mut cells = vec![
                    result.row.label(),
                    side_name(result.implementation).to_owned(),
                ];
                cells.push(what.to_owned());
                cells.extend(figures.map(format_three_digits));
                table.add_row(cells);
            }
        }
    }
    table
}
