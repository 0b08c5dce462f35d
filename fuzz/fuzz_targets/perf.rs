//! What perf wrote.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tap::fuzz::fuzz_perf_output(bytes));
