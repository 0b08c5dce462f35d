//! A NIC's profile (TOML).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nicmodel::fuzz::check_profile_of_any_bytes(bytes));
