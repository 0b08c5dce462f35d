//! The objects of a sequence.

use std::ffi::c_void;

use verbs_abi::*;

use super::device::Device;
use super::imported::Imported;
use super::place::Place;
use super::raw::RawPackets;
use super::sizes::{ARENA, PLACES, QPS};
use crate::tables::Tables;

/// The range of a memory region.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) addr: usize,
    pub(super) len: usize,
}

/// All objects of a sequence, and the memory that they use.
pub(crate) struct World<'a> {
    pub(super) tables: Tables,
    pub(super) device: &'a Device,
    pub(super) arena: Vec<u64>,
    pub(super) pds: [Place<ibv_pd>; PLACES],
    pub(super) mrs: [Place<ibv_mr>; PLACES],
    pub(super) ranges: [Range; PLACES],
    pub(super) mws: [Place<ibv_mw>; PLACES],
    pub(super) channels: [Place<ibv_comp_channel>; 2],
    pub(super) cqs: [Place<ibv_cq>; PLACES],
    pub(super) srqs: [Place<ibv_srq>; 2],
    pub(super) qps: [Place<ibv_qp>; QPS],
    pub(super) ahs: [Place<ibv_ah>; PLACES],
    pub(super) tds: [Place<ibv_td>; 2],
    pub(super) dms: [Place<ibv_dm>; 2],
    pub(super) xrcds: [Place<ibv_xrcd>; 2],
    pub(super) imports: Imported,
    pub(super) raw: RawPackets,
}

impl<'a> World<'a> {
    /// Returns a world without objects, on an open device.
    pub(crate) fn new(tables: Tables, device: &'a Device) -> Self {
        Self {
            tables,
            device,
            arena: vec![0; ARENA / 8],
            pds: [Place::EMPTY; PLACES],
            mrs: [Place::EMPTY; PLACES],
            ranges: [Range { addr: 0, len: 0 }; PLACES],
            mws: [Place::EMPTY; PLACES],
            channels: [Place::EMPTY; 2],
            cqs: [Place::EMPTY; PLACES],
            srqs: [Place::EMPTY; 2],
            qps: [Place::EMPTY; QPS],
            ahs: [Place::EMPTY; PLACES],
            tds: [Place::EMPTY; 2],
            dms: [Place::EMPTY; 2],
            xrcds: [Place::EMPTY; 2],
            imports: Imported::default(),
            raw: RawPackets::NONE,
        }
    }

    pub(super) fn base(&self) -> usize {
        self.arena.as_ptr().expose_provenance()
    }

    /// Returns a pointer into the arena.
    pub(super) fn at(&self, offset: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.base() + offset % ARENA)
    }
}

/// Calls an operation of the extended context; `None` if the context lacks it.
macro_rules! extended {
    ($world:ident.$name:ident($( $arg:expr ),*)) => {{
        let all = verbs_abi::verbs_get_ctx($world.device.context);
        match (*all).$name {
            Some(operation) => Some(operation($( $arg ),*)),
            None => None,
        }
    }};
}
pub(super) use extended;
