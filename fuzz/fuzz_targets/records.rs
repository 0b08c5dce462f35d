//! What peers write into the rings of shared memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shm::fuzz::read_ring_records(bytes));
