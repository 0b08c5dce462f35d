//! Queue pairs, typed by transport.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use verbs_abi as abi;

use crate::attr::PortAndGidIndex;
use crate::context::{Context, ContextRef};
use crate::cq::CompletionQueue;
use crate::endpoint::QpEndpoint;
use crate::error::{ModifyError, PostError, QueryError, check_returned_errno};
use crate::pd::PdInner;
use crate::postlist::Postlist;
use crate::qp_attribute_limits;
use crate::recv_list::RecvList;
use crate::srq::SharedReceiveQueue;
use crate::transport::Transport;
use crate::types::{LinkLayer, Mtu, QpState, Qpn};

/// The fields of a queue pair that posting needs. The rest is boxed, so that objects with hundreds
/// of queue pairs stay small and need little cache.
pub(crate) struct QpInner {
    pub(crate) raw: *mut abi::ibv_qp,
    pub(crate) context: ContextRef,
    pub(crate) cold_fields: Box<QpColdFields>,
}

pub(crate) struct QpColdFields {
    pub(crate) granted_caps: abi::ibv_qp_cap,
    pub(crate) endpoint: QpEndpoint,
    pub(crate) link_layer: LinkLayer,
    pub(crate) port: PortAndGidIndex,
    pub(crate) _pd: Arc<PdInner>,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) srq: Option<SharedReceiveQueue>,
}

// SAFETY: verbs on a QP are thread-safe, see `ContextInner`.
unsafe impl Send for QpInner {}
// SAFETY: as for Send.
unsafe impl Sync for QpInner {}

impl std::ops::Deref for QpInner {
    type Target = QpColdFields;

    fn deref(&self) -> &QpColdFields {
        &self.cold_fields
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_qp of this table, and destroyed once; CQs, SRQ and PD stay
        // alive until afterwards.
        unsafe { (self.context.symbols.ibv_destroy_qp)(self.raw) };
    }
}

impl QpInner {
    pub(crate) fn modify(&self, attr: &mut abi::ibv_qp_attr, mask: i32) -> Result<(), ModifyError> {
        // SAFETY: live QP, valid attributes.
        let ret = unsafe { (self.context.symbols.ibv_modify_qp)(self.raw, attr, mask) };
        check_returned_errno(ret).map_err(|e| self.modify_error(e, attr, mask))
    }

    /// Returns the error of a refused change, which names the states, and an attribute that is out of range.
    #[cold]
    fn modify_error(&self, source: io::Error, attr: &abi::ibv_qp_attr, mask: i32) -> ModifyError {
        let from = self.query().map_or(QpState::Other(u32::MAX), |qp| qp.state);
        let to = QpState::from_raw(attr.qp_state);
        let context = Context {
            inner: Arc::clone(&self.context),
        };
        let ranges = qp_attribute_limits::attribute_values_and_maxima(
            &context,
            self.port.port_num,
            attr,
            mask,
        );
        ModifyError::of("ibv_modify_qp", source, (from, to), &ranges)
    }

    pub(crate) fn query(&self) -> Result<QpAttr, QueryError> {
        let mut attr = abi::ibv_qp_attr::zeroed();
        let mut init = abi::ibv_qp_init_attr::zeroed();
        let mask =
            abi::IBV_QP_STATE | abi::IBV_QP_CAP | abi::IBV_QP_DEST_QPN | abi::IBV_QP_PATH_MTU;
        // SAFETY: live QP, writable attributes.
        let ret =
            unsafe { (self.context.symbols.ibv_query_qp)(self.raw, &mut attr, mask, &mut init) };
        check_returned_errno(ret).map_err(|e| QueryError::of("ibv_query_qp", e))?;
        Ok(QpAttr {
            state: QpState::from_raw(attr.qp_state),
            path_mtu: Mtu::from_raw(attr.path_mtu),
            dest_qpn: Qpn(attr.dest_qp_num),
            max_send_wr: init.cap.max_send_wr,
            max_recv_wr: init.cap.max_recv_wr,
            max_send_sge: init.cap.max_send_sge,
            max_recv_sge: init.cap.max_recv_sge,
            max_inline_data: init.cap.max_inline_data,
        })
    }

    #[inline]
    pub(crate) fn post_recv(
        &self,
        list: &mut RecvList,
        range: impl RangeBounds<usize>,
    ) -> Result<(), PostError> {
        list.post(range, &self.context, "ibv_post_recv", |wr, bad| {
            // SAFETY: live QP; the list is linked, ends in NULL, and its SGE arrays are live
            // (`RecvList`). Buffers are referred to by key: see the module `mr` for why they need
            // no borrow.
            unsafe { abi::ibv_post_recv(self.raw, wr, bad) }
        })
    }

    pub(crate) fn recv_list(&self, capacity: usize) -> RecvList {
        RecvList::new(
            &self.context,
            capacity,
            self.granted_caps.max_recv_sge as usize,
        )
    }
}

/// Current attributes of a queue pair (`ibv_query_qp(3)`).
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the names are those of struct ibv_qp_attr, which the man page explains"
)]
pub struct QpAttr {
    pub state: QpState,
    pub path_mtu: Mtu,
    pub dest_qpn: Qpn,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// A queue pair of transport `T`, ready to send and receive.
pub struct QueuePair<T: Transport> {
    qp: QpInner,
    transport: PhantomData<fn() -> T>,
}

impl<T: Transport> QueuePair<T> {
    /// Makes a queue pair that is ready to send and receive.
    pub(crate) fn of(qp: QpInner) -> Self {
        Self {
            qp,
            transport: PhantomData,
        }
    }

    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.qp.endpoint.qpn
    }

    /// Returns the data that peers need.
    pub fn endpoint(&self) -> QpEndpoint {
        self.qp.endpoint
    }

    /// Returns the port and the GID index of the queue pair.
    pub fn port(&self) -> PortAndGidIndex {
        self.qp.port
    }

    /// Returns the capacity of the send queue in WRs, as the device granted it.
    pub fn max_send_wr(&self) -> usize {
        self.qp.granted_caps.max_send_wr as usize
    }

    /// Returns the capacity of the receive queue in WRs, as the device granted it.
    pub fn max_recv_wr(&self) -> usize {
        self.qp.granted_caps.max_recv_wr as usize
    }

    /// Returns the largest inline payload in bytes, as the device granted it.
    pub fn max_inline_data(&self) -> usize {
        self.qp.granted_caps.max_inline_data as usize
    }

    /// Makes a postlist of up to `capacity` WRs for queue pairs of this transport on this device,
    /// with the SGEs and inline payload of this queue pair.
    pub fn postlist(&self, capacity: usize) -> Postlist<T> {
        let caps = &self.qp.granted_caps;
        Postlist::new(
            &self.qp.context,
            capacity,
            caps.max_send_sge as usize,
            caps.max_inline_data as usize,
        )
    }

    /// Makes a list of up to `capacity` RECVs for queue pairs like this one.
    pub fn recv_list(&self, capacity: usize) -> RecvList {
        self.qp.recv_list(capacity)
    }

    /// Posts all WRs of a postlist, in order, with one doorbell. The list is unchanged and can be
    /// posted again.
    ///
    /// - Buffers: inline payload was copied when the WR was built. Any other buffer belongs to the
    ///   NIC until its WR completes.
    /// - Completions: of signaled WRs, and of every WR that fails, signaled or not (IBTA vol. 1,
    ///   10.7.3.1).
    ///
    /// # Errors
    /// [`PostError`], with the index of the first WR that was not posted:
    /// - [`PostErrorKind::QueueFull`](crate::PostErrorKind::QueueFull) (`ENOMEM`): poll the CQ, then post again from there.
    /// - [`PostErrorKind::InvalidWr`](crate::PostErrorKind::InvalidWr) (`EINVAL`): a value is invalid, or the state of
    ///   the queue pair takes no such WR.
    /// - [`PostErrorKind::InvalidQp`](crate::PostErrorKind::InvalidQp) (`EFAULT`),
    ///   [`PostErrorKind::OtherContext`](crate::PostErrorKind::OtherContext),
    ///   [`PostErrorKind::Other`](crate::PostErrorKind::Other) (any other errno).
    ///
    /// Source: `ibv_post_send(3)`.
    #[inline]
    pub fn post_send(&self, list: &mut Postlist<T>) -> Result<(), PostError> {
        self.post_send_range(list, ..)
    }

    /// Posts a part of a postlist with one doorbell, for example the rest after a full queue.
    ///
    /// # Errors
    /// [`PostError`], with the index of the first WR that was not posted:
    /// - [`PostErrorKind::QueueFull`](crate::PostErrorKind::QueueFull) (`ENOMEM`): poll the CQ, then post again from there.
    /// - [`PostErrorKind::InvalidWr`](crate::PostErrorKind::InvalidWr) (`EINVAL`): a value is invalid, or the state of
    ///   the queue pair takes no such WR.
    /// - [`PostErrorKind::InvalidQp`](crate::PostErrorKind::InvalidQp) (`EFAULT`),
    ///   [`PostErrorKind::OtherContext`](crate::PostErrorKind::OtherContext),
    ///   [`PostErrorKind::Other`](crate::PostErrorKind::Other) (any other errno).
    #[inline]
    pub fn post_send_range(
        &self,
        list: &mut Postlist<T>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), PostError> {
        list.post(range, &self.qp.context, |wr, bad| {
            // SAFETY: live QP; the list is linked, ends in NULL, its SGE and inline arrays are
            // live, and it keeps its address handles alive (`Postlist`). Inline payload points into
            // the list; other buffers are referred to by key: see the module `mr` for why they need
            // no borrow.
            unsafe { abi::ibv_post_send(self.qp.raw, wr, bad) }
        })
    }

    /// Builds and posts one WR. Allocates memory, so it suits setup and tests rather than loops.
    ///
    /// ```
    /// # fn go(qp: &verbs::QueuePair<verbs::Rc>) -> Result<(), verbs::PostError> {
    /// qp.post_one(|list| {
    ///     list.send(verbs::Inline(b"hello")).signaled().wr_id(1);
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`PostError`], with the index of the first WR that was not posted:
    /// - [`PostErrorKind::QueueFull`](crate::PostErrorKind::QueueFull) (`ENOMEM`): poll the CQ, then post again from there.
    /// - [`PostErrorKind::InvalidWr`](crate::PostErrorKind::InvalidWr) (`EINVAL`): a value is invalid, or the state of
    ///   the queue pair takes no such WR.
    /// - [`PostErrorKind::InvalidQp`](crate::PostErrorKind::InvalidQp) (`EFAULT`),
    ///   [`PostErrorKind::OtherContext`](crate::PostErrorKind::OtherContext),
    ///   [`PostErrorKind::Other`](crate::PostErrorKind::Other) (any other errno).
    pub fn post_one(&self, build: impl FnOnce(&mut Postlist<T>)) -> Result<(), PostError> {
        let mut list = self.postlist(1);
        build(&mut list);
        self.post_send(&mut list)
    }

    /// Posts RECVs. The list is unchanged and can be posted again.
    ///
    /// # Errors
    /// [`PostError`], with the index of the first WR that was not posted:
    /// - [`PostErrorKind::QueueFull`](crate::PostErrorKind::QueueFull) (`ENOMEM`): poll the CQ, then post again from there.
    /// - [`PostErrorKind::InvalidWr`](crate::PostErrorKind::InvalidWr) (`EINVAL`): a value is invalid, or the state of
    ///   the queue pair takes no such WR.
    /// - [`PostErrorKind::InvalidQp`](crate::PostErrorKind::InvalidQp) (`EFAULT`),
    ///   [`PostErrorKind::OtherContext`](crate::PostErrorKind::OtherContext),
    ///   [`PostErrorKind::Other`](crate::PostErrorKind::Other) (any other errno).
    #[inline]
    pub fn post_recv(&self, list: &mut RecvList) -> Result<(), PostError> {
        self.qp.post_recv(list, ..)
    }

    /// Posts a part of a list of RECVs.
    ///
    /// # Errors
    /// [`PostError`], with the index of the first WR that was not posted:
    /// - [`PostErrorKind::QueueFull`](crate::PostErrorKind::QueueFull) (`ENOMEM`): poll the CQ, then post again from there.
    /// - [`PostErrorKind::InvalidWr`](crate::PostErrorKind::InvalidWr) (`EINVAL`): a value is invalid, or the state of
    ///   the queue pair takes no such WR.
    /// - [`PostErrorKind::InvalidQp`](crate::PostErrorKind::InvalidQp) (`EFAULT`),
    ///   [`PostErrorKind::OtherContext`](crate::PostErrorKind::OtherContext),
    ///   [`PostErrorKind::Other`](crate::PostErrorKind::Other) (any other errno).
    #[inline]
    pub fn post_recv_range(
        &self,
        list: &mut RecvList,
        range: impl RangeBounds<usize>,
    ) -> Result<(), PostError> {
        self.qp.post_recv(list, range)
    }

    /// Takes the queue pair to ERR, which flushes all posted WRs.
    ///
    /// # Errors
    /// [`ModifyError::Refused`] (any errno).
    pub fn move_to_error_state(&self) -> Result<(), ModifyError> {
        let mut attr = abi::ibv_qp_attr::zeroed();
        attr.qp_state = abi::IBV_QPS_ERR;
        self.qp.modify(&mut attr, abi::IBV_QP_STATE)
    }

    /// Queries the state.
    ///
    /// # Errors
    /// [`QueryError::Refused`] (any errno).
    pub fn query_state(&self) -> Result<QpState, QueryError> {
        self.qp.query().map(|a| a.state)
    }

    /// Queries the current attributes.
    ///
    /// # Errors
    /// [`QueryError::Refused`] (any errno).
    pub fn query(&self) -> Result<QpAttr, QueryError> {
        self.qp.query()
    }

    /// Returns the CQ of the send queue.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.qp.send_cq
    }

    /// Returns the CQ of the receive queue.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.qp.recv_cq
    }

    /// Returns the shared receive queue from which the queue pair takes RECVs, if any.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.qp.srq.as_ref()
    }

    pub(crate) fn raw(&self) -> *mut abi::ibv_qp {
        self.qp.raw
    }
}

impl<T: Transport> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair<{}>({})", T::NAME, self.qpn())
    }
}

impl fmt::Debug for QpInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.endpoint)
    }
}
