//! Whether the watch of a completion queue for overruns is parked (`overrun_parking.rs`).

/// The part of the parking that the lock of the queue protects.
#[derive(Default)]
pub(super) struct WatchParking {
    /// True if the queue's word is armed for the engine's watch.
    pub(super) is_word_armed: bool,
    /// Number of periodic checks in a row without a completion and without a poll.
    pub(super) quiet_checks_in_row: u32,
    /// Value of `CqState::pass_count` after the last check: a poll has changed it since.
    pub(super) pass_count_at_last_check: u32,
}
