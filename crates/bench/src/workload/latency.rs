//! Half of a round trip of an 8-byte RC SEND: the worker sends back what it got.

use anyhow::{Result, bail};
use verbs::{Access, CompletionQueue, Inline, MemoryRegion, QueuePair, Rc, RecvList, WcBuffer};

use super::{Nic, Order, PATIENCE_NS, Patience, Work, connect, meet, now_ns, reap, small};
use crate::link::Link;
use crate::run::Measured;

/// RECVs of either side, in two lists that take turns.
const RECVS: usize = 32;

/// One SEND in so many is signaled.
const SIGNALED: u64 = 16;

pub(super) fn drive(
    link: &mut Link,
    order: impl Fn(Work) -> Order,
    rounds: u64,
) -> Result<Measured> {
    let warm_up = rounds / 20;
    let order = order(Work::Latency {
        rounds: warm_up + rounds,
    });
    let nic = Nic::open(&order.nic)?;
    link.send(&crate::worker::Job::Verbs(order))?;
    let mut end = End::new(link, &nic)?;
    let mut begin_ns = now_ns();
    for number in 0..warm_up + rounds {
        if number == warm_up {
            begin_ns = now_ns();
        }
        end.send(number)?;
        let echoed = end.receive()?;
        if echoed != number {
            bail!("the echo of {number} was {echoed}");
        }
    }
    let elapsed_ns = now_ns() - begin_ns;
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let value = elapsed_ns as f64 / rounds as f64 / 2.0;
    Ok(Measured {
        value,
        verified_ops: rounds,
        lost_ops: 0,
    })
}

pub(super) fn work(link: &mut Link, nic: &Nic, rounds: u64) -> Result<()> {
    let mut end = End::new(link, nic)?;
    for _ in 0..rounds {
        let number = end.receive()?;
        end.send(number)?;
    }
    // The last echo must be out of the queue pair before it is gone.
    end.reap_sends(0)
}

/// One end of the ping-pong.
struct End {
    qp: QueuePair<Rc>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    slots: MemoryRegion,
    lists: [RecvList; 2],
    list: verbs::Postlist<Rc>,
    wcs: WcBuffer<1>,
    sent: u64,
    received: usize,
    outstanding: u64,
}

impl End {
    fn new(link: &mut Link, nic: &Nic) -> Result<End> {
        let (send_cq, recv_cq) = (nic.cq(64)?, nic.cq(2 * RECVS)?);
        let qp = nic.qp::<Rc>(&send_cq, &recv_cq);
        let qp = qp
            .max_send_wr(64u32)
            .max_recv_wr(small(RECVS))
            .max_inline_data(8u32)
            .build()?;
        let slots = nic.pd.alloc(8 * RECVS, Access::LOCAL_WRITE)?;
        let mut lists = [qp.recv_list(RECVS / 2), qp.recv_list(RECVS / 2)];
        for slot in 0..RECVS {
            let list = &mut lists[slot / (RECVS / 2)];
            list.recv(slots.slice(8 * slot..8 * slot + 8)?, 8 * slot as u64);
        }
        for list in &mut lists {
            qp.post_recv(list)?;
        }
        let qp = connect(link, qp)?;
        let list = qp.postlist(1);
        meet(link)?;
        Ok(End {
            qp,
            send_cq,
            recv_cq,
            slots,
            lists,
            list,
            wcs: WcBuffer::new(),
            sent: 0,
            received: 0,
            outstanding: 0,
        })
    }

    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        self.list.clear();
        self.list.send(Inline(&number.to_le_bytes()));
        self.sent += 1;
        if self.sent.is_multiple_of(SIGNALED) {
            self.list.set_signaled(0, true);
            self.outstanding += 1;
        }
        self.qp.post_send(&mut self.list)?;
        if self.outstanding > 1 {
            self.reap_sends(1)?;
        }
        Ok(())
    }

    /// Waits until at most `left` signaled SENDs are outstanding.
    fn reap_sends(&mut self, left: u64) -> Result<()> {
        let mut patience = Patience::new(PATIENCE_NS);
        while self.outstanding > left {
            let done = reap(&self.send_cq, &mut self.wcs, |_| Ok(()))? as u64;
            self.outstanding -= done;
            if done == 0 {
                patience.check("completions of SENDs")?;
            }
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let mut patience = Patience::new(PATIENCE_NS);
        let slots = &self.slots;
        let mut number = 0;
        loop {
            let taken = reap(&self.recv_cq, &mut self.wcs, |wc| {
                number = u64::from_le(slots.read_u64(usize::try_from(wc.wr_id())?)?);
                Ok(())
            })?;
            if taken > 0 {
                break;
            }
            patience.check("the other end's SEND")?;
        }
        self.received += 1;
        if self.received.is_multiple_of(RECVS / 2) {
            let used = (self.received / (RECVS / 2) + 1) % 2;
            self.qp.post_recv(&mut self.lists[used])?;
        }
        Ok(number)
    }
}
