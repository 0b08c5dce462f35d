//! Measurement of the rows' limits.

use anyhow::Result;

use super::verbs::DURATION_MS;
use crate::goal::Limit;
use crate::link::Link;
use crate::peers::bare::Bare;
use crate::peers::bare_pair;
use crate::pin::pinned;
use crate::setup::{Bench, Measured};

/// Measures a limit once, between two processes on the cores of the rows.
pub(crate) fn measure(bench: &Bench, limit: Limit) -> Result<Measured> {
    let bare = Bare {
        exchange: limit.exchange,
        has_payload: limit.has_payload,
        list: limit.list,
        duration_ms: (DURATION_MS / bench.settings.shrink.max(1)).max(1),
    };
    pinned(bench.cores.requester, || {
        let mut link = Link::spawn(&bench.worker, bench.cores.responder)?;
        let figure = bare_pair::drive(&mut link, bare)?;
        Ok(Measured {
            value: figure.value,
            verified_ops: figure.verified_ops,
            lost_ops: 0,
        })
    })
}
