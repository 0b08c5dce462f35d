//! The objects of a sequence, and what is done with them.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use verbs_abi::*;

use crate::Tables;
use crate::input::Input;

/// Objects of each kind.
const PLACES: usize = 4;
/// Queue pairs.
const QPS: usize = 6;
/// Bytes that regions are made of.
const ARENA: usize = 1 << 15;
/// Completions of one poll.
const POLL: usize = 8;
/// WRs of one list, at most.
const LIST: usize = 5;

/// An object that may be there, or may have been there.
struct Place<T> {
    handle: *mut T,
    live: bool,
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> Place<T> {
    const EMPTY: Self = Self {
        handle: null_mut(),
        live: false,
    };

    /// The handle if the object is live, else NULL.
    fn live(self) -> *mut T {
        if self.live { self.handle } else { null_mut() }
    }

    /// What a destroying verb said: 0 ends the object.
    fn ended(&mut self, errno: c_int) {
        if errno == 0 {
            assert!(self.live, "a destroyed handle was destroyed again");
            self.live = false;
        }
    }
}

/// Puts a new object into a place. What was destroyed at the same address cannot be told from it any more.
fn fill<T>(places: &mut [Place<T>], place: usize, handle: *mut T) {
    for other in &mut *places {
        if std::ptr::eq(other.handle, handle) {
            other.handle = null_mut();
        }
    }
    places[place] = Place {
        handle,
        live: !handle.is_null(),
    };
}

/// The range of a memory region.
#[derive(Clone, Copy)]
struct Range {
    addr: usize,
    len: usize,
}

pub(crate) struct World<'a> {
    tables: Tables,
    device: &'a Device,
    arena: Vec<u64>,
    pds: [Place<ibv_pd>; PLACES],
    mrs: [Place<ibv_mr>; PLACES],
    ranges: [Range; PLACES],
    mws: [Place<ibv_mw>; PLACES],
    channels: [Place<ibv_comp_channel>; 2],
    cqs: [Place<ibv_cq>; PLACES],
    srqs: [Place<ibv_srq>; 2],
    qps: [Place<ibv_qp>; QPS],
    ahs: [Place<ibv_ah>; PLACES],
    tds: [Place<ibv_td>; 2],
    dms: [Place<ibv_dm>; 2],
    xrcds: [Place<ibv_xrcd>; 2],
    imports: imports::Imports,
    raw: raw::RawPackets,
}

/// Calls an operation of the extended context.
macro_rules! extended {
    ($world:ident.$name:ident($( $arg:expr ),*)) => {{
        let all = verbs_get_ctx($world.device.context);
        match (*all).$name {
            Some(operation) => Some(operation($( $arg ),*)),
            None => None,
        }
    }};
}

mod data_path;
mod device;
mod imports;
mod memory;
mod queue_pairs;
mod queues;
mod raw;

pub(crate) use device::Device;
use device::unblock;

impl<'a> World<'a> {
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
            imports: imports::Imports::default(),
            raw: raw::RawPackets::NONE,
        }
    }

    fn base(&self) -> usize {
        self.arena.as_ptr().expose_provenance()
    }

    /// A pointer into the arena.
    fn at(&self, offset: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.base() + offset % ARENA)
    }

    /// One verb.
    pub(crate) fn step(&mut self, input: &mut Input<'_>) {
        // SAFETY: handles are NULL, live or, for verbs that create, change and destroy, destroyed; other pointers lead
        // to places of the right type.
        unsafe {
            let verb = input.byte();
            // Those that came later have numbers of their own, so that kept inputs say what they said.
            if verb >= 240 {
                return self.import(input);
            }
            if verb == 239 {
                return self.tags(input);
            }
            if verb == 238 && self.device.has_ethernet {
                return self.raw_packets(input);
            }
            match verb % 40 {
                0 => self.make_pd(input),
                1 => self.end_pd(input),
                2 | 3 => self.register(input),
                4 => self.end_mr(input),
                5 => self.change_mr(input),
                6 | 7 => self.make_cq(input),
                8 => self.end_cq(input),
                9 => self.change_cq(input),
                10 => self.make_channel(input),
                11 => self.end_channel(input),
                12 => self.make_srq(input),
                13 => self.end_srq(input),
                14 => self.change_srq(input),
                15..=17 => self.make_qp(input),
                18 => self.end_qp(input),
                19 => self.change_qp(input),
                20 | 21 => self.connect(input),
                22 => self.ask(input),
                23 => self.make_ah(input),
                24 => self.end_ah(input),
                25..=29 => self.post_send(input),
                30 | 31 => self.post_recv(input),
                32 | 33 => self.poll(input),
                34 => self.notify(input),
                35 => self.events(input),
                36 => self.window(input),
                37 => self.group(input),
                38 => self.small_objects(input),
                _ => self.build(input),
            }
        }
    }

    /// Destroys everything in the right order. Nothing may be left that is in use.
    pub(crate) fn end(mut self) {
        /// Destroys what is live of a kind.
        macro_rules! end_all {
            ($places:expr, $destroy:expr) => {
                for place in &mut $places {
                    if place.live {
                        let errno: c_int = $destroy(place.handle);
                        assert_eq!(errno, 0, "{} is in use", stringify!($places));
                    }
                }
            };
        }
        let verbs = self.tables.symbols;
        // SAFETY: as in `step`.
        unsafe { self.events(&mut Input::new(&[])) };
        for qp in self.qps.iter().filter(|qp| qp.live) {
            for last in 0..4 {
                let mut gid = ibv_gid { raw: [0xff; 16] };
                // SAFETY: any bytes are a GID; a live queue pair, which may not be in the group.
                unsafe {
                    gid.raw[15] = last;
                    (verbs.ibv_detach_mcast)(qp.handle, &raw const gid, 0xc001);
                }
            }
        }
        self.end_raw_packets();
        // SAFETY: live handles, which nothing uses any more, and the operations of the context that made them.
        unsafe {
            end_all!(self.qps, verbs.ibv_destroy_qp);
            let (ops, all) = (
                &(*self.device.context).ops,
                verbs_get_ctx(self.device.context),
            );
            if let Some(dealloc_mw) = ops.dealloc_mw {
                end_all!(self.mws, dealloc_mw);
            }
            self.end_mrs();
            end_all!(self.ahs, verbs.ibv_destroy_ah);
            end_all!(self.srqs, verbs.ibv_destroy_srq);
            end_all!(self.cqs, verbs.ibv_destroy_cq);
            end_all!(self.channels, verbs.ibv_destroy_comp_channel);
            if let Some(close_xrcd) = (*all).close_xrcd {
                end_all!(self.xrcds, close_xrcd);
            }
            self.end_shared();
            self.end_raw_domains();
            if let Some(dealloc_td) = (*all).dealloc_td {
                end_all!(self.tds, dealloc_td);
            }
        }
    }
}
