//! Profiles with the evidence for each number.

use anyhow::Result;
use comfy_table::ContentArrangement;
use nicmodel::profile::Profile;
use serde::Serialize;

use crate::output::{print_line, print_typed_json, table};

/// The description of a profile, for JSON.
#[derive(Serialize)]
struct ProfileDescription<'a> {
    name: &'a str,
    title: &'a str,
    about: &'a str,
}

/// One number of a profile, for JSON.
#[derive(Serialize)]
struct ProfileNumberLine<'a> {
    nic: &'a str,
    #[serde(flatten)]
    number: &'a nicmodel::profile::ProfileNumber<'a>,
}

pub(super) fn print_profiles(profiles: &[Profile], json: bool) -> Result<()> {
    for (index, profile) in profiles.iter().enumerate() {
        let Profile {
            name, title, about, ..
        } = profile;
        let numbers = profile.numbers();
        if json {
            print_typed_json("profile", &ProfileDescription { name, title, about })?;
            for number in &numbers {
                print_typed_json("number", &ProfileNumberLine { nic: name, number })?;
            }
            continue;
        }
        let gap = if index == 0 { "" } else { "\n" };
        print_line(format_args!("{gap}{name}: {title}\n{about}\n"))?;
        let mut rows = table(["number", "value", "evidence"], &[1]);
        // Sentences of evidence are wrapped on a terminal.
        rows.set_content_arrangement(ContentArrangement::Dynamic);
        for number in &numbers {
            let value = number.value.to_string();
            rows.add_row([number.key.clone(), value, number.evidence.to_string()]);
        }
        print_line(rows)?;
    }
    Ok(())
}
