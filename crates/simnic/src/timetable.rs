//! When a resource is taken that several simulated cores ask for.

use crate::queue::Ps;

/// A resource that serves one at a time, asked by threads that are ahead of each other.
///
/// Who comes earlier than one who has asked before finds the time in front of that one still free. With a queue in the
/// order of asking it would wait for what comes after it.
#[derive(Debug, Default)]
pub(crate) struct Timetable {
    /// From when to when it is taken, the first first, with time between each and the next.
    taken: Vec<(Ps, Ps)>,
}

impl Timetable {
    /// Takes the first `time` that is free from `at` on, in pieces if need be, so that none is left over; returns when
    /// it is over. Nobody asks for a time before `now` any more.
    #[inline]
    pub(crate) fn take(&mut self, now: Ps, at: Ps, time: Ps) -> Ps {
        if time == 0 {
            return at;
        }
        if self.taken.len() == self.taken.capacity() {
            self.make_room(now);
        }
        let place = match self.taken.iter().rposition(|(_, end)| *end < at) {
            Some(before) => before + 1,
            None => 0,
        };
        // Mostly it comes behind all, or makes what is taken at its time longer, or lies between two, and reaches no
        // other.
        match &mut self.taken[place..] {
            [] => {
                self.taken.push((at, at + time));
                return at + time;
            }
            [(from, until), rest @ ..] if *from <= at => {
                let end = *until + time;
                if rest.first().is_none_or(|(next, _)| end < *next) {
                    *until = end;
                    return end;
                }
            }
            [(from, _), ..] if at + time < *from => {
                self.taken.push((at, at + time));
                // Behind it are a few, which are moved one by one.
                for behind in (place + 1..self.taken.len()).rev() {
                    self.taken.swap(behind - 1, behind);
                }
                return at + time;
            }
            _ => {}
        }
        self.take_pieces(place, at, time)
    }

    /// Takes out what is over, or makes room for as much again.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, now: Ps) {
        let over = self.taken.partition_point(|(_, end)| *end < now);
        self.taken.drain(..over);
        self.taken.reserve(self.taken.len().max(8));
    }

    /// The same where what is taken already is in the way; all before `place` ends before `at`.
    #[inline(never)]
    fn take_pieces(&mut self, place: usize, at: Ps, time: Ps) -> Ps {
        let (mut start, mut end, mut left) = (at, at, time);
        let mut next = place;
        // All that is free up to the end is taken, with what is taken already one piece.
        while let Some(&(from, until)) = self.taken.get(next)
            && end + left > from
        {
            left -= from.saturating_sub(end);
            start = start.min(from);
            end = until;
            next += 1;
        }
        end += left;
        let mut joined = end;
        if let Some(&(from, until)) = self.taken.get(next)
            && from == end
        {
            joined = until;
            next += 1;
        }
        if next == place {
            self.taken.insert(place, (start, joined));
        } else {
            self.taken[place] = (start, joined);
            if next > place + 1 {
                self.taken.drain(place + 1..next);
            }
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
        // Not enough time before 1000: the rest comes behind.
        assert_eq!(link.take(0, 990, 12), 1026);
        assert_eq!(link.taken, [(900, 912), (990, 1026)]);
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

        /// In any order it is the free time from then on, and what was taken is in as few pieces as can be.
        #[test]
        fn takes_what_is_free(asks in prop::collection::vec((0usize..500, 1usize..20), 1..100)) {
            let mut table = Timetable::default();
            let mut model = vec![false; 4096];
            for (at, time) in asks {
                let free = (at..4096).filter(|&t| !model[t]);
                let taken: Vec<usize> = free.take(time).collect();
                taken.iter().for_each(|&t| model[t] = true);
                let end = taken.last().map(|&last| last as u64 + 1);
                prop_assert_eq!(Some(table.take(0, at as u64, time as u64)), end);
                let pieces = model.windows(2).filter(|pair| pair[0] && !pair[1]).count();
                prop_assert_eq!(table.taken.len(), pieces);
            }
        }
    }
}
