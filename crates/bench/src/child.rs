//! Child processes that are killed: one when its handle is dropped, or all of them.

use std::collections::HashMap;
use std::fs;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

/// Handle of a child process, which is killed and waited for on drop.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // `kill` fails if the child has ended already; `wait` reaps the child in either case.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills all processes that descend from this one. Errors are ignored: such a process has just ended.
pub(crate) fn kill_descendants() {
    let own = std::process::id();
    let parents = parents_of_all_processes();
    let descends = |mut pid: u32| {
        // A chain of parents is shorter than the number of processes.
        for _ in 0..parents.len() {
            match parents.get(&pid) {
                Some(&parent) if parent == own => return true,
                Some(&parent) => pid = parent,
                None => return false,
            }
        }
        false
    };
    for &pid in parents.keys().filter(|pid| descends(**pid)) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the parent of each process, by their numbers.
fn parents_of_all_processes() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent_of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((pid, parent_in_stat(&stat)?))
    };
    entries.filter_map(parent_of).collect()
}

/// Returns the parent in a line of `/proc/PID/stat`. The name of the program, in parentheses, may contain spaces and
/// parentheses.
fn parent_in_stat(stat: &str) -> Option<u32> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_stands_behind_the_name() {
        assert_eq!(parent_in_stat("7 (a) b) S 5 7 7 0"), Some(5));
        for bad in ["", "7 (a", "7 (a) S", "7 (a) S x"] {
            assert_eq!(parent_in_stat(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_own_parent_is_found() {
        let parents = parents_of_all_processes();
        let own = std::process::id();
        assert_eq!(
            parents.get(&own),
            Some(&std::os::unix::process::parent_id())
        );
    }
}
