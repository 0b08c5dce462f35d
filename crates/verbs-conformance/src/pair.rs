//! Queue pairs in the initial state of a test: connected, and ready to send both ways.
//!
//! `QpSpec::rc().pair(env)` makes two connected RC queue pairs, `a` and `b`. Each queue pair has its own
//! context, protection domain and two CQs, as if two programs had made them. Methods change the `QpSpec`:
//! `QpSpec::rc().rnr_retry(0).pair(env)`.

use std::ffi::c_int;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use verbs_abi::*;

use crate::memory::MemKind;
use crate::objects::*;
use crate::tag_matching::TagSrq;
use crate::test_env::{NicCapability, TestEnv};
use crate::wr::{SendWr, Wc};

/// The Q_Key of UD queue pairs.
pub const QKEY: u32 = 0x1234_5678;

/// Address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAddress {
    /// QP number.
    pub qpn: u32,
    /// LID of the port; 0 on RoCE.
    pub lid: u16,
    /// GID of the port.
    pub gid: [u8; 16],
    /// First PSN that the queue pair sends.
    pub psn: u32,
    /// Active MTU of the port. The path MTU is the smaller one of both ports.
    pub active_mtu: ibv_mtu,
}

/// Attributes of queue pairs to create.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names of the attributes")]
pub struct QpSpec {
    pub qp_type: ibv_qp_type,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub sig_all: bool,
    /// True if each side has a shared receive queue of 64 WRs.
    #[serde(rename = "srq")]
    pub has_srq: bool,
    /// Number of tags of the shared receive queue for tag matching; 0 if the queue does not match tags.
    #[serde(rename = "tags")]
    pub max_num_tags: u32,
    pub cqe: c_int,
    #[serde(rename = "access")]
    pub qp_access_flags: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    /// True if the CQs have completion channels.
    #[serde(rename = "channels")]
    pub has_channels: bool,
    /// Kind of memory of the buffers.
    #[serde(rename = "memory")]
    pub memory_kind: MemKind,
    pub qkey: u32,
    /// True if messages have a GRH even where LIDs suffice.
    #[serde(rename = "global")]
    pub uses_grh: bool,
}

impl QpSpec {
    fn new(qp_type: ibv_qp_type) -> Self {
        Self {
            qp_type,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
            sig_all: false,
            has_srq: false,
            max_num_tags: 0,
            cqe: 256,
            qp_access_flags: ALL_ACCESS.cast_unsigned(),
            // A timeout of 1.07 s; only a dead peer takes as long.
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            // RNR timer code 1 means 10 µs.
            min_rnr_timer: 1,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            has_channels: false,
            memory_kind: MemKind::Private,
            qkey: QKEY,
            uses_grh: false,
        }
    }

    /// Returns the attributes of a reliable connection.
    #[must_use]
    pub fn rc() -> Self {
        Self::new(IBV_QPT_RC)
    }

    /// Returns the attributes of an unreliable connection.
    #[must_use]
    pub fn uc() -> Self {
        Self::new(IBV_QPT_UC)
    }

    /// Returns the attributes of unreliable datagrams.
    #[must_use]
    pub fn ud() -> Self {
        Self::new(IBV_QPT_UD)
    }

    /// Sets the depth of both queues.
    #[must_use]
    pub fn with_queue_depth(mut self, wrs: u32) -> Self {
        self.max_send_wr = wrs;
        self.max_recv_wr = wrs;
        self.cqe = self
            .cqe
            .max(c_int::try_from(2 * wrs).expect("a sane depth"));
        self
    }

    /// Applies `change` to the attributes.
    #[must_use]
    pub fn with_change(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Reduces timeout and retries, so that a send to a silent peer fails after some milliseconds.
    #[must_use]
    pub fn with_short_timeout_and_few_retries(mut self) -> Self {
        self.timeout = 8;
        self.retry_cnt = 2;
        self
    }

    /// Sets `rnr_retry`; the value 7 means unlimited retries.
    #[must_use]
    pub fn with_rnr_retry(mut self, count: u8) -> Self {
        self.rnr_retry = count;
        self
    }

    /// Sets `qp_access_flags`.
    #[must_use]
    pub fn with_access(mut self, flags: c_int) -> Self {
        self.qp_access_flags = flags.cast_unsigned();
        self
    }

    /// Sets the kind of memory of the buffers.
    #[must_use]
    pub fn with_memory_kind(mut self, kind: MemKind) -> Self {
        self.memory_kind = kind;
        self
    }

    /// Adds a shared receive queue.
    #[must_use]
    pub fn with_srq(mut self) -> Self {
        self.has_srq = true;
        self
    }

    /// Adds a shared receive queue for tag matching.
    #[must_use]
    pub fn with_tags(mut self, max_num_tags: u32) -> Self {
        self.max_num_tags = max_num_tags;
        self
    }

    /// Adds completion channels.
    #[must_use]
    pub fn with_channels(mut self) -> Self {
        self.has_channels = true;
        self
    }

    /// Creates one queue pair in RESET, with the objects on which it depends.
    #[must_use]
    #[track_caller]
    pub fn create_qp_side(&self, env: &TestEnv) -> QpSide {
        QpSide::new(&Context::open(env), self)
    }

    /// Creates two connected queue pairs.
    #[must_use]
    #[track_caller]
    pub fn create_connected_pair(&self, env: &TestEnv) -> QpPair {
        let mut pair = self.create_unconnected_pair(env);
        pair.connect();
        pair
    }

    /// Creates two queue pairs in RESET.
    #[must_use]
    #[track_caller]
    pub fn create_unconnected_pair(&self, env: &TestEnv) -> QpPair {
        QpPair {
            a: self.create_qp_side(env),
            b: self.create_qp_side(&env.peer_env()),
        }
    }
}

/// A queue pair and the objects on which it depends.
pub struct QpSide {
    /// Attributes with which the queue pair was created.
    pub spec: QpSpec,
    /// The queue pair.
    pub qp: Qp,
    /// Sizes of the queue pair.
    pub granted_cap: ibv_qp_cap,
    /// Shared receive queue of the queue pair, if it has one.
    pub srq: Option<Srq>,
    /// The shared receive queue, if it is for tag matching.
    pub tag_srq: Option<Arc<TagSrq>>,
    /// CQ of the sends.
    pub scq: Cq,
    /// CQ of the receives.
    pub rcq: Cq,
    /// Channel of the send CQ.
    pub schannel: Option<Channel>,
    /// Channel of the receive CQ.
    pub rchannel: Option<Channel>,
    /// Protection domain.
    pub pd: Pd,
    /// Context of the device.
    pub ctx: Context,
    /// Destination of SENDs (UD): address handle, QP number, Q_Key.
    pub ud_destination: Option<(Ah, u32, u32)>,
}

impl QpSide {
    /// Creates a queue pair in RESET on an open device.
    #[must_use]
    #[track_caller]
    pub fn new(ctx: &Context, spec: &QpSpec) -> Self {
        let pd = ctx.alloc_pd();
        let channel = || spec.has_channels.then(|| ctx.create_channel());
        let (schannel, rchannel) = (channel(), channel());
        let cq = |channel: &Option<Channel>| match channel {
            Some(channel) => ctx.create_cq_on_channel(spec.cqe, channel),
            None => ctx.create_cq(spec.cqe),
        };
        let (scq, rcq) = (cq(&schannel), cq(&rchannel));
        let new_tags = || TagSrq::new(&pd, &rcq, spec.max_num_tags).expect("ibv_create_srq_ex");
        let tags = (spec.max_num_tags > 0).then(new_tags).map(Arc::new);
        let srq = match &tags {
            Some(tags) => Some(tags.srq.clone()),
            None => spec.has_srq.then(|| pd.create_srq()),
        };
        let mut side = Self {
            qp: {
                let mut init =
                    Self::qp_init_attr_of_spec(spec, ctx.env(), &scq, &rcq, srq.as_ref());
                pd.create_qp(&mut init)
            },
            granted_cap: ibv_qp_cap {
                max_send_wr: 0,
                max_recv_wr: 0,
                max_send_sge: 0,
                max_recv_sge: 0,
                max_inline_data: 0,
            },
            spec: spec.clone(),
            srq,
            tag_srq: tags,
            scq,
            rcq,
            schannel,
            rchannel,
            pd,
            ctx: ctx.clone(),
            ud_destination: None,
        };
        side.granted_cap = side.qp.query().1.cap;
        side
    }

    fn qp_init_attr_of_spec(
        spec: &QpSpec,
        env: &TestEnv,
        scq: &Cq,
        rcq: &Cq,
        srq: Option<&Srq>,
    ) -> QpInitAttr {
        let mut init = QpInitAttr::new(spec.qp_type, scq, rcq);
        init.cap = ibv_qp_cap {
            max_send_wr: spec.max_send_wr,
            max_recv_wr: if srq.is_some() { 0 } else { spec.max_recv_wr },
            max_send_sge: spec.max_send_sge,
            max_recv_sge: if srq.is_some() { 0 } else { spec.max_recv_sge },
            max_inline_data: if env.expects_capability(NicCapability::Inline) {
                spec.max_inline_data
            } else {
                0
            },
        };
        init.srq = srq.cloned();
        init.sig_all = spec.sig_all;
        init
    }

    /// Creates a second queue pair of the same kind on the same CQs, PD and SRQ.
    #[must_use]
    #[track_caller]
    pub fn create_side_on_same_pd_and_cqs(&self) -> Self {
        let mut init = Self::qp_init_attr_of_spec(
            &self.spec,
            self.ctx.env(),
            &self.scq,
            &self.rcq,
            self.srq.as_ref(),
        );
        let qp = self.pd.create_qp(&mut init);
        Self {
            spec: self.spec.clone(),
            qp,
            granted_cap: init.cap,
            srq: self.srq.clone(),
            tag_srq: self.tag_srq.clone(),
            scq: self.scq.clone(),
            rcq: self.rcq.clone(),
            schannel: self.schannel.clone(),
            rchannel: self.rchannel.clone(),
            pd: self.pd.clone(),
            ctx: self.ctx.clone(),
            ud_destination: None,
        }
    }

    /// Returns the address of this queue pair.
    #[must_use]
    #[track_caller]
    pub fn address(&self) -> QpAddress {
        let settings = &self.ctx.env().settings;
        let port = self.ctx.port_attr();
        QpAddress {
            qpn: self.qp.qpn(),
            lid: port.lid,
            gid: self
                .ctx
                .try_gid(settings.port, settings.gid_index.into())
                .expect("ibv_query_gid"),
            psn: 0x00ff_ff00 ^ self.qp.qpn(),
            active_mtu: port.active_mtu,
        }
    }

    /// Returns the address vector towards `peer`: by GID on Ethernet, by LID on InfiniBand.
    #[must_use]
    pub fn ah_attr_to_peer(&self, peer: &QpAddress) -> ibv_ah_attr {
        let settings = &self.ctx.env().settings;
        let port = self.ctx.port_attr();
        let mut attr = ibv_ah_attr::zeroed();
        attr.port_num = settings.port;
        attr.dlid = peer.lid;
        if port.link_layer == IBV_LINK_LAYER_ETHERNET || self.spec.uses_grh {
            attr.is_global = 1;
            attr.grh.dgid = ibv_gid { raw: peer.gid };
            attr.grh.sgid_index = settings.gid_index;
            attr.grh.hop_limit = 64;
        }
        attr
    }

    /// Moves the queue pair from RESET to INIT.
    #[track_caller]
    pub fn to_init(&self) {
        let (attr, mask) = self.reset_to_init_attr_and_mask();
        self.qp.modify(&attr, mask).expect("RESET to INIT");
    }

    /// Returns attributes and mask for RESET to INIT.
    #[must_use]
    pub fn reset_to_init_attr_and_mask(&self) -> (ibv_qp_attr, c_int) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = self.ctx.env().settings.port;
        attr.qp_access_flags = self.spec.qp_access_flags;
        attr.qkey = self.spec.qkey;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        if self.spec.qp_type == IBV_QPT_UD {
            return (attr, mask | IBV_QP_QKEY);
        }
        if self.spec.qp_type == IBV_QPT_UC {
            // UC does not support READs and atomics, and some NICs reject these flags.
            attr.qp_access_flags &=
                (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE).cast_unsigned();
        }
        (attr, mask | IBV_QP_ACCESS_FLAGS)
    }

    /// Returns attributes and mask for INIT to RTR.
    #[must_use]
    pub fn init_to_rtr_attr_and_mask(&self, peer: &QpAddress) -> (ibv_qp_attr, c_int) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RTR;
        if self.spec.qp_type == IBV_QPT_UD {
            return (attr, IBV_QP_STATE);
        }
        attr.path_mtu = self.ctx.port_attr().active_mtu.min(peer.active_mtu);
        attr.dest_qp_num = peer.qpn;
        attr.rq_psn = peer.psn;
        attr.ah_attr = self.ah_attr_to_peer(peer);
        attr.max_dest_rd_atomic = self.spec.max_dest_rd_atomic;
        attr.min_rnr_timer = self.spec.min_rnr_timer;
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        if self.spec.qp_type == IBV_QPT_RC {
            (
                attr,
                mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            )
        } else {
            (attr, mask)
        }
    }

    /// Returns attributes and mask for RTR to RTS.
    #[must_use]
    pub fn rtr_to_rts_attr_and_mask(&self) -> (ibv_qp_attr, c_int) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = self.address().psn;
        attr.timeout = self.spec.timeout;
        attr.retry_cnt = self.spec.retry_cnt;
        attr.rnr_retry = self.spec.rnr_retry;
        attr.max_rd_atomic = self.spec.max_rd_atomic;
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if self.spec.qp_type == IBV_QPT_RC {
            let reliable =
                IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            (attr, mask | reliable)
        } else {
            (attr, mask)
        }
    }

    /// Moves the queue pair from INIT to RTR, towards `peer`.
    #[track_caller]
    pub fn to_rtr(&mut self, peer: &QpAddress) {
        let (attr, mask) = self.init_to_rtr_attr_and_mask(peer);
        self.qp.modify(&attr, mask).expect("INIT to RTR");
        if self.spec.qp_type == IBV_QPT_UD {
            let ah = self.pd.create_ah(&self.ah_attr_to_peer(peer));
            self.ud_destination = Some((ah, peer.qpn, self.spec.qkey));
        }
    }

    /// Moves the queue pair from RTR to RTS.
    #[track_caller]
    pub fn to_rts(&self) {
        let (attr, mask) = self.rtr_to_rts_attr_and_mask();
        self.qp.modify(&attr, mask).expect("RTR to RTS");
    }

    /// Moves the queue pair from RESET to RTS, towards `peer`.
    #[track_caller]
    pub fn connect(&mut self, peer: &QpAddress) {
        self.to_init();
        self.to_rtr(peer);
        self.to_rts();
    }

    /// Registers new memory of the specified kind, with all access rights.
    #[must_use]
    #[track_caller]
    pub fn alloc_buf(&self, len: usize) -> Buf {
        self.pd
            .alloc_buf_of_kind(self.spec.memory_kind, len, ALL_ACCESS)
    }

    /// Registers new memory with the given access rights.
    #[must_use]
    #[track_caller]
    pub fn alloc_buf_with_access(&self, len: usize, access: c_int) -> Buf {
        self.pd
            .alloc_buf_of_kind(self.spec.memory_kind, len, access)
    }

    /// Sets the WR's destination if the transport needs one and the WR has none.
    #[must_use]
    pub fn add_ud_destination_if_missing(&self, wr: SendWr) -> SendWr {
        match &self.ud_destination {
            Some((ah, qpn, qkey)) if !wr.has_ud_destination => {
                wr.with_ud_destination(ah, *qpn, *qkey)
            }
            _ => wr,
        }
    }

    /// Posts a send WR.
    #[track_caller]
    pub fn post(&self, wr: SendWr) {
        self.post_sends(vec![wr]);
    }

    /// Posts a postlist of send WRs.
    #[track_caller]
    pub fn post_sends(&self, wrs: Vec<SendWr>) {
        self.qp.post_sends(
            wrs.into_iter()
                .map(|wr| self.add_ud_destination_if_missing(wr))
                .collect(),
        );
    }

    /// Posts a receive WR; to the SRQ if the queue pair has one.
    #[track_caller]
    pub fn post_recv(&self, wr_id: u64, sges: impl IntoIterator<Item = ibv_sge>) {
        match &self.srq {
            Some(srq) => srq.post_recv(wr_id, sges),
            None => self.qp.post_recv(wr_id, sges),
        }
    }

    /// Returns the number of bytes before the payload of a receive: 40 on UD, else 0.
    #[must_use]
    pub fn grh_len(&self) -> usize {
        if self.spec.qp_type == IBV_QPT_UD {
            40
        } else {
            0
        }
    }

    /// Waits for the next completion of a send.
    #[must_use]
    #[track_caller]
    pub fn await_send_completion(&self) -> Wc {
        self.scq.await_completion()
    }

    /// Waits for the next completion of a receive.
    #[must_use]
    #[track_caller]
    pub fn await_recv_completion(&self) -> Wc {
        self.rcq.await_completion()
    }

    /// Panics if the send CQ or the receive CQ has a completion, or gets one within a moment.
    #[track_caller]
    pub fn expect_no_completions(&self) {
        self.scq.expect_empty();
        self.rcq.expect_empty();
    }
}

/// Two queue pairs.
pub struct QpPair {
    /// The queue pair that is the requester in most tests.
    pub a: QpSide,
    /// The queue pair that is the responder in most tests.
    pub b: QpSide,
}

impl QpPair {
    /// Connects both queue pairs to each other, from RESET to RTS.
    #[track_caller]
    pub fn connect(&mut self) {
        let (a, b) = (self.a.address(), self.b.address());
        self.a.connect(&b);
        self.b.connect(&a);
    }

    /// Checks that the pair works: sends 100 bytes from `a` to `b` and 100 bytes back, and compares the
    /// received bytes.
    #[track_caller]
    pub fn check_transfers_both_ways(&self) {
        for (from, to, seed) in [(&self.a, &self.b, 0xf00), (&self.b, &self.a, 0xba4)] {
            let source = from.alloc_buf(100);
            let target = to.alloc_buf(100 + 40);
            source.memory.fill_with_pattern(seed);
            to.post_recv(seed, [target.whole_sge()]);
            from.post(crate::wr::send([source.whole_sge()]).with_id(seed));
            from.await_send_completion()
                .expect_sent(seed, crate::wr::Verb::Send);
            to.await_recv_completion()
                .expect_received(seed, 100 + to.grh_len());
            target.memory.assert_pattern_at(to.grh_len(), 100, seed);
        }
    }
}
