//! The adapters that `verbatim run --nic` presents, with the evidence for what each can do.

use anyhow::Result;
use nicmodel::profile::{Adapter, adapters};
use serde::Serialize;

use crate::Outcome;
use crate::output::{print, print_typed};

/// An adapter as `--json` prints it.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    title: &'a str,
    about: &'a str,
    device: &'a str,
    vendor_id: String,
    part_id: u32,
    capabilities: Vec<Capability<'a>>,
}

#[derive(Serialize)]
struct Capability<'a> {
    name: &'a str,
    value: String,
    evidence: String,
}

/// Prints each of them; `verbose`: with the evidence.
pub(super) fn show(verbose: bool, json: bool) -> Result<Outcome> {
    for adapter in adapters() {
        if json {
            print_typed("adapter", &shown(adapter))?;
        } else {
            print(text(adapter, verbose))?;
        }
    }
    Ok(Outcome::Done)
}

fn shown(adapter: &Adapter) -> Shown<'_> {
    let capabilities = adapter.capabilities.iter();
    let capabilities = capabilities.map(|(name, value)| Capability {
        name,
        value: value.value.to_string(),
        evidence: value.evidence.to_string(),
    });
    Shown {
        name: &adapter.name,
        title: &adapter.title,
        about: &adapter.about,
        device: &adapter.identity.device.value,
        vendor_id: format!("{:#06x}", adapter.identity.vendor_id.value),
        part_id: adapter.identity.part_id.value,
        capabilities: capabilities.collect(),
    }
}

fn text(adapter: &Adapter, verbose: bool) -> String {
    let Shown {
        name,
        title,
        about,
        device,
        vendor_id,
        part_id,
        capabilities,
    } = shown(adapter);
    let mut lines = vec![
        format!("{name}: {title}"),
        format!("  {device}, vendor {vendor_id} part {part_id}. {about}"),
    ];
    for Capability {
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
