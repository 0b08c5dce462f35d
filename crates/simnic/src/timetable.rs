//! The use of a resource that several simulated cores share.

use crate::event_queue::Ps;

/// A resource that serves one request at a time, for threads whose clocks differ.
///
/// A request with an earlier time than a previous request still finds the time in front of that one free. A queue in
/// the order of the calls would make it wait for a later request.
#[derive(Debug, Default)]
pub(crate) struct SerialTimetable {
    /// Intervals in which the resource is used, in order, with free time between them.
    reserved_intervals: Vec<(Ps, Ps)>,
}

impl SerialTimetable {
    /// Uses the first free `time` from `at` on, in several pieces if necessary, so that no free time is left over.
    /// Returns the end of the use. No later call has a time before `now`.
    #[inline]
    pub(crate) fn reserve_time(&mut self, now: Ps, at: Ps, time: Ps) -> Ps {
        if time == 0 {
            return at;
        }
        if self.reserved_intervals.len() == self.reserved_intervals.capacity() {
            self.make_room(now);
        }
        let place = match self
            .reserved_intervals
            .iter()
            .rposition(|(_, end)| *end < at)
        {
            Some(before) => before + 1,
            None => 0,
        };
        // Usually the request comes after all intervals, or extends an interval, or fits between two of them.
        match &mut self.reserved_intervals[place..] {
            [] => {
                self.reserved_intervals.push((at, at + time));
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
                self.reserved_intervals.push((at, at + time));
                // The few intervals after it are moved one by one.
                for behind in (place + 1..self.reserved_intervals.len()).rev() {
                    self.reserved_intervals.swap(behind - 1, behind);
                }
                return at + time;
            }
            _ => {}
        }
        self.reserve_in_pieces(place, at, time)
    }

    /// Removes past intervals, and makes room for as many as are left.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, now: Ps) {
        let over = self
            .reserved_intervals
            .partition_point(|(_, end)| *end < now);
        self.reserved_intervals.drain(..over);
        self.reserved_intervals
            .reserve(self.reserved_intervals.len().max(8));
    }

    /// Does the same if existing intervals are in the way; all intervals before `place` end before `at`.
    #[inline(never)]
    fn reserve_in_pieces(&mut self, place: usize, at: Ps, time: Ps) -> Ps {
        let (mut start, mut end, mut left) = (at, at, time);
        let mut next = place;
        // Uses all free time up to the end, which joins the existing intervals in between.
        while let Some(&(from, until)) = self.reserved_intervals.get(next)
            && end + left > from
        {
            left -= from.saturating_sub(end);
            start = start.min(from);
            end = until;
            next += 1;
        }
        end += left;
        let mut joined = end;
        if let Some(&(from, until)) = self.reserved_intervals.get(next)
            && from == end
        {
            joined = until;
            next += 1;
        }
        if next == place {
            self.reserved_intervals.insert(place, (start, joined));
        } else {
            self.reserved_intervals[place] = (start, joined);
            if next > place + 1 {
                self.reserved_intervals.drain(place + 1..next);
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
        let mut link = SerialTimetable::default();
        assert_eq!(link.reserve_time(0, 1000, 12), 1012);
        assert_eq!(link.reserve_time(0, 900, 12), 912);
        assert_eq!(link.reserve_time(0, 1005, 12), 1024);
        // The time before 1000 is too short, so the rest comes after it.
        assert_eq!(link.reserve_time(0, 990, 12), 1026);
        assert_eq!(link.reserved_intervals, [(900, 912), (990, 1026)]);
    }

    proptest! {
        /// With requests in the order of time, the resource is a queue.
        #[test]
        fn is_a_queue_for_who_come_in_order(steps in prop::collection::vec((0u64..30, 1u64..20), 1..100)) {
            let (mut table, mut at, mut free) = (SerialTimetable::default(), 0, 0);
            for (later, time) in steps {
                at += later;
                free = at.max(free) + time;
                prop_assert_eq!(table.reserve_time(at, at, time), free);
            }
        }

        /// With requests in any order, the free time from `at` on is used, and the intervals are as few as possible.
        #[test]
        fn takes_what_is_free(asks in prop::collection::vec((0usize..500, 1usize..20), 1..100)) {
            let mut table = SerialTimetable::default();
            let mut model = vec![false; 4096];
            for (at, time) in asks {
                let free = (at..4096).filter(|&t| !model[t]);
                let taken: Vec<usize> = free.take(time).collect();
                taken.iter().for_each(|&t| model[t] = true);
                let end = taken.last().map(|&last| last as u64 + 1);
                prop_assert_eq!(Some(table.reserve_time(0, at as u64, time as u64)), end);
                let pieces = model.windows(2).filter(|pair| pair[0] && !pair[1]).count();
                prop_assert_eq!(table.reserved_intervals.len(), pieces);
            }
        }
    }
}
