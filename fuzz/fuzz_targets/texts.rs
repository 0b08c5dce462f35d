//! Files of /proc, and the identity of a device.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    shm::fuzz::parse_system_texts(bytes);
    softnic::fuzz::texts(bytes);
});
