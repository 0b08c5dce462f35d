//! Datagrams and records of a carried TCP connection's peer on another host, with anything in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sockets::fuzz::check_bytes_of_another_host(bytes));
