//! Queue pairs of the two sides become known to each other over their link.

use anyhow::{Context as _, Result, bail};
use verbs::{Connected, PreparedQp, QpEndpoint, QueuePair};

use crate::link::Link;

/// Connects `qp` to the other side's: both send what they have, then both receive.
pub(crate) fn connect<T: Connected>(link: &mut Link, qp: PreparedQp<T>) -> Result<QueuePair<T>> {
    let connected = connect_all(link, vec![qp])?.pop();
    connected.context("one queue pair was connected")
}

/// Connects each of `qps` to the other side's in its place.
pub(crate) fn connect_all<T: Connected>(
    link: &mut Link,
    qps: Vec<PreparedQp<T>>,
) -> Result<Vec<QueuePair<T>>> {
    let own: Vec<_> = qps.iter().map(PreparedQp::endpoint).collect();
    let peers = exchange(link, &own)?;
    let connected = qps
        .into_iter()
        .zip(&peers)
        .map(|(qp, peer)| qp.connect(peer));
    Ok(connected.collect::<Result<_, _>>()?)
}

/// Tells the other side this one's queue pairs; as many of its own.
pub(crate) fn exchange(link: &mut Link, own: &[QpEndpoint]) -> Result<Vec<QpEndpoint>> {
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
