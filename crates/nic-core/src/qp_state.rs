//! The state machine of a queue pair, as data.
//!
//! The module decides which calls of `ibv_modify_qp` are legal. Sources: IBTA vol. 1, 10.3.1 (states) and 11.2.5.2
//! (attributes of each transition), and `ibv_modify_qp(3)`. Where the sources are ambiguous, the module follows Linux
//! (`ib_modify_qp_is_ok`), because programs were tested on Linux.
//!
//! No function of the module changes a queue pair: [`check_transition`] returns the effect of a call, or the reason
//! of its failure. A caller checks first and then applies the effect. "If any of the modify attributes or the modify
//! mask are invalid, none of the attributes will be modified" (`ibv_modify_qp(3)`).

pub mod attributes;
mod check;
mod codes;
mod timers;
mod transitions;

pub use attributes::{AddressVectorToCheck, AttrMask, AttributesToCheck};
pub use check::{DeviceLimits, ModifyQpError, check_transition};
pub use codes::{QpState, QpType, UnknownQpState, UnsupportedQpType};
pub use timers::{ack_timeout_ns, path_mtu_bytes, rnr_timer_ns};
pub use transitions::{TransitionAttrs, transition_attrs};

#[cfg(test)]
mod tests;
