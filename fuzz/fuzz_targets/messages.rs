//! Messages of connection management and of rsockets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rdmacm::fuzz::fuzz_messages(bytes);
    rsocket::fuzz_messages(bytes);
});
