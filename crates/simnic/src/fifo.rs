//! Resources that serve one after the other.

use crate::queue::Ps;

/// A resource that serves one after the other.
///
/// Who comes may be a little behind who came before, since threads and events are a little ahead of each other. It
/// waits for what is in front of it, and not for the time by which it is behind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fifo {
    free_at: Ps,
    latest: Ps,
}

impl Fifo {
    /// How long one that comes at `at` waits.
    fn wait(&mut self, at: Ps) -> Ps {
        self.latest = self.latest.max(at);
        self.free_at.saturating_sub(self.latest)
    }

    /// Takes the resource for `time` as soon as it is free; returns when it is done.
    pub(crate) fn take(&mut self, at: Ps, time: Ps) -> Ps {
        let wait = self.wait(at);
        self.free_at = self.latest + wait + time;
        at + wait + time
    }

    /// Takes as much of the resource, but does not wait: for short packets between long ones.
    pub(crate) fn slip_in(&mut self, at: Ps, time: Ps) {
        self.take(at, time);
    }
}

/// A cache line that several cores add to.
#[derive(Debug)]
pub(crate) struct SharedLine {
    /// Its number: its address by the bytes of a line.
    pub(crate) number: u64,
    /// When it is free.
    pub(crate) free: Fifo,
    /// The thread that has it.
    pub(crate) owner: u32,
}
