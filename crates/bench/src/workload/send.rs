//! Rates of SENDs: header-only datagrams, and 8 bytes over a reliable connection.
//!
//! The sender runs at most a window ahead of the receiver, which tells it now and then, in a
//! header-only message of its own, how far it has come. So RECVs are always there, and neither
//! drops (UD) nor RNR retries (RC) are what is measured. Every message carries its number: in the
//! immediate (UD) or as the payload (RC), and the receiver checks each.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, CompletionQueue, HeaderOnly, Inline, MemoryRegion, PostError, Postlist, QueuePair, Rc,
    RecvList, Transport, Ud, UdDestination, WcBuffer,
};

use super::{
    Nic, Order, PATIENCE_NS, POSTLIST, Patience, Work, connect, meet, mops, now_ns, reap, small,
};
use crate::link::Link;
use crate::run::Measured;

/// How far the sender may be ahead of the receiver, in messages.
const WINDOW: usize = 512;

/// The receiver reports after so many messages, and takes its RECVs in lists of so many.
const CREDIT: usize = 64;

/// RECVs that the sender has for reports.
const REPORTS: usize = 64;

/// Send WRs of either side; a multiple of the postlist.
const SEND_WRS: usize = 256;

const _: () = {
    assert!(SEND_WRS.is_multiple_of(POSTLIST) && WINDOW.is_multiple_of(CREDIT));
    assert!(
        REPORTS >= 2 * WINDOW / CREDIT,
        "a report would find no RECV"
    );
    assert!(CREDIT + POSTLIST <= WINDOW, "the window would never open");
};

/// What the receiver found.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    /// Messages that came, each with the number that was due or a later one.
    received: u64,
    /// When the last one came, on the shared clock.
    last_ns: u64,
    /// What was wrong, if anything.
    wrong: Option<String>,
}

pub(super) fn drive_ud(
    link: &mut Link,
    order: impl Fn(Work) -> Order,
    messages: u64,
) -> Result<Measured> {
    let messages = whole_lists(messages);
    let order = order(Work::UdSend { messages });
    let nic = Nic::open(&order.nic)?;
    link.send(&crate::worker::Job::Verbs(order))?;
    let (send_cq, recv_cq) = cqs(&nic)?;
    let qp = ud_qp(&nic, &send_cq, &recv_cq)?;
    let reports = nic.pd.alloc(verbs::GRH_BYTES, Access::LOCAL_WRITE)?;
    let mut recvs = qp.recv_list(REPORTS);
    post_reports(&reports, &mut recvs, |list| qp.post_recv(list))?;
    link.send(&qp.endpoint())?;
    let to = nic.pd.ud_destination(qp.port().port_num, &link.recv()?)?;

    let mut list = qp.postlist(POSTLIST);
    for _ in 0..POSTLIST {
        list.send_with_imm(HeaderOnly, &to, 0);
    }
    list.set_signaled(POSTLIST - 1, true);
    let mut sender = Sender::new(&qp, recvs);
    run(link, &mut sender, messages, |first| {
        for i in 0..POSTLIST {
            list.set_imm(i, number(first + i as u64));
        }
        qp.post_send(&mut list)
    })
}

pub(super) fn drive_rc(
    link: &mut Link,
    order: impl Fn(Work) -> Order,
    messages: u64,
) -> Result<Measured> {
    let messages = whole_lists(messages);
    let order = order(Work::RcSend { messages });
    let nic = Nic::open(&order.nic)?;
    link.send(&crate::worker::Job::Verbs(order))?;
    let (send_cq, recv_cq) = cqs(&nic)?;
    let qp = rc_qp(&nic, &send_cq, &recv_cq)?;
    let reports = nic.pd.alloc(verbs::GRH_BYTES, Access::LOCAL_WRITE)?;
    let mut recvs = qp.recv_list(REPORTS);
    post_reports(&reports, &mut recvs, |list| qp.post_recv(list))?;
    let qp = connect(link, qp)?;

    let mut list = qp.postlist(POSTLIST);
    let mut sender = Sender::new(&qp, recvs);
    run(link, &mut sender, messages, |first| {
        list.clear();
        for i in 0..POSTLIST as u64 {
            list.send(Inline(&(first + i).to_le_bytes()));
        }
        list.set_signaled(POSTLIST - 1, true);
        qp.post_send(&mut list)
    })
}

/// Sends `messages` and takes the rate from the receiver.
fn run<T: Transport>(
    link: &mut Link,
    sender: &mut Sender<'_, T>,
    messages: u64,
    mut post: impl FnMut(u64) -> Result<(), PostError>,
) -> Result<Measured> {
    meet(link)?;
    let warm_up = whole_lists(messages / 20);
    let mut sent = 0;
    while sent < warm_up {
        sender.turn(sent, &mut post)?;
        sent += POSTLIST as u64;
    }
    let begin_ns = now_ns();
    while sent < messages {
        sender.turn(sent, &mut post)?;
        sent += POSTLIST as u64;
    }
    let found: Found = link.recv()?;
    if let Some(wrong) = found.wrong {
        bail!("the receiver found {wrong}");
    }
    let lost_ops = messages - found.received;
    let timed = found.received.saturating_sub(warm_up);
    Ok(Measured {
        value: mops(timed, found.last_ns.saturating_sub(begin_ns)),
        verified_ops: found.received,
        lost_ops,
    })
}

/// The sender's bookkeeping.
struct Sender<'q, T: Transport> {
    qp: &'q QueuePair<T>,
    wcs: WcBuffer<32>,
    /// RECVs for reports, posted again as a whole when half of them are used.
    recvs: RecvList,
    used_recvs: usize,
    /// How far the receiver has come.
    credit: u64,
    /// Postlists whose last WR has not completed.
    outstanding: usize,
}

impl<'q, T: Transport> Sender<'q, T> {
    fn new(qp: &'q QueuePair<T>, recvs: RecvList) -> Sender<'q, T> {
        Sender {
            qp,
            wcs: WcBuffer::new(),
            recvs,
            used_recvs: 0,
            credit: 0,
            outstanding: 0,
        }
    }

    /// Waits for room, then posts the list that starts with number `first`.
    #[inline]
    fn turn(
        &mut self,
        first: u64,
        post: &mut impl FnMut(u64) -> Result<(), PostError>,
    ) -> Result<()> {
        if self.outstanding >= SEND_WRS / POSTLIST / 2 {
            self.reap_sends()?;
        }
        if first + POSTLIST as u64 > self.credit + WINDOW as u64 {
            self.wait_for_credit(first)?;
        }
        post(first)?;
        self.outstanding += 1;
        Ok(())
    }

    fn reap_sends(&mut self) -> Result<()> {
        let mut patience = Patience::new(PATIENCE_NS);
        while self.outstanding >= SEND_WRS / POSTLIST / 2 {
            let done = reap(self.qp.send_cq(), &mut self.wcs, |_| Ok(()))?;
            self.outstanding -= done;
            if done == 0 {
                patience.check("completions of SENDs")?;
            }
        }
        Ok(())
    }

    fn wait_for_credit(&mut self, first: u64) -> Result<()> {
        let mut patience = Patience::new(PATIENCE_NS);
        loop {
            let (mut credit, sent) = (self.credit, first);
            let taken = reap(self.qp.recv_cq(), &mut self.wcs, |wc| {
                let imm = wc.imm().context("a report without its number")?;
                credit = credit.max(nearest(imm, sent));
                Ok(())
            })?;
            self.credit = credit;
            self.used_recvs += taken;
            if self.used_recvs >= REPORTS / 2 {
                self.recvs.set_len(self.used_recvs.min(REPORTS));
                self.qp.post_recv(&mut self.recvs)?;
                self.used_recvs = 0;
            }
            if first + POSTLIST as u64 <= self.credit + WINDOW as u64 {
                return Ok(());
            }
            if taken == 0 {
                patience.check("reports of the receiver")?;
            }
        }
    }
}

pub(super) fn work_ud(link: &mut Link, nic: &Nic, messages: u64) -> Result<()> {
    let (send_cq, recv_cq) = cqs(nic)?;
    let qp = ud_qp(nic, &send_cq, &recv_cq)?;
    // Nobody reads the GRH: all RECVs share one place for it.
    let place = nic.pd.alloc(verbs::GRH_BYTES, Access::LOCAL_WRITE)?;
    let mut recvs = qp.recv_list(CREDIT);
    for _ in 0..CREDIT {
        recvs.recv(place.slice(..)?, 0);
    }
    for _ in 0..(WINDOW / CREDIT) {
        qp.post_recv(&mut recvs)?;
    }
    let driver = link.recv()?;
    let to = nic.pd.ud_destination(qp.port().port_num, &driver)?;
    link.send(&qp.endpoint())?;

    let mut report = qp.postlist(1);
    let mut receiver = Receiver::new(&send_cq, &recv_cq, messages);
    meet(link)?;
    receiver.run(
        |wc, due| {
            Ok(nearest(
                wc.imm().context("a message without its number")?,
                due,
            ))
        },
        || Ok(qp.post_recv(&mut recvs)?),
        |credit, signaled| {
            credit_to(&mut report, &to, credit, signaled);
            Ok(qp.post_send(&mut report)?)
        },
    )?;
    link.send(&receiver.found)
}

fn credit_to(report: &mut Postlist<Ud>, to: &UdDestination, credit: u64, signaled: bool) {
    report.clear();
    report.send_with_imm(HeaderOnly, to, number(credit));
    report.set_signaled(0, signaled);
}

pub(super) fn work_rc(link: &mut Link, nic: &Nic, messages: u64) -> Result<()> {
    let (send_cq, recv_cq) = cqs(nic)?;
    let qp = rc_qp(nic, &send_cq, &recv_cq)?;
    let slots = nic.pd.alloc(8 * WINDOW, Access::LOCAL_WRITE)?;
    let mut lists = Vec::new();
    for first in (0..WINDOW).step_by(CREDIT) {
        let mut list = qp.recv_list(CREDIT);
        for slot in first..first + CREDIT {
            list.recv(slots.slice(8 * slot..8 * slot + 8)?, 8 * slot as u64);
        }
        qp.post_recv(&mut list)?;
        lists.push(list);
    }
    let qp = connect(link, qp)?;

    let mut report = qp.postlist(1);
    let mut next_list = 0;
    let mut receiver = Receiver::new(&send_cq, &recv_cq, messages);
    meet(link)?;
    receiver.run(
        |wc, _| Ok(u64::from_le(slots.read_u64(usize::try_from(wc.wr_id())?)?)),
        || {
            qp.post_recv(&mut lists[next_list])?;
            next_list = (next_list + 1) % (WINDOW / CREDIT);
            Ok(())
        },
        |credit, signaled| {
            report.clear();
            report.send_with_imm(HeaderOnly, number(credit));
            report.set_signaled(0, signaled);
            Ok(qp.post_send(&mut report)?)
        },
    )?;
    link.send(&receiver.found)
}

/// The receiver's bookkeeping.
struct Receiver<'q> {
    send_cq: &'q CompletionQueue,
    recv_cq: &'q CompletionQueue,
    messages: u64,
    found: Found,
}

impl<'q> Receiver<'q> {
    fn new(
        send_cq: &'q CompletionQueue,
        recv_cq: &'q CompletionQueue,
        messages: u64,
    ) -> Receiver<'q> {
        Receiver {
            send_cq,
            recv_cq,
            messages,
            found: Found {
                received: 0,
                last_ns: 0,
                wrong: None,
            },
        }
    }

    /// Receives until the last number came, or nothing comes any more.
    ///
    /// `number_of` reads a message's number, given the one that is due; `refill` posts another
    /// list of RECVs; `report` tells the sender how far it is.
    fn run(
        &mut self,
        number_of: impl Fn(verbs::WorkCompletion<'_>, u64) -> Result<u64>,
        mut refill: impl FnMut() -> Result<()>,
        mut report: impl FnMut(u64, bool) -> Result<()>,
    ) -> Result<()> {
        let mut wcs = WcBuffer::<32>::new();
        let mut patience = Patience::new(PATIENCE_NS / 20);
        let mut due = 0;
        let (mut received, mut to_refill) = (0u64, 0usize);
        let (mut reports, mut outstanding) = (0u64, 0u64);
        let mut wrong = None;
        while due < self.messages {
            let taken = reap(self.recv_cq, &mut wcs, |wc| {
                let got = number_of(wc, due)?;
                if got < due {
                    wrong.get_or_insert_with(|| format!("number {got} where {due} was due"));
                }
                due = got + 1;
                Ok(())
            })?;
            if taken == 0 {
                if patience.is_over() {
                    break;
                }
                continue;
            }
            patience.reset();
            received += taken as u64;
            to_refill += taken;
            while to_refill >= CREDIT {
                refill()?;
                to_refill -= CREDIT;
                reports += 1;
                let signaled = reports.is_multiple_of(POSTLIST as u64);
                // Not those that came in the meantime: their RECVs are not posted again yet.
                report(due - to_refill as u64, signaled)?;
                outstanding += u64::from(signaled);
            }
            if outstanding > 2 {
                outstanding -= reap(self.send_cq, &mut wcs, |_| Ok(()))? as u64;
            }
        }
        self.found = Found {
            received,
            last_ns: now_ns(),
            wrong,
        };
        Ok(())
    }
}

fn cqs(nic: &Nic) -> Result<(CompletionQueue, CompletionQueue)> {
    Ok((nic.cq(SEND_WRS)?, nic.cq(2 * WINDOW)?))
}

fn ud_qp(nic: &Nic, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Result<QueuePair<Ud>> {
    let qp = nic.qp::<Ud>(send_cq, recv_cq);
    Ok(qp
        .max_send_wr(small(SEND_WRS))
        .max_recv_wr(small(WINDOW))
        .max_inline_data(8u32)
        .build()?)
}

fn rc_qp(
    nic: &Nic,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
) -> Result<verbs::PreparedQp<Rc>> {
    let qp = nic.qp::<Rc>(send_cq, recv_cq);
    Ok(qp
        .max_send_wr(small(SEND_WRS))
        .max_recv_wr(small(WINDOW))
        .max_inline_data(8u32)
        .build()?)
}

fn post_reports(
    place: &MemoryRegion,
    recvs: &mut RecvList,
    post: impl FnOnce(&mut RecvList) -> Result<(), PostError>,
) -> Result<()> {
    for _ in 0..REPORTS {
        recvs.recv(place.slice(..)?, 0);
    }
    Ok(post(recvs)?)
}

/// `messages`, as whole postlists.
fn whole_lists(messages: u64) -> u64 {
    messages.next_multiple_of(POSTLIST as u64)
}

/// A message's number as an immediate: its lower half.
fn number(full: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation)] // that is the point; see `nearest`
    {
        full as u32
    }
}

/// The number nearest to `near` whose lower half is `imm`.
fn nearest(imm: u32, near: u64) -> u64 {
    let ahead = imm.wrapping_sub(number(near)).cast_signed();
    near.saturating_add_signed(i64::from(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_their_lower_half() {
        for near in [0u64, 5, 0xffff_fff0, 0x1_0000_0000, 0x5_8000_0000] {
            for ahead in [-3i64, 0, 1, 500] {
                if let Some(full) = near.checked_add_signed(ahead) {
                    assert_eq!(nearest(number(full), near), full, "{near} {ahead}");
                }
            }
        }
    }
}
