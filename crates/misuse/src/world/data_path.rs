//! Posting, polling and events.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs_abi::*;

use super::objects::World;
use super::sizes::{ARENA_BYTES, MAX_LIST_WRS, MAX_POLL_COMPLETIONS, PLACES_PER_KIND, QP_PLACES};
use crate::input::DecisionBytes;

impl World<'_> {
    /// Returns a key and a range that mostly belong to a region.
    pub(super) fn choose_sge(&self, input: &mut DecisionBytes<'_>) -> ibv_sge {
        let place = input.index_below(PLACES_PER_KIND);
        let region = self.mr_ranges[place];
        // SAFETY: the region is live.
        let lkey = unsafe { self.mrs[place].live_handle().as_ref() }.map_or(0, |mr| mr.lkey);
        let offset = u64::from(input.next_u16()) % (region.len as u64 + 1);
        let most = (region.len as u64 - offset).min(u64::from(u16::MAX));
        let len = u64::from(input.next_u16()) % (most + 1);
        let mut sge = ibv_sge {
            addr: region.addr as u64 + offset,
            length: u32::try_from(len).unwrap_or(0),
            lkey,
        };
        match input.next_byte() {
            0xf0..=0xf3 => sge.length = input.next_u32(),
            0xf4..=0xf7 => sge.lkey = input.next_u32(),
            0xf8..=0xfb => sge.addr = sge.addr.wrapping_add(u64::from(input.next_u32())),
            0xfc => sge.addr = u64::from(input.next_byte()),
            _ => {}
        }
        sge
    }

    pub(super) unsafe fn post_send(&mut self, input: &mut DecisionBytes<'_>) {
        let qp = self.qps[input.index_below(QP_PLACES)].live_handle();
        if qp.is_null() {
            return;
        }
        let count = 1 + input.index_below(MAX_LIST_WRS - 1);
        let mut sges = [[ibv_sge::zeroed(); 4]; MAX_LIST_WRS];
        let mut list = [ibv_send_wr::zeroed(); MAX_LIST_WRS];
        for (wr, sges) in list.iter_mut().zip(&mut sges).take(count) {
            wr.wr_id = u64::from(input.next_byte());
            wr.opcode = match input.next_byte() {
                250.. => input.next_u32(),
                byte => u32::from(byte) % 16,
            };
            wr.send_flags = u32::from(input.next_byte() % 32);
            wr.num_sge = match input.next_byte() {
                // Negative, or larger than any queue's limit.
                255 => i32::MIN,
                254 => 1 << 20,
                byte => i32::from(byte % 4),
            };
            wr.imm.imm_data = input.next_u32();
            for sge in &mut *sges {
                *sge = self.choose_sge(input);
                // "IBV_SEND_INLINE: send data in given gather list as inline data": the library itself reads
                // the data, so it must be mapped.
                if wr.send_flags & IBV_SEND_INLINE != 0 {
                    sge.addr = self.arena_start() as u64;
                    sge.length %= u32::try_from(ARENA_BYTES).unwrap_or(1);
                }
            }
            wr.sg_list = sges.as_mut_ptr();
            let remote = self.choose_sge(input);
            // SAFETY: as in `make_pd`; members of unions are plain numbers and live handles.
            unsafe {
                if (*qp).qp_type == IBV_QPT_UD {
                    let to = self.qps[input.index_below(QP_PLACES)]
                        .live_handle()
                        .as_ref();
                    wr.wr.ud.ah = self.ahs[input.index_below(PLACES_PER_KIND)].live_handle();
                    wr.wr.ud.remote_qpn = to.map_or(input.next_u32(), |to| to.qp_num);
                    wr.wr.ud.remote_qkey = if input.one_in(8) {
                        input.next_u32()
                    } else {
                        17
                    };
                } else if wr.opcode == IBV_WR_BIND_MW {
                    let window = self.mws[input.index_below(PLACES_PER_KIND)].live_handle();
                    wr.bind_tso.bind_mw.mw = window;
                    wr.bind_tso.bind_mw.rkey = window.as_ref().map_or(0, |window| {
                        window.rkey.wrapping_add(u32::from(input.next_byte()))
                    });
                    wr.bind_tso.bind_mw.bind_info = self.bind_info(input);
                } else {
                    wr.wr.atomic.remote_addr = remote.addr;
                    wr.wr.atomic.compare_add = u64::from(input.next_byte());
                    wr.wr.rdma.remote_addr = remote.addr;
                    // RDMA and atomics have their R_Keys at different offsets of the union.
                    wr.wr.rdma.rkey = remote.lkey;
                    if matches!(
                        wr.opcode,
                        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
                    ) {
                        wr.wr.atomic.rkey = remote.lkey;
                    }
                    if input.one_in(8) {
                        wr.qp_type.xrc.remote_srqn = input.next_u32();
                    }
                }
            }
        }
        for at in 1..count {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: as in `make_pd`; the list is terminated.
        unsafe { ibv_post_send(qp, list.as_mut_ptr(), &raw mut bad) };
    }

    pub(super) fn bind_info(&self, input: &mut DecisionBytes<'_>) -> ibv_mw_bind_info {
        let region = self.mrs[input.index_below(PLACES_PER_KIND)];
        let range = self.choose_sge(input);
        ibv_mw_bind_info {
            mr: region.live_handle(),
            addr: range.addr,
            length: range.length.into(),
            mw_access_flags: u32::from(input.next_byte() & 0x3f),
        }
    }

    pub(super) unsafe fn post_recv(&mut self, input: &mut DecisionBytes<'_>) {
        let count = 1 + input.index_below(MAX_LIST_WRS - 1);
        let mut sges = [[ibv_sge::zeroed(); 4]; MAX_LIST_WRS];
        let mut list = [ibv_recv_wr::zeroed(); MAX_LIST_WRS];
        for (wr, sges) in list.iter_mut().zip(&mut sges).take(count) {
            wr.wr_id = u64::from(input.next_byte());
            wr.num_sge = match input.next_byte() {
                255 => i32::MIN,
                254 => 1 << 20,
                byte => i32::from(byte % 4),
            };
            for sge in &mut *sges {
                *sge = self.choose_sge(input);
            }
            wr.sg_list = sges.as_mut_ptr();
        }
        for at in 1..count {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: as in `post_send`.
        unsafe {
            if input.one_in(3) {
                let srq = self.srqs[input.index_below(2)].live_handle();
                if !srq.is_null() {
                    ibv_post_srq_recv(srq, list.as_mut_ptr(), &raw mut bad);
                }
            } else {
                let qp = self.qps[input.index_below(QP_PLACES)].live_handle();
                if !qp.is_null() {
                    ibv_post_recv(qp, list.as_mut_ptr(), &raw mut bad);
                }
            }
        }
    }

    pub(super) unsafe fn poll(&mut self, input: &mut DecisionBytes<'_>) {
        let cq = self.cqs[input.index_below(PLACES_PER_KIND)].live_handle();
        let mut wc = [ibv_wc::zeroed(); MAX_POLL_COMPLETIONS];
        let asked = input.index_below(MAX_POLL_COMPLETIONS + 1);
        if !cq.is_null() {
            // SAFETY: as in `make_pd`; `wc` has at least `asked` elements.
            let found =
                unsafe { ibv_poll_cq(cq, c_int::try_from(asked).unwrap_or(0), wc.as_mut_ptr()) };
            assert!(
                usize::try_from(found).is_ok_and(|found| found <= asked),
                "{found} of {asked}"
            );
        }
    }

    pub(super) unsafe fn arm_cq(&mut self, input: &mut DecisionBytes<'_>) {
        let cq = self.cqs[input.index_below(PLACES_PER_KIND)].live_handle();
        if !cq.is_null() {
            // SAFETY: as in `make_pd`.
            unsafe { ibv_req_notify_cq(cq, c_int::from(input.one_in(2))) };
        }
    }

    /// Fetches and acknowledges pending events.
    pub(super) unsafe fn fetch_and_ack_events(&mut self, input: &mut DecisionBytes<'_>) {
        let verbs = self.tables.symbols;
        // SAFETY: as in `make_pd`; no call blocks.
        unsafe {
            let channel = self.channels[input.index_below(2)];
            let (mut cq, mut cq_context) = (null_mut(), null_mut());
            let got =
                (verbs.ibv_get_cq_event)(channel.handle, &raw mut cq, &raw mut cq_context) == 0;
            if got {
                assert!(channel.is_live, "a destroyed channel has an event");
                (verbs.ibv_ack_cq_events)(cq, 1);
            }
            let mut event = ibv_async_event {
                element: ibv_async_event_element { port_num: 0 },
                event_type: 0,
            };
            while (verbs.ibv_get_async_event)(self.device.context, &raw mut event) == 0 {
                (verbs.ibv_ack_async_event)(&raw mut event);
            }
        }
    }

    /// Posts work requests through the extended API.
    pub(super) unsafe fn post_send_extended(&mut self, input: &mut DecisionBytes<'_>) {
        let qp = self.qps[input.index_below(QP_PLACES)].live_handle();
        if qp.is_null() {
            return;
        }
        // SAFETY: as in `make_pd`; the operations come in the order that `ibv_wr_post(3)` requires.
        unsafe {
            let built = (self.tables.later_symbols.ibv_qp_to_qp_ex)(qp);
            let Some(start) = built.as_ref().and_then(|qp| qp.wr_start) else {
                return;
            };
            start(built);
            for _ in 0..input.index_below(MAX_LIST_WRS) {
                (*built).wr_id = u64::from(input.next_byte());
                (*built).wr_flags = u32::from(input.next_byte() % 8);
                let remote = self.choose_sge(input);
                let is_datagram = (*qp).qp_type == IBV_QPT_UD;
                match input.index_below(6) {
                    0 => (*built).wr_send.map(|send| send(built)),
                    1 => (*built)
                        .wr_send_imm
                        .map(|send| send(built, input.next_u32())),
                    2 => (*built)
                        .wr_rdma_write
                        .map(|write| write(built, remote.lkey, remote.addr)),
                    3 => (*built)
                        .wr_rdma_read
                        .map(|read| read(built, remote.lkey, remote.addr)),
                    4 => (*built)
                        .wr_atomic_fetch_add
                        .map(|add| add(built, remote.lkey, remote.addr, 1)),
                    _ => (*built)
                        .wr_local_inv
                        .map(|invalidate| invalidate(built, remote.lkey)),
                };
                if let Some(set) = (*built).wr_set_ud_addr.filter(|_| is_datagram) {
                    let to = self.qps[input.index_below(QP_PLACES)]
                        .live_handle()
                        .as_ref();
                    let ah = self.ahs[input.index_below(PLACES_PER_KIND)].live_handle();
                    set(built, ah, to.map_or(0, |to| to.qp_num), 17);
                }
                if input.one_in(3) {
                    let len = input.index_below(256);
                    if let Some(set) = (*built).wr_set_inline_data {
                        set(built, self.arena_ptr(0), len);
                    }
                } else if let Some(set) = (*built).wr_set_sge {
                    let sge = self.choose_sge(input);
                    set(built, sge.lkey, sge.addr, sge.length);
                }
            }
            match ((*built).wr_abort, (*built).wr_complete) {
                (Some(abort), _) if input.one_in(8) => abort(built),
                (_, Some(complete)) => {
                    complete(built);
                }
                _ => {}
            }
        }
    }
}
