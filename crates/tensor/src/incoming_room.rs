//! Room for the tensors that peers are storing here at the moment.
//!
//! A peer may offer many tensors at once, and each needs memory before its bytes come. So the tensors that are on their
//! way have at most the bytes of the store's capacity, and further offers wait for their turn.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::requests::REQUESTS_MAX;

/// The room of a store for incoming tensors, and offers `O` that wait for some. Clones are the same.
#[derive(Debug)]
pub(crate) struct IncomingRoom<O>(Arc<RoomInner<O>>);

#[derive(Debug)]
struct RoomInner<O> {
    capacity_bytes: u64,
    state: Mutex<RoomState<O>>,
    /// The length of the queue, to be read without the lock.
    waiting_offer_count: AtomicUsize,
}

#[derive(Debug)]
struct RoomState<O> {
    incoming_bytes: u64,
    /// With the bytes that each needs.
    waiting_offers_and_bytes: VecDeque<(u64, O)>,
}

/// Room for a tensor that comes. Dropping it gives the room back.
#[derive(Debug)]
pub(crate) struct ReservedRoom<O> {
    room: IncomingRoom<O>,
    bytes: u64,
}

/// The result of asking for room.
#[derive(Debug)]
pub(crate) enum Admission<O> {
    /// The tensor may come now.
    Admitted(O, ReservedRoom<O>),
    /// The offer waits until other tensors have come.
    Waits,
    /// The peer has more offers than it may have requests.
    TooManyOffers,
}

impl<O> Clone for IncomingRoom<O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O> IncomingRoom<O> {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self(Arc::new(RoomInner {
            capacity_bytes,
            state: Mutex::new(RoomState {
                incoming_bytes: 0,
                waiting_offers_and_bytes: VecDeque::new(),
            }),
            waiting_offer_count: AtomicUsize::new(0),
        }))
    }

    fn state(&self) -> MutexGuard<'_, RoomState<O>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_waiting_offer_count(&self, state: &RoomState<O>) {
        let waiting = state.waiting_offers_and_bytes.len();
        self.0.waiting_offer_count.store(waiting, Ordering::Release);
    }

    /// Takes room for a tensor of so many bytes, or puts the offer at the end of the queue.
    pub(crate) fn admit_or_queue(
        &self,
        offer: O,
        bytes: u64,
        is_from_same_peer: impl Fn(&O) -> bool,
    ) -> Admission<O> {
        let mut state = self.state();
        if state.waiting_offers_and_bytes.is_empty()
            && let Some(room) = self.reserve_if_room(&mut state, bytes)
        {
            return Admission::Admitted(offer, room);
        }
        let others = state.waiting_offers_and_bytes.iter();
        if others.filter(|(_, o)| is_from_same_peer(o)).count() >= REQUESTS_MAX {
            return Admission::TooManyOffers;
        }
        state.waiting_offers_and_bytes.push_back((bytes, offer));
        self.update_waiting_offer_count(&state);
        Admission::Waits
    }

    /// Takes the first offer out of the queue if there is room for it.
    pub(crate) fn take_next_admitted(&self) -> Option<(O, ReservedRoom<O>)> {
        if self.0.waiting_offer_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = self.state();
        let (bytes, _) = state.waiting_offers_and_bytes.front()?;
        let bytes = *bytes;
        let room = self.reserve_if_room(&mut state, bytes)?;
        let (_, offer) = state.waiting_offers_and_bytes.pop_front()?;
        self.update_waiting_offer_count(&state);
        Some((offer, room))
    }

    /// Takes offers out of the queue, by what `is_gone` says of them.
    pub(crate) fn remove_offers_if(&self, is_gone: impl Fn(&O) -> bool) {
        let mut state = self.state();
        state
            .waiting_offers_and_bytes
            .retain(|(_, offer)| !is_gone(offer));
        self.update_waiting_offer_count(&state);
    }

    /// Room for so many bytes. A tensor that comes alone always has room: whether it fits into the store was checked.
    fn reserve_if_room(&self, state: &mut RoomState<O>, bytes: u64) -> Option<ReservedRoom<O>> {
        let together = state.incoming_bytes.saturating_add(bytes);
        if together > self.0.capacity_bytes && state.incoming_bytes > 0 {
            return None;
        }
        state.incoming_bytes = together;
        Some(ReservedRoom {
            room: self.clone(),
            bytes,
        })
    }
}

impl<O> Drop for ReservedRoom<O> {
    fn drop(&mut self) {
        self.room.state().incoming_bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Room = IncomingRoom<&'static str>;

    fn admit(room: &Room, offer: &'static str, bytes: u64) -> Admission<&'static str> {
        room.admit_or_queue(offer, bytes, |_| true)
    }

    #[test]
    fn offers_wait_in_their_order_while_others_come() {
        let room = Room::new(100);
        let Admission::Admitted(_, first) = admit(&room, "first", 60) else {
            panic!("there is room");
        };
        let Admission::Admitted(_, second) = admit(&room, "second", 40) else {
            panic!("there is room");
        };
        assert!(matches!(admit(&room, "third", 50), Admission::Waits));
        // There would be room, but the other offer was first.
        drop(second);
        assert!(matches!(admit(&room, "fourth", 1), Admission::Waits));
        assert!(room.take_next_admitted().is_none());
        drop(first);
        let (next, third) = room.take_next_admitted().expect("room");
        assert_eq!(next, "third");
        let (next, fourth) = room.take_next_admitted().expect("room");
        assert_eq!(next, "fourth");
        drop((third, fourth));
        assert!(room.take_next_admitted().is_none());
        assert_eq!(room.state().incoming_bytes, 0);
    }

    #[test]
    fn a_peer_has_no_more_offers_than_requests() {
        let room = Room::new(1);
        let _reserved = admit(&room, "comes", 1);
        for _ in 0..REQUESTS_MAX {
            assert!(matches!(admit(&room, "waits", 1), Admission::Waits));
        }
        assert!(matches!(admit(&room, "more", 1), Admission::TooManyOffers));
        room.remove_offers_if(|offer| *offer == "waits");
        assert!(matches!(admit(&room, "again", 1), Admission::Waits));
    }
}
