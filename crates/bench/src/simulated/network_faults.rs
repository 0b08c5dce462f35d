//! The fault plan in the environment (`verbatim run --fault`), for the networks of simulated clusters.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use faults::{CountsFile, RuleCounts};
use simnic::Cluster;

/// The counts of all clusters of this process, and the file for them.
static FAULT_RULE_COUNTS: Mutex<Option<(CountsFile, Vec<RuleCounts>)>> = Mutex::new(None);

/// Makes the network of a cluster lose and delay packets by the plan in the environment, if there is one.
///
/// # Errors
/// When the plan is not valid, or has a rule that is not for packets.
pub(super) fn inject_from_environment(cluster: &Cluster) -> Result<()> {
    if let Some((plan, seed)) = faults::plan_from_environment()? {
        cluster
            .inject_faults(&plan, seed)
            .context("--fault: the program is simulated")?;
        add_fault_counts_and_write_sums(&cluster.fault_counts());
    }
    Ok(())
}

/// Adds the counts of a cluster, and writes the sums for the summary of the run. Does nothing for a cluster without
/// faults.
pub(super) fn add_fault_counts_and_write_sums(counts: &[RuleCounts]) {
    if counts.is_empty() {
        return;
    }
    let mut all = FAULT_RULE_COUNTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let (file, sums) = all.get_or_insert_default();
    sums.resize(counts.len(), RuleCounts::default());
    for (sum, more) in sums.iter_mut().zip(counts) {
        sum.matched += more.matched;
        sum.struck += more.struck;
    }
    file.write_all_counts(sums.iter().copied());
}
