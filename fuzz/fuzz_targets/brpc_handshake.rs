//! The handshake of brpc's RDMA protocol, both sides, with a peer that says anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stream::fuzz::fuzz_handshake(bytes));
