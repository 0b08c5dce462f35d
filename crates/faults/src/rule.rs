//! A rule of a plan: its action, its filter, and its frequency.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::action::{Action, Incident, NetworkPartition, PacketAction};
use crate::facts::{Direction, PeerIds, QueuePairIds};
use crate::names::{
    ERRNOS, EVENTS, OPERATIONS, RECV_STATUSES, STATUSES, VERBS, parse_name, parse_named_value,
    verb_covers_call,
};
use crate::units::{parse_bits_per_second, parse_time_ns, parse_time_range_ns};

/// A rule of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    text: String,
    pub(crate) action: Action,
    pub(crate) trigger: Trigger,
    pub(crate) filter: Filter,
    pub(crate) selection: Selection,
}

/// The kind of occurrences to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Packet,
    /// Calls of this verb, or of any verb.
    Verb(Option<&'static str>),
    WorkRequest,
    Completion,
    /// The time in the rule's filter (`at=`), at which the rule strikes once.
    Time,
}

/// The occurrences that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Filter {
    pub(crate) operation: Option<&'static str>,
    pub(crate) qp_creation_number: Option<u32>,
    pub(crate) qpn: Option<u32>,
    peer: Option<IpAddr>,
    peer_qpn: Option<u32>,
    direction: Option<Direction>,
    pub(crate) from_ns: u64,
    until_ns: Option<u64>,
}

/// The selection among matched occurrences: decides which of them a rule strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Selection {
    pub(crate) probability: f64,
    pub(crate) skipped_match_count: u64,
    pub(crate) every_nth_match: u64,
    pub(crate) max_strikes: u64,
}

/// The words for actions.
const ACTIONS_HELP: &str = "drop, duplicate, corrupt, ecn, delay=TIME, reorder=TIME, rate=RATE, partition=ADDRESS/ADDRESS, \
                       errno=NAME, status=NAME, rnr=TIME, late=TIME, event=NAME, link-down=TIME, pause=TIME";

/// Words of a rule with a value, except `link-down`; a rule has each word at most once.
const SETTING_NAMES: &str =
    "verb, opcode, qp, qpn, peer, peer-qpn, direction, from, until, for, p, after, every, count";

impl Rule {
    /// Makes a rule from words and their values.
    ///
    /// # Errors
    /// Returns the error message, which lists the allowed values.
    pub(crate) fn from_settings(words: &[(String, Option<String>)]) -> Result<Self, String> {
        let mut action = None;
        let mut rest = BTreeMap::new();
        let mut texts = Vec::new();
        for (word, value) in words {
            texts.push(format_setting(word, value.as_deref())?);
            let value = value.as_deref();
            if let Some(found) = parse_action(word, value)? {
                if action.replace(found).is_some() {
                    return Err(format!(
                        "it has two actions; a rule has one of: {ACTIONS_HELP}"
                    ));
                }
            } else if let Some(value) = value {
                if rest.insert(word.as_str(), value).is_some() {
                    return Err(format!("it has {word} twice"));
                }
            } else {
                return Err(format!("{word:?} is no action; actions are {ACTIONS_HELP}"));
            }
        }
        let action =
            action.ok_or_else(|| format!("it has no action; actions are {ACTIONS_HELP}"))?;
        RemainingSettings(rest).into_rule(texts.join(","), action)
    }

    /// Returns the action of the rule.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// Returns true if the rule is for packets. Queue pairs that share memory send none.
    #[must_use]
    pub fn is_for_packets(&self) -> bool {
        self.trigger == Trigger::Packet
    }

    /// Returns the queue pair of the rule's filter; 0 stands for any.
    pub(crate) fn queue_pair_of_filter(&self) -> QueuePairIds {
        QueuePairIds {
            creation_number: self.filter.qp_creation_number.unwrap_or(0),
            qpn: self.filter.qpn.unwrap_or(0),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Formats a word and its value as in a line.
fn format_setting(word: &str, value: Option<&str>) -> Result<String, String> {
    let parts = [Some(word), value];
    if parts
        .iter()
        .flatten()
        .any(|part| part.contains([',', ';', '=', '\n', '\0']) || part.is_empty())
    {
        return Err(format!(
            "{word:?} or its value is empty, or has a comma, a semicolon or an equals sign in it"
        ));
    }
    Ok(match value {
        Some(value) => format!("{word}={value}"),
        None => word.to_owned(),
    })
}

/// Parses a word that may be an action.
fn parse_action(word: &str, value: Option<&str>) -> Result<Option<Action>, String> {
    let bare = |action| match value {
        None => Ok(Some(Action::Packet(action))),
        Some(_) => Err(format!(
            "{word} has no value; how often is said by p, every and count"
        )),
    };
    let given = || value.ok_or_else(|| format!("{word} needs a value: {word}=…"));
    let packet = |action| Ok(Some(Action::Packet(action)));
    match word {
        "drop" => bare(PacketAction::Drop),
        "duplicate" => bare(PacketAction::Duplicate),
        "corrupt" => bare(PacketAction::Corrupt),
        "ecn" => bare(PacketAction::Ecn),
        "delay" => {
            let (low, high) = parse_time_range_ns(given()?)?;
            packet(PacketAction::Delay(low, high))
        }
        "reorder" => {
            let (low, high) = parse_time_range_ns(given()?)?;
            packet(PacketAction::Reorder(low, high))
        }
        "rate" => packet(PacketAction::LimitRate(parse_bits_per_second(given()?)?)),
        "partition" => packet(PacketAction::Partition(parse_partition(given()?)?)),
        "errno" => Ok(Some(Action::Errno(
            parse_named_value(ERRNOS, "", "errno", given()?)?.1,
        ))),
        "status" => {
            let status = parse_named_value(STATUSES, "IBV_WC_", "status", given()?)?;
            Ok(Some(Action::CompleteWithStatus(status.1)))
        }
        "rnr" => Ok(Some(Action::ReceiverNotReady(parse_time_ns(given()?)?))),
        "late" => {
            let (low, high) = parse_time_range_ns(given()?)?;
            Ok(Some(Action::DelayCompletion(low, high)))
        }
        "event" => {
            let event = parse_named_value(EVENTS, "IBV_EVENT_", "event", given()?)?;
            Ok(Some(Action::Incident(Incident::RaiseEvent(event.1))))
        }
        "pause" => Ok(Some(Action::Incident(Incident::PauseProcess(
            parse_time_ns(given()?)?,
        )))),
        "link-down" => {
            let time = value.map(parse_time_ns).transpose()?;
            Ok(Some(Action::Incident(Incident::LinkDown(time))))
        }
        _ => Ok(None),
    }
}

fn parse_partition(text: &str) -> Result<NetworkPartition, String> {
    let ends = text.split_once('/').and_then(|(one, other)| {
        let one = one.trim().parse().ok()?;
        Some((one, other.trim().parse().ok()?))
    });
    let (one, other) = ends
        .ok_or_else(|| format!("{text:?} is not two IP addresses, such as 127.0.0.1/127.0.0.2"))?;
    Ok(NetworkPartition {
        first_address: one,
        second_address: other,
    })
}

/// The words of a rule apart from its action.
struct RemainingSettings<'a>(BTreeMap<&'a str, &'a str>);

impl RemainingSettings<'_> {
    fn into_rule(mut self, text: String, action: Action) -> Result<Rule, String> {
        let occasion = self.take_trigger(action)?;
        let filter = self.take_filter(occasion)?;
        let selection = self.take_selection(occasion)?;
        if let Some(word) = self.0.keys().next() {
            let known = SETTING_NAMES.split(", ").any(|filter| filter == *word);
            return Err(if known {
                format!("{word} means nothing beside this action")
            } else {
                format!(
                    "{word:?} is unknown; a rule has an action ({ACTIONS_HELP}) and any of {SETTING_NAMES}"
                )
            });
        }
        let rule = Rule {
            text,
            action,
            trigger: occasion,
            filter,
            selection,
        };
        rule.check_combinations()?;
        Ok(rule)
    }

    fn take_trigger(&mut self, action: Action) -> Result<Trigger, String> {
        let verb = match action {
            Action::Errno(_) | Action::Incident(_) => self.0.remove("verb"),
            _ => None,
        };
        let verb = verb.map(|verb| match verb {
            "any" => Ok(None),
            verb => parse_name(VERBS, "verb that can be refused", verb).map(Some),
        });
        match (action, verb.transpose()?) {
            (Action::Packet(_), _) => Ok(Trigger::Packet),
            (Action::CompleteWithStatus(_) | Action::ReceiverNotReady(_), _) => {
                Ok(Trigger::WorkRequest)
            }
            (Action::DelayCompletion(..), _) => Ok(Trigger::Completion),
            (_, Some(_)) if self.0.contains_key("opcode") => {
                Err("it has both verb and opcode".to_owned())
            }
            (_, Some(verb)) => Ok(Trigger::Verb(verb)),
            (Action::Errno(_), None) => Err(
                "errno needs the verb that is refused, such as verb=ibv_reg_mr, or verb=any"
                    .to_owned(),
            ),
            (Action::Incident(_), None) if self.0.contains_key("opcode") => {
                Ok(Trigger::WorkRequest)
            }
            (Action::Incident(_), None) => Ok(Trigger::Time),
        }
    }

    fn take_filter(&mut self, occasion: Trigger) -> Result<Filter, String> {
        use Trigger::{Completion, Packet, Time, WorkRequest};
        let mut filter = Filter::default();
        if matches!(occasion, Packet | WorkRequest | Completion) {
            let operation = self.0.remove("opcode");
            let operation = operation.map(|name| parse_name(OPERATIONS, "operation", name));
            filter.operation = operation.transpose()?;
            refuse_operation_without_occurrences(filter.operation, occasion == Packet)?;
        }
        filter.qp_creation_number = self.take_parsed(
            "qp",
            "a number of a queue pair, from 1 on",
            parse_qp_creation_number,
        )?;
        filter.qpn = self.take_parsed(
            "qpn",
            "a queue pair number, such as 17 or 0x8000",
            parse_qpn,
        )?;
        if matches!(occasion, Packet | WorkRequest) {
            filter.peer = self.take_parsed("peer", "an IP address", |text| text.parse().ok())?;
            filter.peer_qpn = self.take_parsed(
                "peer-qpn",
                "a queue pair number, such as 17 or 0x8000",
                parse_qpn,
            )?;
        }
        if occasion == Packet {
            filter.direction =
                self.take_parsed("direction", "send or receive", |text| match text {
                    "send" => Some(Direction::Send),
                    "receive" => Some(Direction::Receive),
                    _ => None,
                })?;
        }
        filter.from_ns = self
            .0
            .remove("from")
            .map(parse_time_ns)
            .transpose()?
            .unwrap_or(0);
        if occasion != Time {
            let until = self.0.remove("until").map(parse_time_ns).transpose()?;
            let time = self.0.remove("for").map(parse_time_ns).transpose()?;
            filter.until_ns = match (until, time) {
                (Some(_), Some(_)) => return Err("it has both until and for".to_owned()),
                (Some(until), None) if until <= filter.from_ns => {
                    return Err("until is not later than from".to_owned());
                }
                (until, None) => until,
                (None, Some(time)) => Some(filter.from_ns.saturating_add(time)),
            };
        }
        Ok(filter)
    }

    fn take_selection(&mut self, occasion: Trigger) -> Result<Selection, String> {
        let share = |text: &str| text.parse::<f64>().ok().filter(|p| (0.0..=1.0).contains(p));
        let whole = |text: &str| text.parse::<u64>().ok();
        let positive = |text: &str| whole(text).filter(|n| *n > 0);
        let probability = self.take_parsed("p", "a probability from 0 to 1", share)?;
        let mut selection = Selection {
            probability: probability.unwrap_or(1.0),
            skipped_match_count: 0,
            every_nth_match: 1,
            max_strikes: u64::MAX,
        };
        if occasion == Trigger::Time {
            selection.max_strikes = 1;
            return Ok(selection);
        }
        if let Some(after) = self.take_parsed("after", "a number of occurrences", whole)? {
            selection.skipped_match_count = after;
        }
        if let Some(every) =
            self.take_parsed("every", "a number of occurrences, from 1 on", positive)?
        {
            selection.every_nth_match = every;
        }
        if let Some(count) =
            self.take_parsed("count", "a number of strikes, from 1 on", positive)?
        {
            selection.max_strikes = count;
        }
        Ok(selection)
    }

    fn take_parsed<T>(
        &mut self,
        word: &str,
        what: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(text) = self.0.remove(word) else {
            return Ok(None);
        };
        let value = parse(text).ok_or_else(|| format!("{word}={text}: {text:?} is not {what}"))?;
        Ok(Some(value))
    }
}

/// Refuses an operation that only packets have, or that no packet has: the rule would never strike.
fn refuse_operation_without_occurrences(
    operation: Option<&str>,
    is_for_packets: bool,
) -> Result<(), String> {
    match (operation, is_for_packets) {
        (Some(name @ ("READ_RESPONSE" | "ACK" | "CNP")), false) => Err(format!(
            "opcode={name} is only a packet; this action needs the operation of a work request"
        )),
        (Some("RECV"), true) => {
            Err("opcode=RECV is no packet; direction=receive is for packets that arrive".to_owned())
        }
        (Some(name @ ("BIND_MW" | "LOCAL_INV")), true) => Err(format!(
            "opcode={name} sends no packet, so this action cannot strike it"
        )),
        _ => Ok(()),
    }
}

fn parse_qp_creation_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number > 0)
}

fn parse_qpn(text: &str) -> Option<u32> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => text.parse().ok()?,
    };
    (1..1 << 24).contains(&number).then_some(number)
}

impl Rule {
    /// Checks combinations of words in the whole rule.
    fn check_combinations(&self) -> Result<(), String> {
        let receives = self.filter.operation == Some("RECV");
        match self.action {
            Action::CompleteWithStatus(status)
                if receives && !RECV_STATUSES.iter().any(|(_, s)| *s == status) =>
            {
                let possible: Vec<_> = RECV_STATUSES.iter().map(|(name, _)| *name).collect();
                Err(format!(
                    "a RECV can complete with {}",
                    possible.join(" or ")
                ))
            }
            Action::ReceiverNotReady(_) if receives => {
                Err("rnr is for what is sent, not for a RECV".to_owned())
            }
            _ => Ok(()),
        }
    }
}

impl Filter {
    pub(crate) fn includes_time(&self, now_ns: u64) -> bool {
        now_ns >= self.from_ns && self.until_ns.is_none_or(|until| now_ns < until)
    }

    pub(crate) fn includes_queue_pair(&self, queue_pair: QueuePairIds) -> bool {
        self.qp_creation_number
            .is_none_or(|number| number == queue_pair.creation_number)
            && self.qpn.is_none_or(|qpn| qpn == queue_pair.qpn)
    }

    pub(crate) fn includes_peer(&self, peer: PeerIds) -> bool {
        self.peer
            .is_none_or(|address| peer.address == Some(address))
            && self.peer_qpn.is_none_or(|qpn| peer.qpn == Some(qpn))
    }

    /// Returns true if the filter matches the operation. A filter without an operation matches all
    /// operations except RECV.
    pub(crate) fn includes_operation(&self, operation: &str) -> bool {
        match self.operation {
            Some(name) => name == operation,
            None => operation != "RECV",
        }
    }

    pub(crate) fn includes_direction(&self, direction: Direction, symmetric: bool) -> bool {
        match self.direction {
            Some(wanted) => wanted == direction,
            None => symmetric || direction == Direction::Send,
        }
    }
}

impl Trigger {
    pub(crate) fn is_call_of(self, verb: &str) -> bool {
        match self {
            Self::Verb(None) => true,
            Self::Verb(Some(name)) => verb_covers_call(name, verb),
            _ => false,
        }
    }
}
