//! The causes of failed work requests: the failed check, with its numbers, for the completion's `vendor_err` and for
//! standard error.
//!
//! The check that fails notes the [`FailureCause`] ([`report::note_cause`]). The code that makes the failed completion
//! takes the cause ([`report::take_last_cause`]) and reports both ([`FailureReport`]). The thread handles no other work
//! request in between. A working program never takes these paths.
//!
//! `VERBATIM_WHY` selects how much is printed. `each` prints every failure and every refused verb as it happens.
//! `summary` counts failures, and prints the count and the first ones when the process ends. Without the variable, only
//! a peer that no process of the fabric has is reported, once. `verbatim run` sets `summary`, and `each` with `--why`.

mod cause;
mod program_errors;
mod refused_verbs;
mod report;
mod report_detail;
mod summary;
mod unreachable;

pub(crate) use cause::{FailureCause, MemorySide, NamedMemoryRange};
pub(crate) use program_errors::{
    report_cq_overrun, report_datagram_with_wrong_qkey, report_wait_for_acknowledgement,
};
pub(crate) use refused_verbs::{
    einval_because, record_refusal_reason, report_refused_post, report_refused_verb,
};
pub(crate) use report::{
    FailureReport, QueuePairDescription, note_cause, report_invalid_request,
    report_refused_request, take_last_cause, vendor_err,
};
pub use report_detail::WHY_VAR;
pub(crate) use unreachable::report_peer_not_in_fabric;
