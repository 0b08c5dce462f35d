//! A datagram of a client of RDMA netlink, with anything in it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rdma_netlink::fuzz::check_answers_to_any_datagram(bytes));
