//! Creation and connection of queue pairs.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use verbs_abi as abi;

use crate::address_vector::AddressVector;
use crate::attr::PortAndGidIndex;
use crate::context::ContextRef;
use crate::cq::CompletionQueue;
use crate::endpoint::QpEndpoint;
use crate::error::{
    CreateQpError, ModifyError, PostError, check_returned_errno, invalid_input, last_error,
};
use crate::pd::ProtectionDomain;
use crate::qp::{QpColdFields, QpInner, QueuePair};
use crate::recv_list::RecvList;
use crate::srq::SharedReceiveQueue;
use crate::transport::{Connected, Transport, Ud};
use crate::types::{Access, Mtu, Psn, QKey, QpState, Qpn};

/// A builder with the attributes of a new queue pair; [`build`](QpBuilder::build) creates the queue
/// pair.
#[derive(Debug, Clone)]
#[must_use]
pub struct QpBuilder<T> {
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    inline_request: InlineRequest,
    sq_sig_all: bool,
    port_num: u8,
    gid_index: Option<u8>,
    pkey_index: u16,
    access: Access,
    psn: Option<Psn>,
    path_mtu: Option<Mtu>,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
    max_rd_atomic: Option<u8>,
    qkey: Option<QKey>,
    sl: u8,
    transport: PhantomData<T>,
}

impl ProtectionDomain {
    /// Returns a builder of a queue pair with these CQs.
    pub fn qp_builder<T: Transport>(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
    ) -> QpBuilder<T> {
        QpBuilder {
            pd: self.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            inline_request: InlineRequest::UpTo(64),
            sq_sig_all: false,
            port_num: 1,
            gid_index: None,
            pkey_index: 0,
            access: Access::ALL,
            psn: None,
            path_mtu: None,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: None,
            qkey: None,
            sl: 0,
            transport: PhantomData,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $($(#[$doc])*
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name.into();
            self
        })*
    };
}

impl<T: Transport> QpBuilder<T> {
    setters! {
        /// Capacity of the send queue in WRs; default 128.
        max_send_wr: u32;
        /// Capacity of the receive queue in WRs; default 128.
        max_recv_wr: u32;
        /// SGEs of a send WR; default 1.
        max_send_sge: u32;
        /// SGEs of a receive WR; default 1.
        max_recv_sge: u32;
        /// True to signal every send WR; default false.
        sq_sig_all: bool;
        /// The port, from 1; default 1.
        port_num: u8;
        /// The GID index of outgoing packets; default
        /// [`default_gid_index`](crate::Context::default_gid_index).
        gid_index: u8;
        /// The P_Key index; default 0.
        pkey_index: u16;
        /// The peer's access to this side's memory; default all rights. Regions have their own
        /// flags.
        access: Access;
        /// The first PSN; default random.
        psn: Psn;
        /// The path MTU; default the smaller one of both ports.
        path_mtu: Mtu;
        /// ACK timeout, coded: 4.096 µs × 2^code, 0 to 31, 0 for no timeout; default 14 (67 ms).
        /// RC.
        timeout: u8;
        /// Retries after a timeout, 0 to 7; default 7. RC.
        retry_cnt: u8;
        /// Retries if the peer has no RECV, 0 to 7, 7 without limit; default 7. RC.
        rnr_retry: u8;
        /// The time that a peer waits before an RNR retry, coded 0 to 31; default 12 (0.64 ms). RC.
        min_rnr_timer: u8;
        /// Outstanding READs and atomics in each direction; default 16, or fewer if the device
        /// supports fewer. RC.
        max_rd_atomic: u8;
        /// The Q_Key that a datagram must carry; default random. UD.
        qkey: QKey;
        /// The service level; default 0.
        sl: u8;
    }

    /// Sets the required inline payload in bytes: [`build`](QpBuilder::build) fails if the device
    /// grants less.
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.inline_request = InlineRequest::AtLeast(bytes);
        self
    }

    /// Sets the desired inline payload in bytes, default 64. If the device refuses that, the queue
    /// pair is created without inline payload. Check [`QueuePair::max_inline_data`], and send
    /// longer payload from registered memory.
    pub fn max_inline_data_if_supported(mut self, bytes: u32) -> Self {
        self.inline_request = InlineRequest::UpTo(bytes);
        self
    }

    /// Sets a shared receive queue from which the queue pair takes RECVs.
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Creates the queue pair and takes it to INIT.
    fn create_in_init(self) -> Result<(QpInner, Self), CreateQpError> {
        self.check_contexts()?;
        let context = self.pd.context();
        let gid_index = match self.gid_index {
            Some(index) => index,
            None => context.default_gid_index(self.port_num)?,
        };
        let port = context.query_port(self.port_num)?;
        let gid = context
            .gid(self.port_num, gid_index.into())
            .unwrap_or_default();
        let (raw, caps) = self.create_raw()?;
        let is_ud = T::QP_TYPE == abi::IBV_QPT_UD;
        let rest = QpColdFields {
            granted_caps: caps,
            endpoint: QpEndpoint {
                // SAFETY: live QP; the number never changes.
                qpn: Qpn(unsafe { (*raw).qp_num }),
                psn: self.psn.unwrap_or_else(Psn::random),
                lid: port.lid,
                gid,
                mtu: port.active_mtu,
                qkey: is_ud.then(|| self.qkey.unwrap_or_else(QKey::random)),
            },
            link_layer: port.link_layer,
            port: PortAndGidIndex {
                port_num: self.port_num,
                gid_index,
            },
            _pd: Arc::clone(&self.pd.inner),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            srq: self.srq.clone(),
        };
        let qp = QpInner {
            raw,
            context: Arc::clone(&self.pd.inner.context),
            cold_fields: Box::new(rest),
        };
        self.check_granted_inline(qp.granted_caps.max_inline_data)?;
        self.move_to_init(&qp)?;
        Ok((qp, self))
    }

    /// Refuses objects of different contexts, which one queue pair cannot use.
    fn check_contexts(&self) -> Result<(), CreateQpError> {
        let context = &self.pd.inner.context;
        let foreign = |other: &ContextRef| !Arc::ptr_eq(other, context);
        let srq = self.srq.as_ref();
        if foreign(&self.send_cq.inner.context)
            || foreign(&self.recv_cq.inner.context)
            || srq.is_some_and(|srq| foreign(&srq.inner.pd.context))
        {
            return Err(CreateQpError::OtherContext {
                verb: "ibv_create_qp",
                source: invalid_input("the CQs, the SRQ and the PD belong to different contexts"),
            });
        }
        Ok(())
    }

    /// Creates the queue pair, if necessary without desired inline payload; returns the granted
    /// capabilities.
    fn create_raw(&self) -> Result<(*mut abi::ibv_qp, abi::ibv_qp_cap), CreateQpError> {
        let mut init = abi::ibv_qp_init_attr::zeroed();
        init.send_cq = self.send_cq.inner.raw;
        init.recv_cq = self.recv_cq.inner.raw;
        init.srq = self
            .srq
            .as_ref()
            .map_or(std::ptr::null_mut(), |s| s.inner.raw);
        let own_recvs = |count: u32| if self.srq.is_some() { 0 } else { count };
        init.cap = abi::ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: own_recvs(self.max_recv_wr),
            max_send_sge: self.max_send_sge,
            max_recv_sge: own_recvs(self.max_recv_sge),
            max_inline_data: self.inline_request.bytes(),
        };
        init.qp_type = T::QP_TYPE;
        init.sq_sig_all = self.sq_sig_all.into();
        let cap = init.cap;
        let created = create_raw(&self.pd, &mut init);
        let created = match (created, self.inline_request) {
            (Err(refused), InlineRequest::UpTo(1..)) => {
                // A refusal may have changed `init`. If the inline payload was not the reason, the
                // first error says more.
                init.cap = cap;
                init.cap.max_inline_data = 0;
                create_raw(&self.pd, &mut init).map_err(|_| refused)
            }
            (created, _) => created,
        };
        let raw = created.map_err(|e| self.creation_error(e, &cap))?;
        Ok((raw, init.cap))
    }

    /// Returns the error of `ibv_create_qp`, which names a capability that is beyond the limit of the device.
    #[cold]
    fn creation_error(&self, source: io::Error, cap: &abi::ibv_qp_cap) -> CreateQpError {
        let limits = self.pd.context().query_device();
        let (most_wr, most_sge) = limits.map_or((u32::MAX, u32::MAX), |device| {
            (device.max_qp_wr, device.max_sge)
        });
        let sizes = [
            ("max_send_wr", cap.max_send_wr, most_wr),
            ("max_recv_wr", cap.max_recv_wr, most_wr),
            ("max_send_sge", cap.max_send_sge, most_sge),
            ("max_recv_sge", cap.max_recv_sge, most_sge),
        ];
        CreateQpError::of("ibv_create_qp", source, &sizes)
    }

    /// Refuses a device that grants less than the required inline payload.
    fn check_granted_inline(&self, granted: u32) -> Result<(), CreateQpError> {
        match self.inline_request {
            InlineRequest::AtLeast(bytes) if granted < bytes => Err(CreateQpError::InlineTooLong {
                requested: bytes,
                granted,
                verb: "ibv_create_qp",
                source: invalid_input(format!(
                    "the device grants {granted} of {bytes} bytes of inline payload"
                )),
            }),
            _ => Ok(()),
        }
    }

    fn move_to_init(&self, qp: &QpInner) -> Result<(), ModifyError> {
        let mut attr = abi::ibv_qp_attr::zeroed();
        attr.qp_state = abi::IBV_QPS_INIT;
        attr.pkey_index = self.pkey_index;
        attr.port_num = self.port_num;
        let mut mask = abi::IBV_QP_STATE | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT;
        if let Some(qkey) = qp.endpoint.qkey {
            attr.qkey = qkey.0;
            mask |= abi::IBV_QP_QKEY;
        } else {
            attr.qp_access_flags = self.access.bits().cast_unsigned();
            if !T::RELIABLE {
                // UC has neither READ nor atomics.
                attr.qp_access_flags &= (Access::LOCAL_WRITE | Access::REMOTE_WRITE)
                    .bits()
                    .cast_unsigned();
            }
            mask |= abi::IBV_QP_ACCESS_FLAGS;
        }
        qp.modify(&mut attr, mask)
    }
}

/// The inline payload that a queue pair should support.
#[derive(Debug, Clone, Copy)]
enum InlineRequest {
    AtLeast(u32),
    UpTo(u32),
}

impl InlineRequest {
    fn bytes(self) -> u32 {
        match self {
            Self::AtLeast(bytes) | Self::UpTo(bytes) => bytes,
        }
    }
}

/// Creates a queue pair whose CQs and SRQ, if any, are live and of the PD's context.
fn create_raw(
    pd: &ProtectionDomain,
    init: &mut abi::ibv_qp_init_attr,
) -> Result<*mut abi::ibv_qp, io::Error> {
    // SAFETY: live PD; the CQs and the SRQ are as the function's comment requires, since both
    // callers in this module hold them.
    let raw = unsafe { (pd.inner.context.symbols.ibv_create_qp)(pd.inner.raw, init) };
    if raw.is_null() {
        return Err(last_error());
    }
    Ok(raw)
}

/// Creates and destroys the smallest queue pair of transport `T` with this inline payload. Returns
/// the granted inline payload, or the reason of the refusal.
pub(crate) fn probe_granted_inline<T: Transport>(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    max_inline_data: u32,
) -> Result<u32, CreateQpError> {
    let mut init = abi::ibv_qp_init_attr::zeroed();
    (init.send_cq, init.recv_cq) = (cq.inner.raw, cq.inner.raw);
    init.qp_type = T::QP_TYPE;
    init.cap = abi::ibv_qp_cap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data,
    };
    let raw = create_raw(pd, &mut init).map_err(|e| CreateQpError::of("ibv_create_qp", e, &[]))?;
    // SAFETY: the queue pair was just created, is in RESET and unused.
    let ret = unsafe { (pd.inner.context.symbols.ibv_destroy_qp)(raw) };
    check_returned_errno(ret).map_err(|e| CreateQpError::of("ibv_destroy_qp", e, &[]))?;
    Ok(init.cap.max_inline_data)
}

impl<T: Connected> QpBuilder<T> {
    /// Creates the queue pair, ready to be connected.
    ///
    /// # Errors
    /// - [`CreateQpError::LimitExceeded`] (`EINVAL`, `ENOMEM`): names the capability and the limit of the device.
    /// - [`CreateQpError::InlineTooLong`]: the device grants less inline payload than required.
    /// - [`CreateQpError::Unsupported`] (`EOPNOTSUPP`, `ENOSYS`): the device lacks the transport.
    /// - [`CreateQpError::OtherContext`]: the objects belong to different contexts.
    /// - [`CreateQpError::NoResources`] (`ENOMEM`): the device has no more queue pairs.
    /// - [`CreateQpError::Refused`] (any other errno), also of a query or a change of the state.
    pub fn build(self) -> Result<PreparedQp<T>, CreateQpError> {
        let (qp, config) = self.create_in_init()?;
        Ok(PreparedQp { qp, config })
    }
}

impl QpBuilder<Ud> {
    /// Creates the queue pair, ready to send and receive.
    ///
    /// # Errors
    /// - [`CreateQpError::LimitExceeded`] (`EINVAL`, `ENOMEM`): names the capability and the limit of the device.
    /// - [`CreateQpError::InlineTooLong`]: the device grants less inline payload than required.
    /// - [`CreateQpError::Unsupported`] (`EOPNOTSUPP`, `ENOSYS`): the device lacks the transport.
    /// - [`CreateQpError::OtherContext`]: the objects belong to different contexts.
    /// - [`CreateQpError::NoResources`] (`ENOMEM`): the device has no more queue pairs.
    /// - [`CreateQpError::Refused`] (any other errno), also of a query or a change of the state.
    pub fn build(self) -> Result<QueuePair<Ud>, CreateQpError> {
        let (qp, _) = self.create_in_init()?;
        let mut attr = abi::ibv_qp_attr::zeroed();
        attr.qp_state = abi::IBV_QPS_RTR;
        qp.modify(&mut attr, abi::IBV_QP_STATE)?;
        attr.qp_state = abi::IBV_QPS_RTS;
        attr.sq_psn = qp.endpoint.psn.0;
        qp.modify(&mut attr, abi::IBV_QP_STATE | abi::IBV_QP_SQ_PSN)?;
        Ok(QueuePair::of(qp))
    }
}

/// A queue pair of a connected transport before its connection, in state INIT: it has a number, and
/// accepts RECVs.
#[derive(Debug)]
pub struct PreparedQp<T: Connected> {
    qp: QpInner,
    config: QpBuilder<T>,
}

impl<T: Connected> PreparedQp<T> {
    /// Returns the data of this queue pair that the peer needs.
    pub fn endpoint(&self) -> QpEndpoint {
        self.qp.endpoint
    }

    /// Makes a list of up to `capacity` RECVs for this queue pair.
    pub fn recv_list(&self, capacity: usize) -> RecvList {
        self.qp.recv_list(capacity)
    }

    /// Posts RECVs before the peer can send.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`](crate::QueuePair::post_recv).
    pub fn post_recv(&self, list: &mut RecvList) -> Result<(), PostError> {
        self.qp.post_recv(list, ..)
    }

    /// Connects to `peer`: INIT to RTR to RTS. The peer does the same with this side's endpoint.
    ///
    /// ```
    /// # let context = verbs::Provider::softnic().device(None)?.open()?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let (a, b) = (pd.qp_builder::<verbs::Rc>(&cq, &cq).build()?, pd.qp_builder::<verbs::Rc>(&cq, &cq).build()?);
    /// let (to_a, to_b) = (a.endpoint(), b.endpoint()); // exchange them by any means
    /// let (a, b) = (a.connect(&to_b)?, b.connect(&to_a)?);
    /// assert_eq!(a.query_state()?, verbs::QpState::Rts);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`ModifyError::OutOfRange`] (`EINVAL`): names the attribute and the largest allowed value.
    /// - [`ModifyError::Unreachable`] (`EHOSTUNREACH`, `ENETUNREACH`, `ETIMEDOUT`): the port cannot reach the peer.
    /// - [`ModifyError::Refused`] (any other errno).
    pub fn connect(self, peer: &QpEndpoint) -> Result<QueuePair<T>, ModifyError> {
        let Self { qp, config } = self;
        let mut attr = abi::ibv_qp_attr::zeroed();
        attr.qp_state = abi::IBV_QPS_RTR;
        attr.path_mtu = config.path_mtu.unwrap_or(qp.endpoint.mtu.min(peer.mtu)) as u32;
        attr.dest_qp_num = peer.qpn.0;
        attr.rq_psn = peer.psn.0;
        attr.ah_attr = AddressVector {
            port_num: qp.port.port_num,
            sgid_index: qp.port.gid_index,
            link_layer: qp.link_layer,
            lid: peer.lid,
            gid: peer.gid,
            sl: config.sl,
        }
        .to_raw();
        let mut mask = abi::IBV_QP_STATE
            | abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN;
        if T::RELIABLE {
            let states = (QpState::Init, QpState::Rtr);
            let device = config.pd.context().query_device().map_err(|e| {
                let (verb, source) = e.into_parts();
                ModifyError::of(verb, source, states, &[])
            })?;
            let depth = |limit: u32| {
                config
                    .max_rd_atomic
                    .unwrap_or(u8::try_from(limit.min(16)).unwrap_or(16))
            };
            attr.max_dest_rd_atomic = depth(device.max_qp_rd_atom);
            attr.max_rd_atomic = depth(device.max_qp_init_rd_atom);
            attr.min_rnr_timer = config.min_rnr_timer;
            mask |= abi::IBV_QP_MAX_DEST_RD_ATOMIC | abi::IBV_QP_MIN_RNR_TIMER;
        }
        qp.modify(&mut attr, mask)?;
        attr.qp_state = abi::IBV_QPS_RTS;
        attr.sq_psn = qp.endpoint.psn.0;
        let mut mask = abi::IBV_QP_STATE | abi::IBV_QP_SQ_PSN;
        if T::RELIABLE {
            attr.timeout = config.timeout;
            attr.retry_cnt = config.retry_cnt;
            attr.rnr_retry = config.rnr_retry;
            mask |= abi::IBV_QP_TIMEOUT
                | abi::IBV_QP_RETRY_CNT
                | abi::IBV_QP_RNR_RETRY
                | abi::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        qp.modify(&mut attr, mask)?;
        Ok(QueuePair::of(qp))
    }
}

impl<T: Connected> PreparedQp<T> {
    /// Connects the queue pair by the attributes of a connection manager.
    pub(crate) fn connect_with_steps(
        self,
        steps: &mut [(abi::ibv_qp_attr, i32)],
    ) -> Result<QueuePair<T>, ModifyError> {
        for (attr, mask) in steps {
            self.qp.modify(attr, *mask)?;
        }
        Ok(QueuePair::of(self.qp))
    }

    pub(crate) fn raw(&self) -> *mut abi::ibv_qp {
        self.qp.raw
    }
}
