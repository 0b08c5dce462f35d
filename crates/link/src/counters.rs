//! The counters of an endpoint's addresses.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an address of an endpoint, which never decrease.
        ///
        /// Counters that also exist in the kernel's rdma `hw_counters` have the same names.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Returns names and values, in the order of declaration.
            #[must_use]
            pub fn values(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Packets that the kernel took for sending.
    sent_pkts,
    /// Bytes of those packets, from BTH to ICRC.
    sent_bytes,
    /// Packets that were received, including those that another process forwarded.
    rcvd_pkts,
    /// Bytes of those packets, from BTH to ICRC.
    rcvd_bytes,
    /// Packets that the kernel refused: no route, too long for the path, a firewall.
    send_err,
    /// Packets that this process forwarded to another process of its fabric.
    forwarded_pkts,
    /// Packets that another process of the fabric forwarded to this one.
    forward_rcvd_pkts,
    /// Packets that could not be forwarded because the queue of the process was full.
    forward_overrun_pkts,
    /// Packets for a slot that no process has.
    unknown_slot_pkts,
    /// Corrections of the order in a group's file after a probe.
    order_corrections,
    /// Packets that are shorter than a BTH and an ICRC.
    rcvd_short_pkts,
    /// Bursts that the kernel refused to segment, and that were sent packet by packet.
    unsegmented_bursts,
}

/// Adds `count` to a counter.
pub(crate) fn add_to_counter(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_names_of_the_fields() {
        let counters = Counters::default();
        add_to_counter(&counters.send_err, 3);
        assert!(counters.values().contains(&("send_err", 3)));
        assert!(counters.values().contains(&("sent_pkts", 0)));
    }
}
