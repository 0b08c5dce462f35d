//! What an endpoint counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an endpoint. All of them only grow.
        ///
        /// A counter that the kernel's rdma `hw_counters` have is named as there.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Names and values, in the order of the declaration.
            #[must_use]
            pub fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Packets that the kernel took.
    sent_pkts,
    /// Packets that were received, those that another process handed over included.
    rcvd_pkts,
    /// Packets that the kernel refused: no route, too long for the path, a firewall.
    send_err,
    /// Packets that this process handed to another one of its fabric.
    forwarded_pkts,
    /// Packets that another process of the fabric handed over to this one.
    forward_rcvd_pkts,
    /// Packets that could not be handed over because the process's queue is full.
    forward_overrun_pkts,
    /// Packets for a slot that no process has.
    unknown_slot_pkts,
    /// How often a probe showed that the order of the processes was another one than their file said.
    order_corrections,
    /// Packets that are shorter than a BTH and an ICRC.
    rcvd_short_pkts,
    /// Bursts that the kernel did not segment, and that went out packet by packet.
    unsegmented_bursts,
}

/// Adds `count` to a counter.
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_names_of_the_fields() {
        let counters = Counters::default();
        add(&counters.send_err, 3);
        assert!(counters.values().contains(&("send_err", 3)));
        assert!(counters.values().contains(&("sent_pkts", 0)));
    }
}
