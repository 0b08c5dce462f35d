//! How a queue pair finds the path to its peer.

use super::*;
use nic_core::qp_state::path_mtu_bytes;
use roce::psn::Psn;
use roce::rc::requester::{Requester, RequesterConfig};
use roce::rc::responder::{Responder, ResponderConfig};
use roce::uc;

use crate::nic::LAST_MODIFY_ERROR;
use crate::path::{DEFAULT_PKEY, Mode};
use crate::recv::Responding;
use crate::send::Wire;

impl Qp {
    /// Finds the path to the peer that `new` names (INIT to RTR).
    ///
    /// # Errors
    /// `ENOMEM` where there is no room for a ring; `EMFILE` and the like where the peer cannot be reached.
    pub(super) fn connect(&self, control: &mut Control, new: &ibv_qp_attr) -> Result<(), i32> {
        let nic = self.nic;
        let local = nic.port.reaches(&new.ah_attr);
        let is_carried = matches!(self.full_type, QpType::Rc | QpType::Uc);
        if nic.takes_packets(local, is_carried) {
            return self.connect_by_packets(control, new);
        }
        control.peer = if local {
            nic.fabric.try_peer(new.dest_qp_num as usize >> QP_BITS)?
        } else {
            None
        };
        if let Some(peer) = &control.peer
            && self.full_type != QpType::XrcRecv
        {
            self.sq
                .lock()
                .connect(self, Arc::clone(peer), new.dest_qp_num)?;
        }
        Ok(())
    }

    /// Answers requests that come by packets from now on.
    fn connect_by_packets(&self, control: &mut Control, new: &ibv_qp_attr) -> Result<(), i32> {
        control.peer = None;
        let Some(flow) = self.nic.port.flow(&new.ah_attr) else {
            return Ok(());
        };
        self.nic.open_network().inspect_err(|_| {
            let why = lock(&LAST_MODIFY_ERROR).clone().unwrap_or_default();
            tracing::error!("queue pair {:#x} cannot reach its peer: {why}", self.qpn);
        })?;
        crate::path::note_use();
        let mtu_bytes = self.mtu_of(&flow, new.path_mtu);
        let responding = match self.full_type {
            QpType::Rc => Responding::rc(
                Responder::new(ResponderConfig {
                    dest_qpn: new.dest_qp_num,
                    pkey: DEFAULT_PKEY,
                    mtu_bytes,
                    first_psn: Psn::new(new.rq_psn),
                    max_dest_rd_atomic: new.max_dest_rd_atomic,
                    min_rnr_timer: new.min_rnr_timer,
                    ..ResponderConfig::default()
                }),
                flow,
            ),
            QpType::Uc => Responding::uc(uc::Receiver::new(mtu_bytes, Psn::new(new.rq_psn)), flow),
            // XRC and the rest do not go by packets.
            _ => return Err(libc::EOPNOTSUPP),
        };
        lock(&self.packets).connect(responding);
        control.flow = Some(flow);
        Ok(())
    }

    /// Bytes of the path MTU of `flow`: what the program asks for, or less where less fits into the packets that lead there.
    ///
    /// The port's MTU is that of shared memory, and programs ask for it. Both ends of a connection come to the same.
    fn mtu_of(&self, flow: &Flow, path_mtu: ibv_mtu) -> u32 {
        path_mtu_bytes(path_mtu).min(self.nic.network.path_mtu(flow))
    }

    /// Begins requests by packets (RTR to RTS).
    pub(super) fn begin_requests(&self, control: &Control, new: &ibv_qp_attr) {
        let Some(flow) = control.flow else { return };
        let attr = &control.attr;
        let mtu_bytes = self.mtu_of(&flow, attr.path_mtu);
        let first_psn = Psn::new(new.sq_psn);
        let wire = match self.full_type {
            QpType::Rc => Wire::rc(
                Requester::new(RequesterConfig {
                    dest_qpn: attr.dest_qp_num,
                    pkey: DEFAULT_PKEY,
                    mtu_bytes,
                    first_psn,
                    timeout_ns: send::packet_timeout_ns(new.timeout),
                    retry_cnt: new.retry_cnt,
                    rnr_retry: new.rnr_retry,
                    max_rd_atomic: new.max_rd_atomic,
                    ..RequesterConfig::default()
                }),
                flow,
            ),
            _ => Wire::uc(
                uc::Sender::new(attr.dest_qp_num, DEFAULT_PKEY, mtu_bytes, first_psn),
                flow,
            ),
        };
        self.sq.lock().connect_by_packets(wire);
    }

    /// Sends the answers that wait: a program that has seen a completion may be quicker than the thread that made it.
    pub(crate) fn send_last_answers(&self) {
        if crate::path::in_use() {
            crate::recv::send_answers(self, shm::clock::now_ns(), self.nic.network.heard_ns());
            self.nic.network.flush();
        }
    }

    /// Whether the peer's number is one of this process, if its address is.
    pub(crate) fn has_peer_in_process(&self) -> bool {
        let peer = self.shared().dest_qpn.load(Ordering::Relaxed) as usize;
        peer >> QP_BITS == self.nic.me().slot
    }

    /// Has what is about to leave acknowledge what has come: the kernel carries both at once.
    pub(crate) fn add_acknowledgement(&self) {
        crate::recv::add_acknowledgement(self);
    }

    /// Has datagrams of other hosts reach the queue pair, if there can be some.
    pub(super) fn open_for_datagrams(&self) {
        let nic = self.nic;
        if nic.network.mode() != Mode::Local
            && self.qp_type == QpType::Ud
            && let Err(errno) = nic.open_network()
        {
            // Those of this host do.
            if nic.network.mode() == Mode::Captured {
                tracing::warn!("datagrams of queue pair {:#x} are not captured", self.qpn);
            }
            tracing::debug!(
                "datagrams of other hosts do not reach queue pair {:#x}: errno {errno}",
                self.qpn
            );
        }
    }
}
