//! NCCL's network plugin over the verbs: `libnccl-net-verbatim.so`.
//!
//! NCCL looks for the symbol `ncclNetPlugin_v12`, then for older versions; each symbol is a table
//! of functions. All tables here use one implementation: the receiver-driven transport of the crate
//! `collective`. Buffers are in host memory; NCCL stages GPU data through them.
//!
//! - `abi`: tables and properties as in the headers of the plugin interface; `c_header`: the C header generated from
//!   them, for the tests.
//! - `entry`: the functions; `comm`: the objects behind their opaque pointers; `device`: the ports;
//!   `log`: NCCL's logger.

mod abi;
#[cfg(test)]
mod c_header;
mod comm;
mod device;
mod entry;
mod log;
mod properties;
mod tables;
