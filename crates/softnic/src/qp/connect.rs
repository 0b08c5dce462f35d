//! The path of a queue pair to its peer.

use super::*;
use nic_core::qp_state::path_mtu_bytes;
use nic_core::retry_timeouts::live_peer_timeout_ns;
use roce::psn::Psn;
use roce::rc::requester::{Requester, RequesterConfig};
use roce::rc::responder::{Responder, ResponderConfig};
use roce::uc;

use crate::device::Port;
use crate::nic::LAST_MODIFY_ERROR;
use crate::path::{DEFAULT_PKEY, PathMode};
use crate::recv::QpResponder;
use crate::send::ConnectedRequester;
use shm::fabric::layout::QP_CONNECTED_BY_PACKETS;

/// Whether the queue pair with this number belongs to the port at `place`. One that has no port yet may get that one.
fn may_qp_use_port(peer: &Peer, qpn: u32, place: PortPlace) -> bool {
    let of_peer = peer.segment.find_qp(qpn as usize % MAX_QPS);
    let port = of_peer.map_or(0, |qp| qp.host_wide_port_number.load(Ordering::Relaxed));
    port == 0 || port == u32::from(place.host_wide_number())
}

impl Qp {
    /// Establishes the path to the peer that `new_attr` names (INIT to RTR).
    ///
    /// # Errors
    /// `ENOMEM` if there is no room for a ring; `EMFILE` and the like if the peer cannot be reached.
    pub(super) fn connect(
        &self,
        control: &mut ModifiableState,
        new_attr: &ibv_qp_attr,
    ) -> Result<(), i32> {
        let nic = self.nic;
        let port = self.context.device.port(new_attr.ah_attr.port_num)?;
        let local = port.local_destination_port(&new_attr.ah_attr).is_some();
        let is_carried = matches!(self.created_type, QpType::Rc | QpType::Uc);
        if nic.uses_packets(local, is_carried) {
            return self.start_packet_responder(control, port, new_attr);
        }
        control.peer_process = match port.local_destination_port(&new_attr.ah_attr) {
            Some(place) => nic
                .fabric
                .peer_or_exhaustion_errno(new_attr.dest_qp_num as usize >> QP_INDEX_BITS)?
                .filter(|peer| may_qp_use_port(peer, new_attr.dest_qp_num, place)),
            None => None,
        };
        if let Some(peer) = &control.peer_process
            && self.created_type != QpType::XrcRecv
        {
            self.sq.lock().connect_by_shared_memory(
                self,
                Arc::clone(peer),
                new_attr.dest_qp_num,
            )?;
        }
        Ok(())
    }

    /// Starts to answer requests that arrive by packets.
    fn start_packet_responder(
        &self,
        control: &mut ModifiableState,
        port: &Port,
        new_attr: &ibv_qp_attr,
    ) -> Result<(), i32> {
        control.peer_process = None;
        let Some(flow) = port.packet_flow_to(&new_attr.ah_attr) else {
            return Ok(());
        };
        self.refuse_unless_packets_carry()?;
        self.open_network_at_source(&flow).map_err(|(why, errno)| {
            tracing::error!("queue pair {:#x} cannot reach its peer: {why}", self.qpn);
            crate::why::record_refusal_reason(|| why);
            errno
        })?;
        crate::path::note_packets_in_use();
        let mtu_bytes = self.flow_mtu_bytes(&flow, new_attr.path_mtu);
        let responding = match self.created_type {
            QpType::Rc => QpResponder::new_rc(
                Responder::new(ResponderConfig {
                    dest_qpn: new_attr.dest_qp_num,
                    pkey: DEFAULT_PKEY,
                    mtu_bytes,
                    first_psn: Psn::new(new_attr.rq_psn),
                    max_dest_rd_atomic: new_attr.max_dest_rd_atomic,
                    min_rnr_timer: new_attr.min_rnr_timer,
                    congestion: self.nic.packet_path.congestion(),
                    ..ResponderConfig::default()
                }),
                flow,
            ),
            QpType::Uc => QpResponder::new_uc(
                uc::Receiver::new(mtu_bytes, Psn::new(new_attr.rq_psn)),
                flow,
            ),
            // `refuse_unless_packets_carry` has refused the other types.
            _ => return Err(libc::EOPNOTSUPP),
        };
        lock(&self.packet_responder_state).set_responder(responding);
        control.peer_flow = Some(flow);
        self.path_in_shared_state
            .store(QP_CONNECTED_BY_PACKETS, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the sockets for packets, unless they are open.
    ///
    /// # Errors
    /// The reason and the errno: no address has a socket, or the source of `flow` has none.
    fn open_network_at_source(&self, flow: &PacketFlow) -> Result<(), (String, i32)> {
        if let Err(errno) = self.nic.open_network() {
            let why = lock(&LAST_MODIFY_ERROR).clone().unwrap_or_default();
            return Err((why, errno));
        }
        match self.nic.packet_path.source_socket_error(flow) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Refuses a queue pair whose messages packets do not carry.
    ///
    /// # Errors
    /// `EOPNOTSUPP`.
    fn refuse_unless_packets_carry(&self) -> Result<(), i32> {
        let what = match self.created_type {
            // The receiver of a rendezvous reads the payload from the sender's memory.
            QpType::Rc
                if self
                    .srq
                    .as_ref()
                    .is_some_and(|srq| srq.tag_ops_cq.is_some()) =>
            {
                "the tag matching of a shared receive queue"
            }
            QpType::Rc | QpType::Uc => return Ok(()),
            _ => "its transport service (XRC, for example)",
        };
        crate::why::record_refusal_reason(|| {
            format!(
                "packets lead to the peer, and they do not carry {what}; run both ends on one host, without \
                 VERBATIM_PATH=packets and VERBATIM_PCAP"
            )
        });
        Err(libc::EOPNOTSUPP)
    }

    /// Returns the path MTU of `flow` in bytes: the one that the program asks for, or less if the packets of the flow
    /// hold less.
    ///
    /// The port reports the MTU of shared memory, and programs ask for that. Both ends of a connection compute the same
    /// value.
    fn flow_mtu_bytes(&self, flow: &PacketFlow, path_mtu: ibv_mtu) -> u32 {
        path_mtu_bytes(path_mtu).min(self.nic.packet_path.largest_path_mtu_bytes(flow))
    }

    /// Starts requests by packets (RTR to RTS).
    pub(super) fn start_packet_requests(&self, control: &ModifiableState, new_attr: &ibv_qp_attr) {
        let Some(flow) = control.peer_flow else {
            return;
        };
        let attr = &control.attr;
        let mtu_bytes = self.flow_mtu_bytes(&flow, attr.path_mtu);
        let first_psn = Psn::new(new_attr.sq_psn);
        let wire = match self.created_type {
            QpType::Rc => ConnectedRequester::new_rc(
                Requester::new(RequesterConfig {
                    dest_qpn: attr.dest_qp_num,
                    pkey: DEFAULT_PKEY,
                    mtu_bytes,
                    first_psn,
                    timeout_ns: live_peer_timeout_ns(new_attr.timeout),
                    retry_cnt: new_attr.retry_cnt,
                    rnr_retry: new_attr.rnr_retry,
                    max_rd_atomic: new_attr.max_rd_atomic,
                    congestion: self.nic.packet_path.congestion(),
                    ..RequesterConfig::default()
                }),
                flow,
            ),
            _ => ConnectedRequester::new_uc(
                uc::Sender::new(attr.dest_qp_num, DEFAULT_PKEY, mtu_bytes, first_psn),
                flow,
            ),
        };
        self.sq.lock().connect_by_packets(wire);
    }

    /// Sends answers that wait. A program that has seen a completion may act before the thread that made the completion
    /// has sent the answer.
    pub(crate) fn send_waiting_answers(&self) {
        if crate::path::are_packets_in_use() {
            crate::recv::send_answers(
                self,
                shm::clock::now_ns(),
                self.nic.packet_path.delivered_until_ns(),
            );
            self.nic.packet_path.send_enqueued();
        }
    }

    /// Returns true if the transport is RC and the queue pair is no end of an XRC connection.
    pub(crate) fn is_rc_without_xrc(&self) -> bool {
        matches!(self.created_type, QpType::Rc)
    }

    /// Returns true if the peer's QP number is one of this process. The peer's address is not checked.
    pub(crate) fn has_peer_in_process(&self) -> bool {
        let peer = self.shared_state().dest_qpn.load(Ordering::Relaxed) as usize;
        peer >> QP_INDEX_BITS == self.nic.this_process().slot
    }

    /// Adds the acknowledgement of received packets to the packets that are about to leave: the kernel carries both at
    /// once.
    pub(crate) fn enqueue_owed_acknowledgement(&self) {
        crate::recv::enqueue_owed_acknowledgement(self);
    }

    /// Lets datagrams of other hosts reach a UD queue pair, unless the path is local only.
    pub(super) fn open_for_datagrams_of_other_hosts(&self) {
        let nic = self.nic;
        if nic.packet_path.mode() != PathMode::Local
            && self.qp_type == QpType::Ud
            && let Err(errno) = nic.open_network()
        {
            // Datagrams of this host reach the queue pair all the same.
            if nic.packet_path.mode() == PathMode::PacketsWherePossible {
                tracing::warn!("datagrams of queue pair {:#x} are not captured", self.qpn);
            }
            tracing::debug!(
                "datagrams of other hosts do not reach queue pair {:#x}: errno {errno}",
                self.qpn
            );
        }
    }
}
