//! Command-line arguments and value parsers that several commands share, with their error messages.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use softnic::{DEVICE_COUNT_VAR, MAX_DEVICES, MAX_PORTS, PORT_COUNT_VAR};

use crate::capture::{self, CaptureArgs};

/// The groups of arguments that choose a NIC, its port and its paths. A simulated NIC has no use for them.
pub(crate) const REAL_NIC_ARG_GROUPS: [&str; 4] =
    ["NicArgs", "PortArgs", "LinkLayerArgs", "CaptureArgs"];

/// The choice of the NIC that a command uses.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "NIC")]
pub(crate) struct NicArgs {
    /// Whose NIC: the embedded software NIC, or the machine's own through libibverbs
    #[arg(long, value_enum, default_value_t = Provider::Softnic)]
    pub(crate) provider: Provider,
    /// Name of the device, as `verbatim devices` prints it [default: the provider's first]
    #[arg(long, value_name = "NAME", value_parser = parse_device_name)]
    pub(crate) device: Option<String>,
    #[command(flatten)]
    link_layer: LinkLayerArgs,
    #[command(flatten)]
    capture: CaptureArgs,
}

/// The choice of the NIC's port, and of an address on the port.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "NIC")]
pub(crate) struct PortArgs {
    /// Port of the device
    #[arg(long, value_name = "N", default_value = "1", value_parser = integer_parser_in_range("a port of a device", 1..=255u8))]
    pub(crate) port_num: u8,
    /// Entry of the port's GID table, as `verbatim devices` prints them [default: RoCE v2 before v1,
    /// then IPv4 before IPv6, then a routable address before a link-local one]
    #[arg(long, value_name = "N", value_parser = integer_parser_in_range("a GID index", 0..=255u8))]
    pub(crate) gid_index: Option<u8>,
}

/// The link layer of the software NIC's port, and the path by which the port reaches other ports.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LinkLayerArgs {
    /// How the software NIC presents its port: as InfiniBand (LIDs) or as RoCE (GIDs)
    /// [default: roce]
    #[arg(long, value_enum)]
    link_layer: Option<LinkLayer>,
    /// How queue pairs of the software NIC reach their peers [default: auto]
    #[arg(long, value_enum)]
    path: Option<PathKind>,
    /// Addresses that the software NIC's GIDs are made of, separated by commas
    /// [default: those of the network interfaces]
    #[arg(long, value_name = "IP")]
    address: Option<String>,
}

/// How queue pairs reach their peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PathKind {
    /// Shared memory on this host, packets elsewhere
    Auto,
    /// Shared memory only
    Local,
    /// RoCEv2 packets over UDP, also on this host
    Packets,
}

impl PathKind {
    /// Returns the value of `VERBATIM_PATH` for this path.
    fn env_var_value(self) -> &'static str {
        match self {
            PathKind::Auto => "auto",
            PathKind::Local => "local",
            PathKind::Packets => "packets",
        }
    }
}

/// The provider of the verbs that a command calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    /// The embedded software NIC
    Softnic,
    /// The machine's libibverbs: RDMA hardware, or the kernel's Soft-RoCE
    System,
}

impl Provider {
    /// Returns the provider's name as written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Provider::Softnic => "softnic",
            Provider::System => "system",
        }
    }

    /// Returns the words that describe this provider's NIC in the output of a measurement.
    pub(crate) fn nic_description(self) -> &'static str {
        match self {
            Provider::Softnic => "software NIC",
            Provider::System => "measured NIC",
        }
    }
}

/// A published experiment whose loops are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PublishedExperiment {
    /// The experiment of Kalia, Kaminsky, Andersen: Design Guidelines for High Performance RDMA Systems, USENIX ATC
    /// 2016. Its loops are those of the authors' benchmark (`rdma_bench`).
    Atc16,
}

/// The link layer that a port of the software NIC presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkLayer {
    /// InfiniBand: peers are addressed by LID
    Ib,
    /// RoCE version 2: peers are addressed by GID
    Roce,
}

impl LinkLayer {
    /// Returns the value of `VERBATIM_LINK_LAYER` for this link layer.
    fn env_var_value(self) -> &'static str {
        match self {
            LinkLayer::Ib => "ib",
            LinkLayer::Roce => "roce",
        }
    }
}

/// The number of devices of the software NIC, and the number of ports of each.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct DeviceCountAndPortCountArgs {
    /// Devices of the software NIC, 1 to 8 [default: VERBATIM_DEVICE_COUNT, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_DEVICES)))]
    devices: Option<u8>,
    /// Ports of each device, 1 to 4 [default: VERBATIM_PORT_COUNT, or as many as the NIC of --nic has, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_PORTS)))]
    ports: Option<u8>,
}

impl DeviceCountAndPortCountArgs {
    /// Returns true if neither the number of devices nor the number of ports was given.
    pub(crate) fn are_default(&self) -> bool {
        self.devices.is_none() && self.ports.is_none()
    }

    /// Returns the environment variables that pass the numbers to the software NIC. `ports` is the number of ports if
    /// neither an argument nor the environment sets one.
    pub(crate) fn env_variables_with_default_ports(
        &self,
        ports: Option<u8>,
    ) -> impl Iterator<Item = (&'static str, OsString)> + use<> {
        let ports = ports.filter(|_| std::env::var_os(PORT_COUNT_VAR).is_none());
        let devices = self.devices.map(|count| (DEVICE_COUNT_VAR, count));
        let ports = self.ports.or(ports).map(|count| (PORT_COUNT_VAR, count));
        let both = devices.into_iter().chain(ports);
        both.map(|(name, count)| (name, count.to_string().into()))
    }
}

/// Environment variable: the link layer that the software NIC of this process and its children
/// presents.
const LINK_LAYER_VARIABLE: &str = "VERBATIM_LINK_LAYER";

/// Environment variable: the path by which the software NIC of this process and its children
/// reaches peers.
const PATH_VARIABLE: &str = "VERBATIM_PATH";

/// Environment variable: the addresses of the software NIC's port in this process and its children.
const ADDRESS_VARIABLE: &str = "VERBATIM_ADDRESS";

/// Environment variables for the software NIC, each with its value.
type EnvVariables = Vec<(&'static str, OsString)>;

impl NicArgs {
    /// Applies link layer, path, addresses and capture to this process, as
    /// [`LinkLayerArgs::apply_by_reexec`] does.
    pub(crate) fn apply_by_reexec(&self) -> Result<()> {
        let mut wanted = self.link_layer.env_variables()?;
        if self.provider == Provider::System {
            refuse_softnic_settings_for_system_provider(&wanted)?;
            refuse_capture_for_system_provider(&self.capture)?;
        }
        wanted.extend(
            self.link_layer
                .create_capture_file_and_variable(&self.capture, None)?,
        );
        reexec_with_env(&wanted)
    }
}

/// Refuses software NIC settings for `--provider system`, whose ports cannot be reconfigured.
fn refuse_softnic_settings_for_system_provider(wanted: &EnvVariables) -> Result<()> {
    if !wanted.is_empty() {
        bail!(
            "--link-layer, --path, --address, --devices and --ports are for the software NIC, and --provider system uses ports as \
             they are; leave out one of the two"
        );
    }
    Ok(())
}

/// Refuses a capture for `--provider system`: only the software NIC writes captures.
pub(crate) fn refuse_capture_for_system_provider(capture: &CaptureArgs) -> Result<()> {
    if capture.file().is_some() {
        bail!(
            "--pcap is for the software NIC; leave it out, or --provider system, whose packets tcpdump captures"
        );
    }
    Ok(())
}

impl LinkLayerArgs {
    /// Returns the environment variables that pass these arguments to the software NIC, with their
    /// values.
    ///
    /// # Errors
    /// Returns an error if they ask for packets of a port of InfiniBand.
    fn env_variables(&self) -> Result<EnvVariables> {
        self.refuse_packets_of_infiniband(None)?;
        let link_layer = self
            .link_layer
            .map(|l| (LINK_LAYER_VARIABLE, l.env_var_value()));
        let link_layer = link_layer.map(|(name, value)| (name, value.into()));
        Ok(link_layer
            .into_iter()
            .chain(self.peer_path_and_address_variables())
            .collect())
    }

    /// Returns the environment variables for the path to peers and for the port's addresses.
    fn peer_path_and_address_variables(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        let path = self.path.map(|path| (PATH_VARIABLE, path.env_var_value()));
        let address = self.address.as_deref().map(|a| (ADDRESS_VARIABLE, a));
        let both = path.into_iter().chain(address);
        both.map(|(name, value)| (name, value.into()))
    }

    /// Creates the capture's file and returns the environment variable that names it. `default` is
    /// as in [`Self::link_layer_variable_or_default`].
    ///
    /// # Errors
    /// Returns an error if the port's link layer sends no packets, or the file cannot be written.
    pub(crate) fn create_capture_file_and_variable(
        &self,
        capture: &CaptureArgs,
        default: Option<LinkLayer>,
    ) -> Result<Option<(&'static str, OsString)>> {
        let Some(file) = capture.file() else {
            return Ok(None);
        };
        if self.is_infiniband(default) {
            bail!(
                "--pcap: a port with the link layer InfiniBand sends no packets; leave out --pcap, or choose --link-layer roce"
            );
        }
        let file = check_output_file_path(file).context("--pcap")?;
        capture::create_pcap_file_and_env_variable(&file).map(Some)
    }

    /// Returns an error if the port presents InfiniBand and its queue pairs are to use packets, which are those of RoCE.
    /// `default` is as in [`Self::link_layer_variable_or_default`].
    fn refuse_packets_of_infiniband(&self, default: Option<LinkLayer>) -> Result<()> {
        let path = self.path.map(|path| path.env_var_value().into());
        let path = path.or_else(|| std::env::var_os(PATH_VARIABLE));
        if path.is_some_and(|path| path == "packets") && self.is_infiniband(default) {
            bail!(
                "--path packets: a port with the link layer InfiniBand sends no packets; leave out --path, or choose --link-layer roce"
            );
        }
        Ok(())
    }

    /// Returns true if the port presents InfiniBand, by its flag, by `default` or by the environment.
    fn is_infiniband(&self, default: Option<LinkLayer>) -> bool {
        let chosen = self
            .link_layer_variable_or_default(default)
            .map(|(_, value)| value.into());
        let link_layer = chosen.or_else(|| std::env::var_os(LINK_LAYER_VARIABLE));
        link_layer.is_some_and(|layer| layer == "ib" || layer == "infiniband")
    }

    /// Returns the variable of the link layer; `default` applies if neither a flag nor the
    /// environment sets a link layer.
    pub(crate) fn link_layer_variable_or_default(
        &self,
        default: Option<LinkLayer>,
    ) -> Option<(&'static str, &'static str)> {
        let default = default.filter(|_| std::env::var_os(LINK_LAYER_VARIABLE).is_none());
        let chosen = self.link_layer.or(default)?;
        Some((LINK_LAYER_VARIABLE, chosen.env_var_value()))
    }

    /// Applies these arguments to this process and its children.
    ///
    /// The software NIC reads its settings from the environment. If the environment has other
    /// values, this process executes itself again, because only a new program can get an
    /// environment safely.
    pub(crate) fn apply_by_reexec(&self, provider: Option<Provider>) -> Result<()> {
        let wanted = self.env_variables()?;
        if provider == Some(Provider::System) {
            refuse_softnic_settings_for_system_provider(&wanted)?;
        }
        reexec_with_env(&wanted)
    }

    /// Applies these arguments, and numbers of devices and ports, as [`apply_by_reexec`](Self::apply_by_reexec) does.
    pub(crate) fn apply_with_port_counts_by_reexec(
        &self,
        provider: Option<Provider>,
        ports: &DeviceCountAndPortCountArgs,
    ) -> Result<()> {
        let mut wanted = self.env_variables()?;
        wanted.extend(ports.env_variables_with_default_ports(None));
        if provider == Some(Provider::System) {
            refuse_softnic_settings_for_system_provider(&wanted)?;
        }
        reexec_with_env(&wanted)
    }

    /// Applies the path to peers, the port's addresses and `others`, as [`apply_by_reexec`](Self::apply_by_reexec) does.
    /// `default_link_layer` is as in [`Self::link_layer_variable_or_default`].
    pub(crate) fn apply_peer_path_and_addresses_by_reexec(
        &self,
        default_link_layer: Option<LinkLayer>,
        others: impl Iterator<Item = (&'static str, OsString)>,
    ) -> Result<()> {
        self.refuse_packets_of_infiniband(default_link_layer)?;
        reexec_with_env(
            &self
                .peer_path_and_address_variables()
                .chain(others)
                .collect(),
        )
    }
}

/// Executes this program again with the environment variables `wanted`, unless all are set already.
fn reexec_with_env(wanted: &EnvVariables) -> Result<()> {
    let holds = |(name, value): &(&str, OsString)| std::env::var_os(name).as_deref() == Some(value);
    if wanted.iter().all(holds) {
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let err = std::process::Command::new(program)
        .args(std::env::args_os().skip(1))
        .envs(wanted.iter().cloned())
        .exec();
    Err(err).with_context(|| {
        format!("cannot start again with {wanted:?} in the environment; set it yourself")
    })
}

/// Returns a parser of whole numbers within `range`; `what` names the number in the error message.
pub(crate) fn integer_parser_in_range<T>(
    what: &'static str,
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let (low, high) = (range.start(), range.end());
        match text.trim().replace('_', "").parse::<T>() {
            Ok(value) if range.contains(&value) => Ok(value),
            _ => Err(format!("{what} is a whole number from {low} to {high}")),
        }
    }
}

/// Returns a parser of numbers with a fraction within `range`; `what` names the number in the error
/// message.
pub(crate) fn decimal_parser_in_range(
    what: &'static str,
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = text.trim().parse().ok();
        value.filter(|value| range.contains(value)).ok_or_else(|| {
            format!(
                "{what} is a number from {} to {}",
                range.start(),
                range.end()
            )
        })
    }
}

/// Returns a parser of byte counts up to `most`, such as `64`, `4K` (KiB) and `1M` (MiB).
pub(crate) fn byte_count_parser_up_to(
    most: usize,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    byte_count_parser_in_range(0..=most)
}

/// Returns a parser of byte counts within `range`, such as `64`, `4K` (KiB) and `1M` (MiB).
pub(crate) fn byte_count_parser_in_range(
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let count = parse_count_with_binary_suffix(text).filter(|bytes| range.contains(bytes));
        count.ok_or_else(|| {
            format!(
                "this is a number of bytes from {} to {}, also with K (KiB) or M (MiB) behind, such as 64 or 4K",
                range.start(),
                range.end()
            )
        })
    }
}

/// Returns a parser of counts up to `most`, such as `64`, `4K` (4,096) and `1M` (1,048,576).
pub(crate) fn count_parser_up_to(
    most: usize,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| {
        let count = parse_count_with_binary_suffix(text).filter(|count| *count <= most);
        count.ok_or_else(|| {
            format!(
                "a value is a whole number from 0 to {most}, also with K (1024) or M (1024²) behind"
            )
        })
    }
}

/// Parses a whole number that may have `K` (1024) or `M` (1024²) behind it.
fn parse_count_with_binary_suffix(text: &str) -> Option<usize> {
    let plain = text.trim().replace('_', "");
    let (digits, unit) = match plain.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => match plain.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 1 << 20),
            None => (plain.as_str(), 1),
        },
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// The shortest time that [`parse_duration_from_10ms`] accepts.
const MIN_REAL_TIME_DURATION: Duration = Duration::from_millis(10);

/// Parses a time such as `2`, `2s`, `500ms` or `1min`, from 10 ms to a day.
pub(crate) fn parse_duration_from_10ms(text: &str) -> Result<Duration, String> {
    let wrong = "a time is a number with ms, s or min behind it (s without one), from 10ms to 1440min, such as 500ms or \
                 2.5s";
    let time = parse_duration_with_unit(text).filter(|time| *time >= MIN_REAL_TIME_DURATION);
    time.ok_or_else(|| wrong.to_owned())
}

/// Parses a time from 10 µs to a day. Times below 10 ms suit virtual time only; see
/// [`refuse_too_short_for_real_time`].
pub(crate) fn parse_duration_from_10us(text: &str) -> Result<Duration, String> {
    let wrong = "a time is a number with us, ms, s or min behind it (s without one), from 10ms (10us of virtual time) to \
                 1440min, such as 500ms or 2.5s";
    let time = parse_duration_with_unit(text).filter(|time| *time >= Duration::from_micros(10));
    time.ok_or_else(|| wrong.to_owned())
}

/// Refuses a [`parse_duration_from_10us`] that is too short for a run in real time.
pub(crate) fn refuse_too_short_for_real_time(run_time: Option<Duration>) -> Result<()> {
    match run_time {
        Some(short) if short < MIN_REAL_TIME_DURATION => bail!(
            "--duration {short:?} is too short for anything but virtual time (--nic); give {MIN_REAL_TIME_DURATION:?} or more"
        ),
        _ => Ok(()),
    }
}

/// Parses a time with its unit, of at most a day.
fn parse_duration_with_unit(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "min" => 60.0,
        _ => return None,
    };
    let number: f64 = digits.trim_end().parse().ok()?;
    let seconds = number * unit_s;
    let in_range = (0.0..=86_400.0).contains(&seconds);
    in_range.then(|| Duration::from_secs_f64(seconds))
}

/// Parses a time as [`parse_duration_from_10ms`] does, or `0s`, which means none.
pub(crate) fn parse_duration_or_zero(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" | "0s" | "0ms" => Ok(Duration::ZERO),
        text => parse_duration_from_10ms(text).map_err(|wrong| format!("{wrong}; or 0s")),
    }
}

/// Parses a 64-bit number, decimal or hexadecimal with `0x`.
pub(crate) fn parse_decimal_or_hex_u64(text: &str) -> Result<u64, String> {
    let plain = text.trim().replace('_', "");
    let parsed = match plain
        .strip_prefix("0x")
        .or_else(|| plain.strip_prefix("0X"))
    {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => plain.parse(),
    };
    parsed.map_err(|_| {
        format!(
            "this is a number from 0 to {}, decimal or hexadecimal with 0x in front",
            u64::MAX
        )
    })
}

/// Parses a TCP address that consists of a host's name or address, and a port.
pub(crate) fn check_host_and_port(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':');
    match parts.map(|(host, port)| (host, port.parse::<u16>())) {
        Some((host, Ok(_)))
            if !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == ',') =>
        {
            Ok(text.to_owned())
        }
        _ => Err(
            "an address is HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:7471 or \
             [::1]:7471"
                .to_owned(),
        ),
    }
}

/// Checks the form of a device's name: the characters that a name in sysfs can have.
pub(crate) fn parse_device_name(text: &str) -> Result<String, String> {
    let sane = !text.is_empty()
        && text.len() < 64
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
    if sane {
        Ok(text.to_owned())
    } else {
        Err(
            "a device's name has 1 to 63 letters, digits, '_', '-', '.' or ':'; \
             `verbatim devices` lists those that are there"
                .to_owned(),
        )
    }
}

/// Checks a path for a file to be written: its folder must exist, and the path must not be a
/// folder.
pub(crate) fn check_output_file_path(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        bail!("{} is a folder; name a file in it", path.display());
    }
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => bail!("{} is no file's name", path.display()),
    };
    if !folder.is_dir() {
        bail!(
            "the folder {} of {} is not there; make it first (mkdir -p)",
            folder.display(),
            path.display()
        );
    }
    Ok(path.to_owned())
}

/// Refuses two flags that name the same file for what a command writes: the second would overwrite the first.
pub(crate) fn refuse_same_output_file(files: &[(&'static str, Option<&Path>)]) -> Result<()> {
    let mut earlier: Vec<(&str, PathBuf)> = Vec::new();
    for (flag, file) in files {
        let Some(file) = file else { continue };
        let resolved = resolve_output_file(file);
        if let Some((other, _)) = earlier.iter().find(|(_, path)| *path == resolved) {
            bail!(
                "{other} and {flag} name the same file, {}; give each a file of its own",
                file.display()
            );
        }
        earlier.push((flag, resolved));
    }
    Ok(())
}

/// Returns the absolute path of a file that need not exist, without symbolic links. A path whose folder does not exist
/// stays as it is.
fn resolve_output_file(file: &Path) -> PathBuf {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let in_folder = || Some(folder.canonicalize().ok()?.join(file.file_name()?));
    let resolved = file.canonicalize().ok().or_else(in_folder);
    resolved.unwrap_or_else(|| file.to_owned())
}

/// Checks the form of a fabric's name, which becomes part of a folder's name.
pub(crate) fn parse_fabric_name(text: &str) -> Result<String, String> {
    let sane = (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if sane {
        Ok(text.to_owned())
    } else {
        Err("a fabric's name has 1 to 64 letters, digits or '_'".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_range_and_say_it() {
        let parse = integer_parser_in_range("a window", 1..=4096u32);
        assert_eq!(parse("64"), Ok(64));
        assert_eq!(parse("4_096"), Ok(4096));
        for wrong in [
            "",
            "0",
            "4097",
            "-1",
            "64.0",
            "many",
            "99999999999999999999",
        ] {
            assert_eq!(
                parse(wrong),
                Err("a window is a whole number from 1 to 4096".to_owned()),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn bytes_have_units() {
        let parse = byte_count_parser_up_to(1 << 28);
        for (text, want) in [
            ("0", 0),
            ("64", 64),
            ("4K", 4096),
            ("1m", 1 << 20),
            ("1_000", 1000),
        ] {
            assert_eq!(parse(text), Ok(want), "{text:?}");
        }
        for wrong in [
            "",
            "K",
            "-1",
            "1G",
            "4KiB",
            "1.5K",
            "257M",
            "268435457",
            "99999999999999999999M",
        ] {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.contains("such as 64 or 4K"), "{wrong:?}: {refused}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration_from_10ms("2"), Ok(Duration::from_secs(2)));
        assert_eq!(
            parse_duration_from_10ms("2.5s"),
            Ok(Duration::from_millis(2500))
        );
        assert_eq!(
            parse_duration_from_10ms("500ms"),
            Ok(Duration::from_millis(500))
        );
        assert_eq!(
            parse_duration_from_10ms("1 min"),
            Ok(Duration::from_mins(1))
        );
        for wrong in [
            "", "ms", "0", "-1s", "1h", "nan", "inf", "1e9", "9ms", "1441min", "2 s s",
        ] {
            assert!(parse_duration_from_10ms(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn virtual_time_may_be_short() {
        assert_eq!(
            parse_duration_from_10us("200us"),
            Ok(Duration::from_micros(200))
        );
        assert_eq!(
            parse_duration_from_10us("1ms"),
            Ok(Duration::from_millis(1))
        );
        assert!(parse_duration_from_10us("5us").is_err());
        let real = |text| refuse_too_short_for_real_time(parse_duration_from_10us(text).ok());
        assert!(real("1ms").is_err());
        assert!(real("10ms").is_ok());
    }

    #[test]
    fn a_time_may_be_none_where_that_has_a_meaning() {
        assert_eq!(parse_duration_or_zero("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration_or_zero("1s"), Ok(Duration::from_secs(1)));
        assert!(parse_duration_or_zero("5ms").is_err());
    }

    #[test]
    fn words_reach_the_last_number() {
        assert_eq!(
            parse_decimal_or_hex_u64("18446744073709551615"),
            Ok(u64::MAX)
        );
        assert_eq!(parse_decimal_or_hex_u64("0xffff_fff0"), Ok(0xffff_fff0));
        for wrong in ["", "-1", "18446744073709551616", "0x", "0xg", "2^32"] {
            assert!(parse_decimal_or_hex_u64(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn addresses_have_host_and_port() {
        for right in ["127.0.0.1:7471", "localhost:0", "[::1]:65535"] {
            assert_eq!(check_host_and_port(right), Ok(right.to_owned()));
        }
        for wrong in [
            "",
            "localhost",
            ":7471",
            "host:",
            "host:65536",
            "host:-1",
            "a b:1",
        ] {
            assert!(check_host_and_port(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_devices() {
        assert!(parse_device_name("mlx5_0").is_ok());
        for wrong in ["", "a/b", "a b", "..\n", &"x".repeat(64)] {
            assert!(parse_device_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_is_written_for_one_flag() {
        let refused = |first: &str, second: &str| {
            let files = [("--trace", Some(first)), ("--ledger", Some(second))];
            let files = files.map(|(flag, file)| (flag, file.map(Path::new)));
            refuse_same_output_file(&files).map_err(|e| e.to_string())
        };
        for (first, second) in [("x", "x"), ("x", "./x"), ("/tmp/x", "/tmp/../tmp/x")] {
            let told = refused(first, second).unwrap_err();
            assert!(
                told.starts_with("--trace and --ledger name the same file"),
                "{told}"
            );
        }
        for (first, second) in [("x", "y"), ("/nonexistent/x", "x")] {
            assert_eq!(refused(first, second), Ok(()));
        }
    }

    #[test]
    fn a_file_needs_its_folder() {
        assert!(check_output_file_path(Path::new("state")).is_ok());
        assert!(check_output_file_path(&std::env::temp_dir().join("state")).is_ok());
        for wrong in ["/nonexistent/state", "/", "/tmp"] {
            assert!(
                check_output_file_path(Path::new(wrong)).is_err(),
                "{wrong:?}"
            );
        }
    }
}
