//! Threads of a measurement, in lanes.
//!
//! A *lane* is a posting thread and its peer thread, on two NICs, with a link between them. On this
//! side, all lanes are in one process with the measured NIC. On the other side, they are
//! distributed over processes. All lanes begin together, and their rates are added up.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::outcome::{StreamRate, TaskResult};
use super::shared_atomic_counters::{SharedAtomicCounters, fail_if_wrong};
use super::sides::{run_measured_side, run_other_side};
use super::task::MeasurementTask;
use crate::core_pinning::run_pinned;
use crate::job::{Job, MicroJob};
use crate::link::{CancellableBarrier, WorkerLink, root_cause};
use crate::open_nic::{NicChoice, OpenNic};

/// Message from a worker when its lanes have ended.
#[derive(Debug, Serialize, Deserialize)]
struct LanesEnded {
    #[serde(rename = "wrong")]
    wrong_data: Option<String>,
}

/// Combines the outcomes of all lanes, or returns the error that ended them.
pub(crate) fn combine_lane_results(results: Vec<Result<TaskResult>>) -> Result<TaskResult> {
    let (mut outcomes, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => errors.push(error),
        }
    }
    if let Some(error) = root_cause(errors) {
        return Err(error);
    }
    let mut rates = outcomes.iter().filter_map(|outcome| match outcome {
        TaskResult::Rate(rate) => Some(*rate),
        TaskResult::Latency(_) => None,
    });
    match rates.next() {
        Some(first) => Ok(TaskResult::Rate(rates.fold(first, StreamRate::plus))),
        None => outcomes.into_iter().next().context("nothing was measured"),
    }
}

/// Measures with the workers at the other ends of `links`.
pub(crate) fn measure_with_workers(
    links: &mut [WorkerLink],
    choice: &NicChoice,
    task: &MeasurementTask,
    here: &[usize],
    there: &[usize],
) -> Result<TaskResult> {
    let (threads, processes) = task.threads_and_processes();
    let nic = OpenNic::open(choice)?;
    let target = SharedAtomicCounters::new(&nic, task)?;
    let gate = Arc::new(CancellableBarrier::new(threads));
    for (process, link) in links.iter_mut().enumerate() {
        link.send(&Job::Micro(MicroJob {
            nic: choice.clone(),
            task: *task,
            thread_count: lane_count_of_process(process, threads, processes),
            cores: cores_of_process(there, process, processes),
        }))?;
    }
    let lane = |lane: usize, link: &mut WorkerLink| {
        link.set_thread_barrier(&gate);
        let done = run_on_core_of_lane(here, lane, || run_measured_side(link, &nic, task, &target));
        if done.is_err() {
            gate.cancel();
        }
        done
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = links
            .iter_mut()
            .enumerate()
            .map(|(process, link)| {
                let lanes = lane_count_of_process(process, threads, processes);
                let lane = &lane;
                scope.spawn(move || {
                    link.split_into_lanes(lanes, |number, link| {
                        lane(process + number * processes, link)
                    })
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .flat_map(|thread| thread.unwrap_or_default())
            .collect()
    });
    let outcome = combine_lane_results(results)?;
    fail_if_wrong(target.describe_wrong_sum()?)?;
    for link in links {
        let end: LanesEnded = link.recv()?;
        fail_if_wrong(end.wrong_data)?;
    }
    Ok(outcome)
}

/// Runs the worker's lanes.
///
/// # Errors
/// When a verb fails, or the driver is gone.
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: &MicroJob) -> Result<()> {
    let nic = OpenNic::open(&order.nic)?;
    let target = SharedAtomicCounters::new(&nic, &order.task)?;
    let results = link.split_into_lanes(order.thread_count, |lane, link| {
        run_on_core_of_lane(&order.cores, lane, || {
            run_other_side(link, &nic, &order.task, &target)
        })
    });
    let errors = results.into_iter().filter_map(Result::err).collect();
    if let Some(error) = root_cause(errors) {
        return Err(error);
    }
    link.send(&LanesEnded {
        wrong_data: target.describe_wrong_sum()?,
    })
}

/// Runs a lane's thread on its core, if cores were chosen.
fn run_on_core_of_lane<T>(
    cores: &[usize],
    lane: usize,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match cores {
        [] => work(),
        cores => run_pinned(cores[lane % cores.len()], work),
    }
}

/// Returns the number of lanes in a process of the other side.
fn lane_count_of_process(process: usize, threads: usize, processes: usize) -> usize {
    (threads + processes - 1 - process) / processes
}

/// Returns the cores of a process of the other side, to which each `processes`th lane belongs.
fn cores_of_process(cores: &[usize], process: usize, processes: usize) -> Vec<usize> {
    if cores.is_empty() {
        return Vec::new();
    }
    let turns = cores.len();
    let of = |turn: usize| cores[(process + turn * processes) % cores.len()];
    (0..turns).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_dealt_out_evenly() {
        for threads in 1..20 {
            for processes in 1..=threads {
                let of = |process| lane_count_of_process(process, threads, processes);
                let all: Vec<_> = (0..processes).map(of).collect();
                assert_eq!(all.iter().sum::<usize>(), threads);
                assert!(all[0] - all[processes - 1] <= 1, "{all:?}");
            }
        }
        // Lanes 0 to 3 run on cores 1, 3, 1, 3. Of two processes, the first has core 1 and the
        // second core 3.
        assert_eq!(cores_of_process(&[1, 3], 0, 2), [1, 1]);
        assert_eq!(cores_of_process(&[1, 3], 1, 2), [3, 3]);
        assert_eq!(cores_of_process(&[1, 3], 0, 1), [1, 3]);
        assert_eq!(cores_of_process(&[], 0, 1), Vec::<usize>::new());
    }
}
