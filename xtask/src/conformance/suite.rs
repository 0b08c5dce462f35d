//! The data of `conformance/`: targets, suites and their cases.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use serde::{Deserialize, Deserializer};

use crate::paths::workspace;

/// Everything that `conformance/` says.
#[derive(Debug)]
pub(crate) struct Conformance {
    /// In the order of their columns.
    pub(crate) targets: Vec<Target>,
    /// In the order of the table.
    pub(crate) suites: Vec<Suite>,
}

/// A target that programs run on: a column of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    /// Of its column.
    #[serde(skip)]
    pub(crate) name: String,
    /// For people.
    pub(crate) title: String,
    pub(crate) machine: Machine,
    /// Debian packages that the target itself needs.
    pub(crate) packages: Vec<String>,
    /// `{dev}`: name of the RDMA device.
    pub(crate) device: String,
    /// `{gid}`: index of the GID that programs use.
    pub(crate) gid_index: u32,
    pub(crate) link_layer: LinkLayer,
    /// `{server}`: the address at which servers are reached.
    pub(crate) server: String,
    /// Words before each command. `{verbatim}` is the command line of this repository.
    #[serde(default)]
    pub(crate) wrap: Vec<String>,
    /// The clients' target, where it differs from the servers'.
    pub(crate) client: Option<Client>,
    /// Arguments of `cargo build` for what is run here.
    pub(crate) build: Option<String>,
    /// Shell command that makes the network, once, before all suites.
    pub(crate) network: Option<String>,
    /// Run only these suites [default: all].
    suites: Option<Vec<String>>,
    pub(crate) cm_listeners: CmListeners,
    /// Cases at a time where nobody says [default: two for each processor].
    pub(crate) jobs: Option<NonZeroUsize>,
    /// As that of a suite, for what only happens on this target.
    #[serde(default, deserialize_with = "regexes")]
    pub(crate) again: Vec<Regex>,
}

/// The other side of a target that has two.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Client {
    /// `{dev}`.
    pub(crate) device: String,
    /// `{gid}`.
    pub(crate) gid_index: u32,
    /// Words before each command.
    #[serde(default)]
    pub(crate) wrap: Vec<String>,
}

impl Target {
    /// The words before all commands, of both sides.
    pub(crate) fn wraps(&self) -> impl Iterator<Item = &String> {
        let client = self.client.iter().flat_map(|client| &client.wrap);
        self.wrap.iter().chain(client)
    }
}

/// How to see who listens at a port of `rdma_cm`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CmListeners {
    /// Lists the listeners, one a line.
    pub(crate) command: String,
    /// A regular expression: the line of one at `{port}`.
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

/// Where a target's programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Machine {
    /// Here.
    Host,
    /// In the virtual machine of `cargo xtask rxe`.
    Rxe,
}

/// One file `conformance/NAME.toml`.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Debian packages that bring the programs.
    pub(crate) packages: Vec<String>,
    /// Shell command that puts into the programs' folder what they need there.
    pub(crate) setup: Option<String>,
    pub(crate) kind: Kind,
    /// Run only on targets there.
    machine: Option<Machine>,
    /// Run only on targets that name it.
    asked: bool,
    unsteady: Vec<Unsteady>,
    /// Why cases are skipped, for people.
    pub(crate) causes: Vec<Cause>,
}

/// Why some cases are skipped, for people.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cause {
    /// Matches the reasons that the programs give.
    #[serde(deserialize_with = "regex")]
    pub(crate) skipped: Regex,
    /// What is behind them.
    pub(crate) why: String,
}

/// How a suite's results come about.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Each case is a program or a pair of them.
    Programs(Vec<Case>),
    /// One program runs all cases and says what came of each.
    Unittest(Unittest),
}

/// A suite of Python's `unittest`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unittest {
    /// Prints the tests' names.
    pub(crate) list: String,
    /// Runs all tests, or those whose names follow.
    pub(crate) run: String,
    /// How long it may be silent.
    pub(crate) timeout_s: u64,
}

/// Programs to run, and what must come of them.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) server: Option<Server>,
    /// The client, or the only program.
    pub(crate) command: String,
    /// Shell command after both have ended well; what it rejects has failed.
    pub(crate) check: Option<String>,
    /// The client's output must match each.
    pub(crate) expect: Vec<Regex>,
    /// Rows of measurements that the client must print, see [`super::judge::rows`].
    pub(crate) rows: usize,
    /// It needs a port of this link layer.
    pub(crate) link_layer: Option<LinkLayer>,
    /// Run only on targets there.
    machine: Option<Machine>,
    /// The TCP or `rdma_cm` port, where the program does not let one choose it.
    pub(crate) port: Option<u16>,
    /// No other case may run at the same time.
    pub(crate) exclusive: bool,
    pub(crate) timeout_s: u64,
    /// A failed program that prints such a line says that the device cannot do this.
    pub(crate) skip: Vec<Regex>,
    /// A failed program that prints such a line lost a race that the case's own programs have.
    pub(crate) again: Vec<Regex>,
}

impl Case {
    /// Whether it is run on `target`. Between two devices, programs run in pairs.
    pub(crate) fn is_for(&self, target: &Target) -> bool {
        self.machine.is_none_or(|machine| machine == target.machine)
            && (target.client.is_none() || self.server.is_some())
    }
}

/// The program that is started first.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) command: String,
    pub(crate) ready: Ready,
    /// Does not end by itself.
    pub(crate) stays: bool,
    /// Its output must match each.
    pub(crate) expect: Vec<Regex>,
}

/// When a server is ready for its client.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ready {
    /// It listens at its TCP port.
    Tcp,
    /// It has bound its UDP port.
    Udp,
    /// It listens at its `rdma_cm` port.
    Cm,
    /// It has printed this.
    Output(#[serde(deserialize_with = "regex")] Regex),
}

/// A case whose outcome is not always the same.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsteady {
    case: String,
    /// Targets on which it is so.
    on: Vec<String>,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    /// Place in the table.
    order: u32,
    packages: Vec<String>,
    setup: Option<String>,
    machine: Option<Machine>,
    timeout_s: Option<u64>,
    ready: Option<Ready>,
    #[serde(default)]
    exclusive: bool,
    /// Run only on targets that name this suite.
    #[serde(default)]
    asked: bool,
    #[serde(default, deserialize_with = "regexes")]
    skip: Vec<Regex>,
    #[serde(default, deserialize_with = "regexes")]
    again: Vec<Regex>,
    #[serde(default)]
    case: Vec<Entry>,
    unittest: Option<Unittest>,
    #[serde(default)]
    unsteady: Vec<Unsteady>,
    #[serde(default)]
    cause: Vec<Cause>,
}

/// `[[case]]`: one case, or with `vary` one for each combination.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    /// The only program.
    alone: Option<String>,
    /// Both sides; the client gets the server's address as its last word.
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
    /// When a file cannot be read, is not of the form that `conformance/README.md` describes, or
    /// names a case twice.
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

    /// The targets of those names; for none, those that run here.
    ///
    /// # Errors
    /// When there is none of such a name; the message names those that there are.
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

    /// Lets `program` be the command line of this repository in all targets.
    pub(crate) fn run_by(&mut self, program: &str) {
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
                for command in commands.chain(server).chain(case.check.as_mut()) {
                    *command = command.replace(VERBATIM, program);
                }
            }
        }
    }

    /// Leaves only the cases whose names `pattern` matches; suites of `unittest` stay whole.
    pub(crate) fn keep_cases(&mut self, pattern: &Regex) {
        for suite in &mut self.suites {
            if let Kind::Programs(cases) = &mut suite.kind {
                cases.retain(|case| pattern.is_match(&case.name));
            }
        }
    }

    /// The suites of those names, all for none.
    ///
    /// # Errors
    /// When there is no suite of such a name.
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
                        .expand(&file, &mut cases)
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
            packages: file.packages,
            setup: file.setup,
            kind,
            machine: file.machine,
            asked: file.asked,
            unsteady: file.unsteady,
            causes: file.cause,
        };
        Ok((file.order, suite))
    }

    /// Whether it is run on `target`.
    pub(crate) fn is_for(&self, target: &Target) -> bool {
        let wanted = match &target.suites {
            Some(names) => names.contains(&self.name),
            None => !self.asked,
        };
        wanted && self.machine.is_none_or(|machine| machine == target.machine)
    }

    /// Why the outcome of a case is not always the same on a target.
    pub(crate) fn unsteady(&self, case: &str, target: &str) -> Option<&str> {
        self.unsteady
            .iter()
            .find(|u| u.case == case && u.on.iter().any(|on| on == target))
            .map(|u| u.why.as_str())
    }
}

impl Entry {
    fn expand(&self, file: &File, cases: &mut Vec<Case>) -> Result<()> {
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
                stays: self.server_stays,
                expect: self.expect_server.clone(),
            }),
        };
        Ok(Case {
            name: format!("{} {varied}", self.name).trim_end().to_owned(),
            server,
            command,
            check: self.check.clone(),
            expect: self.expect.clone(),
            rows: self.rows,
            link_layer: self.link_layer,
            machine: self.machine,
            port: self.port,
            exclusive: self.exclusive || file.exclusive,
            timeout_s: self
                .timeout_s
                .or(file.timeout_s)
                .context("neither the case nor the suite has a `timeout_s`")?,
            skip: file.skip.clone(),
            again: file.again.clone(),
        })
    }
}

/// In commands and checks: the command line of this repository.
pub(crate) const VERBATIM: &str = "{verbatim}";

/// In commands: [`folder`].
pub(crate) const FOLDER: &str = "{conformance}";

/// The folder of all this.
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

/// A regular expression in which `^` and `$` are those of a line.
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
        assert_eq!(names(&[]), ["drop-in-ib", "drop-in-roce", "sockets"]);
        assert_eq!(suites_of("sockets"), ["sockets"]);
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
