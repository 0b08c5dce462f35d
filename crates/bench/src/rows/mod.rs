//! This project's side of every row of the benchmark.
//!
//! A row of one verb is a microbenchmark with certain parameters ([`verbs`]). The other rows
//! measure a whole process: many queue pairs ([`connections`]), two addresses ([`wire`]), the
//! sequencer, or third-party programs.

pub(crate) mod connections;
mod drop_in_programs;
pub(crate) mod limit;
pub(crate) mod peer;
mod sequencer;
pub(crate) mod verbs;
pub(crate) mod wire;

use anyhow::Result;

use crate::goal::Row;
use crate::setup::{BenchSetup, RowFigure};

/// Measures this project's side of `row` once.
pub(crate) fn measure(bench: &BenchSetup, row: Row) -> Result<RowFigure> {
    match row {
        Row::Rpc => sequencer::measure_rpc_batch(bench),
        Row::Sequencer | Row::SequencerLead => sequencer::measure_spec_s0(bench),
        Row::IdleCpu => connections::measure_idle_cpu(bench),
        Row::IdleMemory => connections::measure_idle_memory(bench),
        Row::Connect => connections::measure_connect(bench),
        row if Row::DROP_IN_ROWS.contains(&row) => drop_in_programs::measure(bench, row),
        row if Row::WIRE_ROWS.contains(&row) => wire::measure(bench, row),
        row => verbs::measure(bench, row),
    }
}
