//! A management datagram of a program to a subnet, with anything in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| subnet::fuzz::answer_any_mad(bytes));
