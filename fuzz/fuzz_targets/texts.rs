//! Files of /proc, and the identity of a device.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    shm::fuzz::parse_proc_files_and_name_file(bytes);
    softnic::fuzz::parse_sysfs_and_identity_texts(bytes);
});
