//! The data files of `conformance/`: targets, suites and their cases.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use serde::{Deserialize, Deserializer};

use crate::paths::workspace;

/// The content of all data files of `conformance/`.
#[derive(Debug)]
pub(crate) struct Conformance {
    /// The targets, in the order of the table's columns.
    pub(crate) targets: Vec<Target>,
    /// The suites, in the order of the table.
    pub(crate) suites: Vec<Suite>,
}

/// A target on which programs run: a column of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    /// Name of the target, which heads its column.
    #[serde(skip)]
    pub(crate) name: String,
    /// Title of the target, for readers.
    pub(crate) title: String,
    pub(crate) machine: Machine,
    /// Debian packages that the target itself needs.
    pub(crate) packages: Vec<String>,
    /// Name of the RDMA device: the value of `{dev}` in commands.
    pub(crate) device: String,
    /// Index of the GID that programs use: the value of `{gid}` in commands.
    pub(crate) gid_index: u32,
    pub(crate) link_layer: LinkLayer,
    /// Address at which clients reach servers: the value of `{server}` in commands.
    pub(crate) server: String,
    /// Words that precede each command. `{verbatim}` stands for the command line program of this
    /// repository.
    #[serde(default)]
    pub(crate) wrap: Vec<String>,
    /// The target of the clients, if it differs from the target of the servers.
    pub(crate) client: Option<ClientTarget>,
    /// Arguments of `cargo build` for the programs that run on this target.
    pub(crate) build: Option<String>,
    /// Shell command that creates the network; it runs once, before all suites.
    pub(crate) network: Option<String>,
    /// Names of the only suites that run on this target [default: all].
    suites: Option<Vec<String>>,
    /// Names of the suites that `--sample-if-unchanged` runs.
    #[serde(default)]
    pub(crate) sample: Vec<String>,
    pub(crate) cm_listeners: CmListeners,
    /// Number of cases that run at a time without `--jobs` [default: two for each processor].
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Patterns as in `again` of a case, for races that occur only on this target.
    #[serde(default, deserialize_with = "regexes")]
    pub(crate) again: Vec<Regex>,
}

/// The target of the clients, if servers and clients run on different devices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientTarget {
    /// Name of the clients' RDMA device: the value of `{dev}` in commands of clients.
    pub(crate) device: String,
    /// Index of the GID that clients use: the value of `{gid}` in commands of clients.
    pub(crate) gid_index: u32,
    /// Words that precede each command of a client.
    #[serde(default)]
    pub(crate) wrap: Vec<String>,
}

impl Target {
    /// Returns the words that precede commands, of servers and clients.
    pub(crate) fn command_prefix_words(&self) -> impl Iterator<Item = &String> {
        let client = self.client.iter().flat_map(|client| &client.wrap);
        self.wrap.iter().chain(client)
    }
}

/// The way to list the listeners at a port of `rdma_cm`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CmListeners {
    /// Command that lists the listeners, one per line.
    pub(crate) command: String,
    /// Regular expression that matches the line of a listener at `{port}`.
    pub(crate) line: String,
}

/// Link layer of a port, as `ibv_devinfo` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum LinkLayer {
    /// Ports are addressed by GID.
    Ethernet,
    /// Ports are addressed by LID.
    InfiniBand,
}

/// The machine on which a target's programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Machine {
    /// The machine of this process.
    Host,
    /// The virtual machine of `cargo xtask rxe`.
    Rxe,
}

/// One file `conformance/NAME.toml`.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Release of rdma-core against which the programs were built; `None` if they do not use it.
    pub(crate) built_against: Option<String>,
    /// Debian packages that provide the programs.
    pub(crate) packages: Vec<String>,
    /// Shell command that builds programs, once and on this machine, for whatever machine runs them.
    pub(crate) build: Option<String>,
    /// Shell command that puts files into the programs' folder that the programs need.
    pub(crate) setup: Option<String>,
    pub(crate) kind: Kind,
    /// If set, the suite runs only on targets of this machine.
    machine: Option<Machine>,
    /// If true, the suite runs only on targets that name it.
    only_if_named: bool,
    unsteady: Vec<Unsteady>,
    /// Causes of skipped cases, for readers.
    pub(crate) causes: Vec<Cause>,
}

/// A cause of skipped cases, for readers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cause {
    /// Regular expression that matches the reasons of these skips.
    #[serde(deserialize_with = "regex")]
    pub(crate) skipped: Regex,
    /// Explanation of the cause.
    pub(crate) why: String,
}

/// The way in which the results of a suite are obtained.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Each case runs a program, or a server and a client.
    Programs(Vec<Case>),
    /// One program runs all cases and prints the outcome of each.
    Unittest(Unittest),
}

/// A suite of Python's `unittest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unittest {
    /// Command that prints the names of the tests.
    pub(crate) list: String,
    /// Command that runs all tests, or the tests whose names are appended.
    pub(crate) run: String,
    /// Time in seconds for which the suite may print no output.
    pub(crate) timeout_s: u64,
}

/// A case: the programs to run, and the conditions for passing.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) server: Option<Server>,
    /// Command of the client, or of the only program.
    pub(crate) command: String,
    /// Shell command that runs after all programs have succeeded; the case fails if this command
    /// fails.
    pub(crate) check_command: Option<String>,
    /// Regular expressions, each of which must match the client's output.
    pub(crate) expected_patterns: Vec<Regex>,
    /// Number of measurement rows that the client must print, see [`super::judge::count_measurement_rows`].
    pub(crate) min_measurement_rows: usize,
    /// Link layer of the port that the case needs.
    pub(crate) link_layer: Option<LinkLayer>,
    /// If set, the case runs only on targets of this machine.
    machine: Option<Machine>,
    /// The TCP or `rdma_cm` port, if the program has a fixed port.
    pub(crate) fixed_port: Option<u16>,
    /// True if no other case may run at the same time.
    pub(crate) exclusive: bool,
    pub(crate) timeout_s: u64,
    /// Patterns of lines by which a failed program reports that the device lacks a feature; the
    /// case is then skipped.
    pub(crate) skip_patterns: Vec<Regex>,
    /// Patterns of lines by which a failed program reports that it lost a race with another program
    /// of the case.
    pub(crate) lost_race_patterns: Vec<Regex>,
}

impl Case {
    /// Returns true if the case runs on `target`. On a target with two devices, only cases with
    /// server and client run.
    pub(crate) fn is_for(&self, target: &Target) -> bool {
        self.machine.is_none_or(|machine| machine == target.machine)
            && (target.client.is_none() || self.server.is_some())
    }
}

/// The program of a case that is started first.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) command: String,
    pub(crate) ready: Ready,
    /// True if the server does not end by itself.
    pub(crate) runs_until_stopped: bool,
    /// Regular expressions, each of which must match the server's output.
    pub(crate) expected_patterns: Vec<Regex>,
}

/// The sign by which a server is ready for its client.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ready {
    /// The server listens at its TCP port.
    Tcp,
    /// The server has bound its UDP port.
    Udp,
    /// The server listens at its `rdma_cm` port.
    Cm,
    /// The server has printed output that this pattern matches.
    Output(#[serde(deserialize_with = "regex")] Regex),
}

/// A case whose outcome varies from run to run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsteady {
    case: String,
    /// Names of the targets on which the outcome varies.
    on: Vec<String>,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    built_against: Option<String>,
    /// Position of the suite in the table.
    order: u32,
    packages: Vec<String>,
    build: Option<String>,
    setup: Option<String>,
    machine: Option<Machine>,
    timeout_s: Option<u64>,
    ready: Option<Ready>,
    #[serde(default)]
    exclusive: bool,
    /// If true, the suite runs only on targets that name it.
    #[serde(default)]
    asked: bool,
    #[serde(default, deserialize_with = "regexes")]
    skip: Vec<Regex>,
    #[serde(default, deserialize_with = "regexes")]
    again: Vec<Regex>,
    #[serde(default)]
    case: Vec<CaseEntry>,
    unittest: Option<Unittest>,
    #[serde(default)]
    unsteady: Vec<Unsteady>,
    #[serde(default)]
    cause: Vec<Cause>,
}

/// A table `[[case]]`: one case, or with `vary` one case for each combination.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseEntry {
    name: String,
    /// Command of a case with only one program.
    alone: Option<String>,
    /// Command of server and client; the client gets the server's address as its last word.
    both: Option<String>,
    server: Option<String>,
    client: Option<String>,
    check: Option<String>,
    #[serde(default)]
    vary: Vec<Vec<String>>,
    ready: Option<Ready>,
    #[serde(default)]
    server_stays: bool,
    #[serde(default, deserialize_with = "regexes")]
    expect: Vec<Regex>,
    #[serde(default, deserialize_with = "regexes")]
    expect_server: Vec<Regex>,
    #[serde(default)]
    rows: usize,
    link_layer: Option<LinkLayer>,
    machine: Option<Machine>,
    port: Option<u16>,
    #[serde(default)]
    exclusive: bool,
    timeout_s: Option<u64>,
}

impl Conformance {
    /// Reads `targets.toml` and every other TOML file of `folder`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, does not have the format that
    /// `conformance/README.md` describes, or names a case twice.
    pub(crate) fn load(folder: &Path) -> Result<Conformance> {
        let text = read(&folder.join(TARGETS))?;
        let targets: BTreeMap<String, Target> =
            toml::from_str(&text).with_context(|| format!("{TARGETS} is not valid"))?;
        let targets = targets
            .into_iter()
            .map(|(name, target)| Target { name, ..target });
        let targets = targets.collect();
        let mut suites = Vec::new();
        for entry in folder.read_dir().with_context(|| cannot_read(folder))? {
            let path = entry.with_context(|| cannot_read(folder))?.path();
            let (Some(stem), Some("toml")) = (
                path.file_stem().and_then(|stem| stem.to_str()),
                path.extension().and_then(|extension| extension.to_str()),
            ) else {
                continue;
            };
            if path.file_name() != Some(TARGETS.as_ref()) {
                let suite = Suite::parse(stem, &read(&path)?)
                    .with_context(|| format!("{} is not valid", path.display()))?;
                suites.push(suite);
            }
        }
        suites.sort_by_key(|(order, suite)| (*order, suite.name.clone()));
        Ok(Conformance {
            targets,
            suites: suites.into_iter().map(|(_, suite)| suite).collect(),
        })
    }

    /// Returns the targets named in `only`. Without names, returns the targets that run on this
    /// machine.
    ///
    /// # Errors
    /// Returns an error if a name is unknown; the message lists the known names.
    pub(crate) fn targets(&self, only: &[String]) -> Result<Vec<&Target>> {
        for name in only {
            if !self.targets.iter().any(|target| target.name == *name) {
                let names: Vec<&str> = self.targets.iter().map(|t| t.name.as_str()).collect();
                bail!("no target {name}; there are {}", names.join(", "));
            }
        }
        let wanted = |target: &&Target| match only {
            [] => target.machine == Machine::Host,
            _ => only.contains(&target.name),
        };
        Ok(self.targets.iter().filter(wanted).collect())
    }

    /// Makes `program` the value of `{verbatim}` in all targets.
    pub(crate) fn set_verbatim_program(&mut self, program: &str) {
        for target in &mut self.targets {
            let client = target.client.iter_mut().flat_map(|client| &mut client.wrap);
            for word in target.wrap.iter_mut().chain(client) {
                *word = word.replace(VERBATIM, program);
            }
        }
        for suite in &mut self.suites {
            let Kind::Programs(cases) = &mut suite.kind else {
                continue;
            };
            for case in cases {
                let server = case.server.as_mut().map(|server| &mut server.command);
                let commands = [&mut case.command].into_iter();
                for command in commands.chain(server).chain(case.check_command.as_mut()) {
                    *command = command.replace(VERBATIM, program);
                }
            }
        }
    }

    /// Keeps only the cases whose names `pattern` matches; suites of `unittest` keep all cases.
    pub(crate) fn keep_cases(&mut self, pattern: &Regex) {
        for suite in &mut self.suites {
            if let Kind::Programs(cases) = &mut suite.kind {
                cases.retain(|case| pattern.is_match(&case.name));
            }
        }
    }

    /// Returns the suites named in `only`. Without names, returns all suites.
    ///
    /// # Errors
    /// Returns an error if a name is unknown.
    pub(crate) fn select(&self, only: &[String]) -> Result<Vec<&Suite>> {
        for name in only {
            if !self.suites.iter().any(|suite| suite.name == *name) {
                let names: Vec<&str> = self.suites.iter().map(|s| s.name.as_str()).collect();
                bail!("no suite {name}; there are {}", names.join(", "));
            }
        }
        let wanted = |suite: &&Suite| only.is_empty() || only.contains(&suite.name);
        Ok(self.suites.iter().filter(wanted).collect())
    }
}

impl Suite {
    fn parse(name: &str, text: &str) -> Result<(u32, Suite)> {
        let file: File = toml::from_str(text)?;
        let kind = match file.unittest {
            Some(_) if !file.case.is_empty() => {
                bail!("a suite has either cases or a unittest")
            }
            Some(_) if file.exclusive => bail!("only cases can be exclusive"),
            Some(unittest) => Kind::Unittest(unittest),
            None => {
                let mut cases = Vec::new();
                for entry in &file.case {
                    entry
                        .add_cases(&file, &mut cases)
                        .with_context(|| format!("case {}", entry.name))?;
                }
                let mut names = HashSet::new();
                for case in &cases {
                    ensure!(names.insert(&case.name), "two cases {}", case.name);
                }
                Kind::Programs(cases)
            }
        };
        let suite = Suite {
            name: name.to_owned(),
            title: file.title,
            built_against: file.built_against,
            packages: file.packages,
            build: file.build,
            setup: file.setup,
            kind,
            machine: file.machine,
            only_if_named: file.asked,
            unsteady: file.unsteady,
            causes: file.cause,
        };
        Ok((file.order, suite))
    }

    /// Returns true if the suite runs on `target`.
    pub(crate) fn is_for(&self, target: &Target) -> bool {
        let wanted = match &target.suites {
            Some(names) => names.contains(&self.name),
            None => !self.only_if_named,
        };
        wanted && self.machine.is_none_or(|machine| machine == target.machine)
    }

    /// Returns the reason why the outcome of a case varies on a target; `None` if the outcome does
    /// not vary.
    pub(crate) fn unsteady(&self, case: &str, target: &str) -> Option<&str> {
        self.unsteady
            .iter()
            .find(|u| u.case == case && u.on.iter().any(|on| on == target))
            .map(|u| u.why.as_str())
    }
}

impl CaseEntry {
    fn add_cases(&self, file: &File, cases: &mut Vec<Case>) -> Result<()> {
        let mut combinations = vec![Vec::new()];
        for choices in &self.vary {
            combinations = combinations
                .iter()
                .flat_map(|words: &Vec<&str>| {
                    choices.iter().map(|choice| {
                        let mut words = words.clone();
                        if !choice.is_empty() {
                            words.push(choice);
                        }
                        words
                    })
                })
                .collect();
        }
        for words in combinations {
            cases.push(self.case(file, &words.join(" "))?);
        }
        Ok(())
    }

    fn case(&self, file: &File, varied: &str) -> Result<Case> {
        let vary = |command: &str| command.replace("{vary}", varied);
        let (server, command) = match (&self.alone, &self.both, &self.server, &self.client) {
            (Some(alone), None, None, None) => (None, vary(alone)),
            (None, Some(both), None, None) => {
                let both = vary(both);
                (Some(both.clone()), format!("{both} {{server}}"))
            }
            (None, None, Some(server), Some(client)) => (Some(vary(server)), vary(client)),
            _ => bail!("a case has either `alone`, or `both`, or `server` and `client`"),
        };
        if !self.vary.is_empty() {
            let commands = [&self.alone, &self.both, &self.server, &self.client];
            ensure!(
                commands
                    .iter()
                    .copied()
                    .flatten()
                    .any(|c| c.contains("{vary}")),
                "no command has a place for {{vary}}"
            );
        }
        let server = match server {
            None => None,
            Some(command) => Some(Server {
                command,
                ready: self
                    .ready
                    .as_ref()
                    .or(file.ready.as_ref())
                    .context("neither the case nor the suite says when a server is `ready`")?
                    .clone(),
                runs_until_stopped: self.server_stays,
                expected_patterns: self.expect_server.clone(),
            }),
        };
        Ok(Case {
            name: format!("{} {varied}", self.name).trim_end().to_owned(),
            server,
            command,
            check_command: self.check.clone(),
            expected_patterns: self.expect.clone(),
            min_measurement_rows: self.rows,
            link_layer: self.link_layer,
            machine: self.machine,
            fixed_port: self.port,
            exclusive: self.exclusive || file.exclusive,
            timeout_s: self
                .timeout_s
                .or(file.timeout_s)
                .context("neither the case nor the suite has a `timeout_s`")?,
            skip_patterns: file.skip.clone(),
            lost_race_patterns: file.again.clone(),
        })
    }
}

/// Placeholder in commands and checks for the command line program of this repository.
pub(crate) const VERBATIM: &str = "{verbatim}";

/// Placeholder in commands for [`folder`].
pub(crate) const FOLDER: &str = "{conformance}";

/// Stands for the build folder in commands.
pub(crate) const TARGET_DIR: &str = "{target}";

/// Returns the folder of the data files.
pub(crate) fn folder() -> PathBuf {
    workspace().join("conformance")
}

const TARGETS: &str = "targets.toml";

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| cannot_read(path))
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

fn regex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Regex, D::Error> {
    let text = String::deserialize(deserializer)?;
    line_regex(&text).map_err(serde::de::Error::custom)
}

/// Returns a regular expression in which `^` and `$` match at the start and the end of a line.
pub(crate) fn line_regex(text: &str) -> Result<Regex, regex::Error> {
    Regex::new(&format!("(?m){text}"))
}

fn regexes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Regex>, D::Error> {
    #[derive(Deserialize)]
    struct One(#[serde(deserialize_with = "regex")] Regex);
    let list = Vec::<One>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|One(regex)| regex).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(text: &str) -> Result<Vec<Case>> {
        let head = "title = \"t\"\norder = 1\npackages = []\ntimeout_s = 5\nready = \"tcp\"\n";
        match Suite::parse("s", &format!("{head}{text}"))?.1.kind {
            Kind::Programs(cases) => Ok(cases),
            Kind::Unittest(_) => bail!("not programs"),
        }
    }

    #[test]
    fn vary_makes_a_case_of_each_combination() {
        let cases = cases(
            "[[case]]\nname = \"p\"\nboth = \"p -d {dev} {vary}\"\n\
             vary = [[\"-c RC\", \"-c UD\"], [\"\", \"-e\"]]",
        )
        .unwrap();
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["p -c RC", "p -c RC -e", "p -c UD", "p -c UD -e"]);
        assert_eq!(cases[3].command, "p -d {dev} -c UD -e {server}");
        let server = cases[3].server.as_ref().unwrap();
        assert_eq!(server.command, "p -d {dev} -c UD -e");
        assert!(matches!(server.ready, Ready::Tcp));
    }

    #[test]
    fn a_case_that_says_too_little_or_too_much_is_refused() {
        for (text, why) in [
            ("[[case]]\nname = \"a\"", "either `alone`"),
            ("[[case]]\nname = \"a\"\nserver = \"s\"", "either `alone`"),
            (
                "[[case]]\nname = \"a\"\nalone = \"s\"\nboth = \"t\"",
                "either `alone`",
            ),
            (
                "[[case]]\nname = \"a\"\nalone = \"s\"\nvary = [[\"x\"]]",
                "no command has a place",
            ),
            (
                "[[case]]\nname = \"a\"\nalone = \"s\"\n[[case]]\nname = \"a\"\nalone = \"s\"",
                "two cases a",
            ),
            (
                "[[case]]\nname = \"a\"\nalone = \"s\"\nexpect = [\"(\"]",
                "regex parse error",
            ),
            (
                "[[case]]\nname = \"a\"\nalone = \"s\"\ntypo = 1",
                "unknown field",
            ),
        ] {
            let err = cases(text).expect_err(text);
            assert!(format!("{err:#}").contains(why), "{text}: {err:#}");
        }
    }

    #[test]
    fn the_repositorys_own_files_are_valid() {
        let conformance =
            Conformance::load(&crate::paths::workspace().join("conformance")).unwrap();
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            let targets = conformance.targets(&only).unwrap();
            targets.iter().map(|t| t.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["rxe"]), ["rxe"]);
        let suites_of = |name: &str| -> Vec<&str> {
            let target = conformance.targets(&[name.to_owned()]).unwrap()[0];
            let suites = conformance.suites.iter();
            suites
                .filter(|suite| suite.is_for(target))
                .map(|suite| suite.name.as_str())
                .collect()
        };
        assert_eq!(suites_of("wire-rxe"), ["wire"]);
        assert!(!suites_of("rxe").contains(&"wire"));
        let on_this_machine = [
            "drop-in-ib",
            "drop-in-roce",
            "drop-in-two-ports",
            "nccl-net",
            "sockets",
            "sockets-packets",
        ];
        assert_eq!(names(&[]), on_this_machine);
        assert_eq!(suites_of("sockets"), ["sockets"]);
        assert_eq!(suites_of("nccl-net"), ["nccl"]);
        assert_eq!(suites_of("drop-in-two-ports"), ["two-ports"]);
        assert!(conformance.targets(&["none".to_owned()]).is_err());
        assert!(conformance.select(&["none".to_owned()]).is_err());
        for suite in &conformance.suites {
            for package in suite.packages.iter() {
                assert!(
                    crate::packages::by_name(package).is_some(),
                    "{}: xtask/src/packages.rs does not know {package}",
                    suite.name
                );
            }
        }
    }
}
