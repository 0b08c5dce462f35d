//! Flow rules: the packets that they match, and the order in which they take a packet.

use std::ops::Range;

use super::headers::{FrameHeaders, MATCH_FIELDS_BYTES};

/// A match for packets, as a value and a mask of header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Required layers: bits of [`layer`](super::layer).
    pub required_layers: u32,
    /// Required bits of the fields, with the layout of [`field`](super::field).
    pub value: [u8; MATCH_FIELDS_BYTES],
    /// Mask of the bits of `value` that are compared.
    pub mask: [u8; MATCH_FIELDS_BYTES],
}

impl HeaderMatch {
    /// Makes a pattern that matches every packet.
    #[must_use]
    pub const fn any() -> Self {
        Self {
            required_layers: 0,
            value: [0; MATCH_FIELDS_BYTES],
            mask: [0; MATCH_FIELDS_BYTES],
        }
    }

    /// Requires that a field equals `value` in the bits of `mask`; `value` and `mask` begin at the start of the field.
    pub fn require(&mut self, field: Range<usize>, value: &[u8], mask: &[u8]) {
        let at = field.start..field.start + mask.len();
        for ((place, value), mask) in self.value[at.clone()].iter_mut().zip(value).zip(mask) {
            *place = value & mask;
        }
        self.mask[at].copy_from_slice(mask);
    }

    /// Returns true if a packet matches the pattern.
    #[must_use]
    pub fn matches(&self, headers: &FrameHeaders) -> bool {
        let has_layers = headers.layers & self.required_layers == self.required_layers;
        let fields = headers
            .parsed_field_values
            .iter()
            .zip(&self.value)
            .zip(&self.mask);
        has_layers
            && fields
                .map(|((field, value), mask)| (field ^ value) & mask)
                .fold(0, |different, bits| different | bits)
                == 0
    }
}

/// Type of a flow: `enum ibv_flow_attr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// The flow gets packets that match its specifications.
    Normal,
    /// The flow gets packets that no flow with specifications has trapped.
    AllDefault,
    /// The flow gets multicast packets that no flow with specifications has trapped.
    MulticastDefault,
    /// The flow gets every packet.
    Sniffer,
}

impl FlowKind {
    /// Returns the code of the type: one of `IBV_FLOW_ATTR_*`.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Normal => 0,
            Self::AllDefault => 1,
            Self::MulticastDefault => 2,
            Self::Sniffer => 3,
        }
    }

    /// Returns the type with the code `code`; `None` if the code is unknown.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Normal),
            1 => Some(Self::AllDefault),
            2 => Some(Self::MulticastDefault),
            3 => Some(Self::Sniffer),
            _ => None,
        }
    }
}

/// A flow rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Type of the flow.
    pub kind: FlowKind,
    /// Priority; lower numbers come first.
    pub priority: u16,
    /// True if matching packets are also checked against flows of lower priority.
    pub dont_trap: bool,
    /// True if matching packets are dropped.
    pub drop: bool,
    /// Pattern of matching packets.
    pub pattern: HeaderMatch,
}

impl FlowRule {
    /// Returns the key by which rules are sorted before [`PacketTrapState::offer_to_next_rule`]. Sniffers come first, then
    /// flows with specifications by priority, and default flows last. At equal priority dropping flows come first.
    #[must_use]
    pub const fn sort_key(&self) -> (u8, u16, bool) {
        match self.kind {
            FlowKind::Sniffer => (0, 0, false),
            FlowKind::Normal => (1, self.priority, !self.drop),
            FlowKind::AllDefault | FlowKind::MulticastDefault => (2, self.priority, false),
        }
    }
}

/// The state of a packet while it is checked against the rules in their [order](FlowRule::sort_key).
///
/// The matching flows with specifications of the best priority get the packet. If no such flow matches, default flows
/// get the packet. Sniffers get every packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketTrapState {
    /// Priority of the flows that have trapped the packet, and a flag that is true if they drop the packet.
    trapping_priority_and_drop: Option<(u16, bool)>,
}

impl PacketTrapState {
    /// Returns true if the flow of the next rule gets the packet.
    pub fn offer_to_next_rule(&mut self, rule: &FlowRule, headers: &FrameHeaders) -> bool {
        match rule.kind {
            FlowKind::Sniffer => true,
            FlowKind::Normal => {
                let too_late = self
                    .trapping_priority_and_drop
                    .is_some_and(|(at, dropped)| dropped || at < rule.priority);
                if too_late || !rule.pattern.matches(headers) {
                    return false;
                }
                if !rule.dont_trap {
                    self.trapping_priority_and_drop = Some((rule.priority, rule.drop));
                }
                !rule.drop
            }
            FlowKind::AllDefault => self.trapping_priority_and_drop.is_none(),
            FlowKind::MulticastDefault => {
                self.trapping_priority_and_drop.is_none() && headers.is_multicast()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{field, layer};
    use super::*;

    /// Makes an empty Ethernet frame to `destination`.
    fn frame(destination: [u8; 6]) -> FrameHeaders {
        let mut bytes = [0; 60];
        bytes[..6].copy_from_slice(&destination);
        FrameHeaders::parse(&bytes).unwrap()
    }

    fn rule(kind: FlowKind, priority: u16) -> FlowRule {
        FlowRule {
            kind,
            priority,
            dont_trap: false,
            drop: false,
            pattern: HeaderMatch::any(),
        }
    }

    /// Returns the indices in `rules` of the rules that get the packet.
    fn receivers(rules: &[FlowRule], headers: &FrameHeaders) -> Vec<usize> {
        let mut order: Vec<_> = rules.iter().enumerate().collect();
        order.sort_by_key(|(_, rule)| rule.sort_key());
        let mut trap = PacketTrapState::default();
        let mut got: Vec<_> = order
            .into_iter()
            .filter(|(_, rule)| trap.offer_to_next_rule(rule, headers))
            .map(|(at, _)| at)
            .collect();
        got.sort_unstable();
        got
    }

    #[test]
    fn the_best_priority_traps_and_sniffers_hear_all() {
        let packet = frame([2; 6]);
        let rules = [
            rule(FlowKind::AllDefault, 0),
            rule(FlowKind::Normal, 2),
            rule(FlowKind::Normal, 1),
            rule(FlowKind::Normal, 1),
            rule(FlowKind::Sniffer, 9),
        ];
        assert_eq!(receivers(&rules, &packet), [2, 3, 4]);
        assert_eq!(receivers(&rules[..1], &packet), [0]);
    }

    #[test]
    fn what_does_not_trap_goes_on_and_what_drops_ends() {
        let packet = frame([2; 6]);
        let mut rules = [
            rule(FlowKind::Normal, 0),
            rule(FlowKind::Normal, 1),
            rule(FlowKind::AllDefault, 0),
        ];
        rules[0].dont_trap = true;
        assert_eq!(receivers(&rules, &packet), [0, 1]);
        rules[1].drop = true;
        assert_eq!(receivers(&rules, &packet), [0]);
        // A dropping rule comes before other rules of the same priority.
        rules[1].priority = 0;
        assert_eq!(receivers(&rules, &packet), [] as [usize; 0]);
    }

    #[test]
    fn defaults_for_groups_get_packets_for_groups() {
        let rules = [rule(FlowKind::MulticastDefault, 0)];
        assert_eq!(receivers(&rules, &frame([1, 0, 0x5e, 0, 0, 1])), [0]);
        assert_eq!(receivers(&rules, &frame([2; 6])), [] as [usize; 0]);
    }

    #[test]
    fn a_pattern_looks_at_its_bits_and_layers_only() {
        let mut pattern = HeaderMatch::any();
        pattern.require(field::DST_MAC, &[0x12, 0xff], &[0xf0, 0]);
        assert!(pattern.matches(&frame([0x1f, 0, 0, 0, 0, 0])));
        assert!(!pattern.matches(&frame([0x2f, 0, 0, 0, 0, 0])));
        pattern.required_layers = layer::IPV4;
        assert!(!pattern.matches(&frame([0x1f, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn kinds_have_codes() {
        for code in 0..4 {
            assert_eq!(FlowKind::from_code(code).unwrap().code(), code);
        }
        assert_eq!(FlowKind::from_code(4), None);
    }
}
