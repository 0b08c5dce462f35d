//! Rates of SENDs, over RC, UC and UD.
//!
//! The sender is at most a window ahead of the receiver. The receiver reports its progress four
//! times per window, in a header-only message. So a RECV is always posted, and the rate includes
//! neither drops (UD) nor RNR retries (RC). Every message carries its number: as immediate if it
//! has no payload, otherwise in its first and last word. The receiver checks each message. The
//! receiver takes the time, from its first message after the warm-up to its last. All this holds
//! for each queue pair; both sides use the queue pairs in turn.

use anyhow::Result;
use verbs::{Access, QpBuilder, Rc, Uc, Ud};

use super::outcome::StreamRate;
use super::parameters::VerbStream;
use super::payload_form::{PayloadForm, with_form};
use super::receiver::{REPORT_WRS, RecvBuffers, receive_all_messages};
use super::receiver_result::max_outstanding_reports;
use super::sender::send_for_duration;
use super::transport::SendTransport;
use super::verb::Verb;
use crate::link::WorkerLink;
use crate::open_nic::{OpenNic, saturating_u32};

pub(super) fn run_driver_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
) -> Result<StreamRate> {
    with_form!(stream.payload_bytes, stream.inline, F => match stream.verb {
        Verb::UdSend => run_sender_with_form::<Ud, F>(link, nic, stream),
        Verb::UcSend => run_sender_with_form::<Uc, F>(link, nic, stream),
        _ => run_sender_with_form::<Rc, F>(link, nic, stream),
    })
}

pub(super) fn run_worker_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
) -> Result<()> {
    with_form!(stream.payload_bytes, stream.inline, F => match stream.verb {
        Verb::UdSend => run_receiver_with_form::<Ud, F>(link, nic, stream),
        Verb::UcSend => run_receiver_with_form::<Uc, F>(link, nic, stream),
        _ => run_receiver_with_form::<Rc, F>(link, nic, stream),
    })
}

/// Returns a builder of a queue pair with its own CQs.
pub(super) fn qp_builder<T: SendTransport>(
    nic: &OpenNic,
    send_wrs: usize,
    recv_wrs: usize,
) -> Result<QpBuilder<T>> {
    let (send_cq, recv_cq) = (nic.create_cq(send_wrs + 1)?, nic.create_cq(recv_wrs + 1)?);
    Ok(nic
        .qp_builder::<T>(&send_cq, &recv_cq)
        .max_send_wr(saturating_u32(send_wrs))
        .max_recv_wr(saturating_u32(recv_wrs)))
}

fn run_sender_with_form<T: SendTransport, F: PayloadForm>(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
) -> Result<StreamRate> {
    let place = nic.pd.alloc(verbs::GRH_BYTES, Access::LOCAL_WRITE)?;
    let recv_wrs = 2 * max_outstanding_reports(stream);
    let (mut qps, mut recvs_of_all) = (Vec::new(), Vec::new());
    for _ in 0..stream.queue_pairs_per_thread {
        let qp = qp_builder::<T>(nic, stream.window, recv_wrs)?;
        let qp = T::build_qp(qp.max_inline_data(saturating_u32(stream.inline_bytes())))?;
        let mut recvs = T::create_recv_list(&qp, recv_wrs);
        for _ in 0..recv_wrs {
            recvs.recv(place.slice(..)?, 0);
        }
        T::post_recv(&qp, &mut recvs)?;
        qps.push(qp);
        recvs_of_all.push(recvs);
    }
    let qps = T::connect_qps(link, nic, stream.payload_bytes, qps)?;
    send_for_duration::<T, F>(link, nic, stream, &qps, recvs_of_all)
}

fn run_receiver_with_form<T: SendTransport, F: PayloadForm>(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
) -> Result<()> {
    let (mut qps, mut places) = (Vec::new(), Vec::new());
    for _ in 0..stream.queue_pairs_per_thread {
        let qp = qp_builder::<T>(nic, REPORT_WRS, stream.window)?;
        let qp = T::build_qp(qp.max_inline_data(0u32))?;
        places.push(RecvBuffers::allocate_and_post::<T>(nic, stream, &qp)?);
        qps.push(qp);
    }
    let qps = T::connect_qps(link, nic, stream.payload_bytes, qps)?;
    link.barrier()?;
    link.send(&receive_all_messages::<T, F>(stream, &qps, places)?)
}
