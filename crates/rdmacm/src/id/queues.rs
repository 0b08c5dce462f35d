//! An id's queue pair, completion queues and shared receive queue.

use std::ffi::{c_int, c_void};
use std::ptr;

use verbs_abi::*;

use super::CmId;
use crate::connection_params::ConnectionParams;
use crate::device_port::{check_returned_errno, last_errno};
use crate::errno::{Errno, INVALID, Result};

impl CmId {
    /// Returns the attributes and their mask for moving the queue pair to `state`: `rdma_init_qp_attr(3)`.
    ///
    /// # Errors
    /// `EINVAL` for a state other than INIT, RTR and RTS.
    pub fn qp_attr(&self, state: ibv_qp_state) -> Result<(ibv_qp_attr, c_int)> {
        let ends = self.endpoint.connection_params();
        self.qp_attr_with_params(state, &ends)
    }

    fn qp_attr_with_params(
        &self,
        state: ibv_qp_state,
        ends: &ConnectionParams,
    ) -> Result<(ibv_qp_attr, c_int)> {
        let qp = self.qp();
        // SAFETY: the queue pair, if the id has one, lives as long as the field names it.
        let qp_type = unsafe { qp.as_ref() }.map_or(self.qp_type(), |qp| qp.qp_type);
        let ack_timeout = self.lock_extra_fields().ack_timeout;
        self.device_port_of_local_address().qp_attr(
            state,
            qp_type,
            self.source_or_unbound(),
            ends,
            ack_timeout,
        )
    }

    /// Moves the queue pair, if the id has one, to RTR and RTS with the parameters of the connection.
    pub(crate) fn connect_qp(&self, ends: &ConnectionParams) -> Result {
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            let qp = self.qp();
            if qp.is_null() {
                return Ok(());
            }
            let (mut attr, mask) = self.qp_attr_with_params(state, ends)?;
            // SAFETY: the id's live queue pair.
            unsafe {
                self.device_port_of_local_address()
                    .modify_qp(qp, &mut attr, mask)
            }?;
        }
        Ok(())
    }

    /// Moves the queue pair, if the id has one, to the error state.
    pub(crate) fn move_qp_to_error_state(&self) -> Result {
        let qp = self.qp();
        if qp.is_null() {
            return Ok(());
        }
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_ERR;
        // SAFETY: the id's live queue pair.
        unsafe {
            self.device_port_of_local_address()
                .modify_qp(qp, &mut attr, IBV_QP_STATE)
        }
    }

    /// Makes the id's queue pair and its missing completion queues: `rdma_create_qp_ex`.
    ///
    /// # Errors
    /// `EINVAL` if the id has a queue pair or no device; otherwise the error of the provider.
    ///
    /// # Safety
    /// The objects that `attr` names are live.
    pub unsafe fn create_qp(&self, attr: &mut ibv_qp_init_attr_ex) -> Result {
        if !self.qp().is_null() || !self.is_bound_to_device() {
            return Err(INVALID);
        }
        // SAFETY: the caller guarantees that the objects are live.
        unsafe { self.fill_in_and_check_domains(attr) }?;
        let missing = |of_id: *mut ibv_cq, asked: *mut ibv_cq, size: u32| {
            if of_id.is_null() && asked.is_null() {
                size
            } else {
                0
            }
        };
        self.create_cqs(
            missing(self.send_cq(), attr.send_cq, attr.cap.max_send_wr),
            missing(self.recv_cq(), attr.recv_cq, attr.cap.max_recv_wr),
        )?;
        if attr.send_cq.is_null() {
            attr.send_cq = self.send_cq();
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = self.recv_cq();
        }
        if attr.srq.is_null() {
            attr.srq = self.srq();
        }
        // SAFETY: as above.
        let qp = unsafe { self.new_qp(attr) }.inspect_err(|_| self.destroy_cqs())?;
        self.set_qp(qp);
        if let Err(e) = self.move_new_qp_to_init_or_rts() {
            self.destroy_qp();
            return Err(e);
        }
        // SAFETY: the queue pair was just made.
        self.set_pd(unsafe { (*qp).pd });
        Ok(())
    }

    /// Fills in the protection domain and the XRC domain if `attr` has none.
    ///
    /// # Errors
    /// `EINVAL` if the queues and domains do not belong together.
    ///
    /// # Safety
    /// As for [`CmId::create_qp`].
    unsafe fn fill_in_and_check_domains(&self, attr: &mut ibv_qp_init_attr_ex) -> Result {
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = self.pd();
        // SAFETY: contract of this function.
        } else if unsafe { (*attr.pd).context } != self.verbs() {
            return Err(INVALID);
        }
        let differs = |of_id: *mut ibv_cq, asked: *mut ibv_cq| {
            !of_id.is_null() && !asked.is_null() && of_id != asked
        };
        if differs(self.recv_cq(), attr.recv_cq) || differs(self.send_cq(), attr.send_cq) {
            return Err(INVALID);
        }
        if self.qp_type() == IBV_QPT_XRC_RECV
            && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
        {
            attr.xrcd = self.device_port_of_local_address().xrcd()?;
            attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`CmId::create_qp`].
    unsafe fn new_qp(&self, attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
        let device = self.device_port_of_local_address();
        // SAFETY: contract of this function. `ibv_qp_init_attr_ex` begins with the fields of
        // `ibv_qp_init_attr`, so that `ibv_create_qp_ex` of verbs.h makes the same cast.
        let qp = unsafe {
            if attr.comp_mask == IBV_QP_INIT_ATTR_PD {
                (device.verbs.ibv_create_qp)(attr.pd, ptr::from_mut(attr).cast())
            } else {
                let extended = verbs_get_ctx(device.context);
                let create = extended.as_ref().and_then(|x| x.create_qp_ex);
                create.ok_or(Errno(libc::EOPNOTSUPP))?(device.context, attr)
            }
        };
        if qp.is_null() {
            Err(last_errno())
        } else {
            Ok(qp)
        }
    }

    /// Prepares the queue pair: "transitions it for sending and receiving" (`rdma_create_qp(3)`). Afterwards, receives
    /// may be posted, and datagrams may be sent.
    fn move_new_qp_to_init_or_rts(&self) -> Result {
        let states: &[_] = if self.is_datagram() {
            &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]
        } else {
            &[IBV_QPS_INIT]
        };
        for &state in states {
            let (mut attr, mask) = self.qp_attr(state)?;
            // SAFETY: the id's queue pair, which was just made.
            unsafe {
                self.device_port_of_local_address()
                    .modify_qp(self.qp(), &mut attr, mask)
            }?;
        }
        Ok(())
    }

    /// Makes completion queues with channels for `send` and `recv` work requests; 0 makes none.
    pub(crate) fn create_cqs(&self, send: u32, recv: u32) -> Result {
        let cq_context: *mut c_void = self.abi_ptr().cast();
        let context = self.device_port_of_local_address().context;
        let verbs = self.device_port_of_local_address().verbs;
        let create = |size: u32| -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
            let size = c_int::try_from(size).map_err(|_| INVALID)?;
            // SAFETY: the device is open. The context of the CQ is the id, as `rdma_get_send_comp` of rdma_verbs.h
            // expects.
            unsafe {
                let channel = (verbs.ibv_create_comp_channel)(context);
                if channel.is_null() {
                    return Err(last_errno());
                }
                let cq = (verbs.ibv_create_cq)(context, size, cq_context, channel, 0);
                if cq.is_null() {
                    let errno = last_errno();
                    (verbs.ibv_destroy_comp_channel)(channel);
                    return Err(errno);
                }
                Ok((channel, cq))
            }
        };
        if recv > 0 {
            let (channel, cq) = create(recv)?;
            self.set_recv_cq_channel(channel);
            self.set_recv_cq(cq);
        }
        if send > 0 {
            let (channel, cq) = create(send).inspect_err(|_| self.destroy_cqs())?;
            self.set_send_cq_channel(channel);
            self.set_send_cq(cq);
        }
        Ok(())
    }

    /// Destroys the completion queues that the id has made.
    pub(crate) fn destroy_cqs(&self) {
        if self.qp_type() == IBV_QPT_XRC_RECV && !self.srq().is_null() {
            return;
        }
        self.destroy_cq(self.recv_cq(), self.recv_cq_channel());
        self.set_recv_cq(ptr::null_mut());
        self.set_recv_cq_channel(ptr::null_mut());
        self.destroy_cq(self.send_cq(), self.send_cq_channel());
        self.set_send_cq(ptr::null_mut());
        self.set_send_cq_channel(ptr::null_mut());
    }

    /// Destroys a completion queue and its channel; NULL is ignored.
    fn destroy_cq(&self, cq: *mut ibv_cq, channel: *mut ibv_comp_channel) {
        let verbs = self.device_port_of_local_address().verbs;
        // SAFETY: the fields hold only objects that `create_cqs` made, and the caller clears them.
        unsafe {
            if !cq.is_null() {
                (verbs.ibv_destroy_cq)(cq);
            }
            if !channel.is_null() {
                (verbs.ibv_destroy_comp_channel)(channel);
            }
        }
    }

    /// Destroys the queue pair and the completion queues that the id has made.
    pub fn destroy_qp(&self) {
        let qp = self.qp();
        if !qp.is_null() {
            // SAFETY: the id's live queue pair, which no field names afterwards.
            unsafe { (self.device_port_of_local_address().verbs.ibv_destroy_qp)(qp) };
            self.set_qp(ptr::null_mut());
        }
        self.destroy_cqs();
    }

    /// Makes the id's shared receive queue: `rdma_create_srq_ex`.
    ///
    /// # Safety
    /// The objects that `attr` names are live.
    pub(crate) unsafe fn create_srq(&self, attr: &mut ibv_srq_init_attr_ex) -> Result {
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || !self.is_bound_to_device() {
            return Err(INVALID);
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.pd = self.pd();
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        if attr.srq_type == IBV_SRQT_XRC {
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
                attr.xrcd = self.device_port_of_local_address().xrcd()?;
            }
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
                self.create_cqs(0, attr.attr.max_wr)?;
                attr.cq = self.recv_cq();
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        // SAFETY: the caller guarantees that the objects are live.
        let srq = unsafe { self.new_srq(attr) }.inspect_err(|_| self.destroy_cqs())?;
        if self.pd().is_null() {
            self.set_pd(attr.pd);
        }
        self.set_srq(srq);
        Ok(())
    }

    /// # Safety
    /// As for [`CmId::create_srq`].
    unsafe fn new_srq(&self, attr: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
        let device = self.device_port_of_local_address();
        // SAFETY: contract of this function. `ibv_srq_init_attr_ex` begins with the fields of
        // `ibv_srq_init_attr`, so that `ibv_create_srq_ex` of verbs.h makes the same cast.
        let srq = unsafe {
            let basic = attr.comp_mask == IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD
                && attr.srq_type == IBV_SRQT_BASIC;
            if basic {
                (device.verbs.ibv_create_srq)(attr.pd, ptr::from_mut(attr).cast())
            } else {
                let extended = verbs_get_ctx(device.context);
                let create = extended.as_ref().and_then(|x| x.create_srq_ex);
                create.ok_or(Errno(libc::EOPNOTSUPP))?(device.context, attr)
            }
        };
        if srq.is_null() {
            Err(last_errno())
        } else {
            Ok(srq)
        }
    }

    /// Destroys the shared receive queue.
    pub(crate) fn destroy_srq(&self) {
        let srq = self.srq();
        if !srq.is_null() {
            // SAFETY: the id's live SRQ, which no field names afterwards.
            let destroyed = check_returned_errno(unsafe {
                (self.device_port_of_local_address().verbs.ibv_destroy_srq)(srq)
            });
            if destroyed.is_err() {
                tracing::debug!("rdma_destroy_srq: the SRQ is in use");
            }
            self.set_srq(ptr::null_mut());
        }
        self.destroy_cqs();
    }
}
