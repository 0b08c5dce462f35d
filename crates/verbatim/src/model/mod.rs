//! `verbatim model`: the cost of verbs on a NIC, and their highest rate.

mod format_bounds;
mod knob;
mod operation;
mod paper_mixes;
mod profiles;
mod sweep;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nicmodel::profile::{self, Profile};
use nicmodel::uncertainty::{self, LikelyRange};
use nicmodel::{Bounds, Mix, mixes};

use crate::CommandOutcome;
use crate::output::{print_line, print_typed_json};

pub(crate) use format_bounds::{
    bounds_lines, format_likely_rate, format_range, format_rate_or_limit, format_signed_percent,
    unknown_resources_line,
};

/// The choice of one NIC to model.
pub(crate) struct NicProfileChoice {
    pub(crate) nic: Option<String>,
    pub(crate) nic_file: Option<PathBuf>,
}

/// The choice of the NICs to model.
#[derive(clap::Args)]
pub(crate) struct NicsArgs {
    /// The NIC: cx, cx3, cib, bf2, or the file of a profile of your own; several are compared [default: cib]
    #[arg(long, value_name = "NAME", conflicts_with = "nic_file")]
    nic: Vec<String>,
    /// A profile of a NIC of your own (TOML; see `verbatim model --template`)
    #[arg(long, value_name = "FILE")]
    nic_file: Option<PathBuf>,
}

/// Arguments of `verbatim model`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    nic: NicsArgs,
    /// A mix of the publications, by the name that `verbatim model` prints
    #[arg(long, value_name = "NAME", conflicts_with_all = ["mix_file", "profiles", "template", "Operation"])]
    mix: Option<String>,
    /// A mix of your own: JSON, as --mix NAME --json prints it under "mix"
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profiles", "template", "Operation"])]
    mix_file: Option<PathBuf>,
    /// List every number of the profiles with its evidence
    #[arg(long, conflicts_with_all = ["template", "Operation"])]
    profiles: bool,
    /// Print a commented profile to fill in for a NIC of your own
    #[arg(long, conflicts_with_all = ["nic", "nic_file", "Operation", "json"])]
    template: bool,
    /// Print one JSON object per line: mix, footprint, bounds, what-if, profile, number
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    operation: operation::OperationArgs,
    #[command(flatten)]
    sweep: sweep::SweepArgs,
}

const EXAMPLES: &str = "\
Examples:
  verbatim model                                       the mixes of the paper, on Connect-IB
  verbatim model --verb send --payload 60 --inline     one UD SEND: its cost, its bounds, what if
  verbatim model --verb send --payload 60 --inline --batch 16 --cores 4 --queue-pairs 4
  verbatim model --verb fetch-add --counters 1000 --stride 64 --nic cx3
  verbatim model --verb write --payload 8 --window 1   a closed loop: round trips bound it
  verbatim model --verb read --nic cib --nic cx3       one operation on two NICs, side by side
  verbatim model --verb write --over batch --values 1,4,16 --svg batches.svg
  verbatim model --mix herd-batch --json
  verbatim model --profiles --nic cib                  where each number comes from
  verbatim model --template > my-nic.toml; verbatim model --nic-file my-nic.toml

Rates are predictions, not measurements: what resources allow, in 10^6 a second. The likely range comes \
from the errors of predictions for published rates. A gain marked \"noise\" is no larger than the errors of predicted gains.";

/// Name of the default profile.
const DEFAULT_NIC: &str = "cib";

/// Maximum size in bytes of a profile or mix that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Runs `verbatim model`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if args.template {
        print_line(profile::PROFILE_TEMPLATE_TOML.trim_end())?;
        return Ok(CommandOutcome::Done);
    }
    let all = args.nic.chosen_or_default_profiles()?;
    if args.profiles {
        let all = if args.nic.names_no_nic() {
            profile::builtin_profiles()
        } else {
            &all
        };
        profiles::print_profiles(all, args.json)?;
        return Ok(CommandOutcome::Done);
    }
    if args.sweep.is_asked_for() {
        if args.mix.is_some() || args.mix_file.is_some() {
            bail!("--svg and --csv are of one operation (--verb), and a mix has one rate");
        }
        args.sweep
            .print_and_draw(&all, &args.operation, args.json)?;
        return Ok(CommandOutcome::Done);
    }
    if args.operation.is_given() && all.len() > 1 && !args.json {
        operation::print_rates_side_by_side(&all, &args.operation)?;
        return Ok(CommandOutcome::Done);
    }
    for (number, chosen) in all.iter().enumerate() {
        if number > 0 && !args.json {
            print_line("")?;
        }
        print_model(args, chosen)?;
    }
    Ok(CommandOutcome::Done)
}

fn print_model(args: &Args, chosen: &Profile) -> Result<()> {
    if let Some(mix) = find_chosen_mix(args, chosen)? {
        show_mix(chosen, &mix, args.json)
    } else if args.operation.is_given() {
        operation::print_operation(chosen, &args.operation, args.json)
    } else {
        paper_mixes::print_mixes(chosen, args.json)
    }
}

impl NicsArgs {
    /// Returns true if the user has named no NIC.
    fn names_no_nic(&self) -> bool {
        self.nic.is_empty() && self.nic_file.is_none()
    }

    /// Returns the profiles that the user has named, or the default profile.
    pub(crate) fn chosen_or_default_profiles(&self) -> Result<Vec<Profile>> {
        let one = |nic: Option<&String>| {
            NicProfileChoice {
                nic: nic.cloned(),
                nic_file: self.nic_file.clone(),
            }
            .chosen_or_default_profile()
        };
        if self.nic.is_empty() {
            return Ok(vec![one(None)?]);
        }
        self.nic.iter().map(|nic| one(Some(nic))).collect()
    }
}

impl NicProfileChoice {
    /// Returns the profile that the user has named, or the default profile.
    pub(crate) fn chosen_or_default_profile(&self) -> Result<Profile> {
        if let Some(path) = &self.nic_file {
            let text = read_bounded_file(path)?;
            return Profile::parse(&text)
                .with_context(|| format!("{} is no profile of a NIC", path.display()));
        }
        let name = self.nic.as_deref().unwrap_or(DEFAULT_NIC);
        if profile::builtin_profile(name).is_none() && Path::new(name).is_file() {
            let (nic, nic_file) = (None, Some(PathBuf::from(name)));
            return NicProfileChoice { nic, nic_file }.chosen_or_default_profile();
        }
        let Some(profile) = profile::builtin_profile(name) else {
            let names: Vec<_> = profile::builtin_profiles()
                .iter()
                .map(|p| p.name.as_str())
                .collect();
            bail!(
                "there is no NIC {name:?}; choose among {}, or describe yours with --nic-file",
                names.join(", ")
            );
        };
        Ok(profile.clone())
    }
}

/// Returns the mix that the user has named; `None` if the user has named none.
fn find_chosen_mix(args: &Args, profile: &Profile) -> Result<Option<Mix>> {
    if let Some(path) = &args.mix_file {
        let text = read_bounded_file(path)?;
        let mix = serde_json::from_str(&text)
            .with_context(|| format!("{} is no mix of operations", path.display()))?;
        return Ok(Some(mix));
    }
    let Some(name) = &args.mix else {
        return Ok(None);
    };
    match mixes::mix_by_name(profile, name) {
        Some(named) => Ok(Some(named.mix)),
        None => {
            let all = mixes::executable_mixes(profile);
            let names: Vec<_> = all.iter().map(|named| named.name).collect();
            bail!(
                "there is no mix {name:?}; choose among {}",
                names.join(", ")
            );
        }
    }
}

fn read_bounded_file(path: &Path) -> Result<String> {
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        File::open(path)?
            .take(MAX_FILE_BYTES + 1)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        bail!("{} is longer than 1 MiB", path.display());
    }
    Ok(text)
}

/// A mix of operations, and the rates that the NIC's resources allow it, as JSON.
#[derive(serde::Serialize)]
struct MixWithBounds<'a> {
    nic: &'a str,
    mix: &'a Mix,
    #[serde(flatten)]
    bounds: &'a Bounds,
    /// The range in which the rate probably lies.
    #[serde(flatten)]
    #[serde(rename = "likely")]
    likely_rate: Option<LikelyRange>,
}

fn show_mix(profile: &Profile, mix: &Mix, json: bool) -> Result<()> {
    let bounds = Bounds::of(profile, mix)?;
    if json {
        return print_typed_json(
            "mix",
            &MixWithBounds {
                nic: &profile.name,
                mix,
                bounds: &bounds,
                likely_rate: uncertainty::likely_range_of_mix(&bounds),
            },
        );
    }
    print_line(format_args!("{}\n", profile.title))?;
    for line in bounds_lines(&bounds) {
        print_line(line)?;
    }
    Ok(())
}
