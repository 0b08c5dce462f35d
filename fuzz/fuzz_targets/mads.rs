//! Management datagrams of communication management.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce::fuzz::mads(bytes));
