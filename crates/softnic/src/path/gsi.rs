//! Delivery of management datagrams: a datagram that arrives at QP1 goes to its process.
//!
//! Any process of the fabric may receive what arrives at QP1, and has no queue pair for it. Connection management has a
//! Unix datagram socket for each of its processes, in a folder of the fabric. The message tells which of them it is
//! for.
//!
//! Linux lets such a socket hold few datagrams (`net.unix.max_dgram_qlen`, 10 by default). A burst of connections
//! brings more, so the rest waits here until the process has read some.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use roce::cm::CmMessage;
use roce::mad::{GSI_QKEY, MAD_BYTES};
use roce::mad_delivery::{
    DELIVERED_MAD_BYTES, DeliveredMad, MAD_SOCKET_NAME_PREFIX, MadRecipient, mad_socket_name,
};
use roce::packet::Packet;

use shm::clock::now_ns;

use super::DropReason;
use crate::lock::lock;

/// The folder of connection management in the fabric's folder.
const CM_FOLDER: &str = "rdma_cm";

/// Largest number of datagrams that wait for all processes, and for one of them.
const MAX_WAITING_MADS: usize = 4096;
const MAX_WAITING_MADS_PER_PROCESS: usize = 1024;

/// Time after which a waiting datagram is dropped. Its process does not run, and its sender repeats it.
const MAX_MAD_WAIT_NS: u64 = 1_000_000_000;

/// A datagram for a process whose socket was full.
struct WaitingMad {
    recipient: MadRecipient,
    bytes: [u8; DELIVERED_MAD_BYTES],
    drop_deadline_ns: u64,
}

/// The fate of a datagram that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MadDelivery {
    /// Its process has it.
    Delivered,
    /// Its process has not read its earlier datagrams. [`Gsi::retry_waiting`] delivers it.
    Waits,
}

/// The socket that passes arrived management datagrams to the processes that use `rdma_cm`.
#[derive(Default)]
pub(crate) struct Gsi {
    socket_and_folder: OnceLock<(UnixDatagram, PathBuf)>,
    waiting_mads: Mutex<VecDeque<WaitingMad>>,
    /// True while `waiting` has datagrams.
    has_waiting: AtomicBool,
}

impl Gsi {
    /// Returns the socket to send with, and the folder of the sockets to send to.
    fn open_socket(&self, fabric: &Path) -> io::Result<&(UnixDatagram, PathBuf)> {
        if let Some(open) = self.socket_and_folder.get() {
            return Ok(open);
        }
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(self
            .socket_and_folder
            .get_or_init(|| (socket, fabric.join(CM_FOLDER))))
    }

    /// Delivers a management datagram to its process.
    ///
    /// # Errors
    /// The reason why the datagram is dropped.
    pub(crate) fn deliver(
        &self,
        fabric: &Path,
        source: [u8; 16],
        destination: [u8; 16],
        packet: &Packet<'_>,
    ) -> Result<MadDelivery, DropReason> {
        let deth = packet.extended.deth.ok_or(DropReason::Malformed)?;
        if deth.qkey != GSI_QKEY {
            return Err(DropReason::WrongQkey);
        }
        let mad: [u8; MAD_BYTES] = packet
            .payload
            .try_into()
            .map_err(|_| DropReason::Malformed)?;
        let (_, message) = CmMessage::parse(&mad).map_err(|_| DropReason::Malformed)?;
        let delivery = DeliveredMad {
            source_gid: source,
            destination_gid: destination,
            mad,
        };
        let bytes = delivery.emit();
        let recipient = message.recipient();
        let mut waiting = lock(&self.waiting_mads);
        let is_for_recipient = |mad: &&WaitingMad| mad.recipient == recipient;
        let ahead = waiting.iter().filter(is_for_recipient).count();
        if ahead == 0 {
            let delivery = self.send_to_process(fabric, recipient, &bytes)?;
            if delivery == MadDelivery::Delivered {
                return Ok(delivery);
            }
        }
        if waiting.iter().any(|mad| mad.bytes == bytes) {
            // The sender has repeated it.
            return Ok(MadDelivery::Waits);
        }
        if ahead >= MAX_WAITING_MADS_PER_PROCESS || waiting.len() >= MAX_WAITING_MADS {
            return Err(DropReason::NotReady);
        }
        waiting.push_back(WaitingMad {
            recipient,
            bytes,
            drop_deadline_ns: now_ns().saturating_add(MAX_MAD_WAIT_NS),
        });
        self.has_waiting.store(true, Ordering::Relaxed);
        Ok(MadDelivery::Waits)
    }

    /// Delivers datagrams that wait, if their processes have room now. Returns true if some still wait.
    pub(crate) fn retry_waiting(&self, fabric: impl FnOnce() -> Option<PathBuf>) -> bool {
        if !self.has_waiting.load(Ordering::Relaxed) {
            return false;
        }
        let mut waiting = lock(&self.waiting_mads);
        if let Some(fabric) = fabric() {
            let now = now_ns();
            let mut full = Vec::new();
            waiting.retain(|mad| {
                if now >= mad.drop_deadline_ns {
                    return false;
                }
                if full.contains(&mad.recipient) {
                    return true;
                }
                let delivery = self.send_to_process(&fabric, mad.recipient, &mad.bytes);
                let waits = delivery == Ok(MadDelivery::Waits);
                full.extend(waits.then_some(mad.recipient));
                waits
            });
        }
        let still = !waiting.is_empty();
        self.has_waiting.store(still, Ordering::Relaxed);
        still
    }

    /// Sends a datagram to the socket of its process.
    ///
    /// # Errors
    /// The reason why no process can have it.
    fn send_to_process(
        &self,
        fabric: &Path,
        recipient: MadRecipient,
        bytes: &[u8],
    ) -> Result<MadDelivery, DropReason> {
        let (socket, folder) = self.open_socket(fabric).map_err(|_| DropReason::NotReady)?;
        let Ok(folder) = fs::File::open(folder) else {
            // No process manages connections here.
            return Err(DropReason::UnknownQueuePair);
        };
        // A short path, however long the folder's name is.
        let folder = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        if let MadRecipient::ProcessInSlot(slot) = recipient {
            let sent = socket.send_to(bytes, folder.join(mad_socket_name(slot)));
            match sent.map_err(|e| e.kind()) {
                Ok(_) => return Ok(MadDelivery::Delivered),
                // The process has ended.
                Err(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
                // The process has not read its earlier datagrams. Another process would answer that the connection is
                // unknown.
                Err(io::ErrorKind::WouldBlock) => return Ok(MadDelivery::Waits),
                Err(_) => return Err(DropReason::NotReady),
            }
        }
        // Any of the processes finds the listener, or answers for a process that has ended.
        let limit = match recipient {
            MadRecipient::AllProcesses => usize::MAX,
            MadRecipient::Listener | MadRecipient::ProcessInSlot(_) => 1,
        };
        let mut is_full = false;
        let sent = fs::read_dir(&folder).map_or(0, |names| {
            names
                .filter_map(|name| name.ok()?.file_name().into_string().ok())
                .filter(|name| name.starts_with(MAD_SOCKET_NAME_PREFIX))
                .filter(|name| match socket.send_to(bytes, folder.join(name)) {
                    Ok(_) => true,
                    Err(e) => {
                        is_full |= e.kind() == io::ErrorKind::WouldBlock;
                        false
                    }
                })
                .take(limit)
                .count()
        });
        match (sent, is_full) {
            (1.., _) => Ok(MadDelivery::Delivered),
            (0, true) => Ok(MadDelivery::Waits),
            (0, false) => Err(DropReason::UnknownQueuePair),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DEFAULT_PKEY;
    use super::*;
    use roce::cm::{BoundedData, ReferredMessage, Rej, RtuOrDrep, SidrReq, reason};
    use roce::mad::GSI_QPN;
    use roce::opcode::{MessagePosition, PacketOperation, Transport};
    use roce::packet::{Bth, Deth, ExtendedHeaders};
    use roce::psn::Psn;

    fn packet(payload: &[u8], qkey: u32) -> Packet<'_> {
        Packet {
            bth: Bth {
                transport: Transport::Ud,
                operation: PacketOperation::Send,
                position: MessagePosition::Only,
                solicited: false,
                pkey: DEFAULT_PKEY,
                fecn: false,
                becn: false,
                dest_qpn: GSI_QPN,
                ack_request: false,
                psn: Psn::new(0),
            },
            extended: ExtendedHeaders {
                deth: Some(Deth { qkey, src_qpn: 1 }),
                ..ExtendedHeaders::default()
            },
            payload,
        }
    }

    fn rtu(slot: u32) -> [u8; MAD_BYTES] {
        CmMessage::Rtu(RtuOrDrep {
            local_comm_id: 1,
            remote_comm_id: slot << roce::mad_delivery::SLOT_SHIFT_IN_COMM_ID | 5,
            private_data: BoundedData::default(),
        })
        .emit(7)
    }

    #[test]
    fn each_datagram_goes_to_its_process_requests_to_any_and_some_to_all() {
        let fabric = tempfile::tempdir().unwrap();
        let gsi = Gsi::default();
        let deliver =
            |mad: &[u8], qkey| gsi.deliver(fabric.path(), [1; 16], [2; 16], &packet(mad, qkey));
        assert_eq!(
            deliver(&rtu(3), GSI_QKEY),
            Err(DropReason::UnknownQueuePair)
        );
        fs::create_dir(fabric.path().join(CM_FOLDER)).unwrap();
        let bind = |slot| {
            let name = fabric.path().join(CM_FOLDER).join(mad_socket_name(slot));
            let socket = UnixDatagram::bind(name).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let [three, four] = [3, 4].map(bind);
        let got = |socket: &UnixDatagram| {
            let mut bytes = [0; 500];
            let n = socket.recv(&mut bytes).ok()?;
            DeliveredMad::parse(&bytes[..n])
        };
        let delivered = Ok(MadDelivery::Delivered);
        assert_eq!(deliver(&rtu(4), GSI_QKEY), delivered);
        let expected = DeliveredMad {
            source_gid: [1; 16],
            destination_gid: [2; 16],
            mad: rtu(4),
        };
        assert_eq!((got(&three), got(&four)), (None, Some(expected)));
        let request = CmMessage::SidrReq(SidrReq {
            request_id: 4 << roce::mad_delivery::SLOT_SHIFT_IN_COMM_ID,
            pkey: DEFAULT_PKEY,
            service_id: 0x0111_0007,
            private_data: BoundedData::default(),
        })
        .emit(7);
        assert_eq!(deliver(&request, GSI_QKEY), delivered);
        assert_ne!(got(&three).is_some(), got(&four).is_some());
        let rej = CmMessage::Rej(Rej {
            local_comm_id: 1,
            remote_comm_id: 0,
            rejected_message: ReferredMessage::LapOrUnspecified,
            reason: reason::TIMEOUT,
            additional_info: BoundedData::default(),
            private_data: BoundedData::default(),
        })
        .emit(7);
        assert_eq!(deliver(&rej, GSI_QKEY), delivered);
        assert!(got(&three).is_some() && got(&four).is_some());
        // No other process answers for one that is busy.
        while deliver(&rtu(4), GSI_QKEY) == delivered {}
        assert_eq!(deliver(&rtu(4), GSI_QKEY), Ok(MadDelivery::Waits));
        assert_eq!(got(&three), None);
        // Other processes answer for one that has ended.
        drop(four);
        assert!(!gsi.retry_waiting(|| Some(fabric.path().to_owned())));
        assert!(got(&three).is_some());
        assert_eq!(deliver(&rtu(4), GSI_QKEY), delivered);
        assert!(got(&three).is_some());
    }

    /// A socket holds ten datagrams on an unchanged Linux.
    #[test]
    fn a_burst_reaches_a_process_that_reads_slowly() {
        let fabric = tempfile::tempdir().unwrap();
        let gsi = Gsi::default();
        let folder = fabric.path().join(CM_FOLDER);
        fs::create_dir(&folder).unwrap();
        let socket = UnixDatagram::bind(folder.join(mad_socket_name(3))).unwrap();
        socket.set_nonblocking(true).unwrap();
        let notice = |id: u32| {
            CmMessage::Rtu(RtuOrDrep {
                local_comm_id: id,
                remote_comm_id: 3 << roce::mad_delivery::SLOT_SHIFT_IN_COMM_ID | 5,
                private_data: BoundedData::default(),
            })
            .emit(7)
        };
        let deliver =
            |mad: &[u8]| gsi.deliver(fabric.path(), [1; 16], [2; 16], &packet(mad, GSI_QKEY));
        let burst = 1..=u32::try_from(MAX_WAITING_MADS_PER_PROCESS).unwrap();
        for id in burst.clone() {
            let delivery = deliver(&notice(id)).unwrap();
            // Its sender repeats a datagram that waits.
            if delivery == MadDelivery::Waits {
                assert_eq!(deliver(&notice(id)), Ok(MadDelivery::Waits));
            }
        }
        let mut came = Vec::new();
        loop {
            let waits = gsi.retry_waiting(|| Some(fabric.path().to_owned()));
            let mut bytes = [0; DELIVERED_MAD_BYTES];
            while socket.recv(&mut bytes).is_ok() {
                let mad = DeliveredMad::parse(&bytes).unwrap().mad;
                if let Ok((_, CmMessage::Rtu(notice))) = CmMessage::parse(&mad) {
                    came.push(notice.local_comm_id);
                }
            }
            if !waits {
                break;
            }
        }
        assert_eq!(came, burst.collect::<Vec<_>>());
    }

    #[test]
    fn what_is_no_message_is_dropped() {
        let gsi = Gsi::default();
        let nowhere = Path::new("/nonexistent");
        let deliver = |mad: &[u8], qkey| gsi.deliver(nowhere, [0; 16], [0; 16], &packet(mad, qkey));
        assert_eq!(deliver(&rtu(3), 7), Err(DropReason::WrongQkey));
        assert_eq!(deliver(&rtu(3)[1..], GSI_QKEY), Err(DropReason::Malformed));
        assert_eq!(
            deliver(&[0; MAD_BYTES], GSI_QKEY),
            Err(DropReason::Malformed)
        );
    }
}
