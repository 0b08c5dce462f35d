//! The program as users run it: processes, output, exit status.
//!
//! All tests are in one binary, since each binary is linked separately. Tests that need an RDMA
//! device are in `device.rs`, a binary of its own that runs in a virtual machine.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod bench;
mod bench_calibrate;
mod bench_ends;
mod btree;
mod btree_simulated;
mod check;
mod collective;
mod containers;
mod counters;
mod devices;
mod explain;
mod fault;
mod guide_hosts;
mod heap;
mod interrupt;
mod kv;
mod ledger;
mod lost_hosts;
mod model;
mod netlink;
mod pcap;
mod pci;
mod pictures;
mod ports;
mod program;
mod resp;
mod restricted;
mod run;
mod sequencer;
mod signals;
mod sockets;
mod stream;
mod summary;
mod tensor;
mod trace;
mod traffic;
mod umad;
mod valkey;
mod why;
