//! Conversion of counted kinds of work requests and messages into operations of the NIC model.

use nicmodel::op_profile::CountedOperations;
use nicmodel::{MAX_MESSAGE_BYTES, MAX_SGES, Operation, Transport, Verb};
use verbs_abi::*;

use crate::layout::*;

/// Size in bytes of the global routing header before a datagram, which `byte_len` includes
/// (`ibv_poll_cq(3)`).
const GRH_BYTES: u32 = 40;

/// Converts a number to 32 bits, saturating at the maximum.
pub(super) fn saturate_to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Adds the operations `new` to the operations of the same kind in `all`.
pub(super) fn merge_counted_operations(all: &mut Vec<CountedOperations>, new: CountedOperations) {
    if new.count == 0 {
        return;
    }
    let same = |known: &&mut CountedOperations| {
        let signaled = new.operation.signaled_fraction;
        Operation {
            signaled_fraction: signaled,
            ..known.operation
        } == new.operation
    };
    let Some(known) = all.iter_mut().find(same) else {
        return all.push(new);
    };
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let signaled =
        |counted: &CountedOperations| counted.operation.signaled_fraction * counted.count as f64;
    let both = signaled(known) + signaled(&new);
    known.count = known.count.saturating_add(new.count);
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    {
        known.operation.signaled_fraction = (both / known.count as f64).clamp(0.0, 1.0);
    }
}

/// Returns the model's operation for a kind of work request, or `None` if the model does not have it.
pub(super) fn sent_operations_if_modelled(
    transport: Transport,
    kind: &SentCounters<u64>,
) -> Option<CountedOperations> {
    let key = OperationKey(kind.operation_key);
    if kind.count == 0 {
        return Some(zero_counted_operations(transport));
    }
    let (verb, imm) = match key.opcode() {
        IBV_WR_RDMA_WRITE | IBV_WR_ATOMIC_WRITE => (Verb::RdmaWrite, false),
        IBV_WR_RDMA_WRITE_WITH_IMM => (Verb::RdmaWrite, true),
        IBV_WR_SEND | IBV_WR_SEND_WITH_INV => (Verb::Send, false),
        IBV_WR_SEND_WITH_IMM => (Verb::Send, true),
        IBV_WR_RDMA_READ => (Verb::RdmaRead, false),
        IBV_WR_ATOMIC_CMP_AND_SWP => (Verb::AtomicCmpAndSwp, false),
        IBV_WR_ATOMIC_FETCH_AND_ADD => (Verb::AtomicFetchAndAdd, false),
        IBV_WR_FLUSH => (Verb::Flush, false),
        _ => return None,
    };
    if !transport.carries(verb) || !key.is_used() {
        return None;
    }
    let payload_bytes = match verb.fixed_payload_bytes() {
        Some(bytes) => bytes,
        None => payload_or_mean_bytes(key, kind.payload_bytes_sum_if_size_class, kind.count),
    };
    let inline = key.is_inline() && verb.carries_payload_in_request();
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let signaled = kind.signaled_count as f64 / kind.count as f64;
    let operation = Operation {
        has_imm: imm,
        inline,
        signaled_fraction: signaled.min(1.0),
        num_sge: if inline {
            1
        } else {
            key.num_sge().clamp(1, MAX_SGES)
        },
        ..Operation::new(verb, transport, payload_bytes)
    };
    Some(CountedOperations {
        operation,
        count: kind.count,
    })
}

/// Returns the model's operation by which a kind of message arrived, or `None` if the model does not have it.
pub(super) fn received_operations_if_modelled(
    transport: Transport,
    kind: &ReceivedCounters<u64>,
) -> Option<CountedOperations> {
    let key = OperationKey(kind.operation_key);
    if kind.count == 0 {
        return Some(zero_counted_operations(transport));
    }
    let verb = match key.opcode() {
        IBV_WC_RECV => Verb::Send,
        IBV_WC_RECV_RDMA_WITH_IMM => Verb::RdmaWrite,
        _ => return None,
    };
    if !transport.carries(verb) || !key.is_used() {
        return None;
    }
    let bytes = payload_or_mean_bytes(key, kind.payload_bytes_sum_if_size_class, kind.count);
    let header = if transport == Transport::Ud {
        GRH_BYTES
    } else {
        0
    };
    let operation = Operation {
        has_imm: key.has_imm(),
        ..Operation::new(verb, transport, bytes.saturating_sub(header))
    };
    Some(CountedOperations {
        operation,
        count: kind.count,
    })
}

fn zero_counted_operations(transport: Transport) -> CountedOperations {
    CountedOperations {
        operation: Operation::new(Verb::Send, transport, 0),
        count: 0,
    }
}

/// Returns the payload in bytes of an operation of a kind: the payload in the key, or the mean of a class.
fn payload_or_mean_bytes(key: OperationKey, bytes: u64, count: u64) -> u32 {
    if !key.is_size_class() {
        return key.payload_bytes().min(MAX_MESSAGE_BYTES);
    }
    // A damaged file may contain any number of bytes.
    let rounded = bytes.saturating_add(count / 2);
    let mean = rounded.checked_div(count).unwrap_or(0);
    saturate_to_u32(mean).min(MAX_MESSAGE_BYTES)
}
