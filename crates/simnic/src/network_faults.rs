//! Faults of the network, by a plan: packets that are lost or late.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use faults::{
    Action, Direction, Injector, PacketAction, PacketFacts, Plan, QueuePairIds, RuleCounts,
};
use nicmodel::Verb;

use crate::event_queue::Ps;
use crate::machine::gid_of_machine;

/// A rule of a fault plan that a simulated cluster does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a simulated network has no rule {rule:?}: it can only lose or delay packets (drop, corrupt, delay, rate, partition)"
)]
pub struct UnsupportedRule {
    /// The rule.
    pub rule: String,
}

/// The faults of a network.
#[derive(Debug)]
pub(crate) struct NetworkFaults {
    injector: Injector,
}

/// One direction of a message, in packets.
pub(crate) struct MessagePackets {
    /// Machines from which and to which the packets go.
    pub(crate) from_and_to_machines: (u32, u32),
    /// Queue pairs from which and to which the packets go.
    pub(crate) from_and_to_qps: (u32, u32),
    pub(crate) operation: &'static str,
    /// Average length of a packet.
    pub(crate) packet_bytes: u32,
    /// The packets of the message that are sent.
    pub(crate) sent_packet_range: Range<u32>,
}

/// The effects of a plan on the packets of a message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketOutcome {
    /// The first packet that is lost.
    pub(crate) first_lost_packet: Option<u32>,
    /// Delay of the message: that of its packet with the longest delay.
    pub(crate) delay: Ps,
}

impl NetworkFaults {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Result<Self, UnsupportedRule> {
        let unsupported = plan.rules().iter().find(|rule| {
            !matches!(
                rule.action(),
                Action::Packet(
                    PacketAction::Drop
                        | PacketAction::Corrupt
                        | PacketAction::Delay(..)
                        | PacketAction::LimitRate(_)
                        | PacketAction::Partition(_)
                )
            )
        });
        match unsupported {
            Some(rule) => Err(UnsupportedRule {
                rule: rule.to_string(),
            }),
            None => Ok(Self {
                injector: Injector::new(plan.clone(), seed),
            }),
        }
    }

    /// Returns the counts of the rules, in the order of the plan.
    pub(crate) fn rule_counts(&self) -> Vec<RuleCounts> {
        self.injector.rule_counts().collect()
    }

    /// Decides about the packets of a message that leave at `at`. Packets behind a lost one count as sent, too,
    /// although a NAK may come before some of them leave.
    pub(crate) fn decide_packet_faults(
        &mut self,
        at: Ps,
        message: MessagePackets,
    ) -> PacketOutcome {
        let (from, to) = message.from_and_to_machines;
        let facts = PacketFacts {
            direction: Direction::Send,
            source: address_of_machine(from),
            destination: address_of_machine(to),
            // Queue pairs are numbered from 1 in the order of their creation.
            queue_pair: QueuePairIds {
                creation_number: message.from_and_to_qps.0,
                qpn: message.from_and_to_qps.0,
            },
            peer_qpn: Some(message.from_and_to_qps.1),
            operation: message.operation,
            len_bytes: message.packet_bytes,
        };
        let mut outcome = PacketOutcome::default();
        for packet in message.sent_packet_range {
            let verdict = self.injector.decide_packet(at / 1000, &facts);
            // The check of the ICRC drops a corrupted packet.
            if verdict.drop || verdict.corrupt_bit.is_some() {
                outcome.first_lost_packet.get_or_insert(packet);
            } else {
                outcome.delay = outcome.delay.max(verdict.delay_ns.saturating_mul(1000));
            }
        }
        outcome
    }
}

/// Returns the address of a machine in fault plans: its GID.
fn address_of_machine(machine: u32) -> IpAddr {
    Ipv6Addr::from(gid_of_machine(machine)).into()
}

/// Returns the name of a verb in fault plans.
pub(crate) fn fault_plan_name_of_verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Send => "SEND",
        Verb::RdmaWrite => "RDMA_WRITE",
        Verb::RdmaRead => "RDMA_READ",
        Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd => "ATOMIC",
        Verb::Flush => "FLUSH",
    }
}

/// Returns the name of a message's response in fault plans.
pub(crate) fn fault_plan_name_of_response(verb: Verb) -> &'static str {
    match verb {
        Verb::RdmaRead => "READ_RESPONSE",
        _ => "ACK",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_one_that_plans_can_name() {
        for verb in [
            Verb::Send,
            Verb::RdmaWrite,
            Verb::RdmaRead,
            Verb::AtomicCmpAndSwp,
            Verb::AtomicFetchAndAdd,
            Verb::Flush,
        ] {
            assert!(faults::OPERATIONS.contains(&fault_plan_name_of_verb(verb)));
            assert!(faults::OPERATIONS.contains(&fault_plan_name_of_response(verb)));
        }
    }

    #[test]
    fn rules_that_are_not_for_packets_are_refused() {
        let plan: Plan = "drop,p=0.1; verb=ibv_reg_mr,errno=ENOMEM"
            .parse()
            .expect("a plan");
        let refused = NetworkFaults::new(&plan, 1).expect_err("a verb cannot be refused");
        assert_eq!(refused.rule, "verb=ibv_reg_mr,errno=ENOMEM");
    }
}
