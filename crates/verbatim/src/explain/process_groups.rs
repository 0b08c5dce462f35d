//! Groups processes that do the same work, such as the ranks of a parallel program.

use std::cmp::Reverse;

use super::report::{ProcessPrediction, Report, count_as_f64};
use super::spread::{GroupSpread, MinMedianMax};

/// Returns the key by which processes are grouped: the program, the kinds of its operations, the bottleneck, and the
/// advised steps.
fn group_key(process: &ProcessPrediction) -> impl PartialEq + use<> {
    let mut kinds: Vec<_> = process
        .kinds
        .iter()
        .map(|kind| (kind.what.clone(), kind.role == nicmodel::Role::Requester))
        .collect();
    kinds.sort();
    kinds.dedup();
    let steps: Vec<_> = process.steps.iter().map(|step| step.guideline).collect();
    let program = process.program.split(' ').next().map(ToOwned::to_owned);
    let failed = process.failed_completions > 0;
    (program, kinds, process.bottleneck, steps, failed)
}

/// Returns the report with one process for each group; the group with the most work comes first.
pub(super) fn group_processes(mut report: Report) -> Report {
    report.processes = median_process_of_each_group(report.processes);
    report.processes.sort_by_key(|process| {
        let like_it = process
            .group_spread
            .as_ref()
            .map_or(1, |alike| alike.processes);
        Reverse(
            process
                .posted_or_received_count()
                .saturating_mul(like_it as u64),
        )
    });
    report
}

/// Replaces each group of processes by the process with the median number of work requests. This process gets the
/// spread of the group.
fn median_process_of_each_group(processes: Vec<ProcessPrediction>) -> Vec<ProcessPrediction> {
    let mut groups: Vec<Vec<ProcessPrediction>> = Vec::new();
    for process in processes {
        let key = group_key(&process);
        let known = groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|one| group_key(one) == key));
        match known {
            Some(group) => group.push(process),
            None => groups.push(vec![process]),
        }
    }
    groups.into_iter().filter_map(median_process).collect()
}

fn median_process(mut group: Vec<ProcessPrediction>) -> Option<ProcessPrediction> {
    group.sort_by_key(|process| process.posted_wrs.max(process.received_messages));
    let range = |of: fn(&ProcessPrediction) -> f64| MinMedianMax::of(group.iter().map(of));
    let observed: Option<Vec<f64>> = group.iter().map(|process| process.observed_mops).collect();
    let alike = GroupSpread {
        processes: group.len(),
        posted_wrs: range(|process| count_as_f64(process.posted_wrs))?,
        received_messages: range(|process| count_as_f64(process.received_messages))?,
        observed_mops: observed.and_then(|all| MinMedianMax::of(all.into_iter())),
        predicted_mops: range(|process| process.predicted_mops)?,
    };
    let middle = group.len() / 2;
    let several = group.len() > 1;
    let mut process = group.into_iter().nth(middle)?;
    process.group_spread = several.then_some(alike);
    Some(process)
}
