//! `verbatim devices`: what is there.

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use verbs::{Context, Device, Lid, LinkLayer};

use crate::Outcome;
use crate::args::{LinkLayerArgs, Provider};
use crate::output::{print, print_typed};

/// Arguments of `verbatim devices`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Look at this provider only [default: both]
    #[arg(long, value_enum)]
    provider: Option<Provider>,
    #[command(flatten)]
    link_layer: LinkLayerArgs,
    /// Print one JSON object per line: device, provider
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  verbatim devices
  verbatim devices --provider system --json
  verbatim devices --link-layer ib      the software NIC as an InfiniBand port

Exit status 1 when there is no device.";

/// A device as it is printed.
#[derive(Serialize)]
struct Shown {
    provider: &'static str,
    name: String,
    guid: String,
    node_type: String,
    firmware: String,
    limits: Limits,
    ports: Vec<Port>,
}

/// What `ibv_query_device(3)` says, under its names.
#[derive(Serialize)]
struct Limits {
    max_mr_size_bytes: u64,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_cq: u32,
    max_cqe: u32,
    max_mr: u32,
    max_pd: u32,
    max_srq: u32,
    max_srq_wr: u32,
    max_qp_rd_atom: u32,
    atomic_cap: String,
}

/// What `ibv_query_port(3)` says, and the GID table.
#[derive(Serialize)]
struct Port {
    port_num: u8,
    state: String,
    link_layer: String,
    /// Null on Ethernet, where there are no LIDs.
    lid: Option<u16>,
    active_mtu_bytes: u32,
    max_mtu_bytes: u32,
    max_msg_bytes: u32,
    gids: Vec<GidEntry>,
}

#[derive(Serialize)]
struct GidEntry {
    index: u32,
    gid: String,
}

/// What came of asking a provider.
#[derive(Serialize)]
struct Asked {
    name: &'static str,
    devices: usize,
    /// Why there are none, or why one cannot be opened.
    notes: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.link_layer.settle(args.provider)?;
    let all = [Provider::Softnic, Provider::System];
    let wanted = |p: &Provider| args.provider.is_none_or(|only| only == *p);
    let mut found = 0;
    for provider in all.into_iter().filter(wanted) {
        let asked = ask(provider, args)?;
        found += asked.devices;
        if args.json {
            print_typed("provider", &asked)?;
        } else if asked.devices == 0 {
            print(format_args!("{}: no devices", asked.name))?;
        }
        for note in &asked.notes {
            eprintln!("note: {}: {note}", asked.name);
        }
    }
    Ok(if found > 0 {
        Outcome::Done
    } else {
        Outcome::No
    })
}

fn ask(provider: Provider, args: &Args) -> Result<Asked> {
    let mut asked = Asked {
        name: provider.name(),
        devices: 0,
        notes: Vec::new(),
    };
    let devices = match verbs::Provider::by_name(provider.name()) {
        Ok(provider) => provider.devices()?,
        // Whoever names the provider wants it; otherwise a machine may well be without.
        Err(err) if args.provider.is_some() => return Err(err.into()),
        Err(err) => {
            asked.notes.push(err.to_string());
            Vec::new()
        }
    };
    for device in &devices {
        match look(device) {
            Ok(shown) => {
                asked.devices += 1;
                if args.json {
                    print_typed("device", &shown)?;
                } else {
                    print(text(&shown))?;
                }
            }
            Err(err) => asked
                .notes
                .push(format!("{} cannot be used: {err}", device.name())),
        }
    }
    Ok(asked)
}

fn look(device: &Device) -> Result<Shown, verbs::VerbError> {
    let context = device.open()?;
    let attr = context.query_device()?;
    let ports = (1..=attr.phys_port_cnt).map(|port_num| port(&context, port_num));
    Ok(Shown {
        provider: device.provider().name(),
        name: device.name().to_owned(),
        guid: format!("{:#018x}", device.guid()),
        node_type: device.node_type().to_string(),
        firmware: attr.fw_ver,
        limits: Limits {
            max_mr_size_bytes: attr.max_mr_size,
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_sge: attr.max_sge,
            max_cq: attr.max_cq,
            max_cqe: attr.max_cqe,
            max_mr: attr.max_mr,
            max_pd: attr.max_pd,
            max_srq: attr.max_srq,
            max_srq_wr: attr.max_srq_wr,
            max_qp_rd_atom: attr.max_qp_rd_atom,
            atomic_cap: attr.atomic_cap.to_string(),
        },
        ports: ports.collect::<Result<_, _>>()?,
    })
}

fn port(context: &Context, port_num: u8) -> Result<Port, verbs::VerbError> {
    let attr = context.query_port(port_num)?;
    let mut gids = Vec::new();
    for index in 0..attr.gid_tbl_len {
        // Entries of a kernel's table that are not set may not even be readable.
        if let Ok(gid) = context.gid(port_num, index)
            && !gid.is_zero()
        {
            gids.push(GidEntry {
                index,
                gid: gid.to_string(),
            });
        }
    }
    let has_lid = attr.link_layer != LinkLayer::Ethernet && attr.lid != Lid(0);
    Ok(Port {
        port_num,
        state: attr.state.to_string(),
        link_layer: attr.link_layer.to_string(),
        lid: has_lid.then_some(attr.lid.0),
        active_mtu_bytes: attr.active_mtu.bytes(),
        max_mtu_bytes: attr.max_mtu.bytes(),
        max_msg_bytes: attr.max_msg_sz,
        gids,
    })
}

fn text(device: &Shown) -> String {
    let limits = &device.limits;
    let mut text = format!(
        "{} ({}): {}, GUID {}, firmware {}\n  \
         {} queue pairs of {} WRs with {} SGEs; {} CQs of {} entries; {} SRQs of {} WRs\n  \
         {} memory regions of {}; {} READs and atomics outstanding per queue pair, atomicity {}",
        device.name,
        device.provider,
        device.node_type,
        device.guid,
        if device.firmware.is_empty() {
            "unknown"
        } else {
            &device.firmware
        },
        limits.max_qp,
        limits.max_qp_wr,
        limits.max_sge,
        limits.max_cq,
        limits.max_cqe,
        limits.max_srq,
        limits.max_srq_wr,
        limits.max_mr,
        size(limits.max_mr_size_bytes),
        limits.max_qp_rd_atom,
        limits.atomic_cap,
    );
    for port in &device.ports {
        let lid = port
            .lid
            .map_or_else(String::new, |lid| format!(", LID {lid}"));
        let _ = write!(
            text,
            "\n  port {}: {}, {}{lid}, MTU {} (at most {}), messages up to {}",
            port.port_num,
            port.state,
            port.link_layer,
            port.active_mtu_bytes,
            port.max_mtu_bytes,
            size(u64::from(port.max_msg_bytes)),
        );
        for entry in &port.gids {
            let _ = write!(text, "\n    GID {}: {}", entry.index, entry.gid);
        }
    }
    text
}

/// A number of bytes in the largest unit of which it has a whole number.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    units
        .iter()
        .find(|(shift, _)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(
            || format!("{bytes} bytes"),
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole() {
        let shown: Vec<_> = [0, 1000, 1024, 1 << 31, 3 << 40, u64::MAX].map(size).into();
        let whole = ["0 bytes", "1000 bytes", "1 KiB", "2 GiB", "3 TiB"];
        assert_eq!(shown[..5], whole);
        assert_eq!(shown[5], "18446744073709551615 bytes");
    }
}
