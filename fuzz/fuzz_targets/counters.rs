//! The file of counters that a program leaves to the ledger.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tap::fuzz::fuzz_counter_file(bytes));
