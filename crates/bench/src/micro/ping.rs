//! Latencies: one message at a time.
//!
//! For SENDs and WRITEs, the worker echoes each message, and the latency is half of a round trip.
//! For READs and atomics, it is the time from the post to the completion. Each exchange is timed
//! and recorded in a histogram. The time of reading the clock is measured first and subtracted. A
//! clock that needs a system call takes longer than the message.

mod fetch_requester;
mod outstanding_wrs;
mod sends;
mod timed;
mod writes;

use anyhow::Result;
use verbs::{Access, Connected, Rc, Uc, Ud};

use self::fetch_requester::FetchRequester;
use self::sends::SendPingPongEnd;
use self::timed::run_timed_exchanges;
use self::writes::WritePingPongEnd;
use super::outcome::PingPongLatency;
use super::payload_form::{with_form, with_write_form};
use super::task::PingPong;
use super::transport::SendTransport;
use super::verb::Verb;
use crate::connect::connect;
use crate::link::WorkerLink;
use crate::open_nic::OpenNic;

pub(super) fn run_driver_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    ping: &PingPong,
) -> Result<PingPongLatency> {
    match ping.verb {
        Verb::RcSend => drive_sends::<Rc>(link, nic, ping),
        Verb::UdSend => drive_sends::<Ud>(link, nic, ping),
        Verb::UcSend => drive_sends::<Uc>(link, nic, ping),
        Verb::RcWrite => drive_writes::<Rc>(link, nic, ping),
        Verb::UcWrite => drive_writes::<Uc>(link, nic, ping),
        Verb::RcRead | Verb::Atomics => {
            let latency = {
                let mut end = FetchRequester::new(link, nic, ping)?;
                run_timed_exchanges(ping, |number| end.fetch_and_check(number))?
            };
            link.send(&"done")?;
            Ok(latency)
        }
    }
}

fn drive_sends<T: SendTransport>(
    link: &mut WorkerLink,
    nic: &OpenNic,
    ping: &PingPong,
) -> Result<PingPongLatency> {
    with_form!(ping.payload_bytes, ping.inline, F => {
        let mut end = SendPingPongEnd::<T, F>::new(link, nic, ping)?;
        run_timed_exchanges(ping, |number| end.exchange(number))
    })
}

fn drive_writes<T: Connected>(
    link: &mut WorkerLink,
    nic: &OpenNic,
    ping: &PingPong,
) -> Result<PingPongLatency> {
    with_write_form!(ping.payload_bytes, ping.inline, F => {
        let mut end = WritePingPongEnd::<T, F>::new(link, nic, ping)?;
        run_timed_exchanges(ping, |number| end.exchange(number))
    })
}

pub(super) fn run_worker_side(link: &mut WorkerLink, nic: &OpenNic, ping: &PingPong) -> Result<()> {
    match ping.verb {
        Verb::RcSend => echo_sends::<Rc>(link, nic, ping),
        Verb::UdSend => echo_sends::<Ud>(link, nic, ping),
        Verb::UcSend => echo_sends::<Uc>(link, nic, ping),
        Verb::RcWrite => echo_writes::<Rc>(link, nic, ping),
        Verb::UcWrite => echo_writes::<Uc>(link, nic, ping),
        Verb::RcRead | Verb::Atomics => {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let memory = nic.pd.alloc(ping.payload_bytes, access)?;
            link.send(&memory.remote())?;
            let cq = nic.create_cq(1)?;
            let _qp = connect(
                link,
                nic.qp_builder::<Rc>(&cq, &cq).max_recv_wr(1u32).build()?,
            )?;
            let _: String = link.recv()?;
            Ok(())
        }
    }
}

fn echo_sends<T: SendTransport>(
    link: &mut WorkerLink,
    nic: &OpenNic,
    ping: &PingPong,
) -> Result<()> {
    with_form!(ping.payload_bytes, ping.inline, F => {
        SendPingPongEnd::<T, F>::new(link, nic, ping)?.echo_until_last()
    })
}

fn echo_writes<T: Connected>(link: &mut WorkerLink, nic: &OpenNic, ping: &PingPong) -> Result<()> {
    with_write_form!(ping.payload_bytes, ping.inline, F => {
        WritePingPongEnd::<T, F>::new(link, nic, ping)?.echo_until_last()
    })
}
