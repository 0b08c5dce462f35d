//! The event of a request that a queue pair refuses: the requester finds the fault, and tells the queue pair's owner.

use std::sync::atomic::Ordering;

use super::layout::QpShared;

impl QpShared {
    /// Tells the owner that this queue pair has refused a request, which causes `event` (an `ibv_event_type`). `epoch` is
    /// the queue pair's [`epoch`](Self::epoch) when the request was sent. Wake the owner's engine afterwards.
    pub fn report_refused_request(&self, epoch: u32, event: u32) {
        let report = u64::from(epoch) << 32 | u64::from(event.saturating_add(1));
        self.refused_request.store(report, Ordering::Release);
    }

    /// Returns true if a requester has reported a refused request.
    #[inline(always)]
    pub fn has_refused_request(&self) -> bool {
        self.refused_request.load(Ordering::Relaxed) != 0
    }

    /// Takes the report of a requester, and returns its event.
    ///
    /// A requester may be interrupted just before it reports. A report that comes after the queue pair was reset is of an
    /// earlier connection: it is dropped.
    pub fn take_refused_request(&self) -> Option<u32> {
        let report = self.refused_request.swap(0, Ordering::AcqRel);
        #[allow(clippy::cast_possible_truncation)] // the two halves
        let (epoch, event_plus_1) = ((report >> 32) as u32, report as u32);
        if epoch != self.epoch.load(Ordering::Relaxed) {
            return None;
        }
        event_plus_1.checked_sub(1)
    }

    /// Drops the report of a requester.
    pub fn clear_refused_request(&self) {
        self.refused_request.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_taken_once() {
        let qp = QpShared::default();
        assert!(!qp.has_refused_request());
        assert_eq!(qp.take_refused_request(), None);
        qp.report_refused_request(0, 0);
        assert!(qp.has_refused_request());
        assert_eq!(qp.take_refused_request(), Some(0));
        assert_eq!(qp.take_refused_request(), None);
    }

    #[test]
    fn a_report_of_an_earlier_connection_is_dropped() {
        let qp = QpShared::default();
        let epoch = qp.epoch.load(Ordering::Relaxed);
        qp.epoch.fetch_add(1, Ordering::AcqRel);
        qp.clear_refused_request();
        qp.report_refused_request(epoch, 3);
        assert!(qp.has_refused_request());
        assert_eq!(qp.take_refused_request(), None);
        assert!(!qp.has_refused_request());
        qp.report_refused_request(epoch + 1, 3);
        assert_eq!(qp.take_refused_request(), Some(3));
    }

    #[test]
    fn garbage_of_a_peer_is_no_panic() {
        let qp = QpShared::default();
        qp.report_refused_request(0, u32::MAX);
        assert_eq!(qp.take_refused_request(), Some(u32::MAX - 1));
        qp.refused_request.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(qp.take_refused_request(), None);
    }
}
