//! The number of bytes that a task reads from a stream before it yields.

/// Bounds of the limit, in bytes. At the upper bound, a task never yields.
const MIN_BYTES: usize = 128;
const MAX_BYTES: usize = 8192;

/// Number of periods in a row without a write after which the limit doubles.
const PERIODS_BEFORE_DOUBLING: u32 = 4;

/// Limits how much a task reads at once, so that the two sides of a stream work at the same time.
///
/// If a server reads 64 requests at once, it decodes all of them, then handles all of them, then writes all answers. Its
/// client waits meanwhile, and then treats the answers in the same way, so only one side works at a time. With this limit
/// the task yields after some requests. The tasks that handle these requests run, and their answers leave, while further
/// requests are still unread.
///
/// A program that only receives would pay for this without a gain. So the limit adapts. A *period* is as many bytes as the
/// limit. The limit halves after a period with a write, and doubles after four periods in a row without a write.
pub(crate) struct ReadLimit {
    limit_bytes: usize,
    read_in_period: usize,
    has_written: bool,
    periods_without_write: u32,
    yields_next: bool,
}

impl ReadLimit {
    pub(crate) fn new() -> Self {
        Self {
            limit_bytes: MAX_BYTES,
            read_in_period: 0,
            has_written: false,
            periods_without_write: 0,
            yields_next: false,
        }
    }

    /// Records that the program has written to the stream.
    pub(crate) fn record_write(&mut self) {
        self.has_written = true;
    }

    /// Returns true, once a period, if the task must yield before it reads again.
    pub(crate) fn take_yield(&mut self) -> bool {
        std::mem::take(&mut self.yields_next)
    }

    /// Returns the maximum number of bytes of the next read, at least 1.
    pub(crate) fn next_read_bytes(&self) -> usize {
        self.limit_bytes - self.read_in_period
    }

    /// Records that the program has read `bytes` bytes, at most [`next_read_bytes`](Self::next_read_bytes).
    pub(crate) fn record_read(&mut self, bytes: usize) {
        self.read_in_period += bytes;
        if self.read_in_period < self.limit_bytes {
            return;
        }
        self.read_in_period = 0;
        if std::mem::take(&mut self.has_written) {
            self.periods_without_write = 0;
            self.limit_bytes = MIN_BYTES.max(self.limit_bytes / 2);
        } else {
            self.periods_without_write += 1;
            if self.periods_without_write == PERIODS_BEFORE_DOUBLING {
                self.periods_without_write = 0;
                self.limit_bytes = MAX_BYTES.min(2 * self.limit_bytes);
            }
        }
        self.yields_next = self.limit_bytes < MAX_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `bytes`, at most `most` at once. Returns the number of reads, and of yields before them.
    fn read(limit: &mut ReadLimit, mut bytes: usize, most: usize) -> (u32, u32) {
        let (mut reads, mut yields) = (0, 0);
        while bytes > 0 {
            yields += u32::from(limit.take_yield());
            let now = limit.next_read_bytes().min(bytes).min(most);
            limit.record_read(now);
            bytes -= now;
            reads += 1;
        }
        (reads, yields)
    }

    /// Reads and answers requests until the limit is as small as it gets.
    fn answer_requests(limit: &mut ReadLimit) {
        for _ in 0..1000 {
            read(limit, 100, 100);
            limit.record_write();
        }
    }

    #[test]
    fn requests_that_are_answered_are_read_a_few_at_once() {
        let mut limit = ReadLimit::new();
        answer_requests(&mut limit);
        for _ in 0..100 {
            let (_, yields) = read(&mut limit, MIN_BYTES, 16);
            assert!(yields <= 1);
            assert!(limit.next_read_bytes() <= MIN_BYTES);
            limit.record_write();
        }
    }

    #[test]
    fn a_program_that_only_receives_never_yields() {
        let mut limit = ReadLimit::new();
        assert_eq!(read(&mut limit, 100 * MAX_BYTES, MAX_BYTES), (100, 0));
        answer_requests(&mut limit);
        // A change to receiving alone costs some reads, once.
        let (_, yields) = read(&mut limit, 64 * MAX_BYTES, MAX_BYTES);
        assert!(yields < 30, "{yields}");
        assert_eq!(read(&mut limit, 100 * MAX_BYTES, 100).1, 0);
    }

    #[test]
    fn long_requests_with_answers_are_read_almost_as_before() {
        let mut limit = ReadLimit::new();
        for _ in 0..100 {
            let (reads, yields) = read(&mut limit, 16 * MAX_BYTES, MAX_BYTES);
            assert!(reads <= 20 && yields <= 5, "{reads} {yields}");
            limit.record_write();
        }
    }
}
