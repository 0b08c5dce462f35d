//! What a thread does after it has armed a completion queue.
//!
//! Programs arm a queue, poll it once more (or from `ibv_start_poll` to `ibv_end_poll`), and wait for the event. An event
//! for what that poll takes is one that finds nothing, and some programs take that for an error (`ibv_rc_pingpong -t -e`).
//! On a NIC the time between the two calls is some nanoseconds; here the peer that completes something in it may wake the
//! engine on the very core on which the program is about to poll, and on a busy machine the program may be off its core for
//! milliseconds. So the engine leaves what comes to the program until that has polled, waits, or has run for long enough to
//! have done so.

use std::time::Duration;

use shm::clock::now_ns;

/// So long a thread that runs takes from arming to polling, at most.
const SOON_NS: u64 = 50_000;

/// So long the engine waits for a thread that is off its core or polls, at most.
const LONGEST_NS: u64 = 1_000_000_000;

/// A completion queue was armed and has not been polled since.
pub(crate) struct Arming {
    at_ns: u64,
    thread: libc::pid_t,
    /// Processor time of the thread at that moment.
    ran_ns: Option<u64>,
    /// It polls, in several steps.
    pub(crate) polls: bool,
    /// The engine has left something to the program, and is to be called when that has polled.
    pub(crate) withheld: bool,
}

/// What is to be expected of the thread that has armed a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It may poll within this time.
    Soon(Duration),
    /// It polls, or it is not waiting for anything and has not run for long enough to have polled.
    HeldUp,
    /// It waits, or does something else.
    Else,
}

impl Arming {
    /// By the calling thread, now.
    pub(crate) fn now() -> Self {
        // SAFETY: takes nothing, fails never.
        let thread = unsafe { libc::gettid() };
        Self {
            at_ns: now_ns(),
            thread,
            ran_ns: clock(libc::CLOCK_THREAD_CPUTIME_ID),
            polls: false,
            withheld: false,
        }
    }

    pub(crate) fn next(&self) -> Next {
        let age = now_ns().saturating_sub(self.at_ns);
        if age < SOON_NS {
            return Next::Soon(Duration::from_nanos(SOON_NS - age));
        }
        if age >= LONGEST_NS {
            return Next::Else;
        }
        if self.polls {
            return Next::HeldUp;
        }
        // The clock of a thread's processor time: `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`
        // (`linux:include/linux/posix-timers_types.h`).
        let ran = clock((!self.thread << 3) | 6).zip(self.ran_ns);
        let had_time = ran.is_none_or(|(now, then)| now.saturating_sub(then) >= SOON_NS);
        if had_time || !is_runnable(self.thread) {
            Next::Else
        } else {
            Next::HeldUp
        }
    }
}

/// Nanoseconds on a clock; nothing if there is no such clock (any more).
fn clock(id: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for the time.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let rest = u64::try_from(time.tv_nsec).ok()?;
    (result == 0).then_some(seconds * 1_000_000_000 + rest)
}

/// Whether a thread of this process runs or would, if it had a core (`proc_pid_stat(5)`).
fn is_runnable(thread: libc::pid_t) -> bool {
    let _hold_off = cancellation::HoldOff::new();
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|rest| rest.starts_with('R'))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    fn after(arming: &Arming, is_over: impl Fn(Next) -> bool) -> Next {
        let begin = Instant::now();
        loop {
            let next = arming.next();
            if is_over(next) || begin.elapsed() > Duration::from_secs(20) {
                return next;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_waits_is_not_waited_for() {
        let (armed, arming) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                armed.send(Arming::now()).expect("the test waits");
                assert!(ended.recv().is_err());
            });
            let arming = arming.recv().expect("the thread armed");
            assert_eq!(after(&arming, |next| next == Next::Else), Next::Else);
            assert!(!is_runnable(arming.thread));
            drop(end);
        });
    }

    #[test]
    fn a_thread_that_runs_has_its_time_and_no_more() {
        let arming = Arming::now();
        assert!(is_runnable(arming.thread));
        // This thread itself runs, on and off its core.
        assert_eq!(after(&arming, |next| next == Next::Else), Next::Else);
        let ran = clock(libc::CLOCK_THREAD_CPUTIME_ID).expect("there is this clock");
        let took = ran - arming.ran_ns.expect("there is this clock");
        assert!(took >= SOON_NS, "it had {took} ns");
    }

    #[test]
    fn a_thread_that_has_ended_is_not_waited_for() {
        let arming = std::thread::spawn(Arming::now).join().expect("it armed");
        assert_eq!(after(&arming, |next| next == Next::Else), Next::Else);
    }
}
