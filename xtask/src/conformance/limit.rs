//! How long something may take.

use std::time::{Duration, Instant};

/// A time limit from now on. It grows while the machine has more load than processors, because a slow program on a
/// loaded machine is not wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    begin: Instant,
    length: Duration,
}

impl Limit {
    /// `length` from now on.
    pub(crate) fn new(length: Duration) -> Limit {
        Limit {
            begin: Instant::now(),
            length,
        }
    }

    /// Whether the time is over.
    pub(crate) fn is_over(&self) -> bool {
        let elapsed = self.begin.elapsed();
        elapsed >= self.length && elapsed >= self.length.mul_f64(slowdown())
    }
}

/// A program that hangs ends the run at last, however busy the machine is.
const SLOWDOWN_MAX: f64 = 10.0;

/// How much longer things take than on an idle machine.
fn slowdown() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    slowdown_at(&text, processors)
}

/// The same from the text of `/proc/loadavg`: how many want to run, by the minute's average, for each processor.
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
        assert!(!Limit::new(Duration::from_secs(3600)).is_over());
        assert!(Limit::new(Duration::ZERO).is_over());
    }
}
