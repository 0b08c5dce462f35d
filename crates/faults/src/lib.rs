//! Fault plans: which packets, verbs and work requests fail, by rule and seed.
//!
//! A [`Plan`] is a list of rules. An [`Injector`] decides about each packet, verb, work request and completion. An
//! injector has neither a clock nor a thread: the caller passes the time. A random draw depends only on the seed, the
//! rule, the stream and the number of the occurrence in the stream. A stream is the occurrences of a queue pair or of a
//! verb. The same plan, seed and occurrences therefore give the same faults. A further rule changes no draw of other
//! rules. Threads that use different queue pairs do not change each other's draws.
//!
//! # Example
//!
//! ```
//! use faults::{Injector, Plan, VerbCallFacts};
//!
//! let plan: Plan = "verb=ibv_reg_mr,errno=ENOMEM,after=1,count=1".parse()?;
//! let mut injector = Injector::new(plan, 7);
//! let refused: Vec<_> = (0..3)
//!     .map(|_| injector.decide_verb_call(0, &VerbCallFacts::new("ibv_reg_mr")).errno)
//!     .collect();
//! assert_eq!(refused, [None, Some(libc::ENOMEM), None]);
//! # Ok::<(), faults::PlanError>(())
//! ```
#![forbid(unsafe_code)]

mod action;
mod counts;
mod delay_queue;
mod environment;
mod error;
mod facts;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod injector;
mod names;
mod packets;
mod plan;
mod random;
mod rule;
mod select;
mod units;
mod verdict;

pub use action::{Action, Incident, NetworkPartition, PacketAction};
pub use counts::{
    CountsFile, FAULT_COUNTS_VAR, FaultCounts, read_counts, write_undestroyed_objects,
};
pub use delay_queue::DelayQueue;
pub use environment::{BadFaults, FAULT_SEED_VAR, FAULT_VAR, plan_from_environment};
pub use error::PlanError;
pub use facts::{
    CompletionFacts, Direction, PacketFacts, PeerIds, QueuePairIds, VerbCallFacts, WorkRequestFacts,
};
pub use injector::Injector;
pub use names::{OPERATIONS, operation_of_opcode};
pub use plan::Plan;
pub use rule::Rule;
pub use verdict::{
    MAX_RULES, PacketVerdict, RuleCounts, StruckRules, TargetedIncident, VerbVerdict,
    WorkRequestFault, WorkRequestVerdict,
};
