//! What a device is known to do otherwise than the suite asks, test by test, with the evidence.
//!
//! A list is data with a check: each test on it runs, and must fail with the text that was observed. So a
//! list can neither hide a new failure nor outlive the deviation.

mod rxe;

use std::fmt::Write as _;
use std::path::Path;

use crate::env::{Cap, Settings};
use crate::objects::device_names;
use crate::provider::ProviderKind;

/// How a device deviates in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It answers, and the answer is wrong.
    Wrong,
    /// It has nothing of the kind.
    Missing,
    /// What must come never comes.
    Hangs,
    /// It takes the kernel down; the test is not run.
    Crash,
}

impl Kind {
    /// One word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Missing => "missing",
            Self::Hangs => "hangs",
            Self::Crash => "crash",
        }
    }
}

/// One test that a device does not pass.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Name of the test.
    pub test: &'static str,
    /// How it deviates.
    pub kind: Kind,
    /// What the device does instead; a clause without a full stop.
    pub what: &'static str,
    /// Part of the failure's text: the evidence.
    pub observed: &'static str,
    /// Whether it also passes at times.
    pub flaky: bool,
}

impl Deviation {
    const fn new(
        kind: Kind,
        test: &'static str,
        what: &'static str,
        observed: &'static str,
    ) -> Self {
        Self {
            test,
            kind,
            what,
            observed,
            flaky: false,
        }
    }

    const fn flaky(mut self) -> Self {
        self.flaky = true;
        self
    }
}

/// Deviations under one heading.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// The heading.
    pub title: &'static str,
    /// The deviations.
    pub list: &'static [Deviation],
}

/// All that is known of one kind of device.
#[derive(Clone, Copy, Debug)]
pub struct Deviations {
    /// Name on the command line.
    pub device: &'static str,
    /// Kernel and library on which all was observed.
    pub observed_on: &'static str,
    /// Capabilities that it lacks altogether: tests of something else do without them.
    pub lacks: &'static [Cap],
    /// The tests that it does not pass.
    pub topics: &'static [Topic],
}

impl Deviations {
    /// The lists there are.
    pub const ALL: [&'static Self; 1] = [&rxe::RXE];

    /// The list of that name.
    #[must_use]
    pub fn named(device: &str) -> Option<&'static Self> {
        Self::ALL.into_iter().find(|known| known.device == device)
    }

    /// The list for the device that a run is to use, if there is one. Soft-RoCE is recognised by the
    /// attribute `parent` in sysfs (the Ethernet device below it), which only its driver has.
    #[must_use]
    pub fn of(settings: &Settings) -> Option<&'static Self> {
        if settings.provider != ProviderKind::System {
            return None;
        }
        let name = match &settings.device {
            Some(name) => name.clone(),
            None => device_names(settings.provider.symbols().ok()?)
                .ok()?
                .into_iter()
                .next()?,
        };
        let parent = Path::new("/sys/class/infiniband").join(name).join("parent");
        parent.exists().then_some(&rxe::RXE)
    }

    /// All of them.
    pub fn list(&self) -> impl Iterator<Item = &'static Deviation> + use<> {
        self.topics.iter().flat_map(|topic| topic.list)
    }

    /// What is known of a test.
    #[must_use]
    pub fn get(&self, test: &str) -> Option<&'static Deviation> {
        self.list().find(|deviation| deviation.test == test)
    }

    /// One line for a report: whose deviation, of what kind, and what happens.
    #[must_use]
    pub fn reason(&self, deviation: &Deviation) -> String {
        let Deviation { kind, what, .. } = deviation;
        format!("{} ({}): {what}", self.device, kind.name())
    }

    /// Tables of all deviations, a heading each.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        for topic in self.topics {
            let _ = writeln!(text, "### {}\n", topic.title);
            text.push_str("| test | | what it does | evidence |\n|---|---|---|---|\n");
            for deviation in topic.list {
                let kind = deviation.kind.name();
                let often = if deviation.flaky { ", at times" } else { "" };
                let (test, what) = (deviation.test, deviation.what);
                let observed = deviation.observed.replace('|', "\\|");
                let _ = writeln!(text, "| `{test}` | {kind}{often} | {what} | `{observed}` |");
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::suite::tests;

    #[test]
    fn every_deviation_is_of_a_test_and_has_evidence() {
        for known in Deviations::ALL {
            let mut seen = BTreeSet::new();
            for deviation in known.list() {
                let test = deviation.test;
                assert!(tests().any(|t| t.name == test), "there is no test {test}");
                assert!(seen.insert(test), "{test} twice");
                assert!(
                    !deviation.what.is_empty() && !deviation.observed.is_empty(),
                    "{test}"
                );
                assert!(
                    !deviation.what.contains(['\n', '|']) && !deviation.what.ends_with('.'),
                    "{test}"
                );
            }
        }
    }

    /// Otherwise nobody would see when the device gets what it lacks.
    #[test]
    fn every_lacking_capability_is_shown_by_a_test_that_needs_it() {
        for known in Deviations::ALL {
            for cap in known.lacks {
                let shown = known.list().any(|deviation| {
                    tests().any(|test| test.name == deviation.test && test.needs.contains(cap))
                });
                assert!(shown, "{}: nothing shows that it lacks {cap}", known.device);
            }
        }
    }

    /// The document's tables are generated: `verbs-conformance --list-deviations rxe` prints them.
    #[test]
    fn the_document_has_the_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/soft-roce.md");
        let text = std::fs::read_to_string(&path).expect("docs/soft-roce.md");
        let (_, rest) = text
            .split_once("<!-- deviations: begin -->\n\n")
            .expect("begin");
        let (tables, _) = rest.split_once("<!-- deviations: end -->").expect("end");
        let expected = Deviations::named("rxe").expect("known").to_markdown();
        assert!(
            tables == expected,
            "docs/soft-roce.md is out of date: put there between the marks what \
             `cargo run -p verbs-conformance -- --list-deviations rxe` prints"
        );
    }

    #[test]
    fn the_software_nic_has_no_list() {
        assert!(Deviations::of(&Settings::new(ProviderKind::Softnic)).is_none());
    }
}
