//! Queue pairs and shared receive queues.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use verbs_abi::*;

use super::{Cq, Pd, Qp, Srq, expect_ok};
use crate::progress_notes::{record_awaited_event, wait_limit};
use crate::wr::{RecvWr, RefusedPostlist, SendWr, link_recv, link_send};

impl Srq {
    /// Calls `ibv_post_srq_recv` for a postlist.
    ///
    /// # Errors
    /// Returns the errno of the call, and the WR at which it stopped.
    pub fn try_post_recvs(&self, mut wrs: Vec<RecvWr>) -> Result<(), RefusedPostlist> {
        let head = link_recv(&mut wrs);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live SRQ; the list lives until the call returns and is well-formed.
        let errno = unsafe { ibv_post_srq_recv(self.raw(), head, &raw mut bad) };
        post_result_from_errno(
            errno,
            wrs.iter()
                .position(|wr| std::ptr::eq(&raw const wr.raw, bad)),
        )
    }

    /// Posts one WR.
    #[track_caller]
    pub fn post_recv(&self, wr_id: u64, sges: impl IntoIterator<Item = ibv_sge>) {
        self.try_post_recvs(vec![crate::wr::recv(wr_id, sges)])
            .expect("ibv_post_srq_recv");
    }

    /// Calls `ibv_modify_srq`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), i32> {
        let mut attr = ibv_srq_attr::zeroed();
        let mut mask = 0;
        if let Some(max_wr) = max_wr {
            attr.max_wr = max_wr;
            mask |= IBV_SRQ_MAX_WR;
        }
        if let Some(limit) = limit {
            attr.srq_limit = limit;
            mask |= IBV_SRQ_LIMIT;
        }
        // SAFETY: a live SRQ, readable attributes.
        match unsafe { (self.0.symbols.ibv_modify_srq)(self.raw(), &raw mut attr, mask) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Calls `ibv_query_srq`.
    #[must_use]
    #[track_caller]
    pub fn query(&self) -> ibv_srq_attr {
        let mut attr = ibv_srq_attr::zeroed();
        // SAFETY: a live SRQ, a writable result.
        let errno = unsafe { (self.0.symbols.ibv_query_srq)(self.raw(), &raw mut attr) };
        assert_eq!(errno, 0, "ibv_query_srq");
        attr
    }
}

/// The arguments of QP creation.
#[derive(Clone)]
pub struct QpInitAttr {
    /// Transport.
    pub qp_type: ibv_qp_type,
    /// Send CQ.
    pub send_cq: Cq,
    /// Receive CQ.
    pub recv_cq: Cq,
    /// SRQ, if the QP uses one.
    pub srq: Option<Srq>,
    /// Sizes of the queue pair: the requested sizes before creation, the actual sizes after creation.
    pub cap: ibv_qp_cap,
    /// `sq_sig_all`.
    pub sig_all: bool,
}

impl QpInitAttr {
    /// Returns the arguments for a QP of 16 WRs with 4 SGEs in each queue, without inline data.
    #[must_use]
    pub fn new(qp_type: ibv_qp_type, send_cq: &Cq, recv_cq: &Cq) -> Self {
        Self {
            qp_type,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            cap: ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 0,
            },
            sig_all: false,
        }
    }

    pub(super) fn to_ibv_attr(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: std::ptr::without_provenance_mut(0x9_9),
            send_cq: self.send_cq.raw(),
            recv_cq: self.recv_cq.raw(),
            srq: self.srq.as_ref().map_or(std::ptr::null_mut(), Srq::raw),
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: self.sig_all.into(),
        }
    }
}

fn post_result_from_errno(errno: i32, bad: Option<usize>) -> Result<(), RefusedPostlist> {
    if errno == 0 {
        Ok(())
    } else {
        Err(RefusedPostlist {
            errno,
            bad_wr_index: bad,
        })
    }
}

impl Srq {
    /// Takes over an SRQ that was not created by `ibv_create_srq` but by another function of the provider.
    pub(crate) fn adopt(raw: *mut ibv_srq, pd: &Pd) -> Result<Self, i32> {
        Self::wrap(pd.symbols(), raw, pd.clone())
    }
}

impl Qp {
    /// Takes over a QP that was not created by `ibv_create_qp` but by another function of the provider.
    pub(crate) fn adopt(raw: *mut ibv_qp, pd: &Pd, cq: &Cq) -> Result<Self, i32> {
        Self::wrap(
            pd.symbols(),
            raw,
            pd.clone(),
            [cq.clone(), cq.clone()],
            None,
        )
    }

    /// Calls `ibv_attach_mcast`; returns the call's result.
    #[must_use]
    pub fn attach_mcast(&self, gid: [u8; 16]) -> i32 {
        let gid = ibv_gid { raw: gid };
        // SAFETY: a live QP, a readable GID.
        unsafe { (self.0.symbols.ibv_attach_mcast)(self.raw(), &raw const gid, 0xc000) }
    }

    /// Calls `ibv_detach_mcast`; returns the call's result.
    #[must_use]
    pub fn detach_mcast(&self, gid: [u8; 16]) -> i32 {
        let gid = ibv_gid { raw: gid };
        // SAFETY: a live QP, a readable GID.
        unsafe { (self.0.symbols.ibv_detach_mcast)(self.raw(), &raw const gid, 0xc000) }
    }

    /// Returns the QP number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        // SAFETY: the QP is live.
        unsafe { (*self.raw()).qp_num }
    }

    /// Returns the transport.
    #[must_use]
    pub fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: the QP is live.
        unsafe { (*self.raw()).qp_type }
    }

    /// Returns `qp->state`: the state that the library has recorded.
    #[must_use]
    pub fn cached_state(&self) -> ibv_qp_state {
        // SAFETY: the QP is live; the field is a plain number that a racing write cannot make invalid.
        unsafe { (&raw const (*self.raw()).state).read_volatile() }
    }

    /// Panics unless the fields of `struct ibv_qp` have the values given at creation.
    #[track_caller]
    pub fn assert_creation_fields(&self, pd: &Pd, init: &QpInitAttr) {
        // SAFETY: the QP is live, and these fields never change.
        unsafe {
            let qp = self.raw();
            assert_eq!((*qp).context, pd.ctx().raw());
            assert_eq!((*qp).pd, pd.raw());
            assert_eq!((*qp).send_cq, init.send_cq.raw());
            assert_eq!((*qp).recv_cq, init.recv_cq.raw());
            assert_eq!(
                (*qp).srq,
                init.srq.as_ref().map_or(std::ptr::null_mut(), Srq::raw)
            );
            assert_eq!((*qp).qp_type, init.qp_type);
            assert_eq!((*qp).qp_context.addr(), 0x99);
        }
        assert_eq!(self.cached_state(), IBV_QPS_RESET);
    }

    /// Calls `ibv_modify_qp`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), i32> {
        let mut attr = *attr;
        // SAFETY: a live QP, readable attributes.
        match unsafe { (self.0.symbols.ibv_modify_qp)(self.raw(), &raw mut attr, mask) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Moves the QP to a state that takes no attributes.
    #[track_caller]
    pub fn move_to_state(&self, state: ibv_qp_state) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        expect_ok("ibv_modify_qp", self.modify(&attr, IBV_QP_STATE));
    }

    /// Calls `ibv_query_qp` for all attributes.
    #[must_use]
    #[track_caller]
    pub fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let mut attr = ibv_qp_attr::zeroed();
        let mut init = ibv_qp_init_attr::zeroed();
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_CAP;
        // SAFETY: a live QP, writable results.
        let errno = unsafe {
            (self.0.symbols.ibv_query_qp)(self.raw(), &raw mut attr, mask, &raw mut init)
        };
        assert_eq!(errno, 0, "ibv_query_qp");
        (attr, init)
    }

    /// Returns the state that `ibv_query_qp` reports.
    #[must_use]
    #[track_caller]
    pub fn query_state(&self) -> ibv_qp_state {
        self.query().0.qp_state
    }

    /// Waits until the QP is in `state`, without a modify call by this process.
    #[track_caller]
    pub fn await_state(&self, state: ibv_qp_state) {
        self.await_attr_condition(&format!("QP state {state}"), |attr| attr.qp_state == state);
    }

    /// Waits until the send queue is drained. A device may refuse SQD to RTS earlier (IBTA vol. 1, 10.3.1.6).
    #[track_caller]
    pub fn await_drained(&self) {
        self.await_attr_condition("a drained send queue", |attr| attr.sq_draining == 0);
    }

    #[track_caller]
    fn await_attr_condition(&self, what: &str, reached: impl Fn(&ibv_qp_attr) -> bool) {
        let deadline = Instant::now() + wait_limit();
        record_awaited_event(&format!("waiting for {what}"));
        loop {
            let (attr, _) = self.query();
            if reached(&attr) {
                record_awaited_event("");
                return;
            }
            assert!(
                Instant::now() < deadline,
                "waited for {what}; the QP stays in {}, sq_draining {}",
                attr.qp_state,
                attr.sq_draining
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Calls `ibv_post_send` for a postlist.
    ///
    /// # Errors
    /// Returns the errno of the call, and the WR at which it stopped.
    pub fn try_post_sends(&self, mut wrs: Vec<SendWr>) -> Result<(), RefusedPostlist> {
        let head = link_send(&mut wrs);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live QP; the list is well-formed and lives until the call returns. Registered buffers
        // stay registered until the test has seen the completion or destroyed the QP.
        let errno = unsafe { ibv_post_send(self.raw(), head, &raw mut bad) };
        post_result_from_errno(
            errno,
            wrs.iter()
                .position(|wr| std::ptr::eq(&raw const wr.raw, bad)),
        )
    }

    /// Posts one send WR whose `num_sge` differs from the length of its list.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_post_with_num_sge(&self, mut wr: SendWr, num_sge: c_int) -> Result<(), i32> {
        link_send(std::slice::from_mut(&mut wr));
        assert!(num_sge < 0, "more than there are would be read");
        wr.raw.num_sge = num_sge;
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `try_post_sends`; a negative count is refused, or reads nothing.
        match unsafe { ibv_post_send(self.raw(), &raw mut wr.raw, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Posts one send WR.
    #[track_caller]
    pub fn post(&self, wr: SendWr) {
        self.post_sends(vec![wr]);
    }

    /// Posts a postlist.
    #[track_caller]
    pub fn post_sends(&self, wrs: Vec<SendWr>) {
        if let Err(refused) = self.try_post_sends(wrs) {
            panic!("ibv_post_send: {refused:?}");
        }
    }

    /// Calls `ibv_post_recv` for a postlist.
    ///
    /// # Errors
    /// Returns the errno of the call, and the WR at which it stopped.
    pub fn try_post_recvs(&self, mut wrs: Vec<RecvWr>) -> Result<(), RefusedPostlist> {
        let head = link_recv(&mut wrs);
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `try_post_sends`.
        let errno = unsafe { ibv_post_recv(self.raw(), head, &raw mut bad) };
        post_result_from_errno(
            errno,
            wrs.iter()
                .position(|wr| std::ptr::eq(&raw const wr.raw, bad)),
        )
    }

    /// Posts one receive WR.
    #[track_caller]
    pub fn post_recv(&self, wr_id: u64, sges: impl IntoIterator<Item = ibv_sge>) {
        if let Err(refused) = self.try_post_recvs(vec![crate::wr::recv(wr_id, sges)]) {
            panic!("ibv_post_recv: {refused:?}");
        }
    }
}
