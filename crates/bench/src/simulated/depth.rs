//! Requests and responses at several depths on a simulated cluster: a client and a server, each with one core.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context as _, Result, bail};
use nicmodel::Profile;

use super::SimulatedCluster;
use crate::depth::{ExchangeConfig, ExchangeRate, exchange_as_client, serve_worker_side};
use crate::job::Job;
use crate::link::{WorkerLink, root_cause};
use crate::open_nic::{NicChoice, OpenNic};

/// Exchanges requests once, in virtual time.
///
/// # Errors
/// When the profile lacks what a simulation needs, a verb fails, or data are wrong.
pub fn run(profile: &Profile, config: &ExchangeConfig) -> Result<ExchangeRate> {
    let cluster = SimulatedCluster::new(profile, 2, 1)?;
    let [client_nic, server_nic] =
        [0, 1].map(|machine| OpenNic::open_on_first_port(&cluster.host_contexts[machine]));
    let (client_nic, server_nic) = (client_nic?, server_nic?);
    let (mut left, mut right) = WorkerLink::simulated_pair();
    let outcome = Rc::new(RefCell::new(None));
    let failures = Rc::new(RefCell::new(Vec::new()));
    let (rate, errors, config) = (Rc::clone(&outcome), Rc::clone(&failures), *config);
    cluster.spawn(0, "client".to_owned(), move || {
        let choice = NicChoice::first_device_of("simnic");
        match exchange_as_client(&mut left, &choice, &client_nic, &config) {
            Ok(measured) => *rate.borrow_mut() = Some(measured),
            Err(error) => {
                left.send_failure(&error);
                errors.borrow_mut().push(error);
            }
        }
    });
    let errors = Rc::clone(&failures);
    cluster.spawn(1, "server".to_owned(), move || {
        let served = right.recv().and_then(|job| match job {
            Job::Depth(job) => serve_worker_side(&mut right, &server_nic, &job.config),
            job => bail!("{job:?} is no exchange of requests"),
        });
        if let Err(error) = served {
            right.send_failure(&error);
            errors.borrow_mut().push(error);
        }
    });
    let finished = cluster.run_until_threads_end();
    if let Some(error) = root_cause(failures.take()) {
        return Err(error);
    }
    finished?;
    outcome.take().context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::depth::{DataMemory, TransferVerb};

    /// A client with one request in flight waits for a round trip; the NICs then bound the rate.
    #[test]
    fn depth_pays_until_the_nic_is_busy() {
        let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
        let rate = |verb, depth| {
            let config = ExchangeConfig {
                verb,
                memory: DataMemory::Shared,
                depth,
                queue_pairs: 1,
                payload_bytes: 4096,
                duration_ms: 1,
            };
            run(profile, &config).expect("it runs").requests_per_s
        };
        for verb in [TransferVerb::Write, TransferVerb::Read] {
            let [one, eight, many] = [1, 8, 64].map(|depth| rate(verb, depth));
            // A round trip takes 3 to 8 µs.
            assert!((1.0e5..4.0e5).contains(&one), "{verb:?}: {one}");
            assert!(eight > 4.0 * one, "{verb:?}: {one}, {eight}");
            // One queue pair is on one port, which carries 6.8 GB/s.
            assert!(many > eight && many < 1.7e6, "{verb:?}: {eight}, {many}");
        }
    }
}
