//! A stream in the Redis protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv_resp::fuzz::resp(bytes));
