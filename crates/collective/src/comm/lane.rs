//! A queue pair of a connection.

use std::ops::Range;

use verbs::{CompletionQueue, FailedCompletion, MemoryRegion, Postlist, QueuePair, Rc};

use crate::error::Error;

/// A queue pair, with the list that its WRs are built in.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) qp: QueuePair<Rc>,
    pub(crate) send_postlist: Postlist<Rc>,
    /// Send WRs that may still be posted.
    pub(crate) free_send_wrs: usize,
}

/// The error of a failed completion.
pub(super) fn completion_error(wc: FailedCompletion<'_>) -> Error {
    Error::Completion {
        qpn: wc.qp_num().0,
        status: wc.status(),
    }
}

/// A part of a buffer as numbers that fit into a work request.
pub(super) fn checked_range_len(range: &Range<usize>, buffer: &MemoryRegion) -> Result<u32, Error> {
    let inside = range.start <= range.end && range.end <= buffer.len();
    let len = u32::try_from(range.len()).ok().filter(|_| inside);
    len.ok_or_else(|| {
        let bytes = buffer.len();
        Error::InvalidRange(format!(
            "bytes {range:?} are not a part, below 4 GiB, of a region of {bytes} bytes"
        ))
    })
}

/// Completions taken by one poll.
pub(super) type CompletionBuffer = verbs::WcBuffer<16>;

/// Polls the queue until a poll is not full, and gives each completion to `take`.
pub(super) fn drain_completions(
    cq: &CompletionQueue,
    mut take: impl FnMut(&verbs::WorkCompletion<'_>) -> Result<(), Error>,
) -> Result<usize, Error> {
    let mut buffer = CompletionBuffer::new();
    let mut taken = 0;
    loop {
        let completions = cq.poll(&mut buffer)?;
        let count = completions.len();
        for wc in completions {
            take(&wc.map_err(completion_error)?)?;
        }
        taken += count;
        if count < 16 {
            return Ok(taken);
        }
    }
}
