//! `verbatim devices`: the software NIC, and this machine's own RDMA devices.

mod adapters;
mod format_bytes;
mod packets;

use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use verbs::{
    Capability, Context, Device, GidType, Lid, LinkLayer, MaxInlineBytes, MissingCapability,
};

use crate::CommandOutcome;
use crate::args::{DeviceCountAndPortCountArgs, LinkLayerArgs, Provider};
use crate::output::{print_line, print_typed_json};
use format_bytes::format_byte_limit;
use packets::PortDetails;

/// Arguments of `verbatim devices`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Look at this provider only [default: both]
    #[arg(long, value_enum)]
    provider: Option<Provider>,
    #[command(flatten)]
    link_layer: LinkLayerArgs,
    #[command(flatten)]
    ports: DeviceCountAndPortCountArgs,
    /// Also show how each port sends packets: addresses, sockets, path MTU; interfaces of GIDs; and the port's counters
    #[arg(long, short)]
    verbose: bool,
    /// List the adapters that `verbatim run --nic` presents instead: queue pairs, features and limits, with -v each
    /// with its evidence
    #[arg(long, conflicts_with_all = ["provider", "link_layer", "devices", "ports"])]
    adapters: bool,
    /// Print one JSON object per line: device, provider; with --adapters: adapter
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  verbatim devices
  verbatim devices -v                   with sockets and counters of the software NIC
  verbatim devices --provider system --json
  verbatim devices --link-layer ib      the software NIC as an InfiniBand port
  verbatim devices --adapters -v        what irdma, EFA, siw and others can do, and how that is known

Exit status 1 when there is no device.";

/// A device as the command prints it.
#[derive(Serialize)]
struct DeviceReport {
    provider: &'static str,
    name: String,
    /// Name of the kernel's driver, if it is known.
    driver: Option<String>,
    guid: String,
    sys_image_guid: String,
    node_type: String,
    transport: String,
    firmware: String,
    vendor_id: String,
    vendor_part_id: u32,
    hw_ver: String,
    limits: DeviceLimits,
    capabilities: DetectedCapabilities,
    ports: Vec<PortReport>,
}

/// The limits that `ibv_query_device(3)` returns, under its names.
#[derive(Serialize)]
struct DeviceLimits {
    max_mr_size_bytes: u64,
    page_size_cap: String,
    device_cap_flags: String,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_sge_rd: u32,
    max_cq: u32,
    max_cqe: u32,
    max_mr: u32,
    max_mw: u32,
    max_pd: u32,
    max_ah: u32,
    max_srq: u32,
    max_srq_wr: u32,
    max_srq_sge: u32,
    max_qp_rd_atom: u32,
    max_qp_init_rd_atom: u32,
    max_res_rd_atom: u32,
    atomic_cap: String,
    max_mcast_grp: u32,
    max_mcast_qp_attach: u32,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
}

/// Capabilities that queries and trials of the device have shown.
#[derive(Serialize)]
struct DetectedCapabilities {
    has: Vec<Capability>,
    lacks: Vec<MissingCapability>,
    inline_bytes: MaxInlineBytes,
}

/// The attributes that `ibv_query_port(3)` returns, and the GID table.
#[derive(Serialize)]
struct PortReport {
    port_num: u8,
    state: String,
    link_layer: String,
    /// LID of the port; null on Ethernet, which has no LIDs.
    lid: Option<u16>,
    sm_lid: Option<u16>,
    lmc: Option<u8>,
    /// Number of lanes of the link; null if its code is unknown.
    active_width_lanes: Option<u8>,
    /// Data rate of one lane, in 10^9 bit/s, as `ibv_devinfo` prints it.
    active_speed_gbps: Option<f32>,
    active_mtu_bytes: u32,
    max_mtu_bytes: u32,
    max_msg_bytes: u32,
    pkey_tbl_len: u16,
    gid_tbl_len: u32,
    /// The index of the GID table's entry that programs use by default.
    default_gid_index: u8,
    gids: Vec<GidEntry>,
    /// Details of the port; only with `--verbose`.
    #[serde(flatten)]
    details: Option<PortDetails>,
}

#[derive(Serialize)]
struct GidEntry {
    index: u32,
    gid: String,
    /// Type of the GID; null if the provider does not report it.
    #[serde(rename = "type")]
    gid_type: Option<GidType>,
    /// The network interface of the entry; only with `--verbose`, and only if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
}

/// The devices that one provider has.
#[derive(Serialize)]
struct ProviderDeviceCountAndNotes {
    name: &'static str,
    #[serde(rename = "devices")]
    device_count: usize,
    /// The reasons why no device was found, or why a device cannot be opened.
    notes: Vec<String>,
}

/// Runs `verbatim devices`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if args.adapters {
        return adapters::print_adapters(args.verbose, args.json);
    }
    args.link_layer
        .apply_with_port_counts_by_reexec(args.provider, &args.ports)?;
    let all = [Provider::Softnic, Provider::System];
    let wanted = |p: &Provider| args.provider.is_none_or(|only| only == *p);
    let mut found = 0;
    for provider in all.into_iter().filter(wanted) {
        let asked = print_devices_of_provider(provider, args)?;
        found += asked.device_count;
        if args.json {
            print_typed_json("provider", &asked)?;
        } else if asked.device_count == 0 {
            print_line(format_args!("{}: no devices", asked.name))?;
        }
        for note in &asked.notes {
            eprintln!("note: {}: {note}", asked.name);
        }
    }
    Ok(if found > 0 {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

fn print_devices_of_provider(
    provider: Provider,
    args: &Args,
) -> Result<ProviderDeviceCountAndNotes> {
    let mut asked = ProviderDeviceCountAndNotes {
        name: provider.name(),
        device_count: 0,
        notes: Vec::new(),
    };
    let devices = match verbs::Provider::by_name(provider.name()) {
        Ok(provider) => provider.devices()?,
        // A user who names the provider needs this provider. Otherwise a machine without the provider is no error.
        Err(err) if args.provider.is_some() => return Err(err.into()),
        Err(err) => {
            asked.notes.push(err.to_string());
            Vec::new()
        }
    };
    for (number, device) in devices.iter().enumerate() {
        match query_device_report(device, number, args.verbose) {
            Ok(shown) => {
                asked.device_count += 1;
                if args.json {
                    print_typed_json("device", &shown)?;
                } else {
                    print_line(format_device(&shown))?;
                }
            }
            Err(err) => asked
                .notes
                .push(format!("{} cannot be used: {err:#}", device.name())),
        }
    }
    Ok(asked)
}

fn query_device_report(device: &Device, number: usize, verbose: bool) -> Result<DeviceReport> {
    let context = device.open()?;
    let attr = context.query_device()?;
    let found = context.capabilities()?;
    let has = |capability: &Capability| found.has(*capability);
    let ports = (1..=attr.phys_port_cnt).map(|port_num| {
        let details = verbose.then(|| match found.provider_name {
            "softnic" => PortDetails::of_softnic(number, port_num),
            _ => Ok(PortDetails::of_system(device.name(), port_num)),
        });
        query_port_report(&context, port_num, details.transpose()?)
    });
    Ok(DeviceReport {
        provider: found.provider_name,
        name: device.name().to_owned(),
        driver: found.driver.clone(),
        guid: format!("{:#018x}", device.guid()),
        sys_image_guid: format!("{:#018x}", attr.sys_image_guid),
        node_type: device.node_type().to_string(),
        transport: device.transport_type().to_string(),
        firmware: attr.fw_ver,
        vendor_id: format!("{:#06x}", attr.vendor_id),
        vendor_part_id: attr.vendor_part_id,
        hw_ver: format!("{:#x}", attr.hw_ver),
        limits: DeviceLimits {
            max_mr_size_bytes: attr.max_mr_size,
            page_size_cap: format!("{:#x}", attr.page_size_cap),
            device_cap_flags: format!("{:#010x}", attr.device_cap_flags),
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_sge: attr.max_sge,
            max_sge_rd: attr.max_sge_rd,
            max_cq: attr.max_cq,
            max_cqe: attr.max_cqe,
            max_mr: attr.max_mr,
            max_mw: attr.max_mw,
            max_pd: attr.max_pd,
            max_ah: attr.max_ah,
            max_srq: attr.max_srq,
            max_srq_wr: attr.max_srq_wr,
            max_srq_sge: attr.max_srq_sge,
            max_qp_rd_atom: attr.max_qp_rd_atom,
            max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
            max_res_rd_atom: attr.max_res_rd_atom,
            atomic_cap: attr.atomic_cap.to_string(),
            max_mcast_grp: attr.max_mcast_grp,
            max_mcast_qp_attach: attr.max_mcast_qp_attach,
            max_pkeys: attr.max_pkeys,
            local_ca_ack_delay: attr.local_ca_ack_delay,
        },
        capabilities: DetectedCapabilities {
            has: Capability::ALL.into_iter().filter(has).collect(),
            lacks: found.missing_capabilities.clone(),
            inline_bytes: found.max_inline_bytes,
        },
        ports: ports.collect::<Result<_, _>>()?,
    })
}

fn query_port_report(
    context: &Context,
    port_num: u8,
    details: Option<PortDetails>,
) -> Result<PortReport> {
    let attr = context.query_port(port_num)?;
    let mut gids = Vec::new();
    for index in 0..attr.gid_tbl_len {
        // Reading an unset entry of the kernel's table may fail.
        if let Ok(gid) = context.gid(port_num, index)
            && !gid.is_zero()
        {
            gids.push(GidEntry {
                index,
                gid: gid.to_string(),
                gid_type: context.gid_type(port_num, index),
                interface: details.as_ref().and_then(|d| d.gid_interface(index)),
            });
        }
    }
    let has_lid = attr.link_layer != LinkLayer::Ethernet && attr.lid != Lid(0);
    Ok(PortReport {
        port_num,
        state: attr.state.to_string(),
        link_layer: attr.link_layer.to_string(),
        lid: has_lid.then_some(attr.lid.0),
        sm_lid: has_lid.then_some(attr.sm_lid.0),
        lmc: has_lid.then_some(attr.lmc),
        active_width_lanes: attr.lanes(),
        active_speed_gbps: attr.lane_gbps(),
        active_mtu_bytes: attr.active_mtu.bytes(),
        max_mtu_bytes: attr.max_mtu.bytes(),
        max_msg_bytes: attr.max_msg_sz,
        pkey_tbl_len: attr.pkey_tbl_len,
        gid_tbl_len: attr.gid_tbl_len,
        default_gid_index: context.default_gid_index(port_num)?,
        gids,
        details,
    })
}

fn format_device(device: &DeviceReport) -> String {
    let limits = &device.limits;
    let or_unknown = |text: &str| match text {
        "" => "unknown".to_owned(),
        known => known.to_owned(),
    };
    let driver = device
        .driver
        .as_ref()
        .map_or_else(String::new, |driver| format!("driver {driver}, "));
    let mut text = format!(
        "{} ({}): {}, {driver}GUID {}, vendor {} part {}, firmware {}\n  \
         {} queue pairs of {} WRs with {} SGEs; {} CQs of {} entries; {} SRQs of {} WRs\n  \
         {} memory regions of {}; {} READs and atomics outstanding per queue pair, atomicity {}\n  \
         can: {}",
        device.name,
        device.provider,
        device.node_type,
        device.guid,
        device.vendor_id,
        device.vendor_part_id,
        or_unknown(&device.firmware),
        limits.max_qp,
        limits.max_qp_wr,
        limits.max_sge,
        limits.max_cq,
        limits.max_cqe,
        limits.max_srq,
        limits.max_srq_wr,
        limits.max_mr,
        format_byte_limit(limits.max_mr_size_bytes),
        limits.max_qp_rd_atom,
        limits.atomic_cap,
        format_capabilities(&device.capabilities),
    );
    for lack in &device.capabilities.lacks {
        let _ = write!(text, "\n  cannot: {} ({})", lack.capability, lack.why);
    }
    for port in &device.ports {
        let lid = port
            .lid
            .map_or_else(String::new, |lid| format!(", LID {lid}"));
        let link = match (port.active_width_lanes, port.active_speed_gbps) {
            (Some(lanes), Some(gbps)) => format!(", {lanes}X of {gbps} Gbit/s"),
            _ => String::new(),
        };
        let _ = write!(
            text,
            "\n  port {}: {}, {}{lid}{link}, MTU {} (at most {}), messages up to {}",
            port.port_num,
            port.state,
            port.link_layer,
            port.active_mtu_bytes,
            port.max_mtu_bytes,
            format_byte_limit(u64::from(port.max_msg_bytes)),
        );
        for entry in &port.gids {
            let gid_type = entry
                .gid_type
                .map_or_else(String::new, |gid_type| format!(", {gid_type}"));
            let default = if entry.index == u32::from(port.default_gid_index) {
                ", default"
            } else {
                ""
            };
            let interface = entry
                .interface
                .as_ref()
                .map_or_else(String::new, |name| format!(", {name}"));
            let _ = write!(
                text,
                "\n    GID {}: {}{gid_type}{interface}{default}",
                entry.index, entry.gid
            );
        }
        if let Some(details) = &port.details {
            text.push_str(&details.format_lines());
        }
    }
    text
}

/// Formats the capabilities of a device in one line.
fn format_capabilities(shows: &DetectedCapabilities) -> String {
    let MaxInlineBytes { rc, uc, ud } = shows.inline_bytes;
    let names = shows.has.iter().map(|capability| match capability {
        Capability::Rc => format!("RC (inline up to {rc} bytes)"),
        Capability::Uc => format!("UC ({uc})"),
        Capability::Ud => format!("UD ({ud})"),
        other => other.to_string(),
    });
    names.collect::<Vec<_>>().join(", ")
}
