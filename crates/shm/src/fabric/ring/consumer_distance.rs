//! Whether the consumer of a ring runs on a far core.

use crate::clock::{ticks_between_loads, ticks_per_us};

/// Number of reads that find a new position of the consumer, of which one is timed.
const READS_PER_SAMPLE: u8 = 64;
/// The same for the first samples: a sender of datagrams reads the position once a lap of the ring.
const READS_PER_FIRST_SAMPLES: u8 = 4;
/// Number of the first samples.
const FIRST_SAMPLES: u8 = 8;
/// Number of samples that decide.
const FAR_SAMPLES: u32 = 5;
/// Time of a read from which on it is that of a far core. A line takes 20 to 70 ns to cross between cores that share a
/// cache, and 100 to 300 ns between others (`docs/performance.md`).
const FAR_READ_NS: u64 = 100;

/// The times of some reads of the consumer's position, for which its line has to cross.
#[derive(Clone, Copy)]
pub(super) struct ConsumerDistance {
    reads_until_sample: u8,
    first_samples_left: u8,
    /// A bit for each of the last eight samples: 1 if it took as long as a read from a far core.
    far_samples: u8,
}

impl ConsumerDistance {
    pub(super) const fn new() -> Self {
        Self {
            reads_until_sample: 1,
            first_samples_left: FIRST_SAMPLES,
            far_samples: 0,
        }
    }

    /// Returns true if most samples took as long as reads from a far core. The answer changes when threads move
    /// between cores.
    #[inline(always)]
    pub(super) fn is_far(self) -> bool {
        self.far_samples.count_ones() >= FAR_SAMPLES
    }

    /// Calls `load` for the consumer's position, and times some of the calls. The time counts if the position is not
    /// `last`: the consumer has written it, so that the line was in the consumer's cache.
    #[inline(always)]
    pub(super) fn timed(&mut self, last: u64, load: impl Fn() -> u64) -> u64 {
        if self.reads_until_sample > 1 {
            let position = load();
            self.reads_until_sample -= u8::from(position != last);
            return position;
        }
        self.sample(last, load)
    }

    #[inline(never)]
    fn sample(&mut self, last: u64, load: impl Fn() -> u64) -> u64 {
        let begin = ticks_between_loads();
        let position = load();
        let end = ticks_between_loads();
        if position != last {
            // Reading the counter takes as long as a near line or longer.
            let overhead = ticks_between_loads().wrapping_sub(end);
            let took = end.wrapping_sub(begin).saturating_sub(overhead);
            self.add_sample(took >= FAR_READ_NS * ticks_per_us() / 1000);
            self.reads_until_sample = if self.first_samples_left == 0 {
                READS_PER_SAMPLE
            } else {
                self.first_samples_left -= 1;
                READS_PER_FIRST_SAMPLES
            };
        }
        position
    }

    fn add_sample(&mut self, is_far: bool) {
        self.far_samples = self.far_samples << 1 | u8::from(is_far);
    }

    /// Takes samples as if the consumer were far or near.
    #[cfg(all(test, not(loom)))]
    pub(super) fn set_far(&mut self, is_far: bool) {
        (0..u8::BITS).for_each(|_| self.add_sample(is_far));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn most_of_the_last_samples_decide() {
        let mut distance = ConsumerDistance::new();
        let mut far = 0;
        while !distance.is_far() {
            distance.add_sample(true);
            far += 1;
        }
        assert_eq!(far, FAR_SAMPLES);
        // A thread that is preempted during a sample makes no far core of a near one.
        distance.set_far(false);
        distance.add_sample(true);
        assert!(!distance.is_far());
    }

    #[test]
    fn a_position_that_the_consumer_did_not_write_is_no_sample() {
        let mut distance = ConsumerDistance::new();
        for _ in 0..1000 {
            assert_eq!(distance.timed(7, || 7), 7);
        }
        assert_eq!(distance.reads_until_sample, 1);
        assert_eq!(distance.timed(7, || 8), 8);
        assert_eq!(distance.reads_until_sample, READS_PER_FIRST_SAMPLES);
    }
}
