//! Unary calls with a fixed number of calls outstanding; each response is checked.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use grpc_interop::cases::client;
use grpc_interop::messages::{Payload, SimpleRequest};
use tokio::task::JoinSet;
use tonic::transport::Channel;

/// The result of a run of calls.
#[derive(Debug)]
pub(super) struct CallsResult {
    pub(super) calls_per_s: f64,
    pub(super) latency_ns_p50: f64,
    pub(super) latency_ns_p99: f64,
    /// The number of responses; all of them were checked.
    pub(super) verified_responses: u64,
}

/// Calls the server for `duration`, with `outstanding` calls in flight and `payload` bytes in each
/// direction.
pub(super) async fn run(
    channel: &Channel,
    outstanding: usize,
    payload: usize,
    duration: Duration,
) -> Result<CallsResult> {
    let begun = Instant::now();
    let until = begun + duration;
    let mut callers = JoinSet::new();
    for _ in 0..outstanding {
        callers.spawn(measure_call_latencies_until(
            channel.clone(),
            payload,
            until,
        ));
    }
    let mut latencies = Vec::new();
    while let Some(caller) = callers.join_next().await {
        latencies.extend(caller.context("a caller ended early")??);
    }
    let seconds = begun.elapsed().as_secs_f64();
    latencies.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let at = |share: usize| {
        let index = (latencies.len() * share / 100).min(latencies.len().saturating_sub(1));
        latencies.get(index).map(|&ns| ns as f64)
    };
    let verified = u64::try_from(latencies.len())?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let calls_per_s = verified as f64 / seconds;
    Ok(CallsResult {
        calls_per_s,
        latency_ns_p50: at(50).context("no call was answered")?,
        latency_ns_p99: at(99).context("no call was answered")?,
        verified_responses: verified,
    })
}

/// Makes calls one after the other; returns the latency of each call in nanoseconds.
async fn measure_call_latencies_until(
    channel: Channel,
    payload: usize,
    until: Instant,
) -> Result<Vec<u64>> {
    let mut client = client(channel);
    let request = SimpleRequest {
        response_size: i32::try_from(payload)?,
        payload: Some(Payload::zeros(payload)),
        ..SimpleRequest::default()
    };
    let mut latencies = Vec::new();
    let mut begun = Instant::now();
    // At least one, also if a busy machine begins when the time is over.
    while begun < until || latencies.is_empty() {
        let response = client.unary_call(request.clone()).await?.into_inner();
        let body = response.payload.unwrap_or_default().body;
        if body.len() != payload || body.iter().any(|&b| b != 0) {
            bail!(
                "a response of {} bytes, and {payload} bytes 0 were to come",
                body.len()
            );
        }
        let now = Instant::now();
        latencies.push(u64::try_from((now - begun).as_nanos())?);
        begun = now;
    }
    Ok(latencies)
}
