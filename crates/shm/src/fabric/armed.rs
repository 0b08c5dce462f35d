//! The armed word of a completion queue: it tells a peer that has published a message which thread to wake.
//!
//! The owner arms and disarms the word; peers add that they have woken a thread. A peer wakes the *program*
//! by writing a token to the completion channel ([`completion_channel`](super::completion_channel)), or wakes the
//! owner's *engine*.
//!
//! A peer publishes a message and then reads the armed word. The owner arms the word and then looks
//! for published messages. Peer or owner must see the other's store, so both need a full barrier
//! between their two steps. Until a queue is armed for the first time, its word is [`ARMED_NO`] and
//! peers execute no barrier. The first arming makes every core execute a barrier (`membarrier(2)`)
//! and sets [`ARMED_BIT_PEERS_FENCE`]. While that bit is set, peers execute their own barrier.
//! [`ArmedWord::end_peer_fences`] clears the bit, and the next arming is then like the first.

use crate::sync::{AtomicU32, Ordering, fence};

/// No thread waits for the CQ's completion channel, and peers need no barrier.
pub const ARMED_NO: u32 = 0;
/// The CQ is armed for the next completion.
pub const ARMED_ANY: u32 = 1;
/// The CQ is armed for the next solicited or failed completion.
pub const ARMED_SOLICITED: u32 = 2;
/// Bit of the armed word: a peer has woken the owner's engine, so other peers need not wake the
/// engine.
pub const ARMED_BIT_ENGINE_WOKEN: u32 = 4;
/// Bit of the armed word: peers execute a barrier between publishing a message and reading the
/// word.
pub const ARMED_BIT_PEERS_FENCE: u32 = 8;
/// Bit of the armed word: a peer may wake the program itself, if the peer's message certainly
/// causes a completion that the owner waits for.
pub const ARMED_BIT_MAY_WAKE_PROGRAM: u32 = 16;
/// Bit of the armed word: a peer has woken the program by a token. The upper bits of the word hold
/// the peer's slot.
pub const ARMED_BIT_PROGRAM_WOKEN: u32 = 32;

/// Step of the arming counter in the armed word. Each arming adds a step, so a word that was
/// disarmed and armed again has another value.
const ARMING_COUNT_STEP: u32 = 1 << 6;
const ARMING_COUNT_MASK: u32 = 0xffff * ARMING_COUNT_STEP;
const WAKER_SLOT_SHIFT: u32 = 22;
const WAKER_SLOT_MASK: u32 = 0x3ff << WAKER_SLOT_SHIFT;
const WAKE_BITS_MASK: u32 = ARMED_BIT_ENGINE_WOKEN | ARMED_BIT_PROGRAM_WOKEN | WAKER_SLOT_MASK;

/// Maximum number of times that a peer tries to change an armed word while other threads change the
/// word.
const MAX_CAS_TRIES: u32 = 16;

/// The thread that a peer must wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeTarget {
    /// No thread must be woken: no thread waits, or another peer has woken the waiting thread.
    Nobody,
    /// The program must be woken, by a token in the completion channel.
    Program,
    /// The owner's engine must be woken.
    Engine,
}

/// The armed word of a completion queue.
#[derive(Clone, Copy)]
pub struct ArmedWord<'a>(pub &'a AtomicU32);

impl ArmedWord<'_> {
    /// Returns true if the word is [`ARMED_NO`]. A peer that has published a message then need not
    /// call [`choose_and_record_wake_target`](Self::choose_and_record_wake_target).
    #[inline(always)]
    pub fn is_unarmed_unfenced(self) -> bool {
        // SYNC POINT A: the first arming makes every core execute a barrier between the owner's store and its
        // next look for published messages. This load therefore needs no fence after the publishing store.
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) == ARMED_NO
    }

    /// Returns which thread the peer in `slot` must wake after it has published a message, `solicited` or
    /// not.
    ///
    /// `candidate` returns `Program` if the message certainly causes a completion that the owner has not found yet.
    /// `candidate` returns `Nobody` if the owner has found all messages. Its argument is true if the owner waits for a
    /// solicited completion, so that earlier messages may have caused completions without an event.
    #[cold]
    pub fn choose_and_record_wake_target(
        self,
        solicited: bool,
        slot: usize,
        candidate: impl Fn(bool) -> WakeTarget,
    ) -> WakeTarget {
        // SYNC POINT F: pairs with the fence in `fence_after_change`. Either this thread sees the word armed, or the
        // owner sees what this thread has published.
        fence(Ordering::SeqCst);
        for _ in 0..MAX_CAS_TRIES {
            // Acquire: before the owner armed the word, it stored the messages that it had found
            // and whether a completion is certain. If the owner finds more messages later, it
            // changes the word.
            let value = self.0.load(Ordering::Acquire);
            let is_wanted = value & ARMED_ANY != 0 || (value & ARMED_SOLICITED != 0 && solicited);
            if !is_wanted || value & (ARMED_BIT_ENGINE_WOKEN | ARMED_BIT_PROGRAM_WOKEN) != 0 {
                return WakeTarget::Nobody;
            }
            let target = if value & ARMED_BIT_MAY_WAKE_PROGRAM != 0 {
                candidate(value & ARMED_SOLICITED != 0)
            } else {
                WakeTarget::Engine
            };
            let added = match target {
                WakeTarget::Nobody => return WakeTarget::Nobody,
                WakeTarget::Engine => ARMED_BIT_ENGINE_WOKEN,
                #[allow(clippy::cast_possible_truncation)] // 10 bits
                WakeTarget::Program => ARMED_BIT_PROGRAM_WOKEN | (slot as u32) << WAKER_SLOT_SHIFT,
            };
            // The exchange fails if the owner has disarmed and armed the word again. The owner has
            // then found the message of this thread. The exchange also fails if ARMED_DIRECT was
            // cleared; the next attempt then wakes the engine.
            if self.compare_exchange(value, value & !WAKE_BITS_MASK | added) {
                return target;
            }
        }
        // Only an incorrect peer changes the word TRIES times meanwhile. A needless wake-up of the
        // engine is harmless.
        WakeTarget::Engine
    }

    fn compare_exchange(self, from: u32, to: u32) -> bool {
        let done = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        done.is_ok()
    }

    /// Returns true if the CQ is armed.
    pub fn is_armed(self) -> bool {
        self.0.load(Ordering::Relaxed) & (ARMED_ANY | ARMED_SOLICITED) != 0
    }

    /// Returns true if the CQ is armed, but only for solicited or failed completions.
    pub fn is_armed_for_solicited(self) -> bool {
        self.0.load(Ordering::Relaxed) & (ARMED_ANY | ARMED_SOLICITED) == ARMED_SOLICITED
    }

    /// Returns true if a peer has woken the owner's engine since it last permitted that.
    pub fn is_engine_woken(self) -> bool {
        self.0.load(Ordering::Relaxed) & ARMED_BIT_ENGINE_WOKEN != 0
    }

    /// Returns true if a peer has woken a thread of the owner since the CQ was armed.
    pub fn is_woken(self) -> bool {
        self.0.load(Ordering::Relaxed) & (ARMED_BIT_ENGINE_WOKEN | ARMED_BIT_PROGRAM_WOKEN) != 0
    }

    /// Returns the slot of the peer that has written a token or is about to write a token.
    pub fn program_woken_by(self) -> Option<usize> {
        waker_slot(self.0.load(Ordering::Acquire))
    }

    /// Arms the word for `what`; only the owner calls this function. If the word is armed already,
    /// the bits that peers have added are kept.
    ///
    /// Returns true at the first arming, and at the first arming after
    /// [`end_peer_fences`](Self::end_peer_fences). The owner must then execute a barrier on every core before
    /// it looks for published messages. At other armings the owner calls
    /// [`fence_after_change`](Self::fence_after_change) before it looks for published messages.
    pub fn arm(self, what: u32, direct: bool) -> bool {
        let direct = if direct {
            ARMED_BIT_MAY_WAKE_PROGRAM
        } else {
            0
        };
        loop {
            let value = self.0.load(Ordering::Relaxed);
            let kept = if value & (ARMED_ANY | ARMED_SOLICITED) != 0 {
                value & WAKE_BITS_MASK
            } else {
                0
            };
            let armings = value.wrapping_add(ARMING_COUNT_STEP) & ARMING_COUNT_MASK;
            // Release: pairs with the load in `choose_and_record_wake_target`.
            if self.compare_exchange(
                value,
                what | direct | kept | armings | ARMED_BIT_PEERS_FENCE,
            ) {
                return value & ARMED_BIT_PEERS_FENCE == 0;
            }
        }
    }

    /// Executes the owner's barrier between a change of the word and a look for published messages.
    pub fn fence_after_change(self) {
        // SYNC POINT F
        fence(Ordering::SeqCst);
    }

    /// Disarms the word; only the owner calls this function. Returns the slot of the peer that has
    /// written a token or is about to write a token.
    pub fn disarm_and_take_waker(self) -> Option<usize> {
        loop {
            let value = self.0.load(Ordering::Relaxed);
            if self.compare_exchange(value, value & (ARMED_BIT_PEERS_FENCE | ARMING_COUNT_MASK)) {
                return waker_slot(value);
            }
        }
    }

    /// Makes peers wake the engine instead of the program from now on. Returns true if a peer has
    /// woken the program.
    pub fn forbid_program_wakes(self) -> bool {
        self.0
            .fetch_and(!ARMED_BIT_MAY_WAKE_PROGRAM, Ordering::AcqRel)
            & ARMED_BIT_PROGRAM_WOKEN
            != 0
    }

    /// Permits peers to wake the engine, but not the program, after a token led to no completion.
    /// Returns false if no peer had woken the program.
    pub fn clear_program_wake_and_forbid_more(self) -> bool {
        let cleared = ARMED_BIT_PROGRAM_WOKEN | ARMED_BIT_MAY_WAKE_PROGRAM | WAKER_SLOT_MASK;
        self.0.fetch_and(!cleared, Ordering::AcqRel) & ARMED_BIT_PROGRAM_WOKEN != 0
    }

    /// Permits peers to wake the engine again. Returns false if no peer has woken it.
    pub fn clear_engine_wake(self) -> bool {
        self.0.load(Ordering::Relaxed) & ARMED_BIT_ENGINE_WOKEN != 0
            && self.0.fetch_and(!ARMED_BIT_ENGINE_WOKEN, Ordering::AcqRel) & ARMED_BIT_ENGINE_WOKEN
                != 0
    }

    /// Frees peers from their barrier until the next arming; does nothing if the word is armed.
    pub fn end_peer_fences(self) {
        let value = self.0.load(Ordering::Relaxed);
        if value & !ARMING_COUNT_MASK == ARMED_BIT_PEERS_FENCE {
            self.compare_exchange(value, ARMED_NO);
        }
    }
}

fn waker_slot(value: u32) -> Option<usize> {
    (value & ARMED_BIT_PROGRAM_WOKEN != 0).then_some((value >> WAKER_SLOT_SHIFT) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(loom)]
    use crate::sync::AtomicU64;

    /// A peer publishes a message while the owner arms the word: the owner finds the message, or
    /// exactly one wake-up occurs.
    #[cfg(loom)]
    #[test]
    fn loom_what_is_published_is_found_or_wakes_somebody() {
        use loom::sync::Arc;
        for candidate in [WakeTarget::Engine, WakeTarget::Program] {
            loom::model(move || {
                let word = Arc::new(AtomicU32::new(ARMED_BIT_PEERS_FENCE));
                let published = Arc::new(AtomicU64::new(0));
                let peers: Vec<_> = (1..=2)
                    .map(|slot| {
                        let (word, published) = (word.clone(), published.clone());
                        loom::thread::spawn(move || {
                            published.fetch_add(1, Ordering::Release);
                            ArmedWord(&word)
                                .choose_and_record_wake_target(false, slot, |_| candidate)
                        })
                    })
                    .collect();
                let armed = ArmedWord(&word);
                assert!(!armed.arm(ARMED_ANY, true));
                armed.fence_after_change();
                let found = published.load(Ordering::Relaxed);
                let targets: Vec<_> = peers.into_iter().map(|p| p.join().unwrap()).collect();
                let woken = targets.iter().filter(|c| **c != WakeTarget::Nobody).count();
                assert!(woken <= 1, "{targets:?}");
                assert!(found == 2 || woken == 1, "{found} found, {targets:?}");
                assert_eq!(
                    armed.disarm_and_take_waker().is_some(),
                    targets.contains(&WakeTarget::Program)
                );
            });
        }
    }

    /// A peer publishes a message while the owner ends direct wake-ups, or disarms and arms the
    /// word again.
    #[cfg(loom)]
    #[test]
    fn loom_a_change_of_the_word_loses_no_wake_up() {
        use loom::sync::Arc;
        loom::model(|| {
            let word = Arc::new(AtomicU32::new(ARMED_BIT_PEERS_FENCE));
            ArmedWord(&word).arm(ARMED_ANY, true);
            let published = Arc::new(AtomicU64::new(0));
            let peer = loom::thread::spawn({
                let (word, published) = (word.clone(), published.clone());
                move || {
                    published.store(1, Ordering::Release);
                    ArmedWord(&word)
                        .choose_and_record_wake_target(false, 3, |_| WakeTarget::Program)
                }
            });
            let armed = ArmedWord(&word);
            let _ = armed.forbid_program_wakes();
            let first = armed.disarm_and_take_waker();
            armed.arm(ARMED_ANY, true);
            armed.fence_after_change();
            let found = published.load(Ordering::Relaxed) == 1;
            let target = peer.join().unwrap();
            let second = armed.disarm_and_take_waker();
            assert!(found || target != WakeTarget::Nobody);
            let tokens = usize::from(first.is_some()) + usize::from(second.is_some());
            assert_eq!(tokens, usize::from(target == WakeTarget::Program));
        });
    }

    #[cfg(not(loom))]
    #[test]
    fn who_is_woken() {
        let word = AtomicU32::new(ARMED_NO);
        let armed = ArmedWord(&word);
        assert!(armed.is_unarmed_unfenced());
        assert_eq!(
            armed.choose_and_record_wake_target(true, 1, |_| WakeTarget::Program),
            WakeTarget::Nobody
        );

        assert!(armed.arm(ARMED_SOLICITED, false), "the first time");
        assert!(!armed.is_unarmed_unfenced() && armed.is_armed());
        assert!(armed.is_armed_for_solicited() && !armed.is_woken());
        assert_eq!(
            armed.choose_and_record_wake_target(false, 1, |_| WakeTarget::Program),
            WakeTarget::Nobody
        );
        assert_eq!(
            armed.choose_and_record_wake_target(true, 1, |_| WakeTarget::Program),
            WakeTarget::Engine
        );
        assert_eq!(
            armed.choose_and_record_wake_target(true, 2, |_| WakeTarget::Program),
            WakeTarget::Nobody,
            "woken already"
        );
        assert!(armed.is_woken());
        assert!(armed.clear_engine_wake() && !armed.clear_engine_wake());
        assert_eq!(armed.disarm_and_take_waker(), None);

        assert!(!armed.arm(ARMED_ANY, true), "not the first time");
        assert!(!armed.is_armed_for_solicited() && !armed.is_woken());
        assert_eq!(
            armed.choose_and_record_wake_target(false, 5, |_| WakeTarget::Engine),
            WakeTarget::Engine
        );
        assert_eq!(armed.disarm_and_take_waker(), None);
        armed.arm(ARMED_ANY, true);
        assert_eq!(
            armed.choose_and_record_wake_target(false, 5, |_| WakeTarget::Program),
            WakeTarget::Program
        );
        assert_eq!(
            armed.choose_and_record_wake_target(false, 6, |_| WakeTarget::Program),
            WakeTarget::Nobody
        );
        assert_eq!(armed.program_woken_by(), Some(5));
        armed.arm(ARMED_ANY, false);
        assert_eq!(
            armed.disarm_and_take_waker(),
            Some(5),
            "arming anew keeps the token"
        );

        armed.arm(ARMED_ANY, true);
        assert_eq!(
            armed.choose_and_record_wake_target(false, 5, |_| WakeTarget::Program),
            WakeTarget::Program
        );
        assert!(
            armed.clear_program_wake_and_forbid_more()
                && !armed.clear_program_wake_and_forbid_more()
        );
        assert_eq!(
            armed.choose_and_record_wake_target(false, 5, |_| WakeTarget::Program),
            WakeTarget::Engine
        );
        armed.disarm_and_take_waker();

        armed.arm(ARMED_SOLICITED, true);
        let by_kind = |solicited| {
            if solicited {
                WakeTarget::Program
            } else {
                WakeTarget::Engine
            }
        };
        assert_eq!(
            armed.choose_and_record_wake_target(false, 5, by_kind),
            WakeTarget::Nobody
        );
        assert_eq!(
            armed.choose_and_record_wake_target(true, 5, by_kind),
            WakeTarget::Program
        );
        assert_eq!(armed.disarm_and_take_waker(), Some(5));
        armed.arm(ARMED_ANY, true);
        assert_eq!(
            armed.choose_and_record_wake_target(true, 5, by_kind),
            WakeTarget::Engine
        );
        armed.end_peer_fences();
        assert!(armed.is_armed(), "fences stay while it is armed");
        armed.disarm_and_take_waker();
        armed.end_peer_fences();
        assert!(armed.is_unarmed_unfenced());
    }

    /// A peer that was delayed after publishing wakes no thread if the owner has found the message,
    /// armed or not.
    #[cfg(loom)]
    #[test]
    fn loom_a_token_has_a_message() {
        use loom::sync::Arc;
        loom::model(|| {
            let word = Arc::new(AtomicU32::new(ARMED_BIT_PEERS_FENCE));
            let [published, found] = [0; 2].map(|zero| Arc::new(AtomicU64::new(zero)));
            let peer = loom::thread::spawn({
                let (word, published, found) = (word.clone(), published.clone(), found.clone());
                move || {
                    published.store(1, Ordering::Release);
                    ArmedWord(&word).choose_and_record_wake_target(false, 3, |_| {
                        match found.load(Ordering::Relaxed) {
                            0 => WakeTarget::Program,
                            _ => WakeTarget::Nobody,
                        }
                    })
                }
            });
            let armed = ArmedWord(&word);
            let look = || {
                let new =
                    found.load(Ordering::Relaxed) == 0 && published.load(Ordering::Acquire) == 1;
                if new {
                    found.store(1, Ordering::Release);
                }
                new
            };
            // The owner polls, arms and polls again, twice. A completion found while armed disarms the word.
            let poll = || usize::from(look() && armed.disarm_and_take_waker().is_some());
            let mut events = 0;
            for _ in 0..2 {
                events += poll();
                armed.arm(ARMED_ANY, true);
                armed.fence_after_change();
                events += poll();
            }
            let target = peer.join().unwrap();
            events += poll();
            assert_eq!(events, usize::from(target == WakeTarget::Program));
        });
    }

    #[cfg(not(loom))]
    #[test]
    fn garbage_wakes_at_most_the_engine() {
        for value in [
            u32::MAX,
            ARMED_ANY | ARMING_COUNT_MASK,
            ARMED_BIT_PROGRAM_WOKEN,
            1 << 31,
        ] {
            let word = AtomicU32::new(value);
            let _ =
                ArmedWord(&word).choose_and_record_wake_target(true, 7, |_| WakeTarget::Program);
            ArmedWord(&word).arm(ARMED_ANY, true);
            ArmedWord(&word).disarm_and_take_waker();
            let left = word.load(Ordering::Relaxed) & !ARMING_COUNT_MASK;
            assert_eq!(left, ARMED_BIT_PEERS_FENCE, "{value:#x}");
        }
    }
}
