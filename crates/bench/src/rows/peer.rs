//! The peers of rows.

use anyhow::Result;

use super::sequencer;
use crate::goal::{BULK_PAYLOAD_BYTES, Peer};
use crate::link::Link;
use crate::peers::{hostcopy, redis, ucx};
use crate::pin::pinned;
use crate::setup::{Bench, Measured};

/// Messages of a run of the rows that measure bandwidth.
const BULK_MESSAGES: u64 = 5_000;

/// Measures a peer once; Redis's server is started when it is first needed.
pub(crate) fn measure(
    bench: &Bench,
    peer: Peer,
    server: &mut Option<redis::Server>,
) -> Result<Measured> {
    let done = |value, verified_ops| Measured {
        value,
        verified_ops,
        lost_ops: 0,
    };
    if let Some(test) = peer.ucx() {
        let iterations = bench.scaled(test.iterations());
        let measured = ucx::run(test, iterations, bench.cores, &ucx::Over::Posix)?;
        let value = match test {
            ucx::Test::AmLat => measured.ns_per_message(),
            _ => measured.rate / 1e6,
        };
        return Ok(done(value, iterations));
    }
    if peer == Peer::OtherDesigns {
        return sequencer::best_other(bench);
    }
    if let Some((method, payload_bytes)) = peer.copy() {
        let copies = bench.scaled(BULK_MESSAGES * (BULK_PAYLOAD_BYTES / payload_bytes) as u64);
        pinned(bench.cores.requester, || {
            let mut link = Link::spawn(&bench.worker, bench.cores.responder)?;
            let rate = hostcopy::drive(&mut link, method, payload_bytes, copies)?;
            Ok(done(rate / 1e9, copies))
        })
    } else {
        // One server for the whole run: it sleeps when nobody asks.
        let server = match server {
            Some(server) => server,
            None => server.insert(redis::Server::start(bench.cores)?),
        };
        let requests = bench.scaled(redis::REQUESTS);
        let rate = server.run(requests)?;
        Ok(done(rate / 1e6, requests))
    }
}
