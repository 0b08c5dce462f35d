//! Known deviations of devices from the suite, test by test, with the evidence.
//!
//! A list of deviations is checked: each listed test runs, and must fail with the observed text. A list can
//! therefore neither hide a new failure nor outlive its deviation. Between two devices a listed test may also pass,
//! since some behaviours need both queue pairs on the device.

mod deviation;
mod rxe;

use std::fmt::Write as _;
use std::path::Path;

use crate::objects::device_names;
use crate::provider::ProviderKind;
use crate::test_env::Settings;

pub use deviation::{Deviation, DeviationKind, Deviations, PlaceInPair};

impl Deviations {
    /// The lists of deviations of all known devices.
    pub const ALL: [&'static Self; 1] = [&rxe::RXE];

    /// Returns the list of the device with the name `device`.
    #[must_use]
    pub fn find_by_device_name(device: &str) -> Option<&'static Self> {
        Self::ALL
            .into_iter()
            .find(|known| known.device_kind == device)
    }

    /// Returns the list of deviations for the device of a run, if a list exists.
    ///
    /// Soft-RoCE is recognised by the attribute `parent` in sysfs (the Ethernet device below it). Only the
    /// driver of Soft-RoCE has this attribute.
    #[must_use]
    pub fn find_for_settings(settings: &Settings) -> Option<&'static Self> {
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

    /// Returns the deviations that the device shows if both queue pairs of each pair are on it.
    pub fn iter_on_one_device(&self) -> impl Iterator<Item = &'static Deviation> + use<> {
        self.topics.iter().flat_map(|topic| topic.deviations)
    }

    /// Returns the deviations that are listed for a test, if the device has `place` in each pair.
    #[must_use]
    pub fn find_by_test_name(&self, test: &str, place: PlaceInPair) -> Vec<&'static Deviation> {
        let with_distant_peer = self.with_distant_peer.deviations.iter();
        self.iter_on_one_device()
            .filter(|deviation| match place {
                PlaceInPair::Both => true,
                PlaceInPair::First => !deviation.is_of_second_queue_pair,
                PlaceInPair::Second => deviation.is_of_second_queue_pair,
            })
            .chain(with_distant_peer.filter(|_| place == PlaceInPair::First))
            .filter(|deviation| deviation.test == test)
            .collect()
    }

    /// Returns one line for a report: device, kind and behaviour.
    #[must_use]
    pub fn report_line(&self, deviation: &Deviation) -> String {
        let Deviation {
            kind,
            behaviour: what,
            ..
        } = deviation;
        format!("{} ({}): {what}", self.device_kind, kind.name())
    }

    /// Returns lists of all deviations, one for each topic. Tests that show the same behaviour are below it, with the
    /// evidence of each.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        for topic in self.topics.iter().chain([&self.with_distant_peer]) {
            let _ = writeln!(text, "### {}\n", topic.title);
            let same = |a: &Deviation, b: &Deviation| {
                (a.kind.name(), a.behaviour) == (b.kind.name(), b.behaviour)
            };
            for of_one_behaviour in topic.deviations.chunk_by(same) {
                if let Some(Deviation {
                    kind, behaviour, ..
                }) = of_one_behaviour.first()
                {
                    let _ = writeln!(text, "- **{}**: {behaviour}", kind.name());
                }
                for deviation in of_one_behaviour {
                    let often = if deviation.flaky { " (at times)" } else { "" };
                    let (test, observed) = (deviation.test, deviation.failure_message_part);
                    let _ = writeln!(text, "  - `{test}`{often}: `{observed}`");
                }
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
            let of_topics = known
                .iter_on_one_device()
                .map(|deviation| (deviation, false));
            let with_peer = known.with_distant_peer.deviations.iter();
            let with_peer = with_peer.map(|deviation| (deviation, true));
            for (deviation, peer_is_distant) in of_topics.chain(with_peer) {
                let test = deviation.test;
                assert!(tests().any(|t| t.name == test), "there is no test {test}");
                assert!(seen.insert((test, peer_is_distant)), "{test} twice");
                assert!(
                    !deviation.behaviour.is_empty() && !deviation.failure_message_part.is_empty(),
                    "{test}"
                );
                assert!(
                    !deviation.behaviour.contains(['\n', '|'])
                        && !deviation.behaviour.ends_with('.'),
                    "{test}"
                );
            }
        }
    }

    /// Each capability that a device lacks has a failing test. The test passes, and is noticed, once the
    /// device has the capability.
    #[test]
    fn every_lacking_capability_is_shown_by_a_test_that_needs_it() {
        for known in Deviations::ALL {
            for cap in known.lacked_capabilities {
                let shown = known.iter_on_one_device().any(|deviation| {
                    tests().any(|test| {
                        test.name == deviation.test && test.needed_capabilities.contains(cap)
                    })
                });
                assert!(
                    shown,
                    "{}: nothing shows that it lacks {cap}",
                    known.device_kind
                );
            }
        }
    }

    /// The lists in the document are generated: `verbs-conformance --list-deviations rxe` prints them.
    #[test]
    fn the_document_has_the_lists() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/soft-roce.md");
        let text = std::fs::read_to_string(&path).expect("docs/soft-roce.md");
        let (_, rest) = text
            .split_once("<!-- deviations: begin -->\n\n")
            .expect("begin");
        let (lists, _) = rest.split_once("<!-- deviations: end -->").expect("end");
        let expected = Deviations::find_by_device_name("rxe")
            .expect("known")
            .to_markdown();
        assert!(
            lists == expected,
            "docs/soft-roce.md is out of date: put there between the marks what \
             `cargo run -p verbs-conformance -- --list-deviations rxe` prints"
        );
    }

    #[test]
    fn the_software_nic_has_no_list() {
        assert!(Deviations::find_for_settings(&Settings::new(ProviderKind::Softnic)).is_none());
    }
}
