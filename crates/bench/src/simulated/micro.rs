//! The microbenchmarks' own code on a simulated cluster of two machines.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use nicmodel::Profile;

use super::Bed;
use crate::link::Link;
use crate::micro::{self, Outcome, Task};
use crate::workload::Nic;

/// Measures once, in virtual time, with one core on each machine.
///
/// # Errors
/// When the profile lacks what a simulation needs, or a verb fails.
pub fn run(profile: &Profile, task: &Task) -> Result<Outcome> {
    let bed = Bed::new(profile, 2, 1)?;
    let (mut left, mut right) = Link::simulated_pair();
    let outcome = Rc::new(RefCell::new(None));
    let failure = Rc::new(RefCell::new(None));
    let (nic, task) = (Nic::on(&bed.contexts[0])?, *task);
    let told = Rc::clone(&outcome);
    bed.spawn(0, "requester".to_owned(), move || {
        let measured = micro::drive_on(&mut left, &nic, &task);
        told.replace(Some(measured));
    });
    let (nic, told) = (Nic::on(&bed.contexts[1])?, Rc::clone(&failure));
    bed.spawn(1, "responder".to_owned(), move || {
        told.replace(micro::work_on(&mut right, &nic, &task).err());
    });
    let finished = bed.finish();
    // Where one side has failed, the other one's error is only what follows.
    match (outcome.take(), failure.take()) {
        (Some(Ok(outcome)), None) => finished.map(|()| outcome),
        (Some(Err(error)), _) | (_, Some(error)) => Err(error),
        (None, None) => {
            finished?;
            None.context("the requester ended without a result")
        }
    }
}

#[cfg(test)]
mod tests {
    use nicmodel::profile::builtin;

    use super::*;
    use crate::micro::{Knobs, PingPong, Stream, Verb};

    fn cib() -> &'static Profile {
        builtin("cib").expect("built in")
    }

    fn stream(verb: Verb, knobs: &Knobs) -> micro::Rate {
        let stream = Stream::new(verb, knobs, 1).expect("knobs that fit");
        match run(cib(), &Task::Stream(stream)).expect("it runs") {
            Outcome::Rate(rate) => rate,
            Outcome::Latency(_) => panic!("a stream has a rate"),
        }
    }

    #[test]
    fn every_verb_streams_and_gives_the_same_twice() {
        for verb in Verb::ALL {
            let rate = stream(verb, &Knobs::default());
            assert!(rate.rate_mops > 1.0, "{verb:?}: {rate:?}");
            assert_eq!(rate.lost_ops, 0, "{verb:?}");
            assert_eq!(rate, stream(verb, &Knobs::default()), "{verb:?}");
        }
    }

    /// The paper: "a few microseconds" for a round trip (`gen_rtt`), and an atomic holds its lock for
    /// 1 / 2.24 M/s.
    #[test]
    fn times_are_those_of_the_profile() {
        for verb in Verb::ALL {
            let ping = PingPong::new(verb, &Knobs::default(), 1).expect("knobs that fit");
            let outcome = run(cib(), &Task::PingPong(ping)).expect("it runs");
            let Outcome::Latency(latency) = outcome else {
                panic!("a ping-pong has a latency");
            };
            let whole = if ping.is_one_way() { 2.0 } else { 1.0 };
            let round_trip = whole * latency.latency_ns_p50;
            assert!(
                (1200.0..3500.0).contains(&round_trip),
                "{verb:?}: {latency:?}"
            );
        }
        let atomics = stream(Verb::Atomics, &Knobs::default());
        assert!((atomics.rate_mops / 2.24 - 1.0).abs() < 0.03, "{atomics:?}");
    }

    #[test]
    fn a_profile_without_the_numbers_is_refused() {
        let task = Task::Stream(Stream::new(Verb::UdSend, &Knobs::default(), 1).expect("fits"));
        let error = run(builtin("bf2").expect("built in"), &task).expect_err("refused");
        assert!(error.to_string().contains("processing.send_ns"), "{error}");
    }
}
