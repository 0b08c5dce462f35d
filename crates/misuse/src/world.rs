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

/// The device under test, opened once.
pub(crate) struct Device {
    context: *mut ibv_context,
    lid: u16,
}

// SAFETY: a context may be used by any thread (libibverbs is thread safe).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn open(tables: Tables) -> Self {
        let verbs = tables.symbols;
        // SAFETY: as the man pages say, with places for all results.
        unsafe {
            let mut count = 0;
            let list = (verbs.ibv_get_device_list)(&raw mut count);
            assert!(!list.is_null() && count > 0, "the provider has no device");
            let context = (verbs.ibv_open_device)(*list);
            assert!(!context.is_null(), "the device opens");
            (verbs.ibv_free_device_list)(list);
            unblock((*context).async_fd);
            let mut port = ibv_port_attr::zeroed();
            assert_eq!((verbs.ibv_query_port)(context, 1, &raw mut port), 0);
            Self {
                context,
                lid: port.lid,
            }
        }
    }
}

/// Has reads of a descriptor return at once.
fn unblock(fd: c_int) {
    // SAFETY: only the descriptor's flags are changed.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

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
            match input.byte() % 40 {
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

    unsafe fn make_pd(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(PLACES);
        if self.pds[place].live {
            return;
        }
        // SAFETY: contract of `step`, here and in all that follows.
        unsafe {
            let made = if input.rarely(4) {
                let mut attr: ibv_parent_domain_init_attr = ibv_parent_domain_init_attr::zeroed();
                attr.pd = self.pds[input.one_of(PLACES)].handle;
                attr.td = self.tds[input.one_of(2)].handle;
                attr.comp_mask = if input.rarely(8) { input.word() } else { 0 };
                extended!(self.alloc_parent_domain(self.device.context, &raw mut attr))
                    .unwrap_or(null_mut())
            } else {
                (self.tables.symbols.ibv_alloc_pd)(self.device.context)
            };
            fill(&mut self.pds, place, made);
        }
    }

    unsafe fn end_pd(&mut self, input: &mut Input<'_>) {
        let place = &mut self.pds[input.one_of(PLACES)];
        // SAFETY: as in `make_pd`.
        place.ended(unsafe { (self.tables.symbols.ibv_dealloc_pd)(place.handle) });
    }

    unsafe fn register(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(PLACES);
        if self.mrs[place].live {
            return;
        }
        let pd = self.pds[input.one_of(PLACES)].handle;
        let (offset, len, access) = self.range(input);
        let addr = self.at(offset);
        // SAFETY: as in `make_pd`; the range lies in the arena, or is too long to be anything.
        unsafe {
            let made = match input.one_of(4) {
                0 => (self.tables.later.ibv_reg_mr_iova2)(
                    pd,
                    addr,
                    len,
                    input.word().into(),
                    access.cast_unsigned(),
                ),
                1 => {
                    let dm = self.dms[input.one_of(2)].handle;
                    let access = (access | IBV_ACCESS_ZERO_BASED).cast_unsigned();
                    extended!(self.reg_dm_mr(pd, dm, u64::from(input.byte()), len, access))
                        .unwrap_or(null_mut())
                }
                _ => (self.tables.symbols.ibv_reg_mr)(pd, addr, len, access),
            };
            fill(&mut self.mrs, place, made);
        }
        self.ranges[place] = Range {
            addr: addr.addr(),
            len,
        };
    }

    /// A range of the arena, and access rights.
    fn range(&self, input: &mut Input<'_>) -> (usize, usize, c_int) {
        let offset = usize::from(input.short()) % ARENA;
        let len = usize::from(input.short()) % (ARENA - offset + 1);
        let access = c_int::from(input.byte() & 0x3f);
        let access = if input.rarely(2) {
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

    unsafe fn end_mr(&mut self, input: &mut Input<'_>) {
        let place = &mut self.mrs[input.one_of(PLACES)];
        // SAFETY: as in `make_pd`.
        place.ended(unsafe { (self.tables.symbols.ibv_dereg_mr)(place.handle) });
    }

    unsafe fn change_mr(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(PLACES);
        let pd = self.pds[input.one_of(PLACES)].handle;
        let flags = c_int::from(input.byte() % 9);
        let (offset, len, access) = self.range(input);
        let addr = self.at(offset);
        let region = self.mrs[place];
        // SAFETY: as in `make_pd`.
        let result = unsafe {
            let mr = region.handle;
            (self.tables.symbols.ibv_rereg_mr)(mr, flags, pd, addr, len, access)
        };
        if result == 0 {
            assert!(region.live, "a destroyed region was changed");
            if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
                self.ranges[place] = Range {
                    addr: addr.addr(),
                    len,
                };
            }
        }
    }

    unsafe fn make_cq(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(PLACES);
        if self.cqs[place].live {
            return;
        }
        let channel = self.channels[input.one_of(2)].handle;
        let channel = if input.rarely(2) { channel } else { null_mut() };
        let context = self.device.context;
        // SAFETY: as in `make_pd`.
        unsafe {
            let made = if input.rarely(3) {
                let mut attr = ibv_cq_init_attr_ex::zeroed();
                attr.cqe = input.number(64);
                attr.channel = channel;
                attr.wc_flags = u64::from(input.short());
                extended!(self.create_cq_ex(context, &raw mut attr))
                    .unwrap_or(null_mut())
                    .cast()
            } else {
                let cqe = input.number(64).cast_signed();
                let vector = c_int::from(input.rarely(16));
                (self.tables.symbols.ibv_create_cq)(context, cqe, null_mut(), channel, vector)
            };
            fill(&mut self.cqs, place, made);
        }
    }

    unsafe fn end_cq(&mut self, input: &mut Input<'_>) {
        let place = &mut self.cqs[input.one_of(PLACES)];
        // SAFETY: as in `make_pd`; its events are acknowledged.
        place.ended(unsafe { (self.tables.symbols.ibv_destroy_cq)(place.handle) });
    }

    unsafe fn change_cq(&mut self, input: &mut Input<'_>) {
        let place = self.cqs[input.one_of(PLACES)];
        // SAFETY: as in `make_pd`.
        let result = unsafe {
            if input.rarely(2) {
                let mut attr = ibv_modify_cq_attr::zeroed();
                attr.attr_mask = u32::from(input.byte() % 3);
                attr.moderate.cq_count = input.short();
                // A long period would be waited for at the end of events that nobody needs.
                attr.moderate.cq_period = input.byte().into();
                extended!(self.modify_cq(place.handle, &raw mut attr)).unwrap_or(libc::EOPNOTSUPP)
            } else {
                let cqe = input.number(64).cast_signed();
                (self.tables.symbols.ibv_resize_cq)(place.handle, cqe)
            }
        };
        assert!(place.live || result != 0, "a destroyed CQ was changed");
    }

    unsafe fn make_channel(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(2);
        if !self.channels[place].live {
            // SAFETY: as in `make_pd`.
            unsafe {
                let made = (self.tables.symbols.ibv_create_comp_channel)(self.device.context);
                if let Some(channel) = made.as_ref() {
                    unblock(channel.fd);
                }
                fill(&mut self.channels, place, made);
            }
        }
    }

    unsafe fn end_channel(&mut self, input: &mut Input<'_>) {
        let place = &mut self.channels[input.one_of(2)];
        // SAFETY: as in `make_pd`.
        place.ended(unsafe { (self.tables.symbols.ibv_destroy_comp_channel)(place.handle) });
    }

    unsafe fn make_srq(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(2);
        if self.srqs[place].live {
            return;
        }
        let pd = self.pds[input.one_of(PLACES)].handle;
        let attr = ibv_srq_attr {
            max_wr: input.number(32),
            max_sge: input.number(4),
            srq_limit: input.number(32),
        };
        // SAFETY: as in `make_pd`.
        unsafe {
            let made = if input.rarely(3) {
                let mut init = ibv_srq_init_attr_ex::zeroed();
                init.attr = attr;
                init.comp_mask = u32::from(input.byte() & 0x1f);
                init.srq_type = u32::from(input.byte() % 3);
                init.pd = pd;
                init.xrcd = self.xrcds[input.one_of(2)].handle;
                init.cq = self.cqs[input.one_of(PLACES)].handle;
                extended!(self.create_srq_ex(self.device.context, &raw mut init))
                    .unwrap_or(null_mut())
            } else {
                let mut init = ibv_srq_init_attr::zeroed();
                init.attr = attr;
                (self.tables.symbols.ibv_create_srq)(pd, &raw mut init)
            };
            fill(&mut self.srqs, place, made);
        }
    }

    unsafe fn end_srq(&mut self, input: &mut Input<'_>) {
        let place = &mut self.srqs[input.one_of(2)];
        // SAFETY: as in `make_pd`; its events are acknowledged.
        place.ended(unsafe { (self.tables.symbols.ibv_destroy_srq)(place.handle) });
    }

    unsafe fn change_srq(&mut self, input: &mut Input<'_>) {
        let place = self.srqs[input.one_of(2)];
        let mut attr = ibv_srq_attr {
            max_wr: input.number(32),
            max_sge: input.number(4),
            srq_limit: input.number(32),
        };
        let mask = c_int::from(input.byte() % 5);
        // SAFETY: as in `make_pd`.
        let result =
            unsafe { (self.tables.symbols.ibv_modify_srq)(place.handle, &raw mut attr, mask) };
        assert!(place.live || result != 0, "a destroyed SRQ was changed");
    }

    unsafe fn make_qp(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(QPS);
        if self.qps[place].live {
            return;
        }
        let mut init = ibv_qp_init_attr_ex::zeroed();
        init.send_cq = self.cqs[input.one_of(PLACES)].handle;
        init.recv_cq = self.cqs[input.one_of(PLACES)].handle;
        if input.rarely(4) {
            init.srq = self.srqs[input.one_of(2)].handle;
        }
        init.cap = ibv_qp_cap {
            max_send_wr: input.number(32),
            max_recv_wr: input.number(32),
            max_send_sge: input.number(5),
            max_recv_sge: input.number(5),
            max_inline_data: input.number(128),
        };
        init.qp_type = match input.byte() {
            250.. => input.word(),
            byte => [
                IBV_QPT_RC,
                IBV_QPT_UC,
                IBV_QPT_UD,
                IBV_QPT_XRC_SEND,
                IBV_QPT_XRC_RECV,
            ][usize::from(byte) % 5],
        };
        init.sq_sig_all = c_int::from(input.rarely(2));
        init.pd = self.pds[input.one_of(PLACES)].handle;
        let extended = input.rarely(2) || init.qp_type == IBV_QPT_XRC_RECV;
        // SAFETY: as in `make_pd`; the plain attributes are how the extended ones begin.
        unsafe {
            let made = if extended {
                init.xrcd = self.xrcds[input.one_of(2)].handle;
                init.comp_mask = match input.byte() {
                    240.. => input.word(),
                    _ if init.qp_type == IBV_QPT_XRC_RECV => IBV_QP_INIT_ATTR_XRCD,
                    byte if byte % 2 == 0 => IBV_QP_INIT_ATTR_PD,
                    _ => IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                };
                init.send_ops_flags = if input.rarely(4) {
                    u64::from(input.short())
                } else {
                    0x3ff
                };
                extended!(self.create_qp_ex(self.device.context, &raw mut init))
                    .unwrap_or(null_mut())
            } else {
                (self.tables.symbols.ibv_create_qp)(init.pd, (&raw mut init).cast())
            };
            fill(&mut self.qps, place, made);
        }
    }

    unsafe fn end_qp(&mut self, input: &mut Input<'_>) {
        let place = &mut self.qps[input.one_of(QPS)];
        // SAFETY: as in `make_pd`; its events are acknowledged.
        place.ended(unsafe { (self.tables.symbols.ibv_destroy_qp)(place.handle) });
    }

    /// The address of this port.
    fn address(&self, input: &mut Input<'_>) -> ibv_ah_attr {
        let mut address = ibv_ah_attr::zeroed();
        address.dlid = if input.rarely(16) {
            input.short()
        } else {
            self.device.lid
        };
        address.port_num = if input.rarely(16) { input.byte() } else { 1 };
        address.is_global = u8::from(input.rarely(16));
        address
    }

    unsafe fn change_qp(&mut self, input: &mut Input<'_>) {
        let place = self.qps[input.one_of(QPS)];
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = u32::from(input.byte() % 9);
        attr.cur_qp_state = u32::from(input.byte() % 9);
        attr.port_num = input.byte() % 3;
        attr.path_mtu = u32::from(input.byte() % 7);
        attr.qp_access_flags = u32::from(input.byte());
        attr.dest_qp_num = input.word();
        attr.ah_attr = self.address(input);
        attr.max_rd_atomic = input.byte();
        attr.timeout = input.byte();
        let mask = input.word().cast_signed() & 0x1f_ffff;
        // SAFETY: as in `make_pd`.
        let result =
            unsafe { (self.tables.symbols.ibv_modify_qp)(place.handle, &raw mut attr, mask) };
        assert!(place.live || result != 0, "a destroyed QP was changed");
    }

    /// Connects two queue pairs, or one with itself, as far as their states let it.
    unsafe fn connect(&mut self, input: &mut Input<'_>) {
        let (a, b) = (input.one_of(QPS), input.one_of(QPS));
        let access = 0xe;
        for (from, to) in [(a, b), (b, a)] {
            let (from, to) = (self.qps[from].live(), self.qps[to].live());
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
                // Short, so that what fails has failed at the end of the sequence.
                attr.timeout = 1;
                attr.retry_cnt = input.byte() % 8;
                attr.rnr_retry = input.byte() % 8;
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

    unsafe fn ask(&mut self, input: &mut Input<'_>) {
        let verbs = self.tables.symbols;
        let context = self.device.context;
        let nowhere = input.rarely(4);
        let index = input.number(300).cast_signed();
        // SAFETY: as in `make_pd`, with places for the answers, or NULL, which the software NIC refuses.
        unsafe {
            match input.one_of(8) {
                0 => {
                    let mut attr = ibv_qp_attr::zeroed();
                    let mut init = ibv_qp_init_attr::zeroed();
                    let qp = self.qps[input.one_of(QPS)];
                    let to = if nowhere { null_mut() } else { &raw mut attr };
                    let mask = index;
                    let result = (verbs.ibv_query_qp)(qp.handle, to, mask, &raw mut init);
                    assert!(qp.live || result != 0, "a destroyed QP answered");
                }
                1 => {
                    let mut attr = ibv_srq_attr::zeroed();
                    let srq = self.srqs[input.one_of(2)];
                    let to = if nowhere { null_mut() } else { &raw mut attr };
                    let result = (verbs.ibv_query_srq)(srq.handle, to);
                    assert!(srq.live || result != 0, "a destroyed SRQ answered");
                }
                2 => {
                    let mut gid = ibv_gid { raw: [0; 16] };
                    let to = if nowhere { null_mut() } else { &raw mut gid };
                    (verbs.ibv_query_gid)(context, input.byte() % 3, index, to);
                }
                3 => {
                    let mut pkey = 0;
                    let to = if nowhere { null_mut() } else { &raw mut pkey };
                    (verbs.ibv_query_pkey)(context, input.byte() % 3, index, to);
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
                    (verbs.ibv_query_port)(context, input.byte() % 3, to);
                }
                6 => {
                    let mut number = 0;
                    let srq = self.srqs[input.one_of(2)];
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

    unsafe fn make_ah(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(PLACES);
        if self.ahs[place].live {
            return;
        }
        let pd = self.pds[input.one_of(PLACES)].handle;
        let mut attr = self.address(input);
        // SAFETY: as in `make_pd`.
        let made = unsafe { (self.tables.symbols.ibv_create_ah)(pd, &raw mut attr) };
        fill(&mut self.ahs, place, made);
    }

    unsafe fn end_ah(&mut self, input: &mut Input<'_>) {
        let place = &mut self.ahs[input.one_of(PLACES)];
        // SAFETY: as in `make_pd`.
        place.ended(unsafe { (self.tables.symbols.ibv_destroy_ah)(place.handle) });
    }

    /// A key and a range that are mostly a region's.
    fn element(&self, input: &mut Input<'_>) -> ibv_sge {
        let place = input.one_of(PLACES);
        let region = self.ranges[place];
        // SAFETY: a live region.
        let lkey = unsafe { self.mrs[place].live().as_ref() }.map_or(0, |mr| mr.lkey);
        let offset = u64::from(input.short()) % (region.len as u64 + 1);
        let most = (region.len as u64 - offset).min(u64::from(u16::MAX));
        let len = u64::from(input.short()) % (most + 1);
        let mut sge = ibv_sge {
            addr: region.addr as u64 + offset,
            length: u32::try_from(len).unwrap_or(0),
            lkey,
        };
        match input.byte() {
            0xf0..=0xf3 => sge.length = input.word(),
            0xf4..=0xf7 => sge.lkey = input.word(),
            0xf8..=0xfb => sge.addr = sge.addr.wrapping_add(u64::from(input.word())),
            0xfc => sge.addr = u64::from(input.byte()),
            _ => {}
        }
        sge
    }

    unsafe fn post_send(&mut self, input: &mut Input<'_>) {
        let qp = self.qps[input.one_of(QPS)].live();
        if qp.is_null() {
            return;
        }
        let count = 1 + input.one_of(LIST - 1);
        let mut sges = [[ibv_sge::zeroed(); 4]; LIST];
        let mut list = [ibv_send_wr::zeroed(); LIST];
        for (wr, sges) in list.iter_mut().zip(&mut sges).take(count) {
            wr.wr_id = u64::from(input.byte());
            wr.opcode = match input.byte() {
                250.. => input.word(),
                byte => u32::from(byte) % 16,
            };
            wr.send_flags = u32::from(input.byte() % 32);
            wr.num_sge = match input.byte() {
                // Negative, or longer than any queue has.
                255 => i32::MIN,
                254 => 1 << 20,
                byte => i32::from(byte % 4),
            };
            wr.imm.imm_data = input.word();
            for sge in &mut *sges {
                *sge = self.element(input);
                // "IBV_SEND_INLINE: send data in given gather list as inline data": the library reads it itself, as the
                // program would, so it must be there.
                if wr.send_flags & IBV_SEND_INLINE != 0 {
                    sge.addr = self.base() as u64;
                    sge.length %= u32::try_from(ARENA).unwrap_or(1);
                }
            }
            wr.sg_list = sges.as_mut_ptr();
            let remote = self.element(input);
            // SAFETY: as in `make_pd`; members of unions are plain numbers and live handles.
            unsafe {
                if (*qp).qp_type == IBV_QPT_UD {
                    let to = self.qps[input.one_of(QPS)].live().as_ref();
                    wr.wr.ud.ah = self.ahs[input.one_of(PLACES)].live();
                    wr.wr.ud.remote_qpn = to.map_or(input.word(), |to| to.qp_num);
                    wr.wr.ud.remote_qkey = if input.rarely(8) { input.word() } else { 17 };
                } else if wr.opcode == IBV_WR_BIND_MW {
                    let window = self.mws[input.one_of(PLACES)].live();
                    wr.bind_tso.bind_mw.mw = window;
                    wr.bind_tso.bind_mw.rkey = window.as_ref().map_or(0, |window| {
                        window.rkey.wrapping_add(u32::from(input.byte()))
                    });
                    wr.bind_tso.bind_mw.bind_info = self.bind_info(input);
                } else {
                    wr.wr.atomic.remote_addr = remote.addr;
                    wr.wr.atomic.compare_add = u64::from(input.byte());
                    wr.wr.rdma.remote_addr = remote.addr;
                    // The same place for RDMA and atomics, or not.
                    wr.wr.rdma.rkey = remote.lkey;
                    if matches!(
                        wr.opcode,
                        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
                    ) {
                        wr.wr.atomic.rkey = remote.lkey;
                    }
                    if input.rarely(8) {
                        wr.qp_type.xrc.remote_srqn = input.word();
                    }
                }
            }
        }
        for at in 1..count {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: as in `make_pd`; a list that ends.
        unsafe { ibv_post_send(qp, list.as_mut_ptr(), &raw mut bad) };
    }

    fn bind_info(&self, input: &mut Input<'_>) -> ibv_mw_bind_info {
        let region = self.mrs[input.one_of(PLACES)];
        let range = self.element(input);
        ibv_mw_bind_info {
            mr: region.live(),
            addr: range.addr,
            length: range.length.into(),
            mw_access_flags: u32::from(input.byte() & 0x3f),
        }
    }

    unsafe fn post_recv(&mut self, input: &mut Input<'_>) {
        let count = 1 + input.one_of(LIST - 1);
        let mut sges = [[ibv_sge::zeroed(); 4]; LIST];
        let mut list = [ibv_recv_wr::zeroed(); LIST];
        for (wr, sges) in list.iter_mut().zip(&mut sges).take(count) {
            wr.wr_id = u64::from(input.byte());
            wr.num_sge = match input.byte() {
                255 => i32::MIN,
                254 => 1 << 20,
                byte => i32::from(byte % 4),
            };
            for sge in &mut *sges {
                *sge = self.element(input);
            }
            wr.sg_list = sges.as_mut_ptr();
        }
        for at in 1..count {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: as in `post_send`.
        unsafe {
            if input.rarely(3) {
                let srq = self.srqs[input.one_of(2)].live();
                if !srq.is_null() {
                    ibv_post_srq_recv(srq, list.as_mut_ptr(), &raw mut bad);
                }
            } else {
                let qp = self.qps[input.one_of(QPS)].live();
                if !qp.is_null() {
                    ibv_post_recv(qp, list.as_mut_ptr(), &raw mut bad);
                }
            }
        }
    }

    unsafe fn poll(&mut self, input: &mut Input<'_>) {
        let cq = self.cqs[input.one_of(PLACES)].live();
        let mut wc = [ibv_wc::zeroed(); POLL];
        let asked = input.one_of(POLL + 1);
        if !cq.is_null() {
            // SAFETY: as in `make_pd`; as many places as are asked for.
            let found =
                unsafe { ibv_poll_cq(cq, c_int::try_from(asked).unwrap_or(0), wc.as_mut_ptr()) };
            assert!(
                usize::try_from(found).is_ok_and(|found| found <= asked),
                "{found} of {asked}"
            );
        }
    }

    unsafe fn notify(&mut self, input: &mut Input<'_>) {
        let cq = self.cqs[input.one_of(PLACES)].live();
        if !cq.is_null() {
            // SAFETY: as in `make_pd`.
            unsafe { ibv_req_notify_cq(cq, c_int::from(input.rarely(2))) };
        }
    }

    /// Gets and acknowledges what events there are.
    unsafe fn events(&mut self, input: &mut Input<'_>) {
        let verbs = self.tables.symbols;
        // SAFETY: as in `make_pd`; nothing blocks.
        unsafe {
            let channel = self.channels[input.one_of(2)];
            let (mut cq, mut cq_context) = (null_mut(), null_mut());
            let got =
                (verbs.ibv_get_cq_event)(channel.handle, &raw mut cq, &raw mut cq_context) == 0;
            if got {
                assert!(channel.live, "a destroyed channel has an event");
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

    unsafe fn window(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(PLACES);
        let pd = self.pds[input.one_of(PLACES)].handle;
        // SAFETY: as in `make_pd`; the context has the operations.
        unsafe {
            let ops = &(*self.device.context).ops;
            let (Some(alloc), Some(dealloc), Some(bind)) =
                (ops.alloc_mw, ops.dealloc_mw, ops.bind_mw)
            else {
                return;
            };
            match input.one_of(4) {
                0 | 1 if !self.mws[place].live => {
                    let made = alloc(pd, u32::from(input.byte() % 4));
                    fill(&mut self.mws, place, made);
                }
                2 => {
                    let window = &mut self.mws[place];
                    window.ended(dealloc(window.handle));
                }
                _ => {
                    let qp = self.qps[input.one_of(QPS)].live();
                    let window = self.mws[place].live();
                    if !qp.is_null() && !window.is_null() {
                        let mut info = ibv_mw_bind {
                            wr_id: 1,
                            send_flags: u32::from(input.byte() % 16),
                            bind_info: self.bind_info(input),
                        };
                        bind(qp, window, &raw mut info);
                    }
                }
            }
        }
    }

    unsafe fn group(&mut self, input: &mut Input<'_>) {
        let qp = self.qps[input.one_of(QPS)];
        let mut gid = ibv_gid { raw: [0xff; 16] };
        // SAFETY: as in `make_pd`; any bytes are a GID.
        unsafe {
            gid.raw[15] = input.byte() % 4;
            let result = if input.rarely(2) {
                (self.tables.symbols.ibv_attach_mcast)(qp.handle, &raw const gid, 0xc001)
            } else {
                (self.tables.symbols.ibv_detach_mcast)(qp.handle, &raw const gid, 0xc001)
            };
            assert!(qp.live || result != 0, "a destroyed QP joined a group");
        }
    }

    unsafe fn small_objects(&mut self, input: &mut Input<'_>) {
        let place = input.one_of(2);
        let context = self.device.context;
        // SAFETY: as in `make_pd`.
        unsafe {
            match input.one_of(7) {
                0 if !self.tds[place].live => {
                    let mut init = ibv_td_init_attr { comp_mask: 0 };
                    let made = extended!(self.alloc_td(context, &raw mut init));
                    fill(&mut self.tds, place, made.unwrap_or(null_mut()));
                }
                1 => {
                    let td = self.tds[place].handle;
                    let ended = extended!(self.dealloc_td(td)).unwrap_or(libc::EOPNOTSUPP);
                    self.tds[place].ended(ended);
                }
                2 if !self.dms[place].live => {
                    let mut attr = ibv_alloc_dm_attr {
                        length: usize::from(input.short()),
                        log_align_req: u32::from(input.byte() % 16),
                        comp_mask: 0,
                    };
                    let made = extended!(self.alloc_dm(context, &raw mut attr));
                    fill(&mut self.dms, place, made.unwrap_or(null_mut()));
                }
                3 => {
                    let dm = self.dms[place].handle;
                    let ended = extended!(self.free_dm(dm)).unwrap_or(libc::EOPNOTSUPP);
                    self.dms[place].ended(ended);
                }
                4 if !self.xrcds[place].live => {
                    let mut attr = ibv_xrcd_init_attr {
                        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                        fd: if input.rarely(8) { 12345 } else { -1 },
                        oflags: libc::O_CREAT,
                    };
                    let made = extended!(self.open_xrcd(context, &raw mut attr));
                    fill(&mut self.xrcds, place, made.unwrap_or(null_mut()));
                }
                5 => {
                    let xrcd = self.xrcds[place].handle;
                    let ended = extended!(self.close_xrcd(xrcd)).unwrap_or(libc::EOPNOTSUPP);
                    self.xrcds[place].ended(ended);
                }
                _ => {
                    let dm = self.dms[place].live();
                    if let Some(copy) = dm.as_ref().and_then(|dm| dm.memcpy_to_dm) {
                        let len = usize::from(input.short()) % ARENA;
                        copy(dm, u64::from(input.short()), self.at(0), len);
                    }
                }
            }
        }
    }

    /// Work requests by the extended API.
    unsafe fn build(&mut self, input: &mut Input<'_>) {
        let qp = self.qps[input.one_of(QPS)].live();
        if qp.is_null() {
            return;
        }
        // SAFETY: as in `make_pd`; operations in the order that `ibv_wr_post(3)` asks for.
        unsafe {
            let built = (self.tables.later.ibv_qp_to_qp_ex)(qp);
            let Some(start) = built.as_ref().and_then(|qp| qp.wr_start) else {
                return;
            };
            start(built);
            for _ in 0..input.one_of(LIST) {
                (*built).wr_id = u64::from(input.byte());
                (*built).wr_flags = u32::from(input.byte() % 8);
                let remote = self.element(input);
                let is_datagram = (*qp).qp_type == IBV_QPT_UD;
                match input.one_of(6) {
                    0 => (*built).wr_send.map(|send| send(built)),
                    1 => (*built).wr_send_imm.map(|send| send(built, input.word())),
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
                    let to = self.qps[input.one_of(QPS)].live().as_ref();
                    let ah = self.ahs[input.one_of(PLACES)].live();
                    set(built, ah, to.map_or(0, |to| to.qp_num), 17);
                }
                if input.rarely(3) {
                    let len = input.one_of(256);
                    if let Some(set) = (*built).wr_set_inline_data {
                        set(built, self.at(0), len);
                    }
                } else if let Some(set) = (*built).wr_set_sge {
                    let sge = self.element(input);
                    set(built, sge.lkey, sge.addr, sge.length);
                }
            }
            match ((*built).wr_abort, (*built).wr_complete) {
                (Some(abort), _) if input.rarely(8) => abort(built),
                (_, Some(complete)) => {
                    complete(built);
                }
                _ => {}
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
            end_all!(self.mrs, verbs.ibv_dereg_mr);
            end_all!(self.ahs, verbs.ibv_destroy_ah);
            end_all!(self.srqs, verbs.ibv_destroy_srq);
            end_all!(self.cqs, verbs.ibv_destroy_cq);
            end_all!(self.channels, verbs.ibv_destroy_comp_channel);
            if let Some(free_dm) = (*all).free_dm {
                end_all!(self.dms, free_dm);
            }
            if let Some(close_xrcd) = (*all).close_xrcd {
                end_all!(self.xrcds, close_xrcd);
            }
            // A parent domain before what it was made of: as often as there are domains.
            for _ in 0..PLACES {
                for pd in &mut self.pds {
                    if pd.live {
                        pd.ended((verbs.ibv_dealloc_pd)(pd.handle));
                    }
                }
            }
            assert!(self.pds.iter().all(|pd| !pd.live), "a domain is in use");
            if let Some(dealloc_td) = (*all).dealloc_td {
                end_all!(self.tds, dealloc_td);
            }
        }
    }
}
