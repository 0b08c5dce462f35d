//! Queue pairs, their connections, and queries.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use verbs_abi::*;

use super::object_place::store_object;
use super::objects::{World, extended};
use super::sizes::{PLACES_PER_KIND, QP_PLACES};
use crate::input::DecisionBytes;

impl World<'_> {
    pub(super) unsafe fn make_qp(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(QP_PLACES);
        if self.qps[place].is_live {
            return;
        }
        let mut init = ibv_qp_init_attr_ex::zeroed();
        init.send_cq = self.cqs[input.index_below(PLACES_PER_KIND)].handle;
        init.recv_cq = self.cqs[input.index_below(PLACES_PER_KIND)].handle;
        if input.one_in(4) {
            init.srq = self.srqs[input.index_below(2)].handle;
        }
        init.cap = ibv_qp_cap {
            max_send_wr: input.mostly_below(32),
            max_recv_wr: input.mostly_below(32),
            max_send_sge: input.mostly_below(5),
            max_recv_sge: input.mostly_below(5),
            max_inline_data: input.mostly_below(128),
        };
        init.qp_type = match input.next_byte() {
            250.. => input.next_u32(),
            byte => [
                IBV_QPT_RC,
                IBV_QPT_UC,
                IBV_QPT_UD,
                IBV_QPT_XRC_SEND,
                IBV_QPT_XRC_RECV,
            ][usize::from(byte) % 5],
        };
        init.sq_sig_all = c_int::from(input.one_in(2));
        init.pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
        let extended = input.one_in(2) || init.qp_type == IBV_QPT_XRC_RECV;
        // SAFETY: as in `make_pd`; the extended attributes begin with the plain ones.
        unsafe {
            let made = if extended {
                init.xrcd = self.xrcds[input.index_below(2)].handle;
                init.comp_mask = match input.next_byte() {
                    240.. => input.next_u32(),
                    _ if init.qp_type == IBV_QPT_XRC_RECV => IBV_QP_INIT_ATTR_XRCD,
                    byte if byte % 2 == 0 => IBV_QP_INIT_ATTR_PD,
                    _ => IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                };
                init.send_ops_flags = if input.one_in(4) {
                    u64::from(input.next_u16())
                } else {
                    0x3ff
                };
                extended!(self.create_qp_ex(self.device.context, &raw mut init))
                    .unwrap_or(null_mut())
            } else {
                (self.tables.symbols.ibv_create_qp)(init.pd, (&raw mut init).cast())
            };
            store_object(&mut self.qps, place, made);
        }
    }

    pub(super) unsafe fn end_qp(&mut self, input: &mut DecisionBytes<'_>) {
        let place = &mut self.qps[input.index_below(QP_PLACES)];
        // SAFETY: as in `make_pd`; the events of the queue pair are acknowledged.
        place.record_destroy_result(unsafe { (self.tables.symbols.ibv_destroy_qp)(place.handle) });
    }

    /// Returns the address of this port.
    pub(super) fn choose_ah_attr(&self, input: &mut DecisionBytes<'_>) -> ibv_ah_attr {
        let mut address = ibv_ah_attr::zeroed();
        address.dlid = if input.one_in(16) {
            input.next_u16()
        } else {
            self.device.lid
        };
        address.port_num = if input.one_in(16) {
            input.next_byte()
        } else {
            1
        };
        address.is_global = u8::from(input.one_in(16));
        address
    }

    pub(super) unsafe fn change_qp(&mut self, input: &mut DecisionBytes<'_>) {
        let place = self.qps[input.index_below(QP_PLACES)];
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = u32::from(input.next_byte() % 9);
        attr.cur_qp_state = u32::from(input.next_byte() % 9);
        attr.port_num = input.next_byte() % 3;
        attr.path_mtu = u32::from(input.next_byte() % 7);
        attr.qp_access_flags = u32::from(input.next_byte());
        attr.dest_qp_num = input.next_u32();
        attr.ah_attr = self.choose_ah_attr(input);
        attr.max_rd_atomic = input.next_byte();
        attr.timeout = input.next_byte();
        let mask = input.next_u32().cast_signed() & 0x1f_ffff;
        // SAFETY: as in `make_pd`.
        let result =
            unsafe { (self.tables.symbols.ibv_modify_qp)(place.handle, &raw mut attr, mask) };
        assert!(place.is_live || result != 0, "a destroyed QP was changed");
    }

    /// Connects two queue pairs, or one with itself, as far as their states permit.
    pub(super) unsafe fn connect_two_qps(&mut self, input: &mut DecisionBytes<'_>) {
        let (a, b) = (input.index_below(QP_PLACES), input.index_below(QP_PLACES));
        let access = 0xe;
        for (from, to) in [(a, b), (b, a)] {
            let (from, to) = (self.qps[from].live_handle(), self.qps[to].live_handle());
            // SAFETY: as in `make_pd`; both are live.
            unsafe {
                let (Some(qp), Some(peer)) = (from.as_ref(), to.as_ref()) else {
                    return;
                };
                let mut attr = ibv_qp_attr::zeroed();
                attr.qp_state = IBV_QPS_INIT;
                attr.port_num = 1;
                attr.qp_access_flags = access;
                attr.qkey = 17;
                attr.path_mtu = IBV_MTU_1024;
                attr.dest_qp_num = peer.qp_num;
                attr.ah_attr.dlid = self.device.lid;
                attr.ah_attr.port_num = 1;
                attr.max_rd_atomic = 4;
                attr.max_dest_rd_atomic = 4;
                attr.min_rnr_timer = 1;
                // Short, so that failing requests have failed by the end of the sequence.
                attr.timeout = 1;
                attr.retry_cnt = input.next_byte() % 8;
                attr.rnr_retry = input.next_byte() % 8;
                let first = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
                let datagram = qp.qp_type == IBV_QPT_UD;
                let reliable = !datagram && qp.qp_type != IBV_QPT_UC;
                let masks = if datagram {
                    [
                        first | IBV_QP_QKEY,
                        IBV_QP_STATE,
                        IBV_QP_STATE | IBV_QP_SQ_PSN,
                    ]
                } else {
                    let rtr = IBV_QP_STATE
                        | IBV_QP_AV
                        | IBV_QP_PATH_MTU
                        | IBV_QP_DEST_QPN
                        | IBV_QP_RQ_PSN;
                    let rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
                    let more = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
                    let again = IBV_QP_TIMEOUT
                        | IBV_QP_RETRY_CNT
                        | IBV_QP_RNR_RETRY
                        | IBV_QP_MAX_QP_RD_ATOMIC;
                    [
                        first | IBV_QP_ACCESS_FLAGS,
                        if reliable { rtr | more } else { rtr },
                        if reliable { rts | again } else { rts },
                    ]
                };
                for (state, mask) in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]
                    .into_iter()
                    .zip(masks)
                {
                    attr.qp_state = state;
                    (self.tables.symbols.ibv_modify_qp)(from, &raw mut attr, mask);
                }
            }
        }
    }

    /// Queries an object.
    pub(super) unsafe fn query_object(&mut self, input: &mut DecisionBytes<'_>) {
        let verbs = self.tables.symbols;
        let context = self.device.context;
        let nowhere = input.one_in(4);
        let index = input.mostly_below(300).cast_signed();
        // SAFETY: as in `make_pd`; results are writable, or NULL, which the software NIC refuses.
        unsafe {
            match input.index_below(8) {
                0 => {
                    let mut attr = ibv_qp_attr::zeroed();
                    let mut init = ibv_qp_init_attr::zeroed();
                    let qp = self.qps[input.index_below(QP_PLACES)];
                    let to = if nowhere { null_mut() } else { &raw mut attr };
                    let mask = index;
                    let result = (verbs.ibv_query_qp)(qp.handle, to, mask, &raw mut init);
                    assert!(qp.is_live || result != 0, "a destroyed QP answered");
                }
                1 => {
                    let mut attr = ibv_srq_attr::zeroed();
                    let srq = self.srqs[input.index_below(2)];
                    let to = if nowhere { null_mut() } else { &raw mut attr };
                    let result = (verbs.ibv_query_srq)(srq.handle, to);
                    assert!(srq.is_live || result != 0, "a destroyed SRQ answered");
                }
                2 => {
                    let mut gid = ibv_gid { raw: [0; 16] };
                    let to = if nowhere { null_mut() } else { &raw mut gid };
                    (verbs.ibv_query_gid)(context, input.next_byte() % 3, index, to);
                }
                3 => {
                    let mut pkey = 0;
                    let to = if nowhere { null_mut() } else { &raw mut pkey };
                    (verbs.ibv_query_pkey)(context, input.next_byte() % 3, index, to);
                }
                4 => {
                    let mut attr = ibv_device_attr::zeroed();
                    let to = if nowhere { null_mut() } else { &raw mut attr };
                    let result = (verbs.ibv_query_device)(context, to);
                    assert_eq!(result != 0, nowhere);
                }
                5 => {
                    let mut attr = ibv_port_attr::zeroed();
                    let to = if nowhere { null_mut() } else { &raw mut attr };
                    (verbs.ibv_query_port)(context, input.next_byte() % 3, to);
                }
                6 => {
                    let mut number = 0;
                    let srq = self.srqs[input.index_below(2)];
                    let to = if nowhere { null_mut() } else { &raw mut number };
                    let _ = extended!(self.get_srq_num(srq.handle, to));
                }
                _ => {
                    let mut attr = ibv_device_attr_ex::zeroed();
                    let to = if nowhere { null_mut() } else { &raw mut attr };
                    let size = size_of::<ibv_device_attr_ex>();
                    let _ = extended!(self.query_device_ex(context, null(), to, size));
                }
            }
        }
    }

    pub(super) unsafe fn make_ah(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(PLACES_PER_KIND);
        if self.ahs[place].is_live {
            return;
        }
        let pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
        let mut attr = self.choose_ah_attr(input);
        // SAFETY: as in `make_pd`.
        let made = unsafe { (self.tables.symbols.ibv_create_ah)(pd, &raw mut attr) };
        store_object(&mut self.ahs, place, made);
    }

    pub(super) unsafe fn end_ah(&mut self, input: &mut DecisionBytes<'_>) {
        let place = &mut self.ahs[input.index_below(PLACES_PER_KIND)];
        // SAFETY: as in `make_pd`.
        place.record_destroy_result(unsafe { (self.tables.symbols.ibv_destroy_ah)(place.handle) });
    }

    /// Attaches a queue pair to a multicast group, or detaches it.
    pub(super) unsafe fn attach_or_detach_mcast(&mut self, input: &mut DecisionBytes<'_>) {
        let qp = self.qps[input.index_below(QP_PLACES)];
        let mut gid = ibv_gid { raw: [0xff; 16] };
        // SAFETY: as in `make_pd`; any bytes are a GID.
        unsafe {
            gid.raw[15] = input.next_byte() % 4;
            let result = if input.one_in(2) {
                (self.tables.symbols.ibv_attach_mcast)(qp.handle, &raw const gid, 0xc001)
            } else {
                (self.tables.symbols.ibv_detach_mcast)(qp.handle, &raw const gid, 0xc001)
            };
            assert!(qp.is_live || result != 0, "a destroyed QP joined a group");
        }
    }
}
