//! Measurement of the rows' peers.

use anyhow::Result;

use super::{sequencer, wire};
use crate::core_pinning::run_pinned;
use crate::goal::{BULK_PAYLOAD_BYTES, PACKET_PAYLOAD_BYTES, PeerSystem};
use crate::link::WorkerLink;
use crate::peers::datagram_parameters::DatagramExchange;
use crate::peers::{hostcopy, iperf3, redis, ucx, udp};
use crate::setup::{BenchSetup, RowFigure};

/// Messages in a run of the rows that measure bandwidth.
const BULK_MESSAGES: u64 = 5_000;

/// Bytes that are sent over TCP, about half a second's worth.
const TCP_BYTES: u64 = 1 << 30;

/// Datagrams in a stream of short ones, in a stream of long ones, and in a ping-pong; about half a
/// second each.
const SHORT_DATAGRAM_COUNT: u64 = 4_000_000;
const LONG_DATAGRAM_COUNT: u64 = 250_000;
const PING_PONG_COUNT: u64 = 50_000;

/// Measures a peer once. The Redis server is started on first use.
pub(crate) fn measure(
    bench: &BenchSetup,
    peer: PeerSystem,
    server: &mut Option<redis::Server>,
) -> Result<RowFigure> {
    let done = |value, verified_ops| RowFigure {
        value,
        verified_ops,
        lost_messages: 0,
    };
    if let Some(test) = peer.ucx_test() {
        let iterations = bench.shrink_count(test.default_iterations());
        let measured = ucx::run(test, iterations, bench.cores, &ucx::UcxTransport::Posix)?;
        let value = match test {
            ucx::UcxTest::AmLat => measured.ns_per_message(),
            _ => measured.messages_per_s / 1e6,
        };
        return Ok(done(value, iterations));
    }
    if peer == PeerSystem::OtherDesigns {
        return sequencer::measure_fastest_other_design(bench);
    }
    if peer == PeerSystem::NoFaults {
        return wire::measure_without_faults(bench);
    }
    if peer == PeerSystem::Iperf3 {
        let (bytes, rate) =
            iperf3::measure_bytes_and_bytes_per_s(bench.shrink_count(TCP_BYTES), bench.cores)?;
        return Ok(done(rate / 1e9, bytes));
    }
    if let Some((exchange, datagram_bytes)) = peer.datagram_exchange_and_bytes() {
        return measure_datagrams(bench, exchange, datagram_bytes);
    }
    if let Some((method, payload_bytes)) = peer.copy_method_and_bytes() {
        let copies =
            bench.shrink_count(BULK_MESSAGES * (BULK_PAYLOAD_BYTES / payload_bytes) as u64);
        run_pinned(bench.cores.requester, || {
            let mut link = WorkerLink::spawn(&bench.worker_command, bench.cores.responder)?;
            let rate = hostcopy::run_driver_side_for_bytes_per_s(
                &mut link,
                method,
                payload_bytes,
                copies,
            )?;
            Ok(done(rate / 1e9, copies))
        })
    } else {
        // One server for all rounds: it sleeps without requests.
        let server = match server {
            Some(server) => server,
            None => server.insert(redis::Server::start(bench.cores)?),
        };
        let requests = bench.shrink_count(redis::REQUESTS_PER_RUN);
        let rate = server.run_and_requests_per_s(requests)?;
        Ok(done(rate / 1e6, requests))
    }
}

/// Exchanges datagrams between two processes. The figure is the rate in 10^6 per second for short
/// datagrams. For long ones it is their payload in 10^9 bytes per second. For a ping-pong it is
/// half of a round trip in nanoseconds.
fn measure_datagrams(
    bench: &BenchSetup,
    exchange: DatagramExchange,
    datagram_bytes: usize,
) -> Result<RowFigure> {
    let is_long = datagram_bytes > PACKET_PAYLOAD_BYTES;
    let count = bench.shrink_count(match exchange {
        DatagramExchange::PingPong => PING_PONG_COUNT,
        DatagramExchange::Stream { .. } if is_long => LONG_DATAGRAM_COUNT,
        DatagramExchange::Stream { .. } => SHORT_DATAGRAM_COUNT,
    });
    run_pinned(bench.cores.requester, || {
        let mut link = WorkerLink::spawn(&bench.worker_command, bench.cores.responder)?;
        let rate = udp::run_driver_side_for_rate_or_ns(&mut link, exchange, datagram_bytes, count)?;
        #[allow(clippy::cast_precision_loss)] // 4096
        let value = match exchange {
            DatagramExchange::PingPong => rate,
            DatagramExchange::Stream { .. } if is_long => rate * PACKET_PAYLOAD_BYTES as f64 / 1e9,
            DatagramExchange::Stream { .. } => rate / 1e6,
        };
        Ok(RowFigure {
            value,
            verified_ops: count,
            lost_messages: 0,
        })
    })
}
