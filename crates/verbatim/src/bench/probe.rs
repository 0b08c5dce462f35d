//! `verbatim bench write-order` and `write-visible`: the order and the time in which the target's
//! processor sees a NIC's WRITEs.

use anyhow::Result;
use bench::micro::{MAX_PAYLOAD_BYTES, Verb};
use bench::probe::{self, ProbeResult, ProbedProperty, WriteProbe};
use bench::run_circumstances::RunCircumstances;
use clap::ValueEnum;
use serde::Serialize;

use super::common::{CoresArgs, format_byte_count, nic_choice};
use super::measurement_sides::TwoHostArgs;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::output::{print_line, print_typed_json, table};
use crate::steps::CommandSteps;

pub(super) const ORDER_EXAMPLES: &str = "\
Examples:
  verbatim bench write-order
  verbatim bench write-order --payload 64,4K --verb uc-write
  verbatim bench write-order --provider system --device mlx5_0 --json

All words of a WRITE are its number. The target polls the last word; when it sees a new number there, it looks at all \
words left of it: one that is older was overtaken. No specification promises an order, but systems that poll for the \
last byte of a message need it.";

pub(super) const VISIBLE_EXAMPLES: &str = "\
Examples:
  verbatim bench write-visible
  verbatim bench write-visible --payload 4K --writes 100000 --provider system

When a WRITE has completed, the target is told by other means than the NIC, and looks for it in its memory. Exit status \
1 when one was not there.";

/// Arguments of `verbatim bench write-order` and `write-visible`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Bytes of the WRITEs, with commas between them; also with K (KiB) or M (MiB) behind
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16,64,256,1K,4K,64K", value_parser = args::byte_count_parser_up_to(MAX_PAYLOAD_BYTES))]
    payload: Vec<usize>,
    /// Over which transport
    #[arg(long, value_enum, default_value_t = WriteVerb::RcWrite)]
    verb: WriteVerb,
    /// WRITEs of each size
    #[arg(long, value_name = "N", default_value = "10000", value_parser = args::integer_parser_in_range("a count of WRITEs", 1..=1_000_000_000u32))]
    writes: u32,
    #[command(flatten)]
    cores: CoresArgs,
    /// Print one JSON object per line: record, probe
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    ends: TwoHostArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WriteVerb {
    /// RDMA WRITE over RC
    RcWrite,
    /// RDMA WRITE over UC
    UcWrite,
}

/// The settings of the probes, for the run record.
#[derive(Serialize)]
struct Settings {
    probes: Vec<WriteProbe>,
}

/// The result of one payload size, as `--json` prints it.
#[derive(Serialize)]
struct ProbeLine {
    #[serde(rename = "question")]
    property: ProbedProperty,
    payload_bytes: usize,
    #[serde(flatten)]
    result: ProbeResult,
}

/// Runs `verbatim bench write-order` or `write-visible`.
pub(super) fn run(property: ProbedProperty, args: &Args) -> Result<CommandOutcome> {
    let verb = match args.verb {
        WriteVerb::RcWrite => Verb::RcWrite,
        WriteVerb::UcWrite => Verb::UcWrite,
    };
    let probes = args.payload.iter();
    let probes = probes.map(|payload| WriteProbe::new(property, verb, *payload, args.writes));
    let probes = probes.collect::<Result<Vec<_>>>()?;
    args.nic.apply_by_reexec()?;
    let nic = nic_choice(&args.nic, &args.port);
    if args.ends.serves_as_other_side() {
        return args.ends.serve_other_side(&probes, &nic);
    }
    let cores = args.cores.choose_cores()?;
    let mut link = args.ends.connect_worker(cores.responder, &probes)?;
    let settings = Settings {
        probes: probes.clone(),
    };
    let record = RunCircumstances::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    if args.json {
        print_typed_json("record", &record)?;
    }
    let mut rows = table(["payload", "looks", "incomplete", "verdict"], &[0, 1, 2]);
    let steps = CommandSteps::new(probes.len() as u64)?;
    let mut all_there = true;
    for probe in probes {
        let payload_bytes = probe.payload_bytes();
        let result = steps.run_unless_interrupted(format_byte_count(payload_bytes), || {
            probe::run(cores.requester, &mut link, &nic, probe)
        })?;
        let Some(result) = result else {
            break;
        };
        all_there &= result.writes_with_missing_words == 0;
        if args.json {
            print_typed_json(
                "probe",
                &ProbeLine {
                    property,
                    payload_bytes,
                    result,
                },
            )?;
        }
        let verdict = match (property, result.writes_with_missing_words) {
            (ProbedProperty::Order, 0) => "left to right in every look",
            (ProbedProperty::Order, _) => "the last word may be seen first",
            (ProbedProperty::Visible, 0) => "seen whenever completed",
            (ProbedProperty::Visible, _) => "completed and not seen",
        };
        rows.add_row([
            format_byte_count(payload_bytes),
            result.inspected_writes.to_string(),
            result.writes_with_missing_words.to_string(),
            verdict.to_owned(),
        ]);
    }
    drop(steps);
    if !args.json {
        print_line(format_args!(
            "{} on {}, cores {} and {}",
            verb.label(),
            record.device,
            cores.requester,
            cores.responder
        ))?;
        print_line(rows)?;
    }
    Ok(match property {
        ProbedProperty::Visible if !all_there => CommandOutcome::NegativeAnswer,
        _ => CommandOutcome::Done,
    })
}
