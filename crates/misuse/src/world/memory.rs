//! Protection domains, memory regions, memory windows, and other objects of memory.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs_abi::*;

use super::object_place::store_object;
use super::objects::{RegionRange, World, extended};
use super::sizes::{ARENA_BYTES, PLACES_PER_KIND, QP_PLACES};
use crate::input::DecisionBytes;

impl World<'_> {
    pub(super) unsafe fn make_pd(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(PLACES_PER_KIND);
        if self.pds[place].is_live {
            return;
        }
        // SAFETY: contract of `step`, here and in all functions that refer to this one.
        unsafe {
            let made = if input.one_in(4) {
                let mut attr: ibv_parent_domain_init_attr = ibv_parent_domain_init_attr::zeroed();
                attr.pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
                attr.td = self.tds[input.index_below(2)].handle;
                attr.comp_mask = if input.one_in(8) { input.next_u32() } else { 0 };
                extended!(self.alloc_parent_domain(self.device.context, &raw mut attr))
                    .unwrap_or(null_mut())
            } else {
                (self.tables.symbols.ibv_alloc_pd)(self.device.context)
            };
            store_object(&mut self.pds, place, made);
        }
    }

    pub(super) unsafe fn end_pd(&mut self, input: &mut DecisionBytes<'_>) {
        let place = &mut self.pds[input.index_below(PLACES_PER_KIND)];
        // SAFETY: as in `make_pd`.
        place.record_destroy_result(unsafe { (self.tables.symbols.ibv_dealloc_pd)(place.handle) });
    }

    pub(super) unsafe fn register_mr(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(PLACES_PER_KIND);
        if self.mrs[place].is_live {
            return;
        }
        let pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
        let (offset, len, access) = self.choose_range_and_access(input);
        let addr = self.arena_ptr(offset);
        // SAFETY: as in `make_pd`; the range lies in the arena, or is too long to be valid.
        unsafe {
            let made = match input.index_below(4) {
                0 => (self.tables.later_symbols.ibv_reg_mr_iova2)(
                    pd,
                    addr,
                    len,
                    input.next_u32().into(),
                    access.cast_unsigned(),
                ),
                1 => {
                    let dm = self.dms[input.index_below(2)].handle;
                    let access = (access | IBV_ACCESS_ZERO_BASED).cast_unsigned();
                    extended!(self.reg_dm_mr(pd, dm, u64::from(input.next_byte()), len, access))
                        .unwrap_or(null_mut())
                }
                _ => (self.tables.symbols.ibv_reg_mr)(pd, addr, len, access),
            };
            store_object(&mut self.mrs, place, made);
        }
        self.mr_ranges[place] = RegionRange {
            addr: addr.addr(),
            len,
        };
        self.record_registered_mr(place);
    }

    /// Returns a range of the arena, and access rights.
    pub(super) fn choose_range_and_access(
        &self,
        input: &mut DecisionBytes<'_>,
    ) -> (usize, usize, c_int) {
        let offset = usize::from(input.next_u16()) % ARENA_BYTES;
        let len = usize::from(input.next_u16()) % (ARENA_BYTES - offset + 1);
        let access = c_int::from(input.next_byte() & 0x3f);
        let access = if input.one_in(2) {
            access
        } else {
            access
                | IBV_ACCESS_LOCAL_WRITE
                | IBV_ACCESS_REMOTE_WRITE
                | IBV_ACCESS_REMOTE_READ
                | IBV_ACCESS_REMOTE_ATOMIC
        };
        (offset, len, access)
    }

    pub(super) unsafe fn end_mr(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(PLACES_PER_KIND);
        let region = &mut self.mrs[place];
        // SAFETY: as in `make_pd`; the fields of a live handle are readable.
        let (handle, errno) = unsafe {
            let handle = region.live_handle().as_ref().map(|mr| mr.handle);
            (handle, (self.tables.symbols.ibv_dereg_mr)(region.handle))
        };
        region.record_destroy_result(errno);
        if let Some(handle) = handle {
            self.record_deregistered_mr(place, handle, errno);
        }
    }

    pub(super) unsafe fn change_mr(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(PLACES_PER_KIND);
        let pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
        let flags = c_int::from(input.next_byte() % 9);
        let (offset, len, access) = self.choose_range_and_access(input);
        let addr = self.arena_ptr(offset);
        let region = self.mrs[place];
        // SAFETY: as in `make_pd`.
        let result = unsafe {
            let mr = region.handle;
            (self.tables.symbols.ibv_rereg_mr)(mr, flags, pd, addr, len, access)
        };
        if result == 0 {
            assert!(region.is_live, "a destroyed region was changed");
            if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
                self.mr_ranges[place] = RegionRange {
                    addr: addr.addr(),
                    len,
                };
            }
        }
    }

    pub(super) unsafe fn make_bind_or_end_mw(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(PLACES_PER_KIND);
        let pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
        // SAFETY: as in `make_pd`; the context has the operations.
        unsafe {
            let ops = &(*self.device.context).ops;
            let (Some(alloc), Some(dealloc), Some(bind)) =
                (ops.alloc_mw, ops.dealloc_mw, ops.bind_mw)
            else {
                return;
            };
            match input.index_below(4) {
                0 | 1 if !self.mws[place].is_live => {
                    let made = alloc(pd, u32::from(input.next_byte() % 4));
                    store_object(&mut self.mws, place, made);
                }
                2 => {
                    let window = &mut self.mws[place];
                    window.record_destroy_result(dealloc(window.handle));
                }
                _ => {
                    let qp = self.qps[input.index_below(QP_PLACES)].live_handle();
                    let window = self.mws[place].live_handle();
                    if !qp.is_null() && !window.is_null() {
                        let mut info = ibv_mw_bind {
                            wr_id: 1,
                            send_flags: u32::from(input.next_byte() % 16),
                            bind_info: self.bind_info(input),
                        };
                        bind(qp, window, &raw mut info);
                    }
                }
            }
        }
    }

    /// Creates or destroys a thread domain, device memory or an XRC domain, or writes device memory.
    pub(super) unsafe fn make_or_end_domains_and_dm(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(2);
        let context = self.device.context;
        // SAFETY: as in `make_pd`.
        unsafe {
            match input.index_below(7) {
                0 if !self.tds[place].is_live => {
                    let mut init = ibv_td_init_attr { comp_mask: 0 };
                    let made = extended!(self.alloc_td(context, &raw mut init));
                    store_object(&mut self.tds, place, made.unwrap_or(null_mut()));
                }
                1 => {
                    let td = self.tds[place].handle;
                    let ended = extended!(self.dealloc_td(td)).unwrap_or(libc::EOPNOTSUPP);
                    self.tds[place].record_destroy_result(ended);
                }
                2 if !self.dms[place].is_live => {
                    let mut attr = ibv_alloc_dm_attr {
                        length: usize::from(input.next_u16()),
                        log_align_req: u32::from(input.next_byte() % 16),
                        comp_mask: 0,
                    };
                    let made = extended!(self.alloc_dm(context, &raw mut attr));
                    store_object(&mut self.dms, place, made.unwrap_or(null_mut()));
                }
                3 => {
                    let dm = self.dms[place].handle;
                    let ended = extended!(self.free_dm(dm)).unwrap_or(libc::EOPNOTSUPP);
                    self.dms[place].record_destroy_result(ended);
                }
                4 if !self.xrcds[place].is_live => {
                    let mut attr = ibv_xrcd_init_attr {
                        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                        fd: if input.one_in(8) { 12345 } else { -1 },
                        oflags: libc::O_CREAT,
                    };
                    let made = extended!(self.open_xrcd(context, &raw mut attr));
                    store_object(&mut self.xrcds, place, made.unwrap_or(null_mut()));
                }
                5 => {
                    let xrcd = self.xrcds[place].handle;
                    let ended = extended!(self.close_xrcd(xrcd)).unwrap_or(libc::EOPNOTSUPP);
                    self.xrcds[place].record_destroy_result(ended);
                }
                _ => {
                    let dm = self.dms[place].live_handle();
                    if let Some(copy) = dm.as_ref().and_then(|dm| dm.memcpy_to_dm) {
                        let len = usize::from(input.next_u16()) % ARENA_BYTES;
                        copy(dm, u64::from(input.next_u16()), self.arena_ptr(0), len);
                    }
                }
            }
        }
    }
}
