//! Fault plans: which packets, verbs and work requests fail, by rule and seed.
//!
//! A [`Plan`] is a list of rules. An [`Injector`] decides about each packet, verb, work request and completion. It has
//! neither a clock nor a thread. Time is an argument. Randomness is a function of the seed, the rule, the stream of
//! occurrences (a queue pair, a verb) and the number of the occurrence in it. So the same plan, seed and occurrences
//! give the same faults. A further rule changes no draw of the others, and threads that use different queue pairs do
//! not disturb each other's draws.
//!
//! # Example
//!
//! ```
//! use faults::{Injector, Plan, VerbFacts};
//!
//! let plan: Plan = "verb=ibv_reg_mr,errno=ENOMEM,after=1,count=1".parse()?;
//! let mut injector = Injector::new(plan, 7);
//! let refused: Vec<_> = (0..3)
//!     .map(|_| injector.verb(0, &VerbFacts::new("ibv_reg_mr")).errno)
//!     .collect();
//! assert_eq!(refused, [None, Some(libc::ENOMEM), None]);
//! # Ok::<(), faults::PlanError>(())
//! ```
#![forbid(unsafe_code)]

mod action;
mod error;
mod facts;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod injector;
mod line;
mod names;
mod packets;
mod plan;
mod random;
mod rule;
mod select;
mod units;
mod verdict;

pub use action::{Action, Incident, PacketAction, Partition};
pub use error::PlanError;
pub use facts::{CompletionFacts, Direction, PacketFacts, Peer, QueuePair, VerbFacts, WorkFacts};
pub use injector::Injector;
pub use line::Line;
pub use names::{OPERATIONS, operation_of_opcode};
pub use plan::Plan;
pub use rule::Rule;
pub use verdict::{
    Counts, Fate, Happening, MAX_RULES, Struck, VerbVerdict, WorkFault, WorkVerdict,
};
