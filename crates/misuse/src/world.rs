//! The objects of a sequence: each step calls a verb on one of them, and at the end all are destroyed.

mod data_path;
mod device;
mod import_records;
mod imports;
mod memory;
mod object_place;
mod objects;
mod queue_pairs;
mod queues;
mod raw_packets;
mod sizes;

use std::ffi::c_int;

use verbs_abi::*;

use crate::input::DecisionBytes;

pub(crate) use device::Device;
pub(crate) use objects::World;

impl World<'_> {
    /// Calls one verb.
    pub(crate) fn call_one_verb(&mut self, input: &mut DecisionBytes<'_>) {
        // SAFETY: handles are NULL or live; verbs that create, change or destroy objects may also get
        // destroyed handles. Other pointers lead to places of the right type.
        unsafe {
            let verb = input.next_byte();
            // Verbs added later have their own numbers, so that kept inputs keep their meaning.
            if verb >= 240 {
                return self.import_or_unimport_object(input);
            }
            if verb == 239 {
                return self.post_tag_op_or_write_tag_header(input);
            }
            if verb == 238 && self.device.has_ethernet {
                let (base, shown) = (self.arena_start(), (self.tables, self.device));
                return self.raw_packet_objects.call_one_verb(shown, base, input);
            }
            match verb % 40 {
                0 => self.make_pd(input),
                1 => self.end_pd(input),
                2 | 3 => self.register_mr(input),
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
                20 | 21 => self.connect_two_qps(input),
                22 => self.query_object(input),
                23 => self.make_ah(input),
                24 => self.end_ah(input),
                25..=29 => self.post_send(input),
                30 | 31 => self.post_recv(input),
                32 | 33 => self.poll(input),
                34 => self.arm_cq(input),
                35 => self.fetch_and_ack_events(input),
                36 => self.make_bind_or_end_mw(input),
                37 => self.attach_or_detach_mcast(input),
                38 => self.make_or_end_domains_and_dm(input),
                _ => self.post_send_extended(input),
            }
        }
    }

    /// Destroys everything in the right order, and panics if an object is still in use.
    pub(crate) fn destroy_all(mut self) {
        /// Destroys the live objects of one kind.
        macro_rules! end_all {
            ($places:expr, $destroy:expr) => {
                for place in &mut $places {
                    if place.is_live {
                        let errno: c_int = $destroy(place.handle);
                        assert_eq!(errno, 0, "{} is in use", stringify!($places));
                    }
                }
            };
        }
        let verbs = self.tables.symbols;
        // SAFETY: as in `step`.
        unsafe { self.fetch_and_ack_events(&mut DecisionBytes::new(&[])) };
        for qp in self.qps.iter().filter(|qp| qp.is_live) {
            for last in 0..4 {
                let mut gid = ibv_gid { raw: [0xff; 16] };
                // SAFETY: any bytes are a GID; the queue pair is live, and need not be in the group.
                unsafe {
                    gid.raw[15] = last;
                    (verbs.ibv_detach_mcast)(qp.handle, &raw const gid, 0xc001);
                }
            }
        }
        self.raw_packet_objects.destroy_all(verbs);
        // SAFETY: the handles are live and no longer used by other objects; the operations belong to the
        // context that made them.
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
            self.destroy_remaining_pds_and_dms();
            self.raw_packet_objects.destroy_protection_domains(verbs);
            if let Some(dealloc_td) = (*all).dealloc_td {
                end_all!(self.tds, dealloc_td);
            }
        }
    }
}
