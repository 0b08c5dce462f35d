//! Servers, clients and loads in one process on the software NIC. All in one binary, since each is linked anew.

mod designs;
mod load;
