//! The state of a connection of Valkey's RDMA transport, with a peer that does anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| resp_rdma::fuzz::fuzz_stream(bytes));
