//! Writes a profile as the text of its file, each number with its evidence.

use std::fmt::Write;

use nicmodel::Profile;
use nicmodel::profile::LinkLayer;

use super::fit::{FitOutcomesByKey, NumberFitOutcome};
use super::machine_facts::MachineFacts;

/// The tables of a profile, in their order.
const PROFILE_TABLE_NAMES: [&str; 7] = [
    "host",
    "pcie",
    "wqe",
    "processing",
    "atomics",
    "port",
    "cache",
];

/// Returns the text of the file. Published and fitted numbers come first; all other numbers are
/// copied from `like`.
pub(super) fn profile_toml(
    facts: &MachineFacts,
    findings: &FitOutcomesByKey,
    like: &Profile,
) -> String {
    let link_layer = match facts.link_layer {
        LinkLayer::Infiniband => "infiniband",
        LinkLayer::Roce => "roce",
    };
    let mut text = format!(
        "# Written by verbatim bench calibrate. What could not be measured is as in the profile {}, and says so.\n\n\
         schema = {}\nname = {}\ntitle = {}\nabout = {}\nlink_layer = {}\n",
        like.name,
        nicmodel::profile::SCHEMA_VERSION,
        quote_toml_string(&facts.profile_name),
        quote_toml_string(&facts.profile_title),
        quote_toml_string(&facts.remarks),
        quote_toml_string(link_layer),
    );
    let assumed = like.numbers();
    for table in PROFILE_TABLE_NAMES {
        let _ = write!(text, "\n[{table}]\n");
        let of_table = |key: &str| key.split_once('.').is_some_and(|(of, _)| of == table);
        let mut keys: Vec<&str> = Vec::new();
        let published = facts.published_numbers.iter().map(|(key, ..)| *key);
        let known = assumed.iter().map(|number| number.key.as_str());
        for key in published
            .chain(known)
            .chain(findings.iter().map(|(key, _)| *key))
        {
            if of_table(key) && !keys.contains(&key) {
                keys.push(key);
            }
        }
        for key in keys {
            let line = profile_number_line(key, facts, findings, like);
            if let (Some(line), Some((_, field))) = (line, key.split_once('.')) {
                let _ = writeln!(text, "{field} = {{ {line} }}");
            }
        }
    }
    text
}

/// Returns a number with its evidence, or `None` if the number is left out.
fn profile_number_line(
    key: &str,
    facts: &MachineFacts,
    findings: &FitOutcomesByKey,
    like: &Profile,
) -> Option<String> {
    if let Some((_, value, who)) = facts
        .published_numbers
        .iter()
        .find(|(published, ..)| *published == key)
    {
        return Some(format!(
            "value = {}, source = \"published\", where = {}",
            format_number(*value),
            quote_toml_string(who)
        ));
    }
    let finding = findings
        .iter()
        .find(|(findings, _)| *findings == key)
        .map(|(_, finding)| finding);
    let hidden = match finding {
        Some(NumberFitOutcome::Fitted {
            value,
            fitted_to: to,
            derivation: how,
        }) => {
            let to: Vec<_> = to
                .iter()
                .map(|rate| quote_toml_string(&format!("measured: {rate}")))
                .collect();
            let how = quote_toml_string(how);
            return Some(format!(
                "value = {}, source = \"fitted\", to = [{}], how = {how}",
                format_number(*value),
                to.join(", ")
            ));
        }
        Some(NumberFitOutcome::Omitted) => return None,
        Some(NumberFitOutcome::NotFitted { reason: why }) => format!("{why}; "),
        None => "not measured; ".to_owned(),
    };
    let all = like.numbers();
    let other = all.into_iter().find(|number| number.key == key)?;
    let why = format!(
        "{hidden}as in the profile {} ({})",
        like.name, other.evidence
    );
    Some(format!(
        "value = {}, source = \"assumed\", why = {}",
        format_number(other.value),
        quote_toml_string(&why)
    ))
}

/// Formats a number with at most five decimals; whole numbers have none.
fn format_number(value: f64) -> String {
    let rounded = (value * 1e5).round() / 1e5;
    rounded.to_string()
}

/// Formats a basic string of TOML. JSON's escapes are valid in TOML.
fn quote_toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
