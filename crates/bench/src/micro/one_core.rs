//! Phases of a SEND on one core. Both ends are queue pairs of one process, and one thread drives
//! both in turn.

use std::thread;

use anyhow::{Context, Result};
use verbs::{QueuePair, Rc, Uc, Ud, WcBuffer};

use super::parameters::VerbStream;
use super::payload_form::{PayloadForm, with_form};
use super::receiver::{Receiver, RecvBuffers};
use super::send_rates::qp_builder;
use super::sender::Sender;
use super::transport::{QpAndDestination, SendTransport};
use super::verb::Verb;
use crate::link::WorkerLink;
use crate::one_core_phases::{self, OneCoreConnection, PhaseMeasurement, verified_or_fault};
use crate::open_nic::{NicChoice, OpenNic, poll_successful_completions, saturating_u32};

/// Measures the SENDs of a stream for its duration.
///
/// # Errors
/// When a verb fails, or a message is wrong.
pub(crate) fn measure_one_core_phases(
    choice: &NicChoice,
    stream: &VerbStream,
) -> Result<PhaseMeasurement> {
    let nic = OpenNic::open(choice)?;
    with_form!(stream.payload_bytes, stream.inline, F => match stream.verb {
        Verb::UdSend => measure_with_transport::<Ud, F>(&nic, stream),
        Verb::UcSend => measure_with_transport::<Uc, F>(&nic, stream),
        _ => measure_with_transport::<Rc, F>(&nic, stream),
    })
}

fn measure_with_transport<T: SendTransport, F: PayloadForm>(
    nic: &OpenNic,
    stream: &VerbStream,
) -> Result<PhaseMeasurement>
where
    T::UnconnectedQp: Send,
    T::Destination: Send,
    QueuePair<T>: Send,
{
    let to = qp_builder::<T>(nic, stream.window, 1)?;
    let to = T::build_qp(to.max_inline_data(saturating_u32(stream.inline_bytes())))?;
    // The receiver sends no reports here, so these RECVs are never posted.
    let reports = T::create_recv_list(&to, 1);
    let from = T::build_qp(qp_builder::<T>(nic, 1, stream.window)?.max_inline_data(0u32))?;
    let places = RecvBuffers::allocate_and_post::<T>(nic, stream, &from)?;
    let (mut left, mut right) = WorkerLink::pair()?;
    let join = |link: &mut WorkerLink, qp| -> Result<QpAndDestination<T>> {
        let joined = T::connect_qps(link, nic, stream.payload_bytes, vec![qp])?.pop();
        joined.context("one queue pair was connected")
    };
    let (to, from) = thread::scope(|scope| {
        let from = scope.spawn(|| join(&mut right, from));
        let to = join(&mut left, to);
        let from = from.join().expect("the joining thread does not panic");
        anyhow::Ok((to?, from?))
    })?;
    let mut ends = OneCoreEnds::<T, F> {
        sender: Sender::new(nic, &to, stream, reports)?,
        receiver: Receiver::new(&from, stream, places),
        stream,
        wcs: WcBuffer::new(),
    };
    one_core_phases::measure_phases(&mut ends, stream.duration_ms)
}

struct OneCoreEnds<'q, T: SendTransport, F: PayloadForm> {
    sender: Sender<'q, T, F>,
    receiver: Receiver<'q, T, F>,
    stream: &'q VerbStream,
    wcs: WcBuffer<32>,
}

impl<T: SendTransport, F: PayloadForm> OneCoreConnection for OneCoreEnds<'_, T, F> {
    fn window_messages(&self) -> u64 {
        self.stream.window as u64
    }

    fn post_window(&mut self) -> Result<()> {
        for _ in 0..self.stream.window / self.stream.wrs_per_doorbell {
            self.sender.post(false)?;
        }
        Ok(())
    }

    fn poll_messages(&mut self) -> Result<u64> {
        let (from, receiver) = (self.receiver.qp_and_destination, &mut self.receiver);
        let came = poll_successful_completions(from.qp.recv_cq(), &mut self.wcs, |wc| {
            receiver.check_message(&wc)
        })?;
        Ok(came as u64)
    }

    fn repost_window_recvs(&mut self) -> Result<()> {
        self.receiver.repost_all_recvs()
    }

    fn poll_send_completions(&mut self) -> Result<u64> {
        Ok(self.sender.reap_sends()? as u64 * self.stream.signal_every as u64)
    }

    fn verified_messages(&self) -> Result<u64> {
        verified_or_fault(
            self.receiver.first_wrong_message.as_deref(),
            self.receiver.next_expected_message,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::parameters::MicroParameters;

    #[test]
    fn every_kind_of_send_has_phases() {
        for verb in [Verb::UdSend, Verb::RcSend, Verb::UcSend] {
            for (payload_bytes, batch) in [(0, 16), (0, 1), (8, 16), (8, 1)] {
                let parameters = MicroParameters {
                    payload_bytes: Some(payload_bytes),
                    wrs_per_doorbell: Some(batch),
                    ..MicroParameters::default()
                };
                let stream = VerbStream::new(verb, &parameters, 2).unwrap();
                let measured =
                    measure_one_core_phases(&NicChoice::first_device_of("softnic"), &stream)
                        .unwrap();
                assert!(
                    measured.ns_per_message.sender_sum() > 0.0
                        && measured.ns_per_message.receiver_sum() > 0.0
                );
                assert!(measured.verified_ops >= 2 * 256, "{verb:?}: {measured:?}");
            }
        }
    }
}
