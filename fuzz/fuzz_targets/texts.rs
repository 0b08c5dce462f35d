//! Files of /proc, and the identity of a device.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| softnic::fuzz::texts(bytes));
