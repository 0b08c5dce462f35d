//! What becomes of packets, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet that has come is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drop {
    /// It cannot be parsed, or lacks a header that its opcode has.
    Malformed,
    /// Its ICRC is wrong.
    WrongIcrc,
    /// There is no such queue pair, or it is of another transport service.
    UnknownQueuePair,
    /// The queue pair is in a state that takes no such packet.
    NotReady,
    /// Its addresses are not those of the connected peer.
    WrongSource,
    /// Its Q_Key is not that of the queue pair.
    WrongQkey,
    /// Its P_Key is not in the port's table.
    WrongPkey,
}

impl Drop {
    /// All reasons, with the names of their counters.
    pub(crate) const NAMES: [(Self, &'static str); 7] = [
        (Self::Malformed, "rx_malformed"),
        (Self::WrongIcrc, "rx_icrc_encapsulated"),
        (Self::UnknownQueuePair, "rx_unknown_qp"),
        (Self::NotReady, "rx_qp_not_ready"),
        (Self::WrongSource, "rx_wrong_source"),
        (Self::WrongQkey, "rx_wrong_qkey"),
        (Self::WrongPkey, "rx_wrong_pkey"),
    ];
}

/// Counts of this process's packets.
#[derive(Default)]
pub(crate) struct Counters {
    drops: [AtomicU64; Drop::NAMES.len()],
}

impl Counters {
    /// A packet was dropped.
    pub(crate) fn dropped(&self, why: Drop) {
        self.drops[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many packets were dropped for each reason, by the counter's name.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Drop::NAMES
            .iter()
            .map(|&(why, name)| (name, self.drops[why as usize].load(Ordering::Relaxed)))
    }
}
