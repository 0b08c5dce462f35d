//! What a thread does between polls that find nothing for long: it rests.
//!
//! A poll reads the lines in which messages arrive, and a program that waits for a WRITE looks at its line between polls.
//! Each such look takes the line from the peer, whose next store there has to wait until it is back. Who has waited for
//! a tenth of a millisecond and more loses a thousandth of that by looking a little later, and its peers write several
//! times as much between two looks.

use std::cell::Cell;
use std::hint;

use shm::clock::now_ns;

/// Polls in a row of one queue that find nothing until it is asked whether to [`rest`].
pub(super) const IDLE_POLLS: u32 = 4096;

/// Polls of such queues that a thread makes without finding anything elsewhere: who polls an idle queue besides a busy
/// one, as programs with one for sends and one for receives do, does not rest.
const FRUITLESS_POLLS: u32 = 1024;

/// The time between the beginnings of two rounds of looks is this part of what has been waited, so that nothing that comes
/// is found much later for it; who does something else meanwhile, or looks at many queues, takes longer anyway and does
/// not rest.
const PART: u64 = 1024;

/// It is no longer than this: a peer fills its store buffer many times.
const MOST_NS: u64 = 1000;

/// What a thread knows of its looks.
#[derive(Clone, Copy)]
struct Looks {
    /// Polls of idle queues since something was found; begins again behind [`FRUITLESS_POLLS`] at twice as many.
    fruitless: u32,
    /// With a poll of this one a round begins.
    first: usize,
    /// When the first round began, and the last.
    since: u64,
    began: u64,
}

thread_local! {
    static LOOKS: Cell<Looks> = const {
        Cell::new(Looks { fruitless: 0, first: usize::MAX, since: 0, began: 0 })
    };
}

/// The calling thread has found a completion.
#[inline]
pub(super) fn found() {
    LOOKS.set(Looks {
        fruitless: 0,
        ..LOOKS.get()
    });
}

/// Rests if the calling thread has found nothing for long, once in a round of the queues that it polls. It holds no lock.
#[cold]
pub(super) fn rest(queue: usize) {
    let mut looks = LOOKS.get();
    looks.fruitless += 1;
    if looks.fruitless == FRUITLESS_POLLS {
        looks.first = queue;
        looks.since = now_ns();
        looks.began = looks.since;
    } else if looks.fruitless == 2 * FRUITLESS_POLLS {
        // Anew: it may poll the other one no more.
        looks.first = queue;
        looks.fruitless = FRUITLESS_POLLS + 1;
    }
    if looks.fruitless > FRUITLESS_POLLS && looks.first == queue {
        let rest = ((looks.began - looks.since) / PART).min(MOST_NS);
        let until = looks.began + rest;
        looks.began = now_ns();
        while looks.began < until {
            hint::spin_loop();
            looks.began = now_ns();
        }
    }
    LOOKS.set(looks);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many rounds have begun after so many polls of each of these queues in turn, once it rests at all.
    fn rounds(queues: usize, polls: u32) -> u32 {
        let mut rounds = 0;
        for _ in 0..polls {
            for queue in 0..queues {
                let before = LOOKS.get();
                rest(queue);
                let after = LOOKS.get();
                if after.first == queue && after.fruitless > FRUITLESS_POLLS {
                    rounds += 1;
                    let waited = before.began - before.since;
                    assert!(after.began - before.began >= (waited / PART).min(MOST_NS));
                }
            }
        }
        rounds
    }

    #[test]
    fn rests_once_a_round_and_not_where_something_is_found() {
        found();
        assert_eq!(rounds(1, FRUITLESS_POLLS), 0);
        assert_eq!(rounds(1, 10), 10);
        // As if it had waited for a second.
        let looks = LOOKS.get();
        LOOKS.set(Looks {
            since: looks.began - 1_000_000_000,
            ..looks
        });
        let start = now_ns();
        assert_eq!(rounds(1, 5 * FRUITLESS_POLLS), 5 * FRUITLESS_POLLS);
        assert!(now_ns() - start >= u64::from(5 * FRUITLESS_POLLS) * MOST_NS);
        found();
        assert_eq!(rounds(1, 10), 0);
        // Of many queues one.
        found();
        assert_eq!(rounds(64, FRUITLESS_POLLS / 64), 0);
        assert_eq!(rounds(64, 10), 10);
    }
}
