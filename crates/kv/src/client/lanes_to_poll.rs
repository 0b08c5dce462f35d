//! The lanes that a poll of a client must visit.

use verbs::PolledQueues;

use super::lane::Lane;

/// Finds the lanes that have something to do. In a simulation with many clients, lanes are in no cache of the host, and
/// most polls of a lane find nothing.
#[derive(Debug, Default)]
pub(super) struct LanesToPoll {
    answer_cqs: PolledQueues,
    /// For each lane, true if it may do more in a poll than to take answers.
    may_have_work: Box<[bool]>,
}

impl LanesToPoll {
    /// Takes the lanes of a new session.
    pub(super) fn new(lanes: &[Lane]) -> Self {
        Self {
            answer_cqs: PolledQueues::new(lanes.iter().map(Lane::recv_cq)),
            may_have_work: vec![true; lanes.len()].into(),
        }
    }

    /// Records that a lane has been given something to do.
    #[inline]
    pub(super) fn set_work_flag(&mut self, lane: usize) {
        if let Some(may_have_work) = self.may_have_work.get_mut(lane) {
            *may_have_work = true;
        }
    }

    /// Records whether a lane that was just polled still has work besides taking answers.
    #[inline]
    pub(super) fn update_work_flag_after_poll(&mut self, number: usize, lane: &Lane) {
        if let Some(may_have_work) = self.may_have_work.get_mut(number) {
            *may_have_work = lane.has_work_besides_answers();
        }
    }

    /// Returns the next lane to be polled, from lane `from` on. Lanes before it have been polled in vain.
    #[inline]
    pub(super) fn next_lane_to_poll(&self, from: usize) -> usize {
        let idle = self
            .may_have_work
            .iter()
            .skip(from)
            .take_while(|work| !**work);
        from + self.answer_cqs.poll_while_empty(from..from + idle.count())
    }
}
