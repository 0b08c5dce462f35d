//! Measurement of the rows' limits.

use anyhow::Result;

use super::verbs::DURATION_MS;
use crate::core_pinning::run_pinned;
use crate::goal::BareRingLimit;
use crate::link::WorkerLink;
use crate::peers::bare_exchange_parameters::BareExchangeParameters;
use crate::peers::bare_ring_exchange;
use crate::setup::{BenchSetup, RowFigure};

/// Measures a limit once, between two processes on the cores of the rows.
pub(crate) fn measure(bench: &BenchSetup, limit: BareRingLimit) -> Result<RowFigure> {
    let bare = BareExchangeParameters {
        exchange: limit.exchange,
        has_payload: limit.has_payload,
        messages_per_list: limit.messages_per_list,
        duration_ms: (DURATION_MS / bench.settings.shrink_divisor.max(1)).max(1),
    };
    run_pinned(bench.cores.requester, || {
        let mut link = WorkerLink::spawn(&bench.worker_command, bench.cores.responder)?;
        let figure = bare_ring_exchange::run_driver_side(&mut link, bare)?;
        Ok(RowFigure {
            value: figure.mops_or_latency_ns,
            verified_ops: figure.verified_ops,
            lost_messages: 0,
        })
    })
}
