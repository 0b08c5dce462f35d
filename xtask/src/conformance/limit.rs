//! Time limits of programs.

use std::time::{Duration, Instant};

/// A time limit that starts at its creation. The limit grows while the machine has more load than processors,
/// because a program that is slow on a loaded machine is not wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadScaledTimeLimit {
    begin: Instant,
    length: Duration,
}

impl LoadScaledTimeLimit {
    /// Starts a time limit of `length`.
    pub(crate) fn new(length: Duration) -> LoadScaledTimeLimit {
        LoadScaledTimeLimit {
            begin: Instant::now(),
            length,
        }
    }

    /// Returns true if the time limit has passed.
    pub(crate) fn is_over(&self) -> bool {
        let elapsed = self.begin.elapsed();
        elapsed >= self.length && elapsed >= self.length.mul_f64(slowdown())
    }
}

/// Maximum factor by which load extends a time limit, so that a program that hangs ends the run even on a busy
/// machine.
const SLOWDOWN_MAX: f64 = 10.0;

/// Returns the factor by which programs take longer than on an idle machine.
fn slowdown() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    slowdown_at(&text, processors)
}

/// Computes [`slowdown`] from the text of `/proc/loadavg`: the load average of the last minute, divided by the
/// number of processors.
fn slowdown_at(loadavg: &str, processors: usize) -> f64 {
    let load = loadavg.split_whitespace().next();
    let load: f64 = load.and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let processors = u32::try_from(processors).map_or(1.0, f64::from);
    (load / processors).clamp(1.0, SLOWDOWN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_machine_gets_more_time() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(slowdown_at("0.05 1.66 0.89 2/250 99\n", 2), 1.0));
        assert!(close(slowdown_at("20.00 1.66 0.89 9/250 99\n", 4), 5.0));
        assert!(close(slowdown_at("400.00 1.66 0.89 9/250 99\n", 2), 10.0));
        assert!(close(slowdown_at("", 2), 1.0), "no such file");
    }

    #[test]
    fn time_passes() {
        assert!(!LoadScaledTimeLimit::new(Duration::from_secs(3600)).is_over());
        assert!(LoadScaledTimeLimit::new(Duration::ZERO).is_over());
    }
}
