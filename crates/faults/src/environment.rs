//! The fault plan in the environment of a process.

use crate::error::PlanError;
use crate::plan::Plan;

/// The environment variable with the fault plan, in one line.
pub const FAULT_VAR: &str = "VERBATIM_FAULT";
/// The environment variable with the seed, a number; 0 by default.
pub const FAULT_SEED_VAR: &str = "VERBATIM_FAULT_SEED";

/// The reason why the fault plan in the environment is not valid.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BadFaults {
    /// The plan is not valid.
    #[error("{FAULT_VAR}: {0}")]
    InvalidPlan(#[from] PlanError),
    /// The seed is not valid.
    #[error("{FAULT_SEED_VAR}={0:?} is not a number from 0 to 2^64 - 1")]
    InvalidSeed(String),
}

/// Returns the fault plan in the environment, with its seed; `None` if there is none.
///
/// # Errors
/// The plan or the seed is not valid.
pub fn plan_from_environment() -> Result<Option<(Plan, u64)>, BadFaults> {
    let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let Some(plan) = text(FAULT_VAR).filter(|plan| !plan.is_empty()) else {
        return Ok(None);
    };
    let plan: Plan = plan.parse()?;
    let seed = text(FAULT_SEED_VAR).map_or(Ok(0), |seed| {
        seed.parse()
            .map_err(|_| BadFaults::InvalidSeed(seed.clone()))
    })?;
    Ok(Some((plan, seed)))
}
