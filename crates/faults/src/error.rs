//! Errors of a plan.

use crate::verdict::MAX_RULES;

/// The reason why a text is not a valid fault plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The plan has no rule.
    #[error("the plan has no rule; a rule is such as: verb=ibv_reg_mr,errno=ENOMEM,count=1")]
    Empty,
    /// The plan has more rules than [`MAX_RULES`]; the field is their number.
    #[error("the plan has {0} rules; at most {max} are possible", max = MAX_RULES)]
    TooManyRules(usize),
    /// A rule is not valid.
    #[error("rule {number} ({text}): {reason}")]
    InvalidRule {
        /// The rule's number, from 1.
        number: usize,
        /// The text of the rule as the user wrote it.
        text: String,
        /// The error in the rule, and the allowed values.
        reason: String,
    },
    /// The text is not valid TOML, or does not have the structure of a plan.
    #[error("the plan is not TOML with [[rule]] tables of keys and values: {0}")]
    InvalidToml(String),
}
