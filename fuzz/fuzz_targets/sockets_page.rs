//! The page that both ends of a carried TCP connection write, with anything in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sockets::fuzz::check_page_of_any_bytes(bytes));
