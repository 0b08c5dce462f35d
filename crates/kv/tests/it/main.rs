//! Servers, clients and loads in one process on the software NIC. All tests are in one binary to save link time.

mod designs;
mod load;
