//! Conversion of counted kinds of work requests and messages into operations of the model.

use nicmodel::op_profile::Counted;
use nicmodel::{MAX_MESSAGE_BYTES, MAX_SGES, Operation, Transport, Verb};
use verbs_abi::*;

use crate::layout::*;

/// Size of the global routing header before a datagram, which `byte_len` includes (`ibv_poll_cq(3)`).
const GRH_BYTES: u32 = 40;

/// Converts a number to 32 bits, saturating at the maximum.
pub(super) fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Adds operations to those of the same kind.
pub(super) fn add_counted(all: &mut Vec<Counted>, new: Counted) {
    if new.count == 0 {
        return;
    }
    let same = |known: &&mut Counted| {
        let signaled = new.operation.signaled;
        Operation {
            signaled,
            ..known.operation
        } == new.operation
    };
    let Some(known) = all.iter_mut().find(same) else {
        return all.push(new);
    };
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let signaled = |counted: &Counted| counted.operation.signaled * counted.count as f64;
    let both = signaled(known) + signaled(&new);
    known.count = known.count.saturating_add(new.count);
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    {
        known.operation.signaled = (both / known.count as f64).clamp(0.0, 1.0);
    }
}

/// Returns the model's operation for a kind of work request, or `None` if the model does not have it.
pub(super) fn sent(transport: Transport, kind: &Sent<u64>) -> Option<Counted> {
    let key = Key(kind.key);
    if kind.count == 0 {
        return Some(nothing(transport));
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
    let payload_bytes = match verb.fixed_payload() {
        Some(bytes) => bytes,
        None => payload(key, kind.bytes, kind.count),
    };
    let inline = key.is_inline() && verb.sends_payload();
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let signaled = kind.signaled as f64 / kind.count as f64;
    let operation = Operation {
        imm,
        inline,
        signaled: signaled.min(1.0),
        num_sge: if inline {
            1
        } else {
            key.num_sge().clamp(1, MAX_SGES)
        },
        ..Operation::new(verb, transport, payload_bytes)
    };
    Some(Counted {
        operation,
        count: kind.count,
    })
}

/// Returns the model's operation by which a kind of message arrived, or `None` if the model does not have it.
pub(super) fn received(transport: Transport, kind: &Received<u64>) -> Option<Counted> {
    let key = Key(kind.key);
    if kind.count == 0 {
        return Some(nothing(transport));
    }
    let verb = match key.opcode() {
        IBV_WC_RECV => Verb::Send,
        IBV_WC_RECV_RDMA_WITH_IMM => Verb::RdmaWrite,
        _ => return None,
    };
    if !transport.carries(verb) || !key.is_used() {
        return None;
    }
    let bytes = payload(key, kind.bytes, kind.count);
    let header = if transport == Transport::Ud {
        GRH_BYTES
    } else {
        0
    };
    let operation = Operation {
        imm: key.has_imm(),
        ..Operation::new(verb, transport, bytes.saturating_sub(header))
    };
    Some(Counted {
        operation,
        count: kind.count,
    })
}

fn nothing(transport: Transport) -> Counted {
    Counted {
        operation: Operation::new(Verb::Send, transport, 0),
        count: 0,
    }
}

/// Returns the payload of an operation of a kind: from the key, or the mean of a class.
fn payload(key: Key, bytes: u64, count: u64) -> u32 {
    if !key.is_class() {
        return key.bytes().min(MAX_MESSAGE_BYTES);
    }
    // A damaged file may contain any number of bytes.
    let rounded = bytes.saturating_add(count / 2);
    let mean = rounded.checked_div(count).unwrap_or(0);
    narrow(mean).min(MAX_MESSAGE_BYTES)
}
