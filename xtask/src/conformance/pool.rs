//! Runs the cases of several suites, several at a time.
//!
//! A worker runs one case after the other. The worker has its own folder for each suite, and thus its own fabric. Cases
//! that run at the same time share only the host.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use tempfile::TempDir;

use super::run::{CaseRun, Runner};
use super::suite::{Case, Kind, Suite, Target, Unittest};

/// Returns the number of cases that run at a time on `target` without `--jobs`: two per processor, because programs
/// sleep about half of the time.
pub(crate) fn default_jobs(target: &Target) -> NonZeroUsize {
    let processors = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    target
        .jobs
        .unwrap_or_else(|| processors().saturating_mul(NonZeroUsize::MIN.saturating_add(1)))
}

/// A function that receives the result of a case: its suite, its position in the suite, and the outcome.
type CaseResultCallback<'r> = &'r mut dyn FnMut(&Suite, usize, CaseRun) -> Result<()>;

/// Runs all cases of `suites` on `target`, `jobs` at a time. Each result is passed to `report` as soon as the case has
/// ended, with the position of the case in its suite.
///
/// # Errors
/// Returns an error if cases cannot be run at all, or `report` fails. A missing program fails only its case.
pub(crate) fn run(
    target: &Target,
    suites: &[&Suite],
    jobs: NonZeroUsize,
    report: CaseResultCallback<'_>,
) -> Result<()> {
    let ports = Mutex::new(PortAllocator::new());
    let prepared: Vec<PreparedSuite<'_>> = thread::scope(|scope| {
        let ports = &ports;
        let prepare = |&suite| scope.spawn(move || PreparedSuite::new(target, suite, ports));
        let begun: Vec<_> = suites.iter().map(prepare).collect();
        let ended = begun.into_iter().map(|thread| {
            let died = |_| Err(anyhow!("preparing a suite failed"));
            thread.join().unwrap_or_else(died)
        });
        ended.collect::<Result<_>>()
    })?;
    let (exclusive, shared) = exclusive_and_shared_units(target, &prepared, jobs);
    let place = SharedByWorkers {
        target,
        prepared: &prepared,
        ports: &ports,
    };
    run_units(place, shared, jobs, report)?;
    run_units(place, exclusive, NonZeroUsize::MIN, report)
}

/// A suite whose `setup` was run.
struct PreparedSuite<'a> {
    suite: &'a Suite,
    /// The folder with the files that `setup` has made; `None` if the suite has no `setup`.
    folder: Option<TempDir>,
    /// Names of the tests, if the suite is of the kind `unittest`.
    tests: Vec<String>,
}

impl<'a> PreparedSuite<'a> {
    fn new(
        target: &Target,
        suite: &'a Suite,
        ports: &Mutex<PortAllocator>,
    ) -> Result<PreparedSuite<'a>> {
        let mut prepared = PreparedSuite {
            suite,
            folder: None,
            tests: Vec::new(),
        };
        if suite.setup.is_none() && !matches!(suite.kind, Kind::Unittest(_)) {
            return Ok(prepared);
        }
        let folder = prepared.folder.insert(new_folder()?);
        let runner = Runner {
            target,
            folder: folder.path(),
            port: lock(ports).next(),
        };
        if let Some(command) = &suite.setup {
            runner.setup(command)?;
        }
        if let Kind::Unittest(unittest) = &suite.kind {
            prepared.tests = runner.tests(unittest)?;
        }
        Ok(prepared)
    }

    /// Makes a new folder for the programs of the suite, with a copy of the files that `setup` has made.
    fn new_folder_with_setup_files(&self) -> Result<TempDir> {
        let folder = new_folder()?;
        if let Some(from) = &self.folder {
            let copied = Command::new("cp")
                .arg("-a")
                .arg(from.path().join("."))
                .arg(folder.path())
                .status();
            let copied = copied.context("cannot start cp")?;
            ensure!(
                copied.success(),
                "cannot copy what the suite {} needs",
                self.suite.name
            );
        }
        Ok(folder)
    }
}

/// The cases that one worker runs, one after the other.
#[derive(Debug)]
enum WorkUnit<'a> {
    /// Cases of programs. The numbers are the index of the suite and the position of the case in the suite.
    Cases(Vec<(usize, usize, &'a Case)>),
    /// Tests of a suite of `unittest`. The second number is the position of the first test in the suite.
    Tests(usize, &'a Unittest, usize, &'a [String]),
}

/// Returns the units of all cases: first the cases that must run alone, then the cases that may run beside others.
fn exclusive_and_shared_units<'a>(
    target: &Target,
    prepared: &'a [PreparedSuite<'a>],
    jobs: NonZeroUsize,
) -> (VecDeque<WorkUnit<'a>>, VecDeque<WorkUnit<'a>>) {
    let mut exclusive = VecDeque::new();
    let mut shared = VecDeque::new();
    // Cases that need the same port are in the same unit, so that they run one after the other.
    let mut at_port: HashMap<u16, usize> = HashMap::new();
    for (index, suite) in prepared.iter().enumerate() {
        match &suite.suite.kind {
            Kind::Programs(cases) => {
                for (number, case) in cases.iter().enumerate().filter(|(_, c)| c.is_for(target)) {
                    let case = (index, number, case);
                    if case.2.exclusive {
                        exclusive.push_back(WorkUnit::Cases(vec![case]));
                        continue;
                    }
                    let same = case.2.fixed_port.and_then(|port| at_port.get(&port));
                    if let Some(WorkUnit::Cases(cases)) = same.and_then(|&at| shared.get_mut(at)) {
                        cases.push(case);
                        continue;
                    }
                    if let Some(port) = case.2.fixed_port {
                        at_port.insert(port, shared.len());
                    }
                    shared.push_back(WorkUnit::Cases(vec![case]));
                }
            }
            Kind::Unittest(unittest) => {
                let size = suite.tests.len().div_ceil(jobs.get()).max(1);
                let parts = suite.tests.chunks(size).enumerate();
                let parts =
                    parts.map(|(n, names)| WorkUnit::Tests(index, unittest, n * size, names));
                shared.extend(parts);
            }
        }
    }
    (exclusive, shared)
}

/// The data that all workers share.
#[derive(Clone, Copy)]
struct SharedByWorkers<'a> {
    target: &'a Target,
    prepared: &'a [PreparedSuite<'a>],
    ports: &'a Mutex<PortAllocator>,
}

/// Runs `units` by at most `jobs` workers.
fn run_units(
    place: SharedByWorkers<'_>,
    units: VecDeque<WorkUnit<'_>>,
    jobs: NonZeroUsize,
    report: CaseResultCallback<'_>,
) -> Result<()> {
    let workers = jobs.get().min(units.len());
    let queue = Mutex::new(units);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..workers {
            let sender = sender.clone();
            let queue = &queue;
            scope.spawn(move || {
                let mut worker = Worker {
                    place,
                    folders: HashMap::new(),
                };
                // The receiver reads results until all workers have ended.
                let tell = |result| sender.send(result).map_err(|_| anyhow!("nobody listens"));
                while let Some(unit) = next(queue) {
                    let mut report = |suite, number, ran| tell(Ok((suite, number, ran)));
                    if let Err(err) = worker.run(&unit, &mut report) {
                        let _ = tell(Err(err));
                    }
                }
            });
        }
        drop(sender);
        let mut outcome = Ok(());
        for result in results {
            let told = result.and_then(|(suite, number, ran): (usize, usize, CaseRun)| {
                report(place.prepared[suite].suite, number, ran)
            });
            if outcome.is_ok() && told.is_err() {
                lock(&queue).clear();
                outcome = told;
            }
        }
        outcome
    })
}

fn next<'a>(queue: &Mutex<VecDeque<WorkUnit<'a>>>) -> Option<WorkUnit<'a>> {
    lock(queue).pop_front()
}

struct Worker<'a> {
    place: SharedByWorkers<'a>,
    /// The folders in which programs run, by the index of their suite.
    folders: HashMap<usize, TempDir>,
}

impl Worker<'_> {
    fn run(
        &mut self,
        unit: &WorkUnit<'_>,
        report: &mut dyn FnMut(usize, usize, CaseRun) -> Result<()>,
    ) -> Result<()> {
        match unit {
            WorkUnit::Cases(cases) => {
                for (suite, number, case) in cases {
                    let runner = self.runner(*suite, case.fixed_port)?;
                    report(*suite, *number, runner.case(case))?;
                }
                Ok(())
            }
            WorkUnit::Tests(suite, unittest, first, names) => {
                let runner = self.runner(*suite, None)?;
                runner.unittest(unittest, names, &mut |number, ran| {
                    report(*suite, first + number, ran)
                })
            }
        }
    }

    fn runner(&mut self, suite: usize, port: Option<u16>) -> Result<Runner<'_>> {
        if !self.folders.contains_key(&suite) {
            let folder = self.place.prepared[suite].new_folder_with_setup_files()?;
            self.folders.insert(suite, folder);
        }
        Ok(Runner {
            target: self.place.target,
            folder: self.folders[&suite].path(),
            port: port.unwrap_or_else(|| lock(self.place.ports).next()),
        })
    }
}

fn new_folder() -> Result<TempDir> {
    // Use a folder in memory, so that the files of a fabric are not written to a disk.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    folder.context("cannot make a folder for the programs")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates ports. Each case has its own port, so that no case waits until the port of an earlier case is free. No
/// other program uses the port.
#[derive(Debug)]
struct PortAllocator(u16);

impl PortAllocator {
    /// First and last port. They are below the ports that the kernel assigns to clients.
    const FIRST: u16 = 20_000;
    const LAST: u16 = 29_999;

    fn new() -> PortAllocator {
        // Runs at the same time begin with different ports.
        let begin = std::process::id() % u32::from(PortAllocator::LAST - PortAllocator::FIRST);
        PortAllocator(PortAllocator::FIRST + u16::try_from(begin).unwrap_or(0))
    }

    fn next(&mut self) -> u16 {
        let mut port = self.0;
        for _ in PortAllocator::FIRST..=PortAllocator::LAST {
            port = self.0;
            self.0 = if port == PortAllocator::LAST {
                PortAllocator::FIRST
            } else {
                port + 1
            };
            let any = (Ipv4Addr::UNSPECIFIED, port);
            if TcpListener::bind(any).is_ok() && UdpSocket::bind(any).is_ok() {
                break;
            }
        }
        port
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge::Outcome;
    use super::super::suite::Conformance;
    use super::*;

    /// Runs a suite of the given text on this machine, four cases at a time. Returns number, case and outcome of each
    /// case, in the order of the numbers. `MEET` in the text is a folder that all cases share.
    fn run_four(text: &str) -> Vec<(usize, String, Outcome)> {
        let folder = tempfile::tempdir().unwrap();
        let targets = "[here]\ntitle = \"here\"\nmachine = \"host\"\npackages = []\ndevice = \"d\"\n\
             gid_index = 1\nlink_layer = \"Ethernet\"\nserver = \"127.0.0.1\"\n\
             cm_listeners = { command = \"true\", line = \".\" }\n";
        std::fs::write(folder.path().join("targets.toml"), targets).unwrap();
        let meet = folder.path().join("meet");
        std::fs::create_dir(&meet).unwrap();
        let text = text.replace("MEET", meet.to_str().unwrap());
        let head = "title = \"t\"\norder = 1\npackages = []\n";
        std::fs::write(folder.path().join("s.toml"), format!("{head}{text}")).unwrap();
        let conformance = Conformance::load(folder.path()).unwrap();
        let suites = conformance.select(&[]).unwrap();
        let mut done = Vec::new();
        let jobs = NonZeroUsize::new(4).unwrap();
        run(&conformance.targets[0], &suites, jobs, &mut |_, n, ran| {
            done.push((n, ran.case, ran.outcome));
            Ok(())
        })
        .unwrap();
        done.sort_by_key(|(number, ..)| *number);
        done
    }

    fn passed(number: usize, case: &str) -> (usize, String, Outcome) {
        (number, case.to_owned(), Outcome::Passed)
    }

    #[test]
    fn cases_beside_each_other_have_folders_and_ports_of_their_own() {
        let done = run_four(
            "timeout_s = 60\n\
             setup = '''cat > s <<'X'\n\
             mkdir mine && touch MEET/$1 && mkdir MEET/port$3 || exit\n\
             until test -e MEET/$2; do sleep 0.01; done\nX\n'''\n\
             [[case]]\nname = \"one\"\nalone = \"sh s a b {port}\"\n\
             [[case]]\nname = \"two\"\nalone = \"sh s b a {port}\"",
        );
        assert_eq!(done, [passed(0, "one"), passed(1, "two")]);
    }

    #[test]
    fn cases_at_the_same_port_and_exclusive_ones_are_alone() {
        let script = "timeout_s = 60\n\
             setup = \"echo 'mkdir MEET/busy && sleep 0.1 && rmdir MEET/busy' > s\"\n";
        for key in ["port = 7174", "exclusive = true"] {
            let case = |name| format!("[[case]]\nname = \"{name}\"\nalone = \"sh s\"\n{key}\n");
            let cases: String = ["one", "two", "three"].map(case).concat();
            assert_eq!(
                run_four(&format!("{script}{cases}")),
                [passed(0, "one"), passed(1, "two"), passed(2, "three")],
                "{key}"
            );
        }
    }

    #[test]
    fn the_tests_of_a_unittest_are_dealt_out() {
        // Each of the two parts waits until the other part runs.
        let done = run_four(
            "setup = '''cat > s <<'X'\n\
             case \"$*\" in\n\
             list) for t in a b c d e f g h; do echo tests.m.C.$t; done; exit;;\n\
             *C.a*) touch MEET/a; until test -e MEET/h; do sleep 0.01; done;;\n\
             *C.h*) touch MEET/h; until test -e MEET/a; do sleep 0.01; done;;\n\
             esac\n\
             shift\n\
             for t; do echo \"${t##*.} ($t) ... ok\"; done\n\
             echo \"Ran $# tests in 1s\"\nX\n'''\n\
             [unittest]\nlist = \"sh s list\"\nrun = \"sh s run\"\ntimeout_s = 60",
        );
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let all: Vec<_> = names.iter().enumerate().collect();
        let all: Vec<_> = all
            .iter()
            .map(|(n, t)| passed(*n, &format!("m.C.{t}")))
            .collect();
        assert_eq!(done, all);
    }

    #[test]
    fn a_suite_that_cannot_be_prepared_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("targets.toml"), "").unwrap();
        let text = "title = \"t\"\norder = 1\npackages = []\nsetup = \"echo no luck; false\"\n";
        std::fs::write(folder.path().join("s.toml"), text).unwrap();
        let conformance = Conformance::load(folder.path()).unwrap();
        let repository = Conformance::load(&crate::paths::workspace().join("conformance")).unwrap();
        let target = &repository.targets[0];
        let suites = conformance.select(&[]).unwrap();
        let err = run(target, &suites, NonZeroUsize::MIN, &mut |_, _, _| Ok(())).unwrap_err();
        assert!(format!("{err:#}").contains("no luck"), "{err:#}");
    }
}
