//! Files of /proc, and the identity of a device.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    shm::fuzz::texts(bytes);
    softnic::fuzz::texts(bytes);
});
