//! A fault plan, as a line or as TOML, and occurrences for it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| faults::fuzz::parse_and_run_fault_plan(bytes));
