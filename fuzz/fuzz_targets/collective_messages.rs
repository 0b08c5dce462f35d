//! Handles, hellos and entries of receives of a collective's peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| collective::fuzz::fuzz_peer_messages(bytes));
