//! Choice of the cores that a benchmark runs on.

use std::process::{Child, Command};

use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// The two cores of a benchmark: one for each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorePair {
    /// Core of the requester, which posts and measures.
    pub requester: usize,
    /// Core of the responder.
    pub responder: usize,
}

impl CorePair {
    /// Returns the first two cores that this process may use.
    ///
    /// # Errors
    /// When the process may use only one core: two processes that take turns would measure the
    /// scheduler.
    pub fn first_two() -> Result<CorePair> {
        let allowed = allowed_cores()?;
        match allowed[..] {
            [requester, responder, ..] => Ok(CorePair {
                requester,
                responder,
            }),
            _ => bail!(
                "this process may use {} core, and the benchmark needs two; widen its CPU \
                 affinity or run it on a machine with two cores",
                allowed.len()
            ),
        }
    }

    /// Returns the cores for the threads of each side. The first thread of a side has its core of
    /// these two. Further threads alternate over the other cores that this process may use.
    ///
    /// # Errors
    /// When the system does not report the usable cores.
    pub fn thread_cores_of_both_sides(&self, threads: usize) -> Result<(Vec<usize>, Vec<usize>)> {
        let (mut one, mut other) = (vec![self.requester], vec![self.responder]);
        if threads > 1 {
            let chosen = [self.requester, self.responder];
            let rest = allowed_cores()?
                .into_iter()
                .filter(|core| !chosen.contains(core));
            for (turn, core) in rest.enumerate() {
                if turn.is_multiple_of(2) {
                    &mut one
                } else {
                    &mut other
                }
                .push(core);
            }
        }
        Ok((one, other))
    }

    /// Returns the cores for the threads of this side when the other side is on another host. The
    /// first thread has the requester's core; further threads use all others.
    ///
    /// # Errors
    /// When the system does not report the usable cores.
    pub fn own_side_cores(&self, threads: usize) -> Result<Vec<usize>> {
        let (mut one, other) = self.thread_cores_of_both_sides(threads)?;
        if threads > 1 {
            one.extend(other);
        }
        Ok(one)
    }

    /// Returns these two cores, if they differ and this process may use both.
    ///
    /// # Errors
    /// When the cores are equal or one of them may not be used. The message lists the usable cores.
    pub fn from_numbers(requester: usize, responder: usize) -> Result<CorePair> {
        if requester == responder {
            bail!("the two processes need two different cores, not core {requester} twice");
        }
        let allowed = allowed_cores()?;
        for core in [requester, responder] {
            if !allowed.contains(&core) {
                bail!("core {core} may not be used here; choose two of {allowed:?}");
            }
        }
        Ok(CorePair {
            requester,
            responder,
        })
    }
}

/// Returns the cores that the calling thread may use, in rising order.
///
/// # Errors
/// When the system does not report them.
pub fn allowed_cores() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask for the CPU affinity")?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect())
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// When the system refuses.
pub fn pin_thread_to_core(core: usize) -> Result<()> {
    pin_thread_to_cores(&[core])
}

/// Restricts the calling thread to these cores.
pub(crate) fn pin_thread_to_cores(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin a thread to {cores:?}"))
}

/// Runs `work` with the calling thread pinned to `core`, then restores the thread's affinity.
///
/// # Errors
/// When pinning or `work` fails.
pub fn run_pinned<T>(core: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    run_pinned_to(&[core], work)
}

/// Runs `work` with the calling thread restricted to these cores, then restores the thread's
/// affinity.
pub(crate) fn run_pinned_to<T>(cores: &[usize], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = sched_getaffinity(None).context("cannot ask for the CPU affinity")?;
    pin_thread_to_cores(cores)?;
    let done = work();
    sched_setaffinity(None, &before).context("cannot restore the CPU affinity")?;
    done
}

/// Starts `command` pinned to `core`, see [`spawn_on_cores`].
///
/// # Errors
/// When pinning or starting fails.
pub fn spawn_on_core(core: usize, command: &mut Command) -> Result<Child> {
    spawn_on_cores(&[core], command)
}

/// Starts `command` so that its threads share `cores`, at least one core. A child inherits the
/// affinity of the thread that starts it, so this thread's affinity is changed and restored.
///
/// # Errors
/// When pinning or starting fails.
pub fn spawn_on_cores(cores: &[usize], command: &mut Command) -> Result<Child> {
    run_pinned_to(cores, || {
        command.spawn().with_context(|| {
            format!(
                "cannot start {}: is it installed?",
                command.get_program().to_string_lossy()
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_runs_where_it_was_put_and_the_parent_stays() {
        let before = allowed_cores().unwrap();
        let core = *before.last().unwrap();
        let child = spawn_on_core(
            core,
            Command::new("grep")
                .args(["Cpus_allowed_list", "/proc/self/status"])
                .stdout(std::process::Stdio::piped()),
        )
        .unwrap();
        let out = child.wait_with_output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(
            text.split_whitespace().last(),
            Some(core.to_string().as_str())
        );
        assert_eq!(allowed_cores().unwrap(), before);
    }

    #[test]
    fn impossible_cores_are_refused_with_the_possible_ones() {
        let twice = CorePair::from_numbers(0, 0).unwrap_err().to_string();
        assert!(twice.contains("two different cores"), "{twice}");
        let absent = CorePair::from_numbers(0, 100_000).unwrap_err().to_string();
        assert!(absent.contains("choose two of"), "{absent}");
    }
}
