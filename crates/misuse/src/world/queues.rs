//! Completion queues and channels, and shared receive queues.

use std::ffi::c_int;
use std::ptr::null_mut;

use verbs_abi::*;

use super::device::set_nonblocking;
use super::object_place::store_object;
use super::objects::{World, extended};
use super::sizes::PLACES_PER_KIND;
use crate::input::DecisionBytes;

impl World<'_> {
    pub(super) unsafe fn make_cq(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(PLACES_PER_KIND);
        if self.cqs[place].is_live {
            return;
        }
        let channel = self.channels[input.index_below(2)].handle;
        let channel = if input.one_in(2) { channel } else { null_mut() };
        let context = self.device.context;
        // SAFETY: as in `make_pd`.
        unsafe {
            let made = if input.one_in(3) {
                let mut attr = ibv_cq_init_attr_ex::zeroed();
                attr.cqe = input.mostly_below(64);
                attr.channel = channel;
                attr.wc_flags = u64::from(input.next_u16());
                extended!(self.create_cq_ex(context, &raw mut attr))
                    .unwrap_or(null_mut())
                    .cast()
            } else {
                let cqe = input.mostly_below(64).cast_signed();
                let vector = c_int::from(input.one_in(16));
                (self.tables.symbols.ibv_create_cq)(context, cqe, null_mut(), channel, vector)
            };
            store_object(&mut self.cqs, place, made);
        }
    }

    pub(super) unsafe fn end_cq(&mut self, input: &mut DecisionBytes<'_>) {
        let place = &mut self.cqs[input.index_below(PLACES_PER_KIND)];
        // SAFETY: as in `make_pd`; the events of the queue are acknowledged.
        place.record_destroy_result(unsafe { (self.tables.symbols.ibv_destroy_cq)(place.handle) });
    }

    pub(super) unsafe fn change_cq(&mut self, input: &mut DecisionBytes<'_>) {
        let place = self.cqs[input.index_below(PLACES_PER_KIND)];
        // SAFETY: as in `make_pd`.
        let result = unsafe {
            if input.one_in(2) {
                let mut attr = ibv_modify_cq_attr::zeroed();
                attr.attr_mask = u32::from(input.next_byte() % 3);
                attr.moderate.cq_count = input.next_u16();
                // A long period would delay the end of the sequence.
                attr.moderate.cq_period = input.next_byte().into();
                extended!(self.modify_cq(place.handle, &raw mut attr)).unwrap_or(libc::EOPNOTSUPP)
            } else {
                let cqe = input.mostly_below(64).cast_signed();
                (self.tables.symbols.ibv_resize_cq)(place.handle, cqe)
            }
        };
        assert!(place.is_live || result != 0, "a destroyed CQ was changed");
    }

    pub(super) unsafe fn make_channel(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(2);
        if !self.channels[place].is_live {
            // SAFETY: as in `make_pd`.
            unsafe {
                let made = (self.tables.symbols.ibv_create_comp_channel)(self.device.context);
                if let Some(channel) = made.as_ref() {
                    set_nonblocking(channel.fd);
                }
                store_object(&mut self.channels, place, made);
            }
        }
    }

    pub(super) unsafe fn end_channel(&mut self, input: &mut DecisionBytes<'_>) {
        let place = &mut self.channels[input.index_below(2)];
        // SAFETY: as in `make_pd`.
        place.record_destroy_result(unsafe {
            (self.tables.symbols.ibv_destroy_comp_channel)(place.handle)
        });
    }

    pub(super) unsafe fn make_srq(&mut self, input: &mut DecisionBytes<'_>) {
        let place = input.index_below(2);
        if self.srqs[place].is_live {
            return;
        }
        let pd = self.pds[input.index_below(PLACES_PER_KIND)].handle;
        let attr = ibv_srq_attr {
            max_wr: input.mostly_below(32),
            max_sge: input.mostly_below(4),
            srq_limit: input.mostly_below(32),
        };
        // SAFETY: as in `make_pd`.
        unsafe {
            let made = if input.one_in(3) {
                let mut init = ibv_srq_init_attr_ex::zeroed();
                init.attr = attr;
                init.comp_mask = u32::from(input.next_byte() & 0x1f);
                init.srq_type = u32::from(input.next_byte() % 3);
                init.pd = pd;
                init.xrcd = self.xrcds[input.index_below(2)].handle;
                init.cq = self.cqs[input.index_below(PLACES_PER_KIND)].handle;
                init.tm_cap = ibv_tm_cap {
                    max_num_tags: 4,
                    max_ops: 4,
                };
                extended!(self.create_srq_ex(self.device.context, &raw mut init))
                    .unwrap_or(null_mut())
            } else {
                let mut init = ibv_srq_init_attr::zeroed();
                init.attr = attr;
                (self.tables.symbols.ibv_create_srq)(pd, &raw mut init)
            };
            store_object(&mut self.srqs, place, made);
        }
    }

    /// Executes an operation on a tag list, or writes a tag matching header into registered memory.
    pub(super) unsafe fn post_tag_op_or_write_tag_header(&mut self, input: &mut DecisionBytes<'_>) {
        let place = self.srqs[input.index_below(2)];
        let mut sges = [self.choose_sge(input), self.choose_sge(input)];
        if input.one_in(2) {
            let at = usize::from(input.next_u16()) % (self.arena.len() - 1);
            self.arena[at] = u64::from(input.next_byte() % 5);
            self.arena[at + 1] = u64::from(input.next_byte() % 4).to_be();
            return;
        }
        let mut wr = ibv_ops_wr::zeroed();
        wr.wr_id = 1;
        wr.opcode = u32::from(input.next_byte() % 4);
        wr.flags = c_int::from(input.next_byte() % 5);
        wr.tm.unexpected_cnt = input.mostly_below(3);
        wr.tm.handle = input.mostly_below(8);
        wr.tm.add = ibv_ops_wr_tm_add {
            recv_wr_id: 2,
            sg_list: sges.as_mut_ptr(),
            num_sge: c_int::from(input.next_byte() % 3),
            tag: u64::from(input.next_byte() % 4),
            mask: u64::from(input.next_byte() % 4),
        };
        let mut bad = null_mut();
        // SAFETY: as in `make_pd`; the list has one element.
        unsafe {
            if place.is_live {
                extended!(self.post_srq_ops(place.handle, &raw mut wr, &raw mut bad));
            }
        }
    }

    pub(super) unsafe fn end_srq(&mut self, input: &mut DecisionBytes<'_>) {
        let place = &mut self.srqs[input.index_below(2)];
        // SAFETY: as in `make_pd`; the events of the queue are acknowledged.
        place.record_destroy_result(unsafe { (self.tables.symbols.ibv_destroy_srq)(place.handle) });
    }

    pub(super) unsafe fn change_srq(&mut self, input: &mut DecisionBytes<'_>) {
        let place = self.srqs[input.index_below(2)];
        let mut attr = ibv_srq_attr {
            max_wr: input.mostly_below(32),
            max_sge: input.mostly_below(4),
            srq_limit: input.mostly_below(32),
        };
        let mask = c_int::from(input.next_byte() % 5);
        // SAFETY: as in `make_pd`.
        let result =
            unsafe { (self.tables.symbols.ibv_modify_srq)(place.handle, &raw mut attr, mask) };
        assert!(place.is_live || result != 0, "a destroyed SRQ was changed");
    }
}
