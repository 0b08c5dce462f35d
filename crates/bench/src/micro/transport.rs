//! Differences between SENDs over RC, UC and UD.

use anyhow::{Context, Result, bail};
use verbs::{
    Payload, PostError, Postlist, PreparedQp, QpBuilder, QueuePair, Rc, RecvList, Transport, Uc,
    Ud, UdDestination, WrBuilder,
};

use crate::connect::{connect_all, exchange_endpoints};
use crate::link::WorkerLink;
use crate::open_nic::OpenNic;

/// A queue pair that can SEND, with its destination.
pub(super) struct QpAndDestination<T: SendTransport> {
    pub(super) qp: QueuePair<T>,
    pub(super) destination: T::Destination,
}

/// A transport that has SENDs.
pub(super) trait SendTransport: Transport + Sized {
    /// Destination that a WR must name.
    type Destination;

    /// Type of a queue pair that is not connected yet.
    type UnconnectedQp;

    /// Bytes before a message's payload in its RECV buffer.
    const RECV_HEADER_BYTES: usize;

    /// True if messages may be lost.
    const IS_LOSSY: bool;

    fn build_qp(qp: QpBuilder<Self>) -> Result<Self::UnconnectedQp>;

    fn create_recv_list(qp: &Self::UnconnectedQp, capacity: usize) -> RecvList;

    fn post_recv(qp: &Self::UnconnectedQp, list: &mut RecvList) -> Result<(), PostError>;

    /// Connects the queue pairs of both sides.
    ///
    /// # Errors
    /// When the other side is gone, or a payload does not fit a datagram.
    fn connect_qps(
        link: &mut WorkerLink,
        nic: &OpenNic,
        payload_bytes: usize,
        qps: Vec<Self::UnconnectedQp>,
    ) -> Result<Vec<QpAndDestination<Self>>>;

    /// Adds a SEND to a postlist.
    fn add_send<'l>(
        list: &'l mut Postlist<Self>,
        payload: impl Payload,
        imm: Option<u32>,
        to: &Self::Destination,
    ) -> WrBuilder<'l>;
}

/// Implements SENDs of a connected queue pair; `$loses` is true if messages may be lost.
macro_rules! connected_sends {
    ($transport:ty, $loses:literal) => {
        impl SendTransport for $transport {
            type Destination = ();
            type UnconnectedQp = PreparedQp<$transport>;
            const RECV_HEADER_BYTES: usize = 0;
            const IS_LOSSY: bool = $loses;

            fn build_qp(qp: QpBuilder<$transport>) -> Result<PreparedQp<$transport>> {
                qp.build().context(QP_TOO_LARGE_MESSAGE)
            }

            fn create_recv_list(qp: &PreparedQp<$transport>, capacity: usize) -> RecvList {
                qp.recv_list(capacity)
            }

            fn post_recv(
                qp: &PreparedQp<$transport>,
                list: &mut RecvList,
            ) -> Result<(), PostError> {
                qp.post_recv(list)
            }

            fn connect_qps(
                link: &mut WorkerLink,
                _: &OpenNic,
                _: usize,
                qps: Vec<PreparedQp<$transport>>,
            ) -> Result<Vec<QpAndDestination<$transport>>> {
                let qps = connect_all(link, qps)?.into_iter();
                Ok(qps
                    .map(|qp| QpAndDestination {
                        qp,
                        destination: (),
                    })
                    .collect())
            }

            #[inline]
            fn add_send<'l>(
                list: &'l mut Postlist<$transport>,
                payload: impl Payload,
                imm: Option<u32>,
                (): &(),
            ) -> WrBuilder<'l> {
                match imm {
                    Some(imm) => list.send_with_imm(payload, imm),
                    None => list.send(payload),
                }
            }
        }
    };
}

connected_sends!(Rc, false);
connected_sends!(Uc, true);

impl SendTransport for Ud {
    type Destination = UdDestination;
    type UnconnectedQp = QueuePair<Ud>;
    const RECV_HEADER_BYTES: usize = verbs::GRH_BYTES;
    const IS_LOSSY: bool = true;

    fn build_qp(qp: QpBuilder<Ud>) -> Result<QueuePair<Ud>> {
        qp.build().context(QP_TOO_LARGE_MESSAGE)
    }

    fn create_recv_list(qp: &QueuePair<Ud>, capacity: usize) -> RecvList {
        qp.recv_list(capacity)
    }

    fn post_recv(qp: &QueuePair<Ud>, list: &mut RecvList) -> Result<(), PostError> {
        qp.post_recv(list)
    }

    fn connect_qps(
        link: &mut WorkerLink,
        nic: &OpenNic,
        payload_bytes: usize,
        qps: Vec<QueuePair<Ud>>,
    ) -> Result<Vec<QpAndDestination<Ud>>> {
        let own: Vec<_> = qps.iter().map(QueuePair::endpoint).collect();
        let peers = exchange_endpoints(link, &own)?;
        let with_destination = |(qp, peer): (QueuePair<Ud>, _)| {
            let peer: &verbs::QpEndpoint = peer;
            let mtu = qp.endpoint().mtu.min(peer.mtu).bytes();
            if payload_bytes > mtu as usize {
                bail!(
                    "a datagram of {payload_bytes} bytes is longer than the path MTU of {mtu}; lower the payload"
                );
            }
            let to = nic.pd.ud_destination(qp.port().port_num, peer)?;
            Ok(QpAndDestination {
                qp,
                destination: to,
            })
        };
        qps.into_iter().zip(&peers).map(with_destination).collect()
    }

    #[inline]
    fn add_send<'l>(
        list: &'l mut Postlist<Ud>,
        payload: impl Payload,
        imm: Option<u32>,
        to: &UdDestination,
    ) -> WrBuilder<'l> {
        match imm {
            Some(imm) => list.send_with_imm(payload, to, imm),
            None => list.send(payload, to),
        }
    }
}

const QP_TOO_LARGE_MESSAGE: &str =
    "cannot make a queue pair for this window and inline payload; lower them";
