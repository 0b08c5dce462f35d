//! The order of the sockets in a group, as far as processes can know it.
//!
//! The kernel appends a socket when it is bound. When a socket closes, the last one takes its place
//! (`reuseport_detach_sock`). The members of a group update a list in the same way.

use std::fmt::Write;

/// A process with a socket in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMember {
    pub(crate) slot: u16,
    pub(crate) pid: u64,
    /// Start time in clock ticks after boot.
    pub(crate) start_time_ticks: u64,
}

/// The members of a group, in the order of their sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupMembers {
    /// Counter that increases whenever a member joins or leaves.
    pub(crate) generation: u64,
    pub(crate) list: Vec<GroupMember>,
}

impl GroupMembers {
    /// Parses the result of [`GroupMembers::to_file_text`]; invalid lines are skipped.
    pub(crate) fn parse(text: &str) -> GroupMembers {
        let mut lines = text.lines();
        let generation = lines.next().and_then(|l| l.parse().ok()).unwrap_or(0);
        let member = |line: &str| {
            let mut fields = line.split(' ').map(str::parse::<u64>);
            let mut next = || fields.next()?.ok();
            let slot = u16::try_from(next()?).ok()?;
            Some(GroupMember {
                slot,
                pid: next()?,
                start_time_ticks: next()?,
            })
        };
        GroupMembers {
            generation,
            list: lines.filter_map(member).collect(),
        }
    }

    pub(crate) fn to_file_text(&self) -> String {
        let mut text = format!("{}\n", self.generation);
        for GroupMember {
            slot,
            pid,
            start_time_ticks: start,
        } in &self.list
        {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{slot} {pid} {start}");
        }
        text
    }

    pub(crate) fn slots(&self) -> Vec<u16> {
        self.list.iter().map(|m| m.slot).collect()
    }

    pub(crate) fn position_of_slot(&self, slot: u16) -> Option<usize> {
        self.list.iter().position(|m| m.slot == slot)
    }

    /// Records that a socket was bound.
    pub(crate) fn add_member(&mut self, member: GroupMember) {
        self.generation += 1;
        self.list.push(member);
    }

    /// Records that the socket of `slot` was closed.
    pub(crate) fn remove_member(&mut self, slot: u16) {
        if let Some(place) = self.position_of_slot(slot) {
            self.generation += 1;
            self.list.swap_remove(place);
        }
    }

    /// Removes members that are not `alive`; returns their number. If two or more were removed, the new order is a
    /// guess, since it depends on the order of their deaths.
    pub(crate) fn remove_dead(&mut self, alive: impl Fn(&GroupMember) -> bool) -> usize {
        let dead: Vec<u16> = self
            .list
            .iter()
            .filter(|m| !alive(m))
            .map(|m| m.slot)
            .collect();
        dead.iter().for_each(|slot| self.remove_member(*slot));
        dead.len()
    }

    /// Moves the socket of `slot` to its actual place; returns true if the list has changed.
    pub(crate) fn move_to_actual_place(&mut self, slot: u16, place: usize) -> bool {
        match self.position_of_slot(slot) {
            Some(believed) if believed != place && place < self.list.len() => {
                self.list.swap(believed, place);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(slots: &[u16]) -> GroupMembers {
        let mut members = GroupMembers::default();
        for slot in slots {
            members.add_member(GroupMember {
                slot: *slot,
                pid: 100 + u64::from(*slot),
                start_time_ticks: 7,
            });
        }
        members
    }

    #[test]
    fn the_last_takes_the_place_of_one_that_leaves() {
        let mut group = members(&[1, 2, 3, 4]);
        group.remove_member(2);
        assert_eq!(group.slots(), [1, 4, 3]);
        group.remove_member(9);
        assert_eq!(group.generation, 5);
        assert_eq!(group.remove_dead(|m| m.slot == 3), 2);
        assert_eq!(group.slots(), [3]);
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_garbage_is_left_out() {
        let group = members(&[1, 1023, 3]);
        assert_eq!(GroupMembers::parse(&group.to_file_text()), group);
        assert_eq!(GroupMembers::parse(""), GroupMembers::default());
        let damaged = "x\n1 2\n70000 1 1\n5 6 7 8\n\u{fffd}\n";
        assert_eq!(GroupMembers::parse(damaged).slots(), [5]);
    }

    #[test]
    fn corrections_in_any_order_give_the_order_that_is() {
        let truth = [4, 2, 3, 1];
        for first in 0..4 {
            let mut group = members(&[1, 2, 3, 4]);
            for i in 0..4 {
                let place = (first + i) % 4;
                group.move_to_actual_place(truth[place], place);
            }
            assert_eq!(group.slots(), truth);
            assert!(!group.move_to_actual_place(4, 0));
            assert!(!group.move_to_actual_place(4, 9));
        }
    }
}
