//! What a worker remembers of a client's changes, so that none is made twice: at-most-once sessions.
//!
//! A client numbers its changes of a partition 1, 2, 3 … in a session, which outlives its connections. When an answer
//! does not come it connects again and sends the change once more, under the same number; a change that was made
//! already is then answered as it was the first time. The client never has changes outstanding that are as far apart as
//! its [`span`], so what is older than that was answered, and is a late copy that nobody waits for.

use std::collections::HashMap;

/// The most requests that a client may have outstanding.
pub const MAX_WINDOW: usize = 4096;

/// What a change came to before, or that it is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It has to be made.
    New,
    /// It was made, with this answer.
    Answered(u64),
    /// It was answered long ago.
    Stale,
}

/// How far apart the outstanding changes of a client with this window may be, less one: a power of two.
pub fn span(window: usize) -> u32 {
    let window = window.clamp(1, MAX_WINDOW);
    u32::try_from(2 * window.next_power_of_two()).unwrap_or(1)
}

/// A client's changes.
#[derive(Debug)]
pub struct Session {
    /// Number and answer.
    ring: Box<[(u32, u64)]>,
    highest: u32,
    /// Bytes of the longest request there is.
    longest: usize,
    /// A long request, as far as it has come.
    pub parts: Vec<u8>,
}

impl Session {
    fn new(window: usize, longest: usize) -> Self {
        Self {
            longest,
            ring: vec![(0, 0); span(window) as usize].into(),
            highest: 0,
            parts: Vec::new(),
        }
    }

    /// What is known of a change.
    #[inline]
    pub fn seen(&self, seq: u32) -> Seen {
        let behind = self.highest.wrapping_sub(seq);
        if behind < 1 << 31 && behind as usize >= self.ring.len() {
            return Seen::Stale;
        }
        match self.ring.get(seq as usize % self.ring.len()) {
            Some(&(number, answer)) if number == seq && seq != 0 => Seen::Answered(answer),
            _ => Seen::New,
        }
    }

    /// A change was made, with this answer.
    #[inline]
    pub fn made(&mut self, seq: u32, answer: u64) {
        let place = seq as usize % self.ring.len();
        self.ring[place] = (seq, answer);
        if seq.wrapping_sub(self.highest) < 1 << 31 {
            self.highest = seq;
        }
    }

    /// A part of a long request came: true if it was the last one, and then the request is in `parts`.
    pub fn part(&mut self, offset: usize, total: usize, bytes: &[u8]) -> Option<bool> {
        if total > self.longest || offset.checked_add(bytes.len())? > total {
            return None;
        }
        if offset == 0 {
            self.parts.clear();
        }
        // Parts come in order, over one connection; what else comes belongs to none.
        if offset != self.parts.len() {
            return None;
        }
        self.parts.extend_from_slice(bytes);
        Some(self.parts.len() == total)
    }
}

/// Sessions of a worker. Those without a connection are kept until there are many.
#[derive(Debug)]
pub struct Sessions {
    /// Bytes of the longest request there is.
    longest: usize,
    /// By the client's index: name of its session, and the session.
    connected: Vec<Option<(u64, Session)>>,
    /// By name, with the time at which it was put away.
    away: HashMap<u64, (u64, Session)>,
    time: u64,
}

impl Sessions {
    /// Sessions without a connection that are kept at the most. One takes 16 bytes for each change of its span.
    const MOST_AWAY: usize = 1024;

    /// No sessions yet, of requests of at most so many bytes.
    pub fn new(longest: usize) -> Self {
        Self {
            longest,
            connected: Vec::new(),
            away: HashMap::new(),
            time: 0,
        }
    }

    /// The session of a client.
    #[inline]
    pub fn of(&mut self, client: usize) -> Option<&mut Session> {
        self.connected.get_mut(client)?.as_mut().map(|s| &mut s.1)
    }

    /// A client connects. A connection of the same session that is still there loses it.
    pub fn connect(&mut self, client: u32, name: u64, window: usize) {
        let i = client as usize;
        let other = |c: &&mut Option<(u64, Session)>| c.as_ref().is_some_and(|s| s.0 == name);
        let other = self.connected.iter_mut().find(other).and_then(Option::take);
        let session = match other {
            Some((_, session)) => session,
            None => match self.away.remove(&name) {
                Some((_, session)) => session,
                None => Session::new(window, self.longest),
            },
        };
        if self.connected.len() <= i {
            self.connected.resize_with(i + 1, || None);
        }
        self.connected[i] = Some((name, session));
    }

    /// A client's connection ends.
    pub fn disconnect(&mut self, client: u32) {
        let place = self.connected.get_mut(client as usize);
        if let Some((name, session)) = place.and_then(Option::take) {
            self.time += 1;
            self.away.insert(name, (self.time, session));
        }
        if self.away.len() > Self::MOST_AWAY
            && let Some(oldest) = self.away.iter().min_by_key(|(_, s)| s.0).map(|(n, _)| *n)
        {
            self.away.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_made_once_in_whatever_connection_it_comes() {
        let mut sessions = Sessions::new(1 << 17);
        sessions.connect(3, 77, 64);
        let s = sessions.of(3).expect("connected");
        assert_eq!(s.seen(1), Seen::New);
        s.made(1, 100);
        s.made(3, 300);
        sessions.disconnect(3);
        assert!(sessions.of(3).is_none());
        sessions.connect(0, 78, 64);
        assert_eq!(sessions.of(0).expect("connected").seen(1), Seen::New);
        sessions.connect(5, 77, 64);
        let s = sessions.of(5).expect("connected");
        assert_eq!(s.seen(1), Seen::Answered(100));
        assert_eq!(s.seen(2), Seen::New);
        assert_eq!(s.seen(3), Seen::Answered(300));
        // The old connection may be there still when the new one comes.
        sessions.connect(6, 77, 64);
        assert!(sessions.of(5).is_none());
        assert_eq!(
            sessions.of(6).expect("connected").seen(3),
            Seen::Answered(300)
        );
        sessions.disconnect(5);
        assert!(sessions.of(6).is_some());
    }

    #[test]
    fn what_is_long_past_is_stale_also_when_numbers_wrap() {
        let mut s = Session::new(64, 1 << 17);
        for seq in [u32::MAX - 1, u32::MAX, 1, 2] {
            assert_eq!(s.seen(seq), Seen::New);
            s.highest = if s.highest == 0 { seq } else { s.highest };
            s.made(seq, 5);
            assert_eq!(s.seen(seq), Seen::Answered(5));
        }
        s.made(2 + span(64), 6);
        assert_eq!(s.seen(2), Seen::Stale);
        assert_eq!(s.seen(3), Seen::New);
        assert_eq!(s.seen(u32::MAX), Seen::Stale);
    }

    #[test]
    fn parts_make_a_whole_or_nothing() {
        let mut s = Session::new(64, 1 << 17);
        assert_eq!(s.part(0, 5, b"abc"), Some(false));
        assert_eq!(s.part(4, 5, b"x"), None);
        assert_eq!(s.part(3, 5, b"de"), Some(true));
        assert_eq!(s.parts, b"abcde");
        assert_eq!(s.part(0, 2, b"abc"), None);
        assert_eq!(s.part(usize::MAX, 5, b"abc"), None);
        assert_eq!(s.part(0, 1 << 30, b"abc"), None);
        // A new one begins from the start.
        assert_eq!(s.part(0, 2, b"ab"), Some(true));
    }
}
