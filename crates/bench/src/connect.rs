//! Connection of queue pairs between the two sides of a link.

use anyhow::{Context as _, Result, bail};
use verbs::{Connected, PreparedQp, QpEndpoint, QueuePair};

use crate::link::WorkerLink;

/// Connects `qp` to the other side's queue pair: both sides send their endpoint, then both receive.
pub(crate) fn connect<T: Connected>(
    link: &mut WorkerLink,
    qp: PreparedQp<T>,
) -> Result<QueuePair<T>> {
    let connected = connect_all(link, vec![qp])?.pop();
    connected.context("one queue pair was connected")
}

/// Connects each queue pair of `qps` to the other side's queue pair with the same index.
pub(crate) fn connect_all<T: Connected>(
    link: &mut WorkerLink,
    qps: Vec<PreparedQp<T>>,
) -> Result<Vec<QueuePair<T>>> {
    let own: Vec<_> = qps.iter().map(PreparedQp::endpoint).collect();
    let peers = exchange_endpoints(link, &own)?;
    let connected = qps
        .into_iter()
        .zip(&peers)
        .map(|(qp, peer)| qp.connect(peer));
    Ok(connected.collect::<Result<_, _>>()?)
}

/// Sends the endpoints of this side's queue pairs and returns those of the other side, which has
/// equally many.
pub(crate) fn exchange_endpoints(
    link: &mut WorkerLink,
    own: &[QpEndpoint],
) -> Result<Vec<QpEndpoint>> {
    link.send(&own)?;
    let peers: Vec<QpEndpoint> = link.recv()?;
    if peers.len() != own.len() {
        bail!(
            "the other side has {} queue pairs, and this one {}",
            peers.len(),
            own.len()
        );
    }
    Ok(peers)
}
