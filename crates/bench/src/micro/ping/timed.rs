//! Times of exchanges, less the time of reading the clock.

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::clock::now_ns;
use crate::micro::outcome::PingPongLatency;
use crate::micro::task::PingPong;

/// Bit that marks the last number.
pub(super) const LAST_MARK: u32 = 1 << 31;

/// Minimum number of samples.
const MIN_SAMPLES: u64 = 20;

/// Minimum number of exchanges in the warm-up.
const MIN_WARM_UP_EXCHANGES: u32 = 8;

/// Calls `exchange` with rising numbers for the duration of `ping`. The last number is marked.
pub(super) fn run_timed_exchanges(
    ping: &PingPong,
    mut exchange: impl FnMut(u32) -> Result<()>,
) -> Result<PingPongLatency> {
    let clock_ns = clock_reading_cost_ns();
    let mut samples = ExchangeSamples::new(ping)?;
    let duration_ns = ping.duration_ms.saturating_mul(1_000_000);
    let begin_ns = now_ns();
    let (mut before_ns, mut number) = (begin_ns, 0u32);
    loop {
        let enough = samples.histogram.len() >= MIN_SAMPLES && before_ns - begin_ns >= duration_ns;
        let last = enough || number >= LAST_MARK - 1 - ping.exchanges_per_sample;
        for _ in 1..ping.exchanges_per_sample {
            number += 1;
            exchange(number)?;
        }
        number += 1;
        exchange(number | if last { LAST_MARK } else { 0 })?;
        let now = now_ns();
        if number > MIN_WARM_UP_EXCHANGES && now - begin_ns >= duration_ns / 10 {
            samples.record((now - before_ns).saturating_sub(clock_ns));
        }
        before_ns = now;
        if last {
            break;
        }
    }
    Ok(samples.to_latency_result(clock_ns, number))
}

/// Recorded samples; each sample covers some consecutive exchanges.
struct ExchangeSamples {
    histogram: Histogram<u64>,
    /// Sum of all samples.
    sum_ns: u64,
    /// Exchanges per sample.
    exchanges_per_sample: u64,
    /// Latencies per exchange: 2 if a latency is half of a round trip, otherwise 1.
    latencies_per_exchange: f64,
}

impl ExchangeSamples {
    fn new(ping: &PingPong) -> Result<ExchangeSamples> {
        Ok(ExchangeSamples {
            // Up to ten minutes, with three significant digits.
            histogram: Histogram::new_with_max(600_000_000_000, 3)?,
            sum_ns: 0,
            exchanges_per_sample: ping.exchanges_per_sample.into(),
            latencies_per_exchange: if ping.has_one_way_latency() { 2.0 } else { 1.0 },
        })
    }

    #[inline]
    fn record(&mut self, sample_ns: u64) {
        self.sum_ns += sample_ns;
        self.histogram
            .saturating_record(sample_ns / self.exchanges_per_sample);
    }

    fn to_latency_result(&self, clock_ns: u64, number: u32) -> PingPongLatency {
        let histogram = &self.histogram;
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let (ns, of_one) = (
            |whole: u64| whole as f64 / self.latencies_per_exchange,
            1.0 / (histogram.len().max(1) * self.exchanges_per_sample) as f64,
        );
        PingPongLatency {
            latency_ns_p50: ns(histogram.value_at_quantile(0.5)),
            latency_ns_p99: ns(histogram.value_at_quantile(0.99)),
            latency_ns_p999: ns(histogram.value_at_quantile(0.999)),
            latency_ns_max: ns(histogram.max()),
            latency_ns_mean: ns(self.sum_ns) * of_one,
            #[allow(clippy::cast_precision_loss)]
            clock_read_ns: clock_ns as f64,
            verified_ops: number.into(),
            histogram: histogram
                .iter_recorded()
                .map(|step| (ns(step.value_iterated_to()), step.count_at_value()))
                .collect(),
        }
    }
}

/// Returns the median time of one reading of the clock. Each sample reads the clock many times in a
/// row, so that a coarse clock still shows the time.
fn clock_reading_cost_ns() -> u64 {
    const READINGS: u64 = 32;
    let mut times: Vec<u64> = (0..31)
        .map(|_| {
            let begin = now_ns();
            let end = (0..READINGS).fold(begin, |_, _| now_ns());
            (end - begin) / READINGS
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::parameters::MicroParameters;
    use crate::micro::verb::Verb;

    #[test]
    fn half_of_a_round_trip_or_all_of_it() {
        let latency = |verb| {
            let ping = PingPong::new(verb, &MicroParameters::default(), 20).unwrap();
            let mut numbers = Vec::new();
            let latency = run_timed_exchanges(&ping, |number| {
                numbers.push(number);
                std::thread::sleep(std::time::Duration::from_millis(1));
                Ok(())
            })
            .unwrap();
            let last = numbers.pop().unwrap();
            assert_eq!(last & !LAST_MARK, u32::try_from(numbers.len()).unwrap() + 1);
            // The raw samples miss only the warm-up.
            let recorded: u64 = latency.histogram.iter().map(|(_, count)| count).sum();
            assert!(
                (MIN_SAMPLES..latency.verified_ops).contains(&recorded),
                "{latency:?}"
            );
            let longest = latency.histogram.last().unwrap().0;
            assert!(
                (longest / latency.latency_ns_max - 1.0).abs() < 0.01,
                "{latency:?}"
            );
            assert!(last & LAST_MARK != 0 && numbers.iter().all(|n| n & LAST_MARK == 0));
            latency
        };
        assert!(latency(Verb::RcSend).latency_ns_p50 >= 490_000.0);
        assert!(latency(Verb::RcRead).latency_ns_p50 >= 990_000.0);
    }

    #[test]
    fn a_sample_of_many_exchanges_is_the_time_of_one() {
        let ping = PingPong {
            exchanges_per_sample: 5,
            ..PingPong::new(Verb::RcRead, &MicroParameters::default(), 1).unwrap()
        };
        let mut exchanges = 0;
        let latency = run_timed_exchanges(&ping, |_| {
            exchanges += 1;
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        })
        .unwrap();
        assert_eq!((latency.verified_ops, exchanges % 5), (exchanges, 0));
        for ns in [latency.latency_ns_p50, latency.latency_ns_mean] {
            assert!(ns >= 199_000.0, "{latency:?}");
        }
    }

    #[test]
    fn the_clock_takes_time() {
        assert!(clock_reading_cost_ns() < 1_000_000);
    }
}
