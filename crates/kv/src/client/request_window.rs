//! The window for unanswered requests of a client whose answers come in many datagrams.
//!
//! An answer that does not fit into one datagram comes in chunks, and each chunk takes a RECV. A client has RECVs for a
//! window of short answers and the chunks of one long answer. With a whole window of long answers, datagrams would find
//! no RECV and be lost, again and again. So the window shrinks when a long answer comes, and grows when none has come
//! for a while.

/// Number of successive answers in one datagram after which the window doubles.
const ANSWERS_UNTIL_GROWTH: u32 = 1024;

/// The window for unanswered requests.
#[derive(Debug)]
pub(super) struct RequestWindow {
    max_window: usize,
    /// The window at present, 1 to `max_unanswered`.
    current_window: usize,
    recv_depth: usize,
    /// Bytes of a value in one chunk.
    chunk_bytes: usize,
    /// Number of answers in one datagram since the window changed last.
    single_datagram_answers_since_change: u32,
}

impl RequestWindow {
    /// Creates a window of `max_unanswered` requests, for a queue pair with `recv_depth` RECVs and chunks of
    /// `chunk_bytes` bytes.
    pub(super) fn new(max_unanswered: usize, recv_depth: usize, chunk_bytes: usize) -> Self {
        Self {
            max_window: max_unanswered,
            current_window: max_unanswered,
            recv_depth,
            chunk_bytes: chunk_bytes.max(1),
            single_datagram_answers_since_change: 0,
        }
    }

    /// Returns the number of requests that may be unanswered.
    #[inline]
    pub(super) fn current_window(&self) -> usize {
        self.current_window
    }

    /// Limits the window to that of an earlier connection.
    pub(super) fn limit_to(&mut self, unanswered: usize) {
        self.current_window = unanswered.clamp(1, self.max_window);
    }

    /// Records a chunk of a value of `value_bytes` bytes.
    #[cold]
    pub(super) fn record_chunk(&mut self, value_bytes: usize) {
        let chunks = value_bytes.div_ceil(self.chunk_bytes).max(1);
        let fits = (self.recv_depth / chunks).max(1);
        self.current_window = self.current_window.min(fits);
        self.single_datagram_answers_since_change = 0;
    }

    /// Records an answer that came in one datagram.
    #[inline]
    pub(super) fn record_single_datagram_answer(&mut self) {
        if self.current_window < self.max_window {
            self.count_single_datagram_answer_and_grow();
        }
    }

    #[cold]
    fn count_single_datagram_answer_and_grow(&mut self) {
        self.single_datagram_answers_since_change += 1;
        if self.single_datagram_answers_since_change == ANSWERS_UNTIL_GROWTH {
            self.single_datagram_answers_since_change = 0;
            self.current_window = (2 * self.current_window).min(self.max_window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunks_of_a_window_of_long_answers_have_recvs() {
        let mut window = RequestWindow::new(64, 128, 1000);
        window.record_chunk(2000);
        assert_eq!(window.current_window(), 64);
        window.record_chunk(10_000);
        assert_eq!(window.current_window(), 12);
        window.record_chunk(2000);
        assert_eq!(window.current_window(), 12);
        window.record_chunk(usize::MAX);
        assert_eq!(window.current_window(), 1);
    }

    #[test]
    fn the_window_grows_when_long_answers_have_ended() {
        let mut window = RequestWindow::new(64, 128, 1000);
        window.record_chunk(20_000);
        for expected in [6, 12, 24, 48, 64] {
            assert_eq!(window.current_window(), expected);
            (0..ANSWERS_UNTIL_GROWTH).for_each(|_| window.record_single_datagram_answer());
        }
        window.limit_to(3);
        for _ in 0..10 * ANSWERS_UNTIL_GROWTH {
            window.record_chunk(20_000);
            window.record_single_datagram_answer();
        }
        assert_eq!(window.current_window(), 3);
        window.limit_to(100);
        assert_eq!(window.current_window(), 64);
    }
}
