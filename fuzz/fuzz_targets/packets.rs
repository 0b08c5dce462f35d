//! What follows the UDP header of a RoCEv2 frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce::fuzz::packets(bytes));
