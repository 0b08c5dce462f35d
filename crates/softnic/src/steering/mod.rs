//! Flow steering: the queue pairs that get a raw packet (`ibv_create_flow(3)`).
//!
//! There is no switch and no receiving port. The flows of all processes lie in their segments. A sender matches its
//! frame against them, and copies it to each queue pair that gets it. The sender keeps the flows that it has read until
//! some process changes its own. The fabric's directory counts these changes.

pub(crate) mod rss;
mod table_places;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use verbs_abi::*;

use crate::lock::lock;
use nic_core::flows::{
    FlowKind, FlowRule, FrameHeaders, HeaderMatch, MATCH_FIELDS_BYTES, PacketTrapState, RssConfig,
};
use shm::fabric::layout::*;
use shm::fabric::{Fabric, Peer};
use table_places::TablePlaces;

// `nic-core` and the C interface number the types of flows alike.
const _: () = {
    assert!(FlowKind::Normal.code() == IBV_FLOW_ATTR_NORMAL);
    assert!(FlowKind::AllDefault.code() == IBV_FLOW_ATTR_ALL_DEFAULT);
    assert!(FlowKind::MulticastDefault.code() == IBV_FLOW_ATTR_MC_DEFAULT);
    assert!(FlowKind::Sniffer.code() == IBV_FLOW_ATTR_SNIFFER);
};

/// A flow of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SteeringFlow {
    /// Index of the queue pair in its process.
    pub(crate) qp_index: usize,
    /// The packets that the flow takes.
    pub(crate) rule: FlowRule,
    /// The tag of the completions.
    pub(crate) flow_tag: u32,
    /// The place that describes how the queue pair spreads packets.
    pub(crate) rss_config_slot: Option<usize>,
}

/// The flows of this process.
#[derive(Default)]
pub(crate) struct OwnFlows(Mutex<TablePlaces>);

impl OwnFlows {
    /// Enters a flow in the table. Returns its place.
    ///
    /// # Errors
    /// `ENOMEM` if the table or shared memory is full.
    pub(crate) fn add_flow(&self, fabric: &Fabric, flow: &SteeringFlow) -> Result<usize, i32> {
        // Held until the flow is counted: the number of places in use grows with the places.
        let mut places = lock(&self.0);
        let place = places.take_free_place(MAX_FLOWS).ok_or(libc::ENOMEM)?;
        if let Err(errno) = write_flow(fabric, place, flow) {
            places.give_back(place);
            return Err(errno);
        }
        let used = &fabric.this_process.segment.header().flow_slots_end;
        used.fetch_max(place as u64 + 1, Ordering::Release);
        fabric.flow_change_count().fetch_add(1, Ordering::Release);
        Ok(place)
    }

    /// Removes a flow.
    pub(crate) fn remove_flow(&self, fabric: &Fabric, place: usize) {
        let mut places = lock(&self.0);
        if let Some(shared) = fabric.this_process.segment.flow(place) {
            // The upper half stays: it counts how often the place was taken.
            shared
                .generation_and_qp_index_plus_1
                .fetch_and(!u64::from(u32::MAX), Ordering::Release);
        }
        places.give_back(place);
        fabric.flow_change_count().fetch_add(1, Ordering::Release);
    }
}

fn write_flow(fabric: &Fabric, place: usize, flow: &SteeringFlow) -> Result<(), i32> {
    let at = FLOWS_AT + place * size_of::<FlowShared>();
    fabric
        .back_with_memory(at, size_of::<FlowShared>())
        .map_err(|_| libc::ENOMEM)?;
    let shared = fabric
        .this_process
        .segment
        .flow(place)
        .ok_or(libc::ENOMEM)?;
    let number = |n: usize| u32::try_from(n).map_err(|_| libc::EINVAL);
    let flag = |set, bit| if set { bit } else { 0 };
    shared.kind.store(flow.rule.kind.code(), Ordering::Relaxed);
    shared.priority_and_flags.store(
        u32::from(flow.rule.priority)
            | flag(flow.rule.dont_trap, FLOW_DONT_TRAP)
            | flag(flow.rule.drop, FLOW_DROP),
        Ordering::Relaxed,
    );
    let pattern = &flow.rule.pattern;
    shared
        .required_layers
        .store(pattern.required_layers, Ordering::Relaxed);
    shared.flow_tag.store(flow.flow_tag, Ordering::Relaxed);
    let spread = flow.rss_config_slot.map_or(0, |place| 1 + place);
    shared
        .rss_index_plus_1
        .store(number(spread)?, Ordering::Relaxed);
    for (to, from) in [
        (&shared.header_value, &pattern.value),
        (&shared.header_mask, &pattern.mask),
    ] {
        for (word, bytes) in to.iter().zip(from.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }
    let taken = shared
        .generation_and_qp_index_plus_1
        .load(Ordering::Relaxed)
        >> 32;
    let entry = (taken + 1) << 32 | u64::from(number(1 + flow.qp_index)?);
    shared
        .generation_and_qp_index_plus_1
        .store(entry, Ordering::Release);
    Ok(())
}

/// Returns the flow at a place of a process. `None` if there is none.
fn read_flow(peer: &Peer, place: usize) -> Option<SteeringFlow> {
    let shared = peer.segment.flow(place)?;
    let entry = shared
        .generation_and_qp_index_plus_1
        .load(Ordering::Acquire);
    #[allow(clippy::cast_possible_truncation)] // the lower half
    let qp = (entry as u32).checked_sub(1)? as usize;
    let priority = shared.priority_and_flags.load(Ordering::Relaxed);
    let spread = shared.rss_index_plus_1.load(Ordering::Relaxed);
    let bytes = |words: &[std::sync::atomic::AtomicU64; 8]| {
        let mut bytes = [0; MATCH_FIELDS_BYTES];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes
    };
    let flow = SteeringFlow {
        qp_index: qp,
        rule: FlowRule {
            kind: FlowKind::from_code(shared.kind.load(Ordering::Relaxed))?,
            #[allow(clippy::cast_possible_truncation)] // the lower half
            priority: priority as u16,
            dont_trap: priority & FLOW_DONT_TRAP != 0,
            drop: priority & FLOW_DROP != 0,
            pattern: HeaderMatch {
                required_layers: shared.required_layers.load(Ordering::Relaxed),
                value: bytes(&shared.header_value),
                mask: bytes(&shared.header_mask),
            },
        },
        flow_tag: shared.flow_tag.load(Ordering::Relaxed),
        rss_config_slot: spread.checked_sub(1).map(|place| place as usize),
    };
    // The flow may have been removed or replaced meanwhile. That change was counted, so the flows are read again.
    std::sync::atomic::fence(Ordering::Acquire);
    (shared
        .generation_and_qp_index_plus_1
        .load(Ordering::Relaxed)
        == entry)
        .then_some(flow)
}

/// A steering rule (`ibv_create_flow(3)`) of a process, in a sender's copy of the rules of all processes.
struct KnownSteeringRule {
    flow: SteeringFlow,
    rss_config: Option<RssConfig>,
    peer: Arc<Peer>,
}

/// A queue pair that gets a packet.
pub(crate) struct SteeredQp<'a> {
    pub(crate) peer: &'a Arc<Peer>,
    /// Index of the queue pair in its process.
    pub(crate) qp_index: usize,
    /// The tag of the completion.
    pub(crate) flow_tag: u32,
}

/// A sender's copy of the steering rules of all processes.
#[derive(Default)]
pub(crate) struct KnownSteeringRules {
    /// The count of changes at which the flows were read.
    change_count_at_read: Option<u64>,
    /// The flows, in the order in which packets are tried against them.
    rules: Vec<KnownSteeringRule>,
}

impl KnownSteeringRules {
    /// Reads the flows again if they have changed.
    pub(crate) fn refresh_if_changed(&mut self, fabric: &Fabric) {
        let changes = fabric.flow_change_count().load(Ordering::Acquire);
        if self.change_count_at_read == Some(changes) {
            return;
        }
        self.change_count_at_read = Some(changes);
        self.rules.clear();
        for peer in fabric.live_processes() {
            let used = peer.segment.header().flow_slots_end.load(Ordering::Acquire);
            let used = usize::try_from(used).unwrap_or(MAX_FLOWS).min(MAX_FLOWS);
            for flow in (0..used).filter_map(|place| read_flow(&peer, place)) {
                let spread = flow
                    .rss_config_slot
                    .map(|place| rss::read_rss_config(&peer, place));
                if matches!(spread, Some(None)) {
                    continue;
                }
                self.rules.push(KnownSteeringRule {
                    rss_config: spread.flatten(),
                    peer: Arc::clone(&peer),
                    flow,
                });
            }
        }
        self.rules.sort_by_key(|entry| entry.flow.rule.sort_key());
    }

    /// Returns the queue pairs that get a packet.
    pub(crate) fn steered_qps<'a>(
        &'a self,
        headers: &'a FrameHeaders,
    ) -> impl Iterator<Item = SteeredQp<'a>> + 'a {
        let mut trap = PacketTrapState::default();
        self.rules.iter().filter_map(move |entry| {
            let flow = &entry.flow;
            if !trap.offer_to_next_rule(&flow.rule, headers) || entry.peer.is_dead() {
                return None;
            }
            let qp = match &entry.rss_config {
                Some(spread) => spread.select_qp_index(headers)?,
                None => flow.qp_index,
            };
            Some(SteeredQp {
                peer: &entry.peer,
                qp_index: qp,
                flow_tag: flow.flow_tag,
            })
        })
    }

    /// Returns the processes that have flows.
    pub(crate) fn peers_with_flows(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.rules.iter().map(|entry| &entry.peer)
    }
}
