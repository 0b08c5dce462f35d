//! The two sides of a measurement: processes of one host, or of two hosts.

use anyhow::Result;
use bench::core_pinning::CorePair;
use bench::link::WorkerLink;
use bench::micro::{MeasurementTask, WorkerPool};
use bench::open_nic::NicChoice;
use bench::remote::{self, ListeningPeer};
use serde::Serialize;
use serde_json::json;

use super::common::worker_command;
use crate::CommandOutcome;
use crate::args;

/// The default address of a listening side.
const DEFAULT_LISTEN_ADDRESS: &str = "0.0.0.0:7485";

/// The side that this process is, if the two sides run on two hosts.
#[derive(clap::Args)]
#[command(next_help_heading = "Two hosts")]
pub(super) struct TwoHostArgs {
    /// Be the other side for one that connects, at this TCP address [default: 0.0.0.0:7485]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = DEFAULT_LISTEN_ADDRESS, value_parser = args::check_host_and_port, conflicts_with = "connect")]
    listen: Option<String>,
    /// Measure with the other side that listens on this host (HOST or HOST:PORT), started with the same settings
    #[arg(long = "connect", id = "connect", value_name = "HOST", value_parser = parse_host)]
    listening_host: Option<String>,
}

/// Parses a host's name or address, with or without a port.
fn parse_host(text: &str) -> Result<String, String> {
    let port = DEFAULT_LISTEN_ADDRESS
        .rsplit_once(':')
        .map_or("", |(_, port)| port);
    args::check_host_and_port(text)
        .or_else(|_| args::check_host_and_port(&format!("{text}:{port}")))
}

impl TwoHostArgs {
    /// Returns true if this process listens as the other side.
    pub(super) fn serves_as_other_side(&self) -> bool {
        self.listen.is_some()
    }

    /// Returns true if the two sides are started separately, each with its own command.
    pub(super) fn starts_sides_separately(&self) -> bool {
        self.serves_as_other_side() || self.listening_host.is_some()
    }

    /// Serves as the other side of the measurements `task_description`, with this host's `nic`.
    pub(super) fn serve_other_side(
        &self,
        task_description: &impl Serialize,
        nic: &NicChoice,
    ) -> Result<CommandOutcome> {
        nic.device_name()?;
        let mut worker = worker_command()?;
        worker
            .args
            .extend(["--nic".to_owned(), serde_json::to_string(nic)?]);
        let address = self.listen.as_deref().unwrap_or(DEFAULT_LISTEN_ADDRESS);
        remote::serve_one_peer(address, &json!(task_description), &worker, |address| {
            eprintln!("listening on {address}");
            Ok(())
        })?;
        Ok(CommandOutcome::Done)
    }

    /// Returns a runner that measures `tasks`, with the other side on this host or on the connected
    /// one.
    pub(super) fn worker_pool(
        &self,
        cores: CorePair,
        tasks: &[MeasurementTask],
    ) -> Result<WorkerPool> {
        let Some(address) = &self.listening_host else {
            return Ok(WorkerPool::new(cores, worker_command()?));
        };
        let processes = tasks
            .iter()
            .map(MeasurementTask::other_side_processes)
            .max()
            .unwrap_or(1);
        let peer = ListeningPeer {
            address: address.clone(),
            task_description: json!(tasks),
            process_count: processes,
        };
        Ok(WorkerPool::with_remote_peer(cores, peer))
    }

    /// Connects to one process of the other side, which carries out `task_description`.
    pub(super) fn connect_worker(
        &self,
        core: usize,
        task_description: &impl Serialize,
    ) -> Result<WorkerLink> {
        let Some(address) = &self.listening_host else {
            return WorkerLink::spawn(&worker_command()?, core);
        };
        let peer = ListeningPeer {
            address: address.clone(),
            task_description: json!(task_description),
            process_count: 1,
        };
        Ok(peer.connect()?.swap_remove(0))
    }
}

/// Arguments of the second process of a benchmark.
#[derive(clap::Args)]
pub(super) struct WorkerArgs {
    /// Its NIC, as JSON, where that is not the driver's
    #[arg(long)]
    nic: Option<String>,
}

impl WorkerArgs {
    pub(super) fn serve_jobs_on_stdio(&self) -> Result<CommandOutcome> {
        let nic = self.nic.as_deref().map(serde_json::from_str).transpose()?;
        bench::worker::run_jobs(&mut WorkerLink::stdio(), nic.as_ref())?;
        Ok(CommandOutcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_needs_no_port() {
        assert_eq!(parse_host("mlx-1"), Ok("mlx-1:7485".to_owned()));
        assert_eq!(parse_host("[::1]:80"), Ok("[::1]:80".to_owned()));
        assert_eq!(parse_host("10.0.0.1:80"), Ok("10.0.0.1:80".to_owned()));
        assert!(parse_host("").is_err() && parse_host("a b").is_err());
    }
}
