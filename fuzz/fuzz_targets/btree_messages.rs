//! Requests and answers of a B-tree, and nodes that a client walks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| btree::fuzz::check_messages_and_walk_of_any_bytes(bytes));
