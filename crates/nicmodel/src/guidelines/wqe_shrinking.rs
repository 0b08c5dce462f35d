use super::guideline::{Finding, Guideline, count_with_noun, most_frequent_violation};
use crate::op_profile::{CountedOperations, OperationProfile, QueuePair};
use crate::profile::Profile;
use crate::verb::Verb;
use crate::wqe::{self, CACHE_LINE_BYTES};

/// Guideline: shrink WQEs that exceed a cache line by a few bytes.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "wqe-shrinking",
    section: "ATC'16, section 3.1",
    rule: "A WQE should not go a few bytes over a cache line: each line is an MMIO write or 64 bytes of DMA.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Most bytes over a cache line that a program can be expected to save.
const MAX_SAVED_BYTES: u32 = 8;

/// Returns the bytes of the payload over the last full cache line, if they are few.
fn few_bytes_over_cache_line(profile: &Profile, counted: &CountedOperations) -> Option<u32> {
    let operation = &counted.operation;
    let over = operation.wqe_bytes(profile) % CACHE_LINE_BYTES;
    let few = (1..=MAX_SAVED_BYTES).contains(&over) && operation.payload_bytes > over;
    (operation.inlines_payload() && counted.count > 0 && few).then_some(over)
}

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let wanted = |_: &QueuePair, counted: &CountedOperations| {
        few_bytes_over_cache_line(profile, counted).is_some()
    };
    let (who, _, counted) = most_frequent_violation(observed, |qp| &qp.sent, wanted)?;
    let over = few_bytes_over_cache_line(profile, counted)?;
    let operation = &counted.operation;
    let bytes = operation.wqe_bytes(profile);
    let lines = wqe::cache_line_count(bytes);
    let imm = match operation.verb {
        _ if operation.has_imm || over > 4 => "",
        Verb::Send => ", or move 4 bytes into imm_data (IBV_WR_SEND_WITH_IMM)",
        _ => {
            ", or move 4 bytes into imm_data (IBV_WR_RDMA_WRITE_WITH_IMM, which takes a RECV and a \
             completion of the peer)"
        }
    };
    Some(Finding {
        observed_violation: format!(
            "{who}: WQEs of {bytes} bytes for {}s of {} take {}, {} in the last",
            operation.verb,
            count_with_noun(operation.payload_bytes, "byte"),
            count_with_noun(lines, "cache line"),
            count_with_noun(over, "byte"),
        ),
        advice: format!(
            "make the payload {}{imm}: {}",
            count_with_noun(operation.payload_bytes - over, "byte"),
            count_with_noun(lines - 1, "cache line")
        ),
    })
}

fn program_after_fix(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for counted in fixed.queue_pairs.iter_mut().flat_map(|qp| &mut qp.sent) {
        if let Some(over) = few_bytes_over_cache_line(profile, counted) {
            counted.operation.payload_bytes -= over;
        }
    }
    Some(fixed)
}
