//! A ledger, and the operation profiles in it (JSON).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tap::fuzz::fuzz_ledger(bytes));
