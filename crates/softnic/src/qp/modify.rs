//! Changes of state and attributes: `ibv_modify_qp`.

use super::*;

impl Qp {
    /// Executes `ibv_modify_qp`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an attribute that is not one of the [`STANDARD_ATTRIBUTES`]: of today's attributes for
    /// `IBV_QP_RATE_LIMIT`. `EINVAL` for a change that the state machine does not allow; `ENOMEM` if there is no room
    /// for a ring. `ETIMEDOUT` for a destination that does not exist
    /// ([`Port::check_destination`](crate::device::Port::check_destination)).
    pub(crate) fn modify(&self, new_attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), i32> {
        refuse_attributes_beyond_standard(mask)?;
        let mask = self.created_type.relevant_attributes(mask);
        // Rings and packets that are still in transit belong to the present state.
        self.nic.process_all_arrivals();
        let mut control = lock(&self.modifiable_state);
        let from = self.state();
        let to = self.check_change(&control, from, new_attr, mask)?;
        if to == QpState::Reset {
            self.reset(&mut control);
            return Ok(());
        }
        if to == QpState::Err {
            if from != QpState::Err {
                drop(control);
                // Completions of finished work come before those of flushed work.
                self.complete_arrived_messages_into_buffer();
                self.send_cq.complete_finished_sends_into_buffer(self);
                self.flush_and_enter_error();
            }
            return Ok(());
        }
        let connects = from == QpState::Init && to == QpState::Rtr && self.qp_type.is_connected();
        if connects {
            self.connect(&mut control, new_attr)?;
        }
        if to == QpState::Rts && from == QpState::Rtr {
            self.start_packet_requests(&control, new_attr);
            send::start_counting_traffic(self, &mut self.sq.lock(), &control.attr);
        }
        if to == QpState::Rtr {
            self.open_for_datagrams_of_other_hosts();
        }
        self.copy_masked_attributes(&mut control.attr, new_attr, mask);
        self.publish_attributes(&control);
        if !self.try_change_state(from, to) {
            return Err(libc::EINVAL);
        }
        if to == QpState::Rts && from != QpState::Rtr {
            self.sq.lock().resume_after_sqe();
            // Work requests that were held back continue even if the program does not poll.
            self.nic.this_process().wake_engine();
        }
        if to == QpState::Sqd
            && from != QpState::Sqd
            && mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0
            && new_attr.en_sqd_async_notify != 0
        {
            self.raise_event_when_drained();
        }
        if to == QpState::Rtr {
            self.attach_waiting_rings(&mut control);
        }
        drop(control);
        if to != QpState::Init && (self.send_cq.is_overrun() || self.recv_cq.is_overrun()) {
            // The first completion would not find a place.
            self.fail_for_cq_overrun();
        }
        Ok(())
    }

    /// Returns the state after a change of attributes, or the errno of its refusal.
    fn check_change(
        &self,
        control: &ModifiableState,
        from: QpState,
        new_attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<QpState, i32> {
        let own = &self.nic.capabilities.limits;
        let limits = DeviceLimits {
            phys_port_cnt: self.context.device.port_count(),
            pkey_tbl_len: 1,
            gid_tbl_len: u16::try_from(crate::device::MAX_GIDS).unwrap_or(u16::MAX),
            max_mtu_code: IBV_MTU_4096,
            max_qp_init_rd_atom: u8::try_from(own.max_qp_init_rd_atom).unwrap_or(u8::MAX),
            max_qp_rd_atom: u8::try_from(own.max_qp_rd_atom).unwrap_or(u8::MAX),
        };
        let to = check_transition(
            self.created_type,
            from,
            mask,
            &attributes_to_check(new_attr),
            &limits,
        )
        .map_err(|e| {
            tracing::debug!("queue pair {:#x}: {e}", self.qpn);
            *lock(&crate::nic::LAST_MODIFY_ERROR) = Some(e.to_string());
            why::einval_because(|| e)
        })?;
        if mask & IBV_QP_AV != 0 {
            // The port of the queue pair: the kernel's `modify_qp` compares the two.
            let port_num = match mask & IBV_QP_PORT {
                0 => control.attr.port_num,
                _ => new_attr.port_num,
            };
            let port = self.context.device.port(port_num)?;
            port.check_ah(&new_attr.ah_attr)?;
            port.check_destination(&new_attr.ah_attr)?;
        }
        Ok(to)
    }

    /// Raises `IBV_EVENT_SQ_DRAINED` now or when the outstanding requests have completed.
    fn raise_event_when_drained(&self) {
        let mut sq = self.sq.lock();
        sq.want_drained_event();
        if sq.take_due_drained_event() {
            self.raise_event(IBV_EVENT_SQ_DRAINED);
        } else {
            // The engine completes the requests even if the program does not poll.
            self.nic.this_process().wake_engine();
        }
    }

    /// Attaches the rings of peers that were ready before this queue pair.
    fn attach_waiting_rings(&self, control: &mut ModifiableState) {
        let waiting = std::mem::take(&mut control.rings_waiting_for_rtr);
        for ring in waiting {
            if self.accepts_ring(control, &ring) {
                self.attach_ring(ring);
            } else {
                ring.detach();
            }
        }
    }

    /// Copies the attributes that `mask` names.
    fn copy_masked_attributes(
        &self,
        attr: &mut ibv_qp_attr,
        new_attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) {
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if mask & $bit != 0 { $(attr.$field = new_attr.$field;)+ })*
            };
        }
        take! {
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_QKEY: qkey;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_SQ_PSN: sq_psn;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_PATH_MIG_STATE: path_mig_state;
            IBV_QP_DEST_QPN: dest_qp_num;
        }
        let dgid = (attr.ah_attr.is_global != 0).then(|| attr.ah_attr.grh.dgid.bytes());
        *lock(&self.peer_gid) = dgid;
        self.qkey.store(attr.qkey, Ordering::Relaxed);
        self.max_rd_atomic
            .store(u32::from(attr.max_rd_atomic), Ordering::Relaxed);
        self.coded_timeout_and_retries.store(
            u32::from(attr.timeout)
                | u32::from(attr.retry_cnt) << 8
                | u32::from(attr.rnr_retry) << 16,
            Ordering::Relaxed,
        );
        if mask & IBV_QP_RNR_RETRY != 0 {
            self.sq.lock().set_rnr_retry(self.nic, attr.rnr_retry);
        }
        if mask & (IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT) != 0 {
            let (timeout, retry_cnt, rnr_retry) = (attr.timeout, attr.retry_cnt, attr.rnr_retry);
            self.sq
                .lock()
                .set_packet_timeout_and_retries(timeout, retry_cnt, rnr_retry);
        }
    }

    /// Publishes the attributes against which peers check their requests.
    fn publish_attributes(&self, control: &ModifiableState) {
        let shared = self.shared_state();
        let attr = &control.attr;
        shared.access.store(attr.qp_access_flags, Ordering::Relaxed);
        let place = PortPlace {
            device: self.context.device.number,
            port_num: attr.port_num,
        };
        // 0 until the program has chosen a port.
        let port = if attr.port_num == 0 {
            0
        } else {
            place.host_wide_number()
        };
        shared
            .host_wide_port_number
            .store(port.into(), Ordering::Relaxed);
        let port_num = attr.port_num.into();
        shared.port_num.store(port_num, Ordering::Relaxed);
        shared.sq_psn.store(attr.sq_psn, Ordering::Relaxed);
        shared.rq_psn.store(attr.rq_psn, Ordering::Relaxed);
        shared.dest_qpn.store(attr.dest_qp_num, Ordering::Relaxed);
        shared
            .min_rnr_timer
            .store(u32::from(attr.min_rnr_timer), Ordering::Relaxed);
        shared
            .max_dest_rd_atomic
            .store(u32::from(attr.max_dest_rd_atomic), Ordering::Relaxed);
        shared.dest_incarnation.store(
            control.peer_process.as_ref().map_or(0, |p| p.incarnation),
            Ordering::Relaxed,
        );
    }

    pub(super) fn reset(&self, control: &mut ModifiableState) {
        // A message that has arrived and has its receive WR is acknowledged, whether the program polls or not. Take it
        // now, and drop its completion below. No sender waits for the fate of a datagram. A program may have freed the
        // memory of its RECVs already, since a NIC holds the pages (UCX does so).
        if self.qp_type.is_connected() {
            self.complete_arrived_messages_into_buffer();
        }
        self.set_state(QpState::Reset);
        self.shared_state().epoch.fetch_add(1, Ordering::AcqRel);
        self.with_recv_side(|side| {
            if let Some(side) = side {
                side.detach_all_rings();
            }
        });
        {
            let mut sq = self.sq.lock();
            send::publish_traffic(self, &mut sq);
            sq.reset(self.nic);
        }
        self.rq.lock().clear();
        self.send_waiting_answers();
        *lock(&self.packet_responder_state) = PacketResponderState::default();
        self.send_cq.drop_completions_of_qp(self.qpn);
        match &self.xrc_role {
            XrcRole::Recv(domain, _) => domain.drop_completions_of_qp(self.qpn),
            XrcRole::NotXrc | XrcRole::Send => self.recv_cq.drop_completions_of_qp(self.qpn),
        }
        self.shared_state().clear_refused_request();
        for ring in control.rings_waiting_for_rtr.drain(..) {
            ring.detach();
        }
        if let Some(peer) = control.peer_process.take() {
            peer.wake_engine();
        }
        control.peer_flow = None;
        self.path_in_shared_state.store(0, Ordering::Relaxed);
        control.attr = ibv_qp_attr::zeroed();
        // With the fence in `fail_refused_request`: a sender that reads these attributes finds the new epoch.
        fence(Ordering::Release);
        self.publish_attributes(control);
    }
}

/// Refuses attributes such as `IBV_QP_RATE_LIMIT` with `EOPNOTSUPP`.
fn refuse_attributes_beyond_standard(mask: ibv_qp_attr_mask) -> Result<(), i32> {
    // So do `ibv_cmd_modify_qp` of rdma-core and nearly all drivers of the kernel (efa, erdma, irdma, mlx4, ocrdma,
    // rdmavt, rxe). Pacing is of mlx5, on raw packet queue pairs alone, and of new adapters of bnxt_re.
    if mask & !STANDARD_ATTRIBUTES == 0 {
        return Ok(());
    }
    why::record_refusal_reason(|| {
        format!(
            "attr_mask {mask:#x} has bits above IBV_QP_DEST_QPN, such as IBV_QP_RATE_LIMIT, which the device does not \
             support (packet_pacing_caps of ibv_query_device_ex)"
        )
    });
    Err(libc::EOPNOTSUPP)
}
