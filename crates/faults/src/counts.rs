//! The counts of the rules that struck, for the summary of a run: one file for each process, with two words for each
//! rule. A text beside it lists the objects that a process had left when it ended, one line for each kind.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::injector::Injector;
use crate::verdict::{MAX_RULES, RuleCounts, StruckRules};

/// The environment variable that names the folder in which each process leaves the counts of its rules.
pub const FAULT_COUNTS_VAR: &str = "VERBATIM_FAULT_COUNTS";
/// Extension of the files with counts.
const COUNTS_FILE_EXTENSION: &str = "faults";
/// Extension of the files in which each process counts the objects that it has not destroyed.
const UNDESTROYED_OBJECTS_FILE_EXTENSION: &str = "left";
/// Bytes for each rule: the number of occurrences that match it, and of those that it struck.
const COUNT_BYTES_PER_RULE: usize = 16;

/// The file of this process with the counts of its rules, created by its first write.
#[derive(Debug, Default)]
pub struct CountsFile {
    /// The pid and the file of the process: a forked child has its own. No file if it cannot be created.
    pid_and_file: Option<(u32, Option<File>)>,
}

impl CountsFile {
    fn open_file(&mut self) -> Option<&File> {
        let pid = std::process::id();
        if self.pid_and_file.as_ref().is_none_or(|(of, _)| *of != pid) {
            self.pid_and_file = Some((pid, create_process_file(pid, COUNTS_FILE_EXTENSION)));
        }
        self.pid_and_file.as_ref()?.1.as_ref()
    }

    /// Writes the counts of the rules that struck.
    pub fn write_struck_counts(&mut self, injector: &Injector, struck: StruckRules) {
        if let Some(file) = self.open_file() {
            for index in struck.rule_indices() {
                if let Some(counts) = injector.rule_counts().nth(index) {
                    write_rule_counts(file, index, counts);
                }
            }
        }
    }

    /// Writes the counts of all rules.
    pub fn write_all_counts(&mut self, counts: impl IntoIterator<Item = RuleCounts>) {
        if let Some(file) = self.open_file() {
            for (index, counts) in counts.into_iter().enumerate() {
                write_rule_counts(file, index, counts);
            }
        }
    }
}

/// Writes how many objects of each kind this process has not destroyed.
pub fn write_undestroyed_objects(objects: &BTreeMap<&'static str, usize>) {
    let lines = objects
        .iter()
        .map(|(kind, count)| format!("{kind} {count}\n"));
    let text: String = lines.collect();
    if let Some(file) = create_process_file(std::process::id(), UNDESTROYED_OBJECTS_FILE_EXTENSION)
    {
        let _ = file.write_all_at(text.as_bytes(), 0);
    }
}

fn create_process_file(pid: u32, extension: &str) -> Option<File> {
    let folder = std::env::var_os(FAULT_COUNTS_VAR).filter(|folder| !folder.is_empty())?;
    // A later process may have the same pid.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let name = format!(
        "{pid}-{:020}.{extension}",
        now.unwrap_or_default().as_nanos()
    );
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(Path::new(&folder).join(name)).ok()
}

fn write_rule_counts(file: &File, index: usize, counts: RuleCounts) {
    let mut bytes = [0; COUNT_BYTES_PER_RULE];
    let (matched, struck) = bytes.split_at_mut(COUNT_BYTES_PER_RULE / 2);
    matched.copy_from_slice(&counts.matched.to_le_bytes());
    struck.copy_from_slice(&counts.struck.to_le_bytes());
    // A count that cannot be written is lost; the program's verb does not fail.
    let _ = file.write_all_at(&bytes, (index * COUNT_BYTES_PER_RULE) as u64);
}

/// The sums of what the processes of a run have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Number of processes that opened the device or simulated a cluster.
    pub process_count: usize,
    /// The sums of all processes, by rule; shorter than the plan if the last rules have matched nothing.
    pub counts_by_rule: Vec<RuleCounts>,
    /// Processes that ended by `exit` with objects that they had not destroyed: the pid, and how many of each kind.
    pub undestroyed_by_process: Vec<(u32, BTreeMap<String, u64>)>,
}

/// Adds up what the processes of a run have left in `folder`, which [`FAULT_COUNTS_VAR`] named to them.
///
/// # Errors
/// Those of the file system.
pub fn read_counts(folder: &Path) -> io::Result<FaultCounts> {
    let mut all = FaultCounts::default();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == UNDESTROYED_OBJECTS_FILE_EXTENSION)
        {
            all.undestroyed_by_process
                .extend(read_undestroyed_objects(&path));
        }
        if path
            .extension()
            .is_none_or(|extension| extension != COUNTS_FILE_EXTENSION)
        {
            continue;
        }
        all.process_count += 1;
        let bytes = fs::read(&path)?;
        for (index, rule) in bytes
            .chunks_exact(COUNT_BYTES_PER_RULE)
            .take(MAX_RULES)
            .enumerate()
        {
            if all.counts_by_rule.len() <= index {
                all.counts_by_rule.push(RuleCounts::default());
            }
            let word = |at: usize| rule[at..][..8].try_into().map_or(0, u64::from_le_bytes);
            let sum = &mut all.counts_by_rule[index];
            sum.matched = sum.matched.saturating_add(word(0));
            sum.struck = sum.struck.saturating_add(word(8));
        }
    }
    all.undestroyed_by_process.sort_unstable();
    Ok(all)
}

/// Reads the objects that one process has left. `None` if there are none.
fn read_undestroyed_objects(path: &Path) -> Option<(u32, BTreeMap<String, u64>)> {
    let pid = path
        .file_stem()?
        .to_str()?
        .split('-')
        .next()?
        .parse()
        .ok()?;
    let text = fs::read_to_string(path).ok()?;
    let kinds = text.lines().filter_map(|line| {
        let (kind, count) = line.split_once(' ')?;
        let plain = kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        plain.then_some((kind.to_owned(), count.parse().ok()?))
    });
    let kinds: BTreeMap<_, _> = kinds.collect();
    (!kinds.is_empty()).then_some((pid, kinds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_left_is_added_up_and_no_file_is_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| File::create(folder.path().join(name)).unwrap();
        let counts = |matched, struck| RuleCounts { matched, struck };
        write_rule_counts(&of("1-1.faults"), 1, counts(5, 2));
        let second = of("2-1.faults");
        write_rule_counts(&second, 0, counts(u64::MAX, 1));
        write_rule_counts(&second, 1, counts(7, 3));
        fs::write(folder.path().join("3-1.faults"), [1; 7]).unwrap();
        fs::write(folder.path().join("other"), [1; 700]).unwrap();
        fs::write(
            folder.path().join("2-1.left"),
            "ibv_cq 1\nibv_mr x\n\u{1b} 7\n",
        )
        .unwrap();
        fs::write(folder.path().join("9-1.left"), "").unwrap();
        let all = read_counts(folder.path()).unwrap();
        assert_eq!(all.process_count, 3);
        assert_eq!(
            all.undestroyed_by_process,
            [(2, BTreeMap::from([("ibv_cq".to_owned(), 1)]))]
        );
        assert_eq!(all.counts_by_rule, [counts(u64::MAX, 1), counts(12, 5)]);
        fs::write(folder.path().join("4-1.faults"), vec![255; 1 << 16]).unwrap();
        assert_eq!(
            read_counts(folder.path()).unwrap().counts_by_rule.len(),
            MAX_RULES
        );
    }
}
