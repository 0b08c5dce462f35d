//! The adapters that `verbatim run --nic` presents, with the evidence for their capabilities.

use anyhow::Result;
use nicmodel::profile::{AdapterWithoutCosts, adapters_without_cost_profile};
use serde::Serialize;

use crate::CommandOutcome;
use crate::output::{print_line, print_typed_json};

/// An adapter as `--json` prints it.
#[derive(Serialize)]
struct AdapterReport<'a> {
    name: &'a str,
    title: &'a str,
    about: &'a str,
    device: &'a str,
    vendor_id: String,
    part_id: u32,
    capabilities: Vec<AdapterCapability<'a>>,
}

#[derive(Serialize)]
struct AdapterCapability<'a> {
    name: &'a str,
    value: String,
    evidence: String,
}

/// Prints each adapter; with `verbose`, also the evidence.
pub(super) fn print_adapters(verbose: bool, json: bool) -> Result<CommandOutcome> {
    for adapter in adapters_without_cost_profile() {
        if json {
            print_typed_json("adapter", &adapter_report(adapter))?;
        } else {
            print_line(format_adapter(adapter, verbose))?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn adapter_report(adapter: &AdapterWithoutCosts) -> AdapterReport<'_> {
    let capabilities = adapter.capabilities.iter();
    let capabilities = capabilities.map(|(name, value)| AdapterCapability {
        name,
        value: value.value.to_string(),
        evidence: value.evidence.to_string(),
    });
    AdapterReport {
        name: &adapter.name,
        title: &adapter.title,
        about: &adapter.about,
        device: &adapter.identity.device.value,
        vendor_id: format!("{:#06x}", adapter.identity.vendor_id.value),
        part_id: adapter.identity.part_id.value,
        capabilities: capabilities.collect(),
    }
}

fn format_adapter(adapter: &AdapterWithoutCosts, verbose: bool) -> String {
    let AdapterReport {
        name,
        title,
        about,
        device,
        vendor_id,
        part_id,
        capabilities,
    } = adapter_report(adapter);
    let mut lines = vec![
        format!("{name}: {title}"),
        format!("  {device}, vendor {vendor_id} part {part_id}. {about}"),
    ];
    for AdapterCapability {
        name,
        value,
        evidence,
    } in capabilities
    {
        let value = match value.as_str() {
            "" => "none",
            value => value,
        };
        let evidence = match verbose {
            true => format!("  ({evidence})"),
            false => String::new(),
        };
        lines.push(format!("  {name} {}{evidence}", value.replace(',', ", ")));
    }
    lines.join("\n")
}
