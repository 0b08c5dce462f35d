//! The management datagrams of the software NIC's subnet as `libibumad.so.3`, which unmodified programs load instead of
//! the system's.
//!
//! - `symbols.txt` lists the exported symbols with their versions; `build.rs` makes labels from it that jump to the
//!   functions in `abi`.
//! - `devices` reads the devices that `/sys/class/infiniband` shows, `lookup` finds the one that a caller means.
//! - `port` is an open port with its agents.
//! - `smi_gsi` has the functions of rdma-core 55 and 56.
//!
//! The numbers that libibumad calls port identifiers are descriptors here, as in rdma-core. So programs can wait for
//! them.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod abi;
mod devices;
#[allow(unsafe_code)]
mod entry;
mod lookup;
mod mad_names;
#[allow(unsafe_code)]
mod port;
#[allow(unsafe_code)]
mod smi_gsi;
