//! Applies rules to packets.

use crate::action::{Action, MAX_RATE_QUEUE_NS, PacketAction};
use crate::facts::{Direction, PacketFacts};
use crate::random::map_draw_to_range;
use crate::select::RuleState;
use crate::verdict::PacketVerdict;

/// Returns the number of the random stream of a packet: each queue pair and direction has its own
/// stream.
fn random_stream_of_packet(facts: &PacketFacts) -> u64 {
    let queue_pair = match facts.queue_pair.creation_number {
        0 => facts.queue_pair.qpn,
        number => number,
    };
    u64::from(queue_pair) << 1 | u64::from(facts.direction == Direction::Receive)
}

/// Applies the rule `index` to a packet.
pub(crate) fn apply_rule(
    state: &mut RuleState,
    index: usize,
    now_ns: u64,
    facts: &PacketFacts,
    fate: &mut PacketVerdict,
) {
    let Action::Packet(action) = state.rule.action else {
        return;
    };
    if !applies_to(state, action, now_ns, facts) {
        return;
    }
    let stream = random_stream_of_packet(facts);
    let strike = state.try_strike(stream);
    if let PacketAction::Delay(low, high) = action {
        // Later packets wait behind a delayed packet, whether or not the rule strikes them.
        let own = strike.map_or(0, |strike| {
            map_draw_to_range(state.draw_detail(strike), low, high)
        });
        let before = state
            .last_release_ns_by_stream
            .get(&stream)
            .copied()
            .unwrap_or(0);
        let release = now_ns.saturating_add(own).max(before);
        if release > now_ns {
            state.last_release_ns_by_stream.insert(stream, release);
            fate.delay_ns = fate.delay_ns.saturating_add(release - now_ns);
        }
    }
    let Some(strike) = strike else {
        return;
    };
    fate.struck_rules.add_rule(index);
    match action {
        PacketAction::Drop | PacketAction::Partition(_) => fate.drop = true,
        PacketAction::Duplicate => fate.duplicate = true,
        PacketAction::Corrupt => {
            let bits = u64::from(facts.len_bytes) * 8;
            let bit = map_draw_to_range(state.draw_detail(strike), 0, bits.saturating_sub(1));
            fate.corrupt_bit = u32::try_from(bit).ok().filter(|_| bits > 0);
        }
        PacketAction::Ecn => fate.ecn = true,
        PacketAction::Delay(..) => {}
        PacketAction::Reorder(low, high) => {
            let time = map_draw_to_range(state.draw_detail(strike), low, high);
            fate.delay_ns = fate.delay_ns.saturating_add(time);
        }
        PacketAction::LimitRate(rate) => {
            match queue_at_rate_limit_unless_too_long(state, rate, now_ns, facts.len_bytes) {
                Some(wait) => fate.delay_ns = fate.delay_ns.saturating_add(wait),
                None => fate.drop = true,
            }
        }
    }
}

fn applies_to(state: &RuleState, action: PacketAction, now_ns: u64, facts: &PacketFacts) -> bool {
    let filter = &state.rule.filter;
    let ends = [facts.source, facts.destination];
    let divided = match action {
        PacketAction::Partition(p) => {
            ends == [p.first_address, p.second_address]
                || ends == [p.second_address, p.first_address]
        }
        _ => true,
    };
    divided
        && filter.includes_time(now_ns)
        && filter.includes_direction(facts.direction, action.applies_to_both_directions())
        && filter.operation.is_none_or(|name| name == facts.operation)
        && filter.includes_queue_pair(facts.queue_pair)
        && filter.includes_peer(facts.peer())
}

/// Returns the time in nanoseconds that a packet waits at a limited rate; `None` if it would exceed
/// `QUEUE_NS`.
fn queue_at_rate_limit_unless_too_long(
    state: &mut RuleState,
    rate: u64,
    now_ns: u64,
    bytes: u32,
) -> Option<u64> {
    let start = state.rate_limit_free_at_ns.max(now_ns);
    let wait = start - now_ns;
    if wait > MAX_RATE_QUEUE_NS {
        return None;
    }
    let time = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
    state.rate_limit_free_at_ns = start.saturating_add(u64::try_from(time).unwrap_or(u64::MAX));
    Some(wait)
}
