//! Raw packets: queue pairs, flows, work queues and frames, on an Ethernet port.
//!
//! A context does not receive its own frames, so each object belongs to one of two contexts.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs_abi::*;

use super::device::Device;
use super::import_records::means_destroyed_elsewhere;
use super::object_place::{ObjectPlace, store_object};
use super::sizes::{ARENA_BYTES, MAX_POLL_COMPLETIONS};
use crate::input::DecisionBytes;
use crate::tables::ProviderTables;

/// Number of objects of each kind in each context.
const OBJECTS_PER_KIND: usize = 2;

/// The raw packet objects of a sequence.
pub(super) struct RawPacketObjects {
    objects_by_context: [Option<RawObjects>; 2],
}

/// The raw packet objects of one context.
struct RawObjects {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    cq: *mut ibv_cq,
    /// The second queue pair distributes received packets over work queues (RSS).
    qps: [ObjectPlace<ibv_qp>; OBJECTS_PER_KIND],
    flows: [ObjectPlace<ibv_flow>; OBJECTS_PER_KIND],
    wqs: [ObjectPlace<ibv_wq>; OBJECTS_PER_KIND],
    rwq_ind_tables: [ObjectPlace<ibv_rwq_ind_table>; OBJECTS_PER_KIND],
}

/// Calls an operation of a side's extended context; `None` if the context lacks it.
macro_rules! on {
    ($side:ident.$name:ident($( $arg:expr ),*)) => {
        (*verbs_get_ctx($side.context)).$name.map(|operation| operation($( $arg ),*))
    };
}

impl RawPacketObjects {
    pub(super) const NONE: Self = Self {
        objects_by_context: [const { None }; 2],
    };

    /// Calls one verb, in a world whose memory begins at `base`.
    pub(super) unsafe fn call_one_verb(
        &mut self,
        (tables, device): (ProviderTables, &Device),
        base: usize,
        input: &mut DecisionBytes<'_>,
    ) {
        let which = input.index_below(2);
        let context = device.raw_packet_contexts[which];
        // SAFETY: as in `World::call_one_verb`; every handle of a side is live, or was destroyed through its place.
        unsafe {
            let side = self.objects_by_context[which]
                .get_or_insert_with(|| RawObjects::new(tables, context, base));
            let place = input.index_below(OBJECTS_PER_KIND);
            match input.index_below(10) {
                0 => side.make_qp(tables, input, place),
                1 => {
                    let errno = (tables.symbols.ibv_destroy_qp)(side.qps[place].handle);
                    side.qps[place].record_destroy_result(errno);
                }
                2 => side.make_flow(input, place),
                3 => {
                    let flow = side.flows[place].handle;
                    let errno = on!(side.ibv_destroy_flow(flow)).unwrap_or(libc::EOPNOTSUPP);
                    side.flows[place].record_destroy_result(errno);
                }
                4 => side.post_recv_on_qp_or_wq(input, place, base),
                5 | 6 => side.post_frame(input, base),
                7 => side.make_end_or_modify_wq(input, place),
                8 => side.make_or_end_rwq_ind_table(input, place),
                _ => side.poll(),
            }
        }
    }

    /// Destroys the objects in each side's domain, in the right order.
    pub(super) fn destroy_all(&mut self, verbs: &Symbols) {
        for side in self.objects_by_context.iter_mut().flatten() {
            macro_rules! end {
                ($places:ident, $destroy:expr) => {
                    for place in &mut side.$places {
                        if place.is_live {
                            let handle = place.handle;
                            let errno: c_int = $destroy(handle);
                            assert_eq!(errno, 0, "{} is in use", stringify!($places));
                        }
                    }
                };
            }
            // SAFETY: the handles are live and no longer used by other objects.
            unsafe {
                let all = &*verbs_get_ctx(side.context);
                if let Some(destroy_flow) = all.ibv_destroy_flow {
                    end!(flows, destroy_flow);
                }
                end!(qps, verbs.ibv_destroy_qp);
                if let Some(destroy_table) = all.destroy_rwq_ind_table {
                    end!(rwq_ind_tables, destroy_table);
                }
                if let Some(destroy_wq) = all.destroy_wq {
                    end!(wqs, destroy_wq);
                }
                assert_eq!((verbs.ibv_destroy_cq)(side.cq), 0, "the queue is in use");
                let errno = (verbs.ibv_dereg_mr)(side.mr);
                assert!(
                    errno == 0 || means_destroyed_elsewhere(errno),
                    "dereg_mr: {errno}"
                );
            }
        }
    }

    /// Destroys the domains, which may have been imported and destroyed through the imported handle.
    pub(super) fn destroy_protection_domains(&mut self, verbs: &Symbols) {
        for side in self.objects_by_context.iter_mut().filter_map(Option::take) {
            // SAFETY: the handle is live, and the domain has no objects left.
            let errno = unsafe { (verbs.ibv_dealloc_pd)(side.pd) };
            assert!(
                errno == 0 || means_destroyed_elsewhere(errno),
                "dealloc_pd: {errno}"
            );
        }
    }
}

impl RawObjects {
    unsafe fn new(tables: ProviderTables, context: *mut ibv_context, base: usize) -> Self {
        let verbs = tables.symbols;
        // SAFETY: the context is live, and the memory belongs to the world.
        unsafe {
            let pd = (verbs.ibv_alloc_pd)(context);
            let addr = std::ptr::with_exposed_provenance_mut(base);
            let mr = (verbs.ibv_reg_mr)(pd, addr, ARENA_BYTES, IBV_ACCESS_LOCAL_WRITE);
            let cq = (verbs.ibv_create_cq)(context, 64, null_mut(), null_mut(), 0);
            assert!(!pd.is_null() && !mr.is_null() && !cq.is_null());
            Self {
                context,
                pd,
                mr,
                cq,
                qps: [ObjectPlace::EMPTY; OBJECTS_PER_KIND],
                flows: [ObjectPlace::EMPTY; OBJECTS_PER_KIND],
                wqs: [ObjectPlace::EMPTY; OBJECTS_PER_KIND],
                rwq_ind_tables: [ObjectPlace::EMPTY; OBJECTS_PER_KIND],
            }
        }
    }

    /// Makes a queue pair that is ready to send; the second one distributes received packets (RSS).
    unsafe fn make_qp(
        &mut self,
        tables: ProviderTables,
        input: &mut DecisionBytes<'_>,
        place: usize,
    ) {
        if self.qps[place].is_live {
            return;
        }
        let verbs = tables.symbols;
        // SAFETY: as in `step`.
        unsafe {
            let qp = if place == 0 {
                let mut attr = ibv_qp_init_attr::zeroed();
                attr.qp_type = IBV_QPT_RAW_PACKET;
                attr.send_cq = self.cq;
                attr.recv_cq = self.cq;
                attr.cap = ibv_qp_cap {
                    max_send_wr: 8,
                    max_recv_wr: 8,
                    max_send_sge: 2,
                    max_recv_sge: 2,
                    max_inline_data: 64,
                };
                (verbs.ibv_create_qp)(self.pd, &raw mut attr)
            } else {
                let mut key = [input.next_byte() | 1; 40];
                let mut attr = ibv_qp_init_attr_ex::zeroed();
                attr.qp_type = IBV_QPT_RAW_PACKET;
                attr.pd = self.pd;
                attr.comp_mask =
                    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
                attr.rwq_ind_tbl = self.rwq_ind_tables[input.index_below(OBJECTS_PER_KIND)].handle;
                attr.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
                attr.rx_hash_conf.rx_hash_key = key.as_mut_ptr();
                attr.rx_hash_conf.rx_hash_key_len = if input.one_in(8) { 39 } else { 40 };
                attr.rx_hash_conf.rx_hash_fields_mask = u64::from(input.next_byte());
                let all = verbs_get_ctx(self.context);
                let Some(create) = (*all).create_qp_ex else {
                    return;
                };
                create(self.context, &raw mut attr)
            };
            store_object(&mut self.qps, place, qp);
            if qp.is_null() || input.one_in(8) {
                return;
            }
            for (state, port) in [
                (IBV_QPS_INIT, IBV_QP_PORT),
                (IBV_QPS_RTR, 0),
                (IBV_QPS_RTS, 0),
            ] {
                let mut attr = ibv_qp_attr::zeroed();
                attr.qp_state = state;
                attr.port_num = 1;
                (verbs.ibv_modify_qp)(qp, &raw mut attr, IBV_QP_STATE | port);
            }
        }
    }

    /// Makes a flow of any kind with any specifications, each as long as its size field says.
    unsafe fn make_flow(&mut self, input: &mut DecisionBytes<'_>, place: usize) {
        /// Specification types with their sizes; one type is invalid.
        const SPECS: [(u32, usize); 9] = [
            (IBV_FLOW_SPEC_ETH, size_of::<ibv_flow_spec_eth>()),
            (IBV_FLOW_SPEC_IPV4, size_of::<ibv_flow_spec_ipv4>()),
            (IBV_FLOW_SPEC_IPV4_EXT, size_of::<ibv_flow_spec_ipv4_ext>()),
            (IBV_FLOW_SPEC_IPV6, size_of::<ibv_flow_spec_ipv6>()),
            (IBV_FLOW_SPEC_TCP, size_of::<ibv_flow_spec_tcp_udp>()),
            (IBV_FLOW_SPEC_UDP, size_of::<ibv_flow_spec_tcp_udp>()),
            (
                IBV_FLOW_SPEC_ACTION_TAG,
                size_of::<ibv_flow_spec_action_tag>(),
            ),
            (
                IBV_FLOW_SPEC_ACTION_DROP,
                size_of::<ibv_flow_spec_action_drop>(),
            ),
            (0x33, 64),
        ];
        if self.flows[place].is_live {
            return;
        }
        let qp = self.qps[input.index_below(OBJECTS_PER_KIND)].handle;
        let mut attr = ibv_flow_attr::zeroed();
        attr.r#type = input.mostly_below(4);
        attr.priority = u16::from(input.next_byte() % 4);
        attr.port = if input.one_in(16) {
            input.next_byte()
        } else {
            1
        };
        attr.flags = input.mostly_below(3) & !1;
        attr.num_of_specs = input.next_byte() % 4;
        let mut bytes = vec![0; size_of::<ibv_flow_attr>()];
        for _ in 0..attr.num_of_specs {
            let (kind, size) = SPECS[input.index_below(SPECS.len())];
            let size = if input.one_in(16) {
                input.index_below(size)
            } else {
                size
            };
            let begin = bytes.len();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(u16::try_from(size).unwrap_or(0).to_ne_bytes());
            // The values to match, mostly zeros.
            let end = begin + size;
            while bytes.len() < end {
                let byte = input.next_byte();
                bytes.push(if byte < 0xf0 { 0 } else { byte });
            }
            bytes.truncate(end.max(begin));
        }
        // Zeros follow, so that a specification with a too short size can still be read as a whole.
        bytes.resize(bytes.len() + 256, 0);
        // SAFETY: as in `step`; the buffer starts with room for the attributes.
        unsafe {
            bytes
                .as_mut_ptr()
                .cast::<ibv_flow_attr>()
                .write_unaligned(attr);
            let made = on!(self.ibv_create_flow(qp, bytes.as_mut_ptr().cast()));
            store_object(&mut self.flows, place, made.unwrap_or_default());
        }
    }

    fn sge(&self, base: usize, offset: usize, length: u32) -> ibv_sge {
        ibv_sge {
            addr: (base + offset % ARENA_BYTES) as u64,
            length,
            // SAFETY: the region is live.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    /// Posts a receive to the first queue pair or to a work queue.
    unsafe fn post_recv_on_qp_or_wq(
        &mut self,
        input: &mut DecisionBytes<'_>,
        place: usize,
        base: usize,
    ) {
        let length = if input.one_in(4) { 64 } else { 2048 };
        let mut sge = self.sge(base, ARENA_BYTES / 2, length);
        let mut wr = ibv_recv_wr::zeroed();
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        let mut bad = null_mut();
        let wq = self.wqs[place].live_handle();
        // SAFETY: as in `step`.
        unsafe {
            if input.one_in(2) && !wq.is_null() {
                if let Some(post_recv) = (*wq).post_recv {
                    post_recv(wq, &raw mut wr, &raw mut bad);
                }
            } else if self.qps[0].is_live {
                ibv_post_recv(self.qps[0].handle, &raw mut wr, &raw mut bad);
            }
        }
    }

    /// Sends a frame of any bytes.
    unsafe fn post_frame(&mut self, input: &mut DecisionBytes<'_>, base: usize) {
        /// EtherTypes: VLAN tags, IPv4, IPv6, and an invalid one.
        const TYPES: [[u8; 2]; 5] = [[0x81, 0], [0x88, 0xa8], [8, 0], [0x86, 0xdd], [0, 0]];
        if !self.qps[0].is_live {
            return;
        }
        let len = usize::from(input.next_u16()) % 300;
        let mut frame: Vec<u8> = (0..len).map(|_| input.next_byte()).collect();
        if let Some(place) = frame.get_mut(12..14) {
            place.copy_from_slice(&TYPES[input.index_below(TYPES.len())]);
        }
        if let Some(version) = frame.get_mut(14) {
            *version = [0x45, 0x46, 0x60, *version][input.index_below(4)];
        }
        let length = match input.next_byte() {
            255 => 1 << 14,
            _ => u32::try_from(len).unwrap_or(0),
        };
        let mut sge = self.sge(base, 0, length);
        let mut wr = ibv_send_wr::zeroed();
        wr.opcode = if input.one_in(16) {
            input.mostly_below(16)
        } else {
            IBV_WR_SEND
        };
        wr.send_flags = u32::from(input.next_byte() % 32);
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        let mut bad = null_mut();
        // SAFETY: as in `step`; the memory belongs to the world, and no other code writes to it now.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(base)
                .copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            ibv_post_send(self.qps[0].handle, &raw mut wr, &raw mut bad);
        }
    }

    unsafe fn make_end_or_modify_wq(&mut self, input: &mut DecisionBytes<'_>, place: usize) {
        // SAFETY: as in `step`.
        unsafe {
            match input.index_below(4) {
                0 if !self.wqs[place].is_live => {
                    let mut attr = ibv_wq_init_attr::zeroed();
                    attr.max_wr = input.mostly_below(16);
                    attr.max_sge = input.mostly_below(4);
                    attr.pd = self.pd;
                    attr.cq = self.cq;
                    let made = on!(self.create_wq(self.context, &raw mut attr));
                    store_object(&mut self.wqs, place, made.unwrap_or_default());
                }
                1 => {
                    let wq = self.wqs[place].handle;
                    let errno = on!(self.destroy_wq(wq)).unwrap_or(libc::EOPNOTSUPP);
                    self.wqs[place].record_destroy_result(errno);
                }
                _ => {
                    let mut attr = ibv_wq_attr::zeroed();
                    attr.attr_mask = u32::from(input.next_byte() % 8) | IBV_WQ_ATTR_STATE;
                    attr.wq_state = input.mostly_below(3);
                    attr.curr_wq_state = input.mostly_below(3);
                    on!(self.modify_wq(self.wqs[place].handle, &raw mut attr));
                }
            }
        }
    }

    unsafe fn make_or_end_rwq_ind_table(&mut self, input: &mut DecisionBytes<'_>, place: usize) {
        // SAFETY: as in `step`; the table has as many entries as its size says.
        unsafe {
            if self.rwq_ind_tables[place].is_live || input.one_in(4) {
                let table = self.rwq_ind_tables[place].handle;
                let errno = on!(self.destroy_rwq_ind_table(table)).unwrap_or(libc::EOPNOTSUPP);
                self.rwq_ind_tables[place].record_destroy_result(errno);
                return;
            }
            let log_ind_tbl_size = input.mostly_below(4);
            let mut entries = [null_mut(); 128];
            for entry in &mut entries {
                *entry = self.wqs[input.index_below(OBJECTS_PER_KIND)].handle;
            }
            let mut attr = ibv_rwq_ind_table_init_attr {
                log_ind_tbl_size,
                ind_tbl: entries.as_mut_ptr(),
                comp_mask: 0,
            };
            let made = on!(self.create_rwq_ind_table(self.context, &raw mut attr));
            store_object(&mut self.rwq_ind_tables, place, made.unwrap_or_default());
        }
    }

    unsafe fn poll(&mut self) {
        let mut wc = [ibv_wc::zeroed(); MAX_POLL_COMPLETIONS];
        // SAFETY: as in `step`; `wc` has as many elements as the call may write.
        unsafe {
            ibv_poll_cq(
                self.cq,
                c_int::try_from(MAX_POLL_COMPLETIONS).unwrap_or(0),
                wc.as_mut_ptr(),
            )
        };
    }
}
