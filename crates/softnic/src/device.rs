//! The device as programs see it: its identity, its limits, its one port with the GID table, and the
//! 40 bytes in front of a UD payload.
//!
//! Nothing here knows queue pairs or memory. Read `ibv_query_device(3)`, `ibv_query_port(3)`,
//! `ibv_query_gid(3)`, `ibv_create_ah(3)` first; for the headers IBTA vol. 1, 8.3 (GRH) and annex A17
//! (RoCEv2).

mod attr;
mod grh;
mod guid;
mod interfaces;
mod limits;
mod link_layer;
mod port;
mod route;

pub(crate) use attr::{device_attr, device_attr_ex};
pub(crate) use grh::{set_grh_length, ud_packet_bytes};
pub(crate) use guid::node_guid;
pub(crate) use interfaces::{address_list, network_interface};
pub(crate) use limits::*;
pub(crate) use link_layer::{LinkLayer, PortError};
pub(crate) use port::{Port, init_ah_from_wc};
pub(crate) use route::gids_of;

#[cfg(test)]
mod tests;
