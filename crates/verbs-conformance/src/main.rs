//! Runs the suite of verbs semantics by hand, on any provider.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use verbs_conformance::harness::{self, SuiteVariant};
use verbs_conformance::{
    Deviations, NicCapability, PeerDevice, ProviderKind, Settings, SuiteTest, tests,
};

/// Runs the suite of verbs semantics on a provider: each test in a process of its own.
///
/// Exit status: 0 all passed or were skipped, 101 some failed, 2 the run could not start.
#[derive(Parser)]
#[command(name = "verbs-conformance", version, after_help = capabilities_help_text(), after_long_help = examples_help_text())]
struct Cli {
    /// Which libibverbs: the software NIC, or the machine's own library
    #[arg(long, value_enum, default_value = "softnic")]
    provider: ProviderKind,
    /// Device to test; the first one unless given
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Port of the device
    #[arg(long, default_value_t = 1)]
    port: u8,
    /// Entry of the GID table to use
    #[arg(long, default_value_t = 0, value_name = "INDEX")]
    gid_index: u8,
    /// Which libibverbs has the second queue pair of each pair; the same device unless given
    #[arg(long, value_enum)]
    peer: Option<ProviderKind>,
    /// Device of the second queue pair; the first one unless given
    #[arg(long, value_name = "NAME", requires = "peer")]
    peer_device: Option<String>,
    /// Entry of the GID table of the second queue pair's device
    #[arg(long, default_value_t = 0, value_name = "INDEX", requires = "peer")]
    peer_gid_index: u8,
    /// Link layer of the software NIC: roce or ib
    #[arg(long, value_parser = ["roce", "ib"], value_name = "LAYER")]
    link_layer: Option<String>,
    /// Only tests whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// No tests whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// Capabilities that the device lacks: their tests are skipped
    #[arg(long, value_delimiter = ',', value_name = "CAPABILITIES")]
    without: Vec<NicCapability>,
    /// Whose known deviations are skipped instead of failing; auto goes by the device
    #[arg(long, value_name = "DEVICE", value_parser = deviations_arg_values())]
    deviations: Option<String>,
    /// Print the known deviations of a device as a table in Markdown, and do nothing else
    #[arg(long, value_name = "DEVICE", value_parser = Deviations::ALL.map(|known| known.device_kind))]
    list_deviations: Option<String>,
    /// Tests that run at the same time; one per CPU unless given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Failed tests that run a second time, at most: for emulated machines, which may be too slow for a test
    #[arg(long, default_value_t = 0, value_name = "N")]
    second_runs: usize,
    /// Seconds without progress after which a test counts as hung
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    limit: u64,
    /// Only print the names of the tests and what they need
    #[arg(long)]
    list: bool,
}

fn deviations_arg_values() -> Vec<&'static str> {
    let mut names = vec!["auto", "none"];
    names.extend(Deviations::ALL.map(|known| known.device_kind));
    names
}

fn capabilities_help_text() -> String {
    let lines = NicCapability::ALL
        .iter()
        .map(|(_, name, what)| format!("  {name:<18}{}\n", what.trim()));
    format!("Capabilities for --without:\n{}", lines.collect::<String>())
}

fn examples_help_text() -> String {
    format!(
        "{}\nExamples:\n  verbs-conformance\n  verbs-conformance --link-layer ib --filter ud::\n  \
         verbs-conformance --provider system --device rxe0 --gid-index 1\n  \
         verbs-conformance --provider system --deviations none --without srq,write-order\n  \
         verbs-conformance --gid-index 1 --peer system --peer-device rxe0 --peer-gid-index 1\n",
        capabilities_help_text()
    )
}

fn main() -> ExitCode {
    let tests: Vec<&'static SuiteTest> = tests().collect();
    if let Some(code) = harness::play_role_if_requested(&tests) {
        return code;
    }
    let cli = Cli::parse();
    if let Some(known) = cli
        .list_deviations
        .as_deref()
        .and_then(Deviations::find_by_device_name)
    {
        print!("{}", known.to_markdown());
        return ExitCode::SUCCESS;
    }
    if cli.list {
        let has_any = |name: &str, texts: &[String]| texts.iter().any(|text| name.contains(text));
        for test in tests.iter().filter(|test| {
            (cli.filter.is_empty() || has_any(test.name, &cli.filter))
                && !has_any(test.name, &cli.skip)
        }) {
            let needs: Vec<String> = test
                .needed_capabilities
                .iter()
                .map(ToString::to_string)
                .collect();
            println!("{:<70}{}", test.name, needs.join(","));
        }
        return ExitCode::SUCCESS;
    }
    for provider in [Some(cli.provider), cli.peer].into_iter().flatten() {
        if let Err(err) = provider.symbols() {
            eprintln!("error: {err:#}");
            return ExitCode::from(2);
        }
    }
    let mut variant = match (cli.provider, &cli.link_layer) {
        (ProviderKind::Softnic, layer) => {
            let mut variant = SuiteVariant::softnic(layer.as_deref().unwrap_or("roce"));
            variant.test_name_prefix = String::new();
            variant
        }
        (ProviderKind::System, _) => {
            let mut settings = Settings::new(ProviderKind::System);
            settings.device.clone_from(&cli.device);
            SuiteVariant::system(settings)
        }
    };
    variant.settings.device = cli.device;
    variant.settings.port = cli.port;
    variant.settings.gid_index = cli.gid_index;
    variant.settings.excluded_capabilities.extend(cli.without);
    if let Some(provider) = cli.peer {
        variant = variant.with_peer(PeerDevice {
            provider,
            device: cli.peer_device,
            gid_index: cli.peer_gid_index,
        });
    }
    match cli.deviations.as_deref() {
        None | Some("auto") => {}
        Some("none") => variant = variant.with_deviations(None),
        Some(name) => variant = variant.with_deviations(Deviations::find_by_device_name(name)),
    }
    variant.hang_timeout = Duration::from_secs(cli.limit);
    variant.max_second_runs = cli.second_runs;
    harness::run_filtered(&tests, &[variant], (cli.filter, cli.skip), cli.jobs)
}
