//! The number of bytes that a task reads from a stream before it yields.

use std::time::{Duration, Instant};

/// Bounds of the limit, in bytes. At the upper bound, a task never yields.
const MIN_LIMIT_BYTES: usize = 128;
const MAX_LIMIT_BYTES: usize = 8192;

/// A task that takes this time or longer for [`MAX_LIMIT_BYTES`] bytes handles its bytes slowly. tonic takes some 50 µs
/// to 400 µs, since it decodes messages of 100 bytes. A program that copies its bytes takes less than 5 µs.
const SLOW_HANDLING_TIME: Duration = Duration::from_micros(16);

/// Number of reads after which a write no longer counts as their answer, and number of further reads after which the
/// limit doubles.
const READS_BEFORE_LIMIT_DOUBLES: u32 = 4;

/// Limits how much a task reads at once, so that the two sides of a stream work at the same time.
///
/// If a server reads 64 requests at once, it decodes all of them, then handles all of them, then writes all answers.
/// Its client waits meanwhile, and then treats the answers in the same way, so only one side works at a time. With this
/// limit the task yields after some requests. The tasks that handle these requests run, and their answers leave, while
/// further requests are still unread.
///
/// This pays for a program that answers, and that takes long for few bytes. So the limit halves after a read whose
/// bytes the task has handled slowly, if the program has written since one of the last four reads. It doubles after
/// four reads in a row for which this does not hold.
pub(crate) struct ReadLimit {
    limit_bytes: usize,
    /// Number of reads since the last write.
    reads_without_write: u32,
    reads_before_doubling: u32,
    /// Time and bytes of the last read, until the task reads again.
    last_read: Option<(Instant, usize)>,
}

impl ReadLimit {
    pub(crate) fn new() -> Self {
        Self {
            limit_bytes: MAX_LIMIT_BYTES,
            reads_without_write: READS_BEFORE_LIMIT_DOUBLES,
            reads_before_doubling: READS_BEFORE_LIMIT_DOUBLES,
            last_read: None,
        }
    }

    /// Records that the program has written to the stream.
    pub(crate) fn record_write(&mut self) {
        self.reads_without_write = 0;
    }

    /// Records that the task reads again. Returns true if the task must yield first. `now` is called only if the task
    /// has read since the last call.
    pub(crate) fn must_yield(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let Some((read_at, bytes)) = self.last_read.take() else {
            return false;
        };
        let handled_in = now().saturating_duration_since(read_at);
        // `SLOW_HANDLING_TIME` is a time for `MAX_BYTES`.
        let is_slow = handled_in.as_nanos() * MAX_LIMIT_BYTES as u128
            >= SLOW_HANDLING_TIME.as_nanos() * bytes as u128;
        if is_slow && self.reads_without_write < READS_BEFORE_LIMIT_DOUBLES {
            self.limit_bytes = MIN_LIMIT_BYTES.max(self.limit_bytes / 2);
            self.reads_before_doubling = READS_BEFORE_LIMIT_DOUBLES;
        } else {
            self.reads_before_doubling -= 1;
            if self.reads_before_doubling == 0 {
                self.limit_bytes = MAX_LIMIT_BYTES.min(2 * self.limit_bytes);
                self.reads_before_doubling = READS_BEFORE_LIMIT_DOUBLES;
            }
        }
        self.reads_without_write = self.reads_without_write.saturating_add(1);
        self.limit_bytes < MAX_LIMIT_BYTES
    }

    /// Returns the maximum number of bytes of the next read.
    pub(crate) fn max_next_read_bytes(&self) -> usize {
        if self.limit_bytes < MAX_LIMIT_BYTES {
            self.limit_bytes
        } else {
            usize::MAX
        }
    }

    /// Records that the program has read bytes at `now`.
    pub(crate) fn record_read(&mut self, bytes: usize, now: Instant) {
        self.last_read = Some((now, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that reads a stream, with a clock of its own.
    struct Program {
        limit: ReadLimit,
        now: Instant,
        ns_per_byte: u64,
    }

    impl Program {
        fn new(ns_per_byte: u64) -> Self {
            Self {
                limit: ReadLimit::new(),
                now: Instant::now(),
                ns_per_byte,
            }
        }

        /// Reads `bytes`, of which `chunk` are there at once. Returns the numbers of reads and of yields.
        fn read(&mut self, mut bytes: usize, chunk: usize) -> (u32, u32) {
            let (mut reads, mut yields) = (0, 0);
            while bytes > 0 {
                let now = self.now;
                yields += u32::from(self.limit.must_yield(|| now));
                let read = self.limit.max_next_read_bytes().min(bytes).min(chunk);
                self.limit.record_read(read, now);
                self.now += Duration::from_nanos(self.ns_per_byte * read as u64);
                bytes -= read;
                reads += 1;
            }
            (reads, yields)
        }
    }

    #[test]
    fn slow_requests_that_are_answered_are_read_a_few_at_once() {
        let mut server = Program::new(20);
        for _ in 0..100 {
            server.read(100, 100);
            server.limit.record_write();
        }
        for _ in 0..100 {
            let (_, yields) = server.read(100, 100);
            assert_eq!(yields, 1);
            assert_eq!(server.limit.max_next_read_bytes(), MIN_LIMIT_BYTES);
            server.limit.record_write();
        }
    }

    #[test]
    fn a_program_that_copies_its_bytes_and_answers_each_read_never_yields() {
        let mut echo = Program::new(1);
        for _ in 0..1000 {
            assert_eq!(echo.read(MAX_LIMIT_BYTES, MAX_LIMIT_BYTES).1, 0);
            echo.limit.record_write();
        }
    }

    #[test]
    fn a_slow_program_that_only_receives_never_yields_for_long() {
        let mut receiver = Program::new(20);
        assert_eq!(receiver.read(100 * MAX_LIMIT_BYTES, MAX_LIMIT_BYTES).1, 0);
        for _ in 0..100 {
            receiver.read(100, 100);
            receiver.limit.record_write();
        }
        // A change to receiving alone costs some reads, once.
        let (_, yields) = receiver.read(64 * MAX_LIMIT_BYTES, MAX_LIMIT_BYTES);
        assert!(yields < 50, "{yields}");
        assert_eq!(receiver.read(100 * MAX_LIMIT_BYTES, 100).1, 0);
    }

    #[test]
    fn one_read_that_is_interrupted_costs_few_yields() {
        let mut echo = Program::new(1);
        for _ in 0..100 {
            echo.read(MAX_LIMIT_BYTES, MAX_LIMIT_BYTES);
            echo.limit.record_write();
            echo.now += Duration::from_millis(5);
            let (_, yields) = echo.read(10 * MAX_LIMIT_BYTES, MAX_LIMIT_BYTES);
            assert!(yields <= 4, "{yields}");
        }
    }
}
