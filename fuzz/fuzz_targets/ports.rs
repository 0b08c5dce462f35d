//! The folder of port numbers, with any names in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdmacm::fuzz::fuzz_port_folder(bytes));
