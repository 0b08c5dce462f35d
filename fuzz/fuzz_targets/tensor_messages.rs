//! Messages between the ends of a tensor link.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensor::fuzz::check_message_round_trip(bytes));
