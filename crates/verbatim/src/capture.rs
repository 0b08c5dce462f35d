//! `--pcap FILE`: captures the packets of a command, and of the programs that it starts, for tshark
//! and Wireshark.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use capture::Capture;
use softnic::PCAP_VAR;

/// Arguments of commands whose packets can be captured.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CaptureArgs {
    /// Append the packets of the software NIC to FILE, for tshark and Wireshark. Without --path, queue pairs of one host
    /// send packets then, too: both ends need --pcap or --path packets. XRC and raw packets share memory and are not in
    /// FILE, and tag matching needs --path auto (see docs/run-across-hosts.md)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

impl CaptureArgs {
    /// Returns the path of the capture file, if packets are to be captured.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.pcap.as_deref()
    }
}

/// Creates `file` if it does not exist, and returns the environment variable that names it to the
/// software NIC.
///
/// # Errors
/// Returns an error if the file cannot be written, or is not a capture.
pub(crate) fn create_pcap_file_and_env_variable(file: &Path) -> Result<(&'static str, OsString)> {
    // The message of this error includes its cause.
    Capture::open(file).map_err(|error| anyhow!("--pcap: {error}"))?;
    // Use an absolute path, since programs may change their working directory.
    let file = file
        .canonicalize()
        .with_context(|| format!("--pcap: cannot find {}", file.display()))?;
    Ok((PCAP_VAR, file.into()))
}
