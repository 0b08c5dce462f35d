//! When a resource is taken that several simulated cores ask for.

use std::collections::VecDeque;

use crate::queue::Ps;

/// A resource that serves one at a time, asked by threads that are ahead of each other.
///
/// Who comes earlier than one who has asked before finds the time in front of that one still free. With a queue in the
/// order of asking it would wait for what comes after it.
#[derive(Debug, Default)]
pub(crate) struct Timetable {
    /// From when to when it is taken, the first first, with time between each and the next.
    taken: VecDeque<(Ps, Ps)>,
}

impl Timetable {
    /// Takes the first `time` that is free from `at` on; returns when it is over. Nobody asks for a time before `now`
    /// any more.
    pub(crate) fn take(&mut self, now: Ps, at: Ps, time: Ps) -> Ps {
        if time == 0 {
            return at;
        }
        while self.taken.pop_front_if(|(_, end)| *end < now).is_some() {}
        let before = self.taken.iter().rposition(|&(_, end)| end < at);
        let mut place = before.map_or(0, |before| before + 1);
        let mut start = at;
        while let Some(&(from, end)) = self.taken.get(place)
            && start + time > from
        {
            start = start.max(end);
            place += 1;
        }
        let end = start + time;
        let joins_next = self.taken.get(place).is_some_and(|&(from, _)| from == end);
        let previous = place.checked_sub(1).and_then(|i| self.taken.get_mut(i));
        match previous.filter(|(_, until)| *until == start) {
            Some((_, until)) => {
                *until = end;
                if joins_next && let Some((_, until)) = self.taken.remove(place) {
                    self.taken[place - 1].1 = until;
                }
            }
            None if joins_next => self.taken[place].0 = start,
            None => self.taken.insert(place, (start, end)),
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_comes_earlier_is_not_held_up_by_who_asked_earlier() {
        let mut link = Timetable::default();
        assert_eq!(link.take(0, 1000, 12), 1012);
        assert_eq!(link.take(0, 900, 12), 912);
        assert_eq!(link.take(0, 1005, 12), 1024);
        // Not enough time before 1000.
        assert_eq!(link.take(0, 990, 12), 1036);
    }

    proptest! {
        /// In the order of time it is a queue.
        #[test]
        fn is_a_queue_for_who_come_in_order(steps in prop::collection::vec((0u64..30, 1u64..20), 1..100)) {
            let (mut table, mut at, mut free) = (Timetable::default(), 0, 0);
            for (later, time) in steps {
                at += later;
                free = at.max(free) + time;
                prop_assert_eq!(table.take(at, at, time), free);
            }
        }

        /// In any order nobody is served before coming, and no two at once.
        #[test]
        fn no_time_is_taken_twice(asks in prop::collection::vec((0u64..500, 1u64..20), 1..100)) {
            let mut table = Timetable::default();
            let mut served: Vec<(u64, u64)> = Vec::new();
            for (at, time) in asks {
                let end = table.take(0, at, time);
                let start = end - time;
                prop_assert!(start >= at);
                prop_assert!(served.iter().all(|&(from, until)| end <= from || until <= start));
                served.push((start, end));
            }
            prop_assert!(table.taken.iter().zip(table.taken.iter().skip(1)).all(|(a, b)| a.1 < b.0));
        }
    }
}
