//! Tests of wrong profiles: each is refused with its line, its key and the permitted values.

use nicmodel::profile::{PROFILE_TEMPLATE_TOML, Profile, ProfileError, builtin_profiles};
use proptest::prelude::*;

/// Returns the template with the line that begins with `key` replaced, and that line's number.
fn with(key: &str, line: &str) -> (String, usize) {
    let mut number = 0;
    let lines = PROFILE_TEMPLATE_TOML
        .lines()
        .enumerate()
        .map(|(index, old)| {
            if number == 0 && old.starts_with(key) {
                number = index + 1;
                line
            } else {
                old
            }
        });
    let text: Vec<_> = lines.collect();
    assert_ne!(number, 0, "the template has no {key}");
    (text.join("\n"), number)
}

#[track_caller]
fn refused(key: &str, line: &str, says: &[&str]) {
    let (text, number) = with(key, line);
    let err = Profile::parse(&text).expect_err("it is wrong");
    let message = err.to_string();
    assert!(message.contains(&format!("line {number}")), "{message}");
    for part in says {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

/// Returns the line `key = { value = …, source = "assumed", why = "a test" }`.
fn assumed(key: &str, value: &str) -> String {
    format!("{key} = {{ value = {value}, source = \"assumed\", why = \"a test\" }}")
}

#[test]
fn impossible_values() {
    let cases = [
        (
            "lanes",
            "0",
            "pcie.lanes: 0 is out of range; it must be from 1 to 32",
        ),
        ("lanes", "33", "from 1 to 32"),
        ("lane_mbps", "nan", "pcie.lane_mbps: NaN is out of range"),
        ("lane_mbps", "inf", "from 10 to 100000"),
        ("send_ns", "0", "processing.send_ns: 0 is out of range"),
        (
            "max_inline_bytes",
            "1000",
            "1000 bytes of inline data and a header of 36 do not fit",
        ),
        ("read_completion_bytes", "100", "100 is no power of two"),
        (
            "lanes",
            "7",
            "pcie.lanes: PCIe knows no link of 7 lanes; there are 1, 2, 4, 8, 12, 16 and 32",
        ),
        ("mtu_bytes", "0", "port.mtu_bytes"),
        ("gbps", "-1", "port.gbps: -1 is out of range"),
        ("lock_bits", "33", "from 0 to 32"),
    ];
    for (key, value, says) in cases {
        refused(key, &assumed(key, value), &[says]);
    }
}

/// The numbers that a DPU must have, in this order of lines: cores, core_speed, latency, bandwidth, read completions.
const DPU: [(&str, &str); 5] = [
    ("cores", "8"),
    ("core_speed", "0.5"),
    ("latency_ns", "130"),
    ("bandwidth_mbps", "20000"),
    ("read_completion_bytes", "128"),
];

#[test]
fn impossible_dpus() {
    let cases = [
        (
            "core_speed",
            "0",
            "dpu.core_speed: 0 is out of range; it must be from 0.01 to 100",
        ),
        (
            "read_completion_bytes",
            "100",
            "dpu.read_completion_bytes: 100 is no power of two",
        ),
        ("cores", "\"8\"", "dpu.cores must be from 1 to 4096"),
        ("cores", "", "missing field `cores`"),
    ];
    for (wrong, value, says) in cases {
        let mut text = format!("{PROFILE_TEMPLATE_TOML}\n[dpu]\n");
        for (key, good) in DPU {
            let value = if key == wrong { value } else { good };
            if !value.is_empty() {
                text.push_str(&format!("{}\n", assumed(key, value)));
            }
        }
        let message = Profile::parse(&text).expect_err(wrong).to_string();
        assert!(message.contains(says), "{says:?} is not in: {message}");
        assert!(message.contains("line "), "{message}");
    }
}

#[test]
fn impossible_identities() {
    let cases = [
        ("device", "\"\"", "1 to 63 letters"),
        ("device", "\"a/b\"", "identity.device: a device's name"),
        ("vendor_id", "16777216", "below 2^24"),
        ("part_id", "-1", "part_id"),
        ("part_id", "\"4113\"", "part_id"),
        (
            "# board_id",
            "\"a b\"",
            "identity.board_id: it has 1 to 63 letters",
        ),
        ("# firmware", "\"\"", "identity.firmware: it has"),
    ];
    for (key, value, says) in cases {
        let name = key.trim_start_matches("# ");
        refused(key, &assumed(name, value), &[says]);
    }
    refused("vendor_id", "vendor_id = 713", &["with its evidence"]);
}

#[test]
fn every_impossible_value_is_named_at_once() {
    let (text, _) = with("lanes", &assumed("lanes", "0"));
    let text = text.replace(
        "doorbell_bytes = { value = 8",
        "doorbell_bytes = { value = 65",
    );
    let Err(ProfileError::Impossible(problems)) = Profile::parse(&text) else {
        panic!("both are impossible");
    };
    let keys: Vec<_> = problems.iter().map(|p| p.key.as_str()).collect();
    assert_eq!(keys, ["pcie.lanes", "pcie.doorbell_bytes"]);
}

#[test]
fn numbers_without_evidence() {
    let cases = [
        ("lanes = 16", "a number with its evidence"),
        ("lanes = { value = 16 }", "no evidence: add source"),
        (
            "lanes = { source = \"published\", where = \"x\" }",
            "missing field `value`",
        ),
        (
            "lanes = { value = 16, source = \"published\" }",
            "`where = \"…\"` must say",
        ),
        (
            "lanes = { value = 16, source = \"published\", where = \" \" }",
            "`where = \"…\"` must say",
        ),
        (
            "lanes = { value = 16, source = \"derived\" }",
            "`how = \"…\"` must say",
        ),
        (
            "lanes = { value = 16, source = \"fitted\", to = [] }",
            "`to = [\"…\"]` must name",
        ),
        (
            "lanes = { value = 16, source = \"assumed\", where = \"x\" }",
            "`where` does not go with",
        ),
        (
            "lanes = { value = 16, source = \"guessed\", why = \"x\" }",
            "none of published",
        ),
        (
            "lanes = { value = 16, source = \"assumed\", why = \"x\", unit = \"\" }",
            "unknown field `unit`",
        ),
    ];
    for (line, says) in cases {
        refused("lanes", line, &["lanes", says]);
    }
}

#[test]
fn keys_of_the_wrong_kind_or_name() {
    let range = "pcie.lanes must be from 1 to 32";
    for value in ["16.5", "-1", "\"16\"", "true", "99999999999999999999"] {
        refused("lanes", &assumed("lanes", value), &["lanes", value, range]);
    }
    refused(
        "gbps",
        &assumed("gbps", "\"fast\""),
        &["port.gbps must be from "],
    );
    refused(
        "lanes",
        &assumed("lains", "16"),
        &["unknown field `lains`", "`lanes`"],
    );
    refused(
        "link_layer",
        "link_layer = \"token-ring\"",
        &["infiniband", "roce"],
    );
    refused(
        "schema",
        "schema = 2",
        &["version 2 of the format is not known", "version 1"],
    );
    refused("name", "name = \"My NIC\"", &["lower-case"]);
    refused("lanes", "lanes = ", &["lanes"]);
    // A key that is missing is reported at its table.
    let (text, _) = with("lanes", "");
    let message = Profile::parse(&text)
        .expect_err("lanes are needed")
        .to_string();
    assert!(message.contains("missing field `lanes`"), "{message}");
    assert!(message.contains("[pcie]"), "{message}");
    for text in ["", "schema = 1", "\u{0}", "[host]\n[host]"] {
        assert!(Profile::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn wqes_must_fit_the_largest() {
    let (text, _) = with("max_wqe_bytes", &assumed("max_wqe_bytes", "64"));
    let message = Profile::parse(&text).expect_err("too small").to_string();
    assert!(
        message.contains("an SGE of 16 do not fit wqe.max_wqe_bytes = 64"),
        "{message}"
    );
}

#[test]
fn a_wait_of_units_needs_units() {
    let text = PROFILE_TEMPLATE_TOML.replace("units = { value", "# units = { value");
    let message = Profile::parse(&text)
        .expect_err("units are needed")
        .to_string();
    assert!(
        message.contains("processing.wqe_fetch_wait_ns"),
        "{message}"
    );
    assert!(message.contains("add processing.units"), "{message}");
}

#[test]
fn every_number_is_listed_with_its_evidence() {
    for profile in builtin_profiles() {
        let numbers = profile.numbers();
        assert!(numbers.len() > 20, "{}", profile.name);
        for number in numbers {
            assert!(number.evidence.to_string().starts_with(number.source));
            assert!(number.meaning.ends_with('.'), "{}", number.key);
        }
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        prop_assert!(Profile::parse(&text).is_err());
    }

    #[test]
    fn no_damage_makes_it_panic(at in 0..PROFILE_TEMPLATE_TOML.len(), byte in any::<u8>()) {
        let mut bytes = PROFILE_TEMPLATE_TOML.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            // Damage within a comment or a word of evidence does no harm.
            match Profile::parse(&text) {
                Ok(profile) => prop_assert_eq!(profile.schema, 1),
                Err(err) => prop_assert!(!err.to_string().is_empty()),
            }
        }
    }
}
