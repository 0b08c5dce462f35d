//! The device as programs see it: its identity, its limits, its ports with their GID tables, and the
//! 40 bytes in front of a UD payload.
//!
//! Nothing here knows queue pairs or memory. Read `ibv_query_device(3)`, `ibv_query_port(3)`,
//! `ibv_query_gid(3)`, `ibv_create_ah(3)` first; for the headers IBTA vol. 1, 8.3 (GRH) and annex A17
//! (RoCEv2).

mod attr;
mod device_and_port_counts;
mod grh;
mod guid;
mod interfaces;
mod limits;
mod link_layer;
mod packet_addresses;
mod port;
mod ports;

pub(crate) use attr::{device_attr, device_attr_ex};
pub(crate) use device_and_port_counts::PortPlace;
pub use device_and_port_counts::{
    BadCount, DEVICE_COUNT_VAR, DeviceAndPortCounts, MAX_DEVICES, MAX_PORTS, PORT_COUNT_VAR,
};
pub(crate) use grh::{set_grh_length, ud_packet_bytes_from_bth_to_icrc};
pub(crate) use interfaces::{configured_address_list, first_port_interface};
pub(crate) use limits::*;
pub(crate) use link_layer::LINK_LAYER_VAR;
pub(crate) use link_layer::{LinkLayer, PortError};
pub(crate) use packet_addresses::gids_of;
pub(crate) use port::{Port, init_ah_from_wc};
pub(crate) use ports::{Device, devices_from_env};

#[cfg(test)]
mod tests;
