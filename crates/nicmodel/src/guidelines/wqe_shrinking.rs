use std::cmp::Reverse;

use super::{Finding, Guideline};
use crate::op_profile::{Counted, OperationProfile};
use crate::profile::Profile;
use crate::wqe::{self, CACHE_LINE_BYTES};

/// Do not be a few bytes over a cache line.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "wqe-shrinking",
    section: "ATC'16, section 3.1",
    rule: "A WQE should not go a few bytes over a cache line: each line is an MMIO write or 64 bytes of DMA.",
    finds,
    fixed,
};

/// Bytes over a line that a program can be expected to do without.
const FEW: u32 = 8;

/// Bytes of the payload over the last full cache line, if they are few.
fn over(profile: &Profile, counted: &Counted) -> Option<u32> {
    let operation = &counted.operation;
    let over = wqe::bytes(profile, operation) % CACHE_LINE_BYTES;
    let few = (1..=FEW).contains(&over) && operation.payload_bytes > over;
    (operation.inlines_payload() && counted.count > 0 && few).then_some(over)
}

fn finds(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let all = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| qp.sent.iter().map(move |counted| (qp.qpn, counted)));
    let over = all.filter_map(|(qpn, counted)| Some((qpn, counted, over(profile, counted)?)));
    let (qpn, counted, over) = over.min_by_key(|(_, counted, _)| Reverse(counted.count))?;
    let operation = &counted.operation;
    let bytes = wqe::bytes(profile, operation);
    let lines = wqe::lines(bytes);
    let imm = if operation.imm || over > 4 {
        ""
    } else {
        ", or move 4 bytes into imm_data (IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM)"
    };
    Some(Finding {
        seen: format!(
            "QP {qpn:#x}: WQEs of {bytes} bytes for {} of {} bytes take {lines} cache lines, {over} \
             bytes in the last",
            operation.verb, operation.payload_bytes
        ),
        advice: format!(
            "make the payload {} bytes{imm}: {} cache lines",
            operation.payload_bytes - over,
            lines - 1
        ),
    })
}

fn fixed(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for counted in fixed.queue_pairs.iter_mut().flat_map(|qp| &mut qp.sent) {
        if let Some(over) = over(profile, counted) {
            counted.operation.payload_bytes -= over;
        }
    }
    Some(fixed)
}
