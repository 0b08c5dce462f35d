//! Why work requests failed: the check that failed, with its numbers, for the completion's `vendor_err` and on standard
//! error.
//!
//! The code that finds a work request at fault notes the [`Cause`] ([`note`]). The code that makes a failed completion of
//! it takes the cause ([`take`]) and reports both ([`Report`]). Between the two lies no other work request of the thread.
//! All of it is on paths that a working program never takes.
//!
//! `VERBATIM_WHY` says how much is printed: `each` prints every failure and every refused verb as it happens, `summary` counts them and prints the
//! count and the first ones when the process ends. Without it, only a peer that is in no process of the fabric is reported,
//! once. `verbatim run` sets `summary`, and `each` with `--why`.

mod amount;
mod cause;
mod refusal;
mod report;
mod summary;
mod unreachable;

pub use amount::WHY_VAR;
pub(crate) use cause::{Bytes, Cause, Side};
pub(crate) use refusal::{because, invalid, post_refused, verb_refused};
pub(crate) use report::{QueuePair, Report, note, refused, take, vendor_err};
pub(crate) use unreachable::no_peer;
