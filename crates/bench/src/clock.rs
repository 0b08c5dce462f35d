//! The clock that the processes of a measurement share.

/// Returns the monotonic time of this host in nanoseconds, or the virtual time on a simulated core.
pub(crate) fn now_ns() -> u64 {
    if let Some(now) = simnic::now() {
        return u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000;
    whole + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Returns the rate in 10^6 operations per second.
#[allow(clippy::cast_precision_loss)] // far below 2^52 of either
pub(crate) fn mops(ops: u64, elapsed_ns: u64) -> f64 {
    ops as f64 * 1e3 / elapsed_ns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(mops(5_000_000, 1_000_000_000), 5.0);
        assert!(now_ns() > 0);
    }
}
