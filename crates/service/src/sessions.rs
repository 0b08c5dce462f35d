//! At-most-once sessions: a worker's record of each client's changes, so that no change is executed
//! twice.
//!
//! In a session, a client numbers its changes of a partition 1, 2, 3 … A session outlives its
//! connections. If an answer does not arrive, the client connects again and sends the change under
//! the same number. If the change was executed already, the worker repeats its first answer. The
//! numbers of a client's outstanding changes differ by less than its [`change_number_span`]. An older number
//! therefore was answered, and is a late copy that the client does not wait for.

use std::collections::HashMap;

/// Maximum outstanding requests of a client.
pub const MAX_WINDOW: usize = 4096;

/// State of a change that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeStatus {
    /// The change is new and must be executed.
    New,
    /// The change was executed, with this answer.
    Answered(u64),
    /// The change was answered long ago.
    Stale,
}

/// Returns the span for a window, a power of two: the numbers of outstanding changes differ by less
/// than this.
pub fn change_number_span(window: usize) -> u32 {
    let window = window.clamp(1, MAX_WINDOW);
    u32::try_from(2 * window.next_power_of_two()).unwrap_or(1)
}

/// A client's record of changes.
#[derive(Debug)]
pub struct Session {
    /// Numbers and answers of recent changes.
    recent_answers: Box<[(u32, u64)]>,
    /// Highest number of an executed change; 0 before the first one.
    highest_change_number: u32,
    /// Maximum bytes of a request.
    max_request_bytes: usize,
    /// Received parts of a long request.
    pub received_request_parts: Vec<u8>,
}

impl Session {
    fn new(window: usize, max_request_bytes: usize) -> Self {
        Self {
            max_request_bytes,
            recent_answers: vec![(0, 0); change_number_span(window) as usize].into(),
            highest_change_number: 0,
            received_request_parts: Vec::new(),
        }
    }

    /// Returns the state of a change.
    #[inline]
    pub fn state_of_change(&self, seq: u32) -> ChangeStatus {
        let behind = self.highest_change_number.wrapping_sub(seq);
        if self.highest_change_number != 0
            && behind < 1 << 31
            && behind as usize >= self.recent_answers.len()
        {
            return ChangeStatus::Stale;
        }
        match self
            .recent_answers
            .get(seq as usize % self.recent_answers.len())
        {
            Some(&(number, answer)) if number == seq && seq != 0 => ChangeStatus::Answered(answer),
            _ => ChangeStatus::New,
        }
    }

    /// Records that a change was executed, with this answer.
    #[inline]
    pub fn record_answer(&mut self, seq: u32, answer: u64) {
        let place = seq as usize % self.recent_answers.len();
        self.recent_answers[place] = (seq, answer);
        if self.highest_change_number == 0 || seq.wrapping_sub(self.highest_change_number) < 1 << 31
        {
            self.highest_change_number = seq;
        }
    }

    /// Adds a part of a long request. Returns true after the last part; the request is then in
    /// `received_request_parts`. `None` means that the part is invalid.
    pub fn add_request_part(&mut self, offset: usize, total: usize, bytes: &[u8]) -> Option<bool> {
        if total > self.max_request_bytes || offset.checked_add(bytes.len())? > total {
            return None;
        }
        if offset == 0 {
            self.received_request_parts.clear();
        }
        // Parts arrive in order over one connection; any other part belongs to no request.
        if offset != self.received_request_parts.len() {
            return None;
        }
        self.received_request_parts.extend_from_slice(bytes);
        Some(self.received_request_parts.len() == total)
    }
}

/// The sessions of a worker. A limited number of sessions without a connection is kept.
#[derive(Debug)]
pub struct WorkerSessions {
    /// Maximum bytes of a request.
    max_request_bytes: usize,
    /// By client index: the session's name, and the session.
    by_client_index: Vec<Option<(u64, Session)>>,
    /// Sessions without a connection by name, each with the logical time of its disconnection.
    disconnected_by_name: HashMap<u64, (u64, Session)>,
    disconnection_count: u64,
}

impl WorkerSessions {
    /// Maximum number of kept sessions without a connection. A session takes 16 bytes for each
    /// change of its span.
    const MAX_DISCONNECTED: usize = 1024;

    /// Creates an empty set of sessions, with requests of at most `longest` bytes.
    pub fn new(max_request_bytes: usize) -> Self {
        Self {
            max_request_bytes,
            by_client_index: Vec::new(),
            disconnected_by_name: HashMap::new(),
            disconnection_count: 0,
        }
    }

    /// Returns the session of a client.
    #[inline]
    pub fn session(&mut self, client: usize) -> Option<&mut Session> {
        self.by_client_index
            .get_mut(client)?
            .as_mut()
            .map(|s| &mut s.1)
    }

    /// Attaches a session to a client's connection. If an old connection still has the session, the
    /// old connection loses it.
    pub fn connect(&mut self, client: u32, name: u64, window: usize) {
        let i = client as usize;
        let other = |c: &&mut Option<(u64, Session)>| c.as_ref().is_some_and(|s| s.0 == name);
        let other = self
            .by_client_index
            .iter_mut()
            .find(other)
            .and_then(Option::take);
        let session = match other {
            Some((_, session)) => session,
            None => match self.disconnected_by_name.remove(&name) {
                Some((_, session)) => session,
                None => Session::new(window, self.max_request_bytes),
            },
        };
        if self.by_client_index.len() <= i {
            self.by_client_index.resize_with(i + 1, || None);
        }
        self.by_client_index[i] = Some((name, session));
    }

    /// Detaches the session of a client whose connection has ended.
    pub fn disconnect(&mut self, client: u32) {
        let place = self.by_client_index.get_mut(client as usize);
        if let Some((name, session)) = place.and_then(Option::take) {
            self.disconnection_count += 1;
            self.disconnected_by_name
                .insert(name, (self.disconnection_count, session));
        }
        if self.disconnected_by_name.len() > Self::MAX_DISCONNECTED
            && let Some(oldest) = self
                .disconnected_by_name
                .iter()
                .min_by_key(|(_, s)| s.0)
                .map(|(n, _)| *n)
        {
            self.disconnected_by_name.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_made_once_in_whatever_connection_it_comes() {
        let mut sessions = WorkerSessions::new(1 << 17);
        sessions.connect(3, 77, 64);
        let s = sessions.session(3).expect("connected");
        assert_eq!(s.state_of_change(1), ChangeStatus::New);
        s.record_answer(1, 100);
        s.record_answer(3, 300);
        sessions.disconnect(3);
        assert!(sessions.session(3).is_none());
        sessions.connect(0, 78, 64);
        assert_eq!(
            sessions.session(0).expect("connected").state_of_change(1),
            ChangeStatus::New
        );
        sessions.connect(5, 77, 64);
        let s = sessions.session(5).expect("connected");
        assert_eq!(s.state_of_change(1), ChangeStatus::Answered(100));
        assert_eq!(s.state_of_change(2), ChangeStatus::New);
        assert_eq!(s.state_of_change(3), ChangeStatus::Answered(300));
        // The old connection may still exist when the new one arrives.
        sessions.connect(6, 77, 64);
        assert!(sessions.session(5).is_none());
        assert_eq!(
            sessions.session(6).expect("connected").state_of_change(3),
            ChangeStatus::Answered(300)
        );
        sessions.disconnect(5);
        assert!(sessions.session(6).is_some());
    }

    #[test]
    fn what_is_long_past_is_stale_also_when_numbers_wrap() {
        let mut s = Session::new(64, 1 << 17);
        for seq in [u32::MAX - 1, u32::MAX, 1, 2] {
            assert_eq!(s.state_of_change(seq), ChangeStatus::New);
            s.record_answer(seq, 5);
            assert_eq!(s.state_of_change(seq), ChangeStatus::Answered(5));
        }
        s.record_answer(2 + change_number_span(64), 6);
        assert_eq!(s.state_of_change(2), ChangeStatus::Stale);
        assert_eq!(s.state_of_change(3), ChangeStatus::New);
        assert_eq!(s.state_of_change(u32::MAX), ChangeStatus::Stale);
    }

    #[test]
    fn a_new_session_accepts_any_first_number() {
        for first in [1, 1000, 1 << 31, (1 << 31) + 1000, u32::MAX] {
            let mut s = Session::new(64, 0);
            assert_eq!(s.state_of_change(first), ChangeStatus::New);
            s.record_answer(first, 7);
            assert_eq!(s.state_of_change(first), ChangeStatus::Answered(7));
            let older = first.wrapping_sub(change_number_span(64));
            assert_eq!(s.state_of_change(older), ChangeStatus::Stale);
        }
    }

    #[test]
    fn parts_make_a_whole_or_nothing() {
        let mut s = Session::new(64, 1 << 17);
        assert_eq!(s.add_request_part(0, 5, b"abc"), Some(false));
        assert_eq!(s.add_request_part(4, 5, b"x"), None);
        assert_eq!(s.add_request_part(3, 5, b"de"), Some(true));
        assert_eq!(s.received_request_parts, b"abcde");
        assert_eq!(s.add_request_part(0, 2, b"abc"), None);
        assert_eq!(s.add_request_part(usize::MAX, 5, b"abc"), None);
        assert_eq!(s.add_request_part(0, 1 << 30, b"abc"), None);
        // A new request begins at offset 0.
        assert_eq!(s.add_request_part(0, 2, b"ab"), Some(true));
    }
}
