//! The objects of a sequence.

use std::ffi::c_void;

use verbs_abi::*;

use super::device::Device;
use super::import_records::ImportRecords;
use super::object_place::ObjectPlace;
use super::raw_packets::RawPacketObjects;
use super::sizes::{ARENA_BYTES, PLACES_PER_KIND, QP_PLACES};
use crate::tables::ProviderTables;

/// The range of a memory region.
#[derive(Clone, Copy)]
pub(super) struct RegionRange {
    pub(super) addr: usize,
    pub(super) len: usize,
}

/// All objects of a sequence, and the memory that they use.
pub(crate) struct World<'a> {
    pub(super) tables: ProviderTables,
    pub(super) device: &'a Device,
    pub(super) arena: Vec<u64>,
    pub(super) pds: [ObjectPlace<ibv_pd>; PLACES_PER_KIND],
    pub(super) mrs: [ObjectPlace<ibv_mr>; PLACES_PER_KIND],
    pub(super) mr_ranges: [RegionRange; PLACES_PER_KIND],
    pub(super) mws: [ObjectPlace<ibv_mw>; PLACES_PER_KIND],
    pub(super) channels: [ObjectPlace<ibv_comp_channel>; 2],
    pub(super) cqs: [ObjectPlace<ibv_cq>; PLACES_PER_KIND],
    pub(super) srqs: [ObjectPlace<ibv_srq>; 2],
    pub(super) qps: [ObjectPlace<ibv_qp>; QP_PLACES],
    pub(super) ahs: [ObjectPlace<ibv_ah>; PLACES_PER_KIND],
    pub(super) tds: [ObjectPlace<ibv_td>; 2],
    pub(super) dms: [ObjectPlace<ibv_dm>; 2],
    pub(super) xrcds: [ObjectPlace<ibv_xrcd>; 2],
    pub(super) imports: ImportRecords,
    pub(super) raw_packet_objects: RawPacketObjects,
}

impl<'a> World<'a> {
    /// Returns a world without objects, on an open device.
    pub(crate) fn new(tables: ProviderTables, device: &'a Device) -> Self {
        Self {
            tables,
            device,
            arena: vec![0; ARENA_BYTES / 8],
            pds: [ObjectPlace::EMPTY; PLACES_PER_KIND],
            mrs: [ObjectPlace::EMPTY; PLACES_PER_KIND],
            mr_ranges: [RegionRange { addr: 0, len: 0 }; PLACES_PER_KIND],
            mws: [ObjectPlace::EMPTY; PLACES_PER_KIND],
            channels: [ObjectPlace::EMPTY; 2],
            cqs: [ObjectPlace::EMPTY; PLACES_PER_KIND],
            srqs: [ObjectPlace::EMPTY; 2],
            qps: [ObjectPlace::EMPTY; QP_PLACES],
            ahs: [ObjectPlace::EMPTY; PLACES_PER_KIND],
            tds: [ObjectPlace::EMPTY; 2],
            dms: [ObjectPlace::EMPTY; 2],
            xrcds: [ObjectPlace::EMPTY; 2],
            imports: ImportRecords::default(),
            raw_packet_objects: RawPacketObjects::NONE,
        }
    }

    pub(super) fn arena_start(&self) -> usize {
        self.arena.as_ptr().expose_provenance()
    }

    /// Returns a pointer into the arena.
    pub(super) fn arena_ptr(&self, offset: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.arena_start() + offset % ARENA_BYTES)
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
