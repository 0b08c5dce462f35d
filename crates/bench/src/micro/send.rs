//! Rates of SENDs, over RC and UD.
//!
//! The sender is at most a window ahead of the receiver, which tells it four times a window, in a
//! header-only message of its own, how far it has come: so there is always a RECV, and neither
//! drops (UD) nor RNR retries (RC) are what is measured. Every message carries its number, as its
//! immediate when it has no payload and else in its first and last word, and the receiver checks
//! each. The time is the receiver's: from its first message after the warm-up to its last. All that holds for
//! each of the queue pairs, between which both sides take turns.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, HeaderOnly, Inline, MemoryRegion, MrSlice, Payload, PostError, Postlist, QpEndpoint,
    QueuePair, Rc, RecvList, Transport, Ud, UdDestination, WcBuffer, WorkCompletion, Wr,
};

use super::knobs::gcd;
use super::pace::{Meter, Pace, Turn};
use super::{Rate, SHORT_BYTES, Stream, Verb, tail};
use crate::link::Link;
use crate::workload::{Nic, PATIENCE_NS, Patience, connect_all, exchange, meet, reap, small};

/// Marks the last number of a word.
const LAST: u64 = 1 << 63;

/// Marks the last number of an immediate.
const LAST_IMM: u32 = 1 << 31;

/// Send WRs for reports.
const REPORT_WRS: usize = 64;

/// One report in so many is signaled.
const REPORTS_SIGNALED: usize = 8;

/// How long a datagram may take before it counts as lost.
const LOST_NS: u64 = PATIENCE_NS / 20;

/// What the receiver found.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    received: u64,
    ops: u64,
    elapsed_ns: u64,
    wrong: Option<String>,
}

/// A transport that has SENDs.
trait Sends: Transport + Sized {
    /// What a WR must name besides its payload.
    type To;

    /// Bytes before a message's payload in its RECV.
    const BEFORE: usize;

    /// Whether messages may be lost.
    const LOSES: bool;

    fn add<'l>(
        list: &'l mut Postlist<Self>,
        payload: impl Payload,
        imm: Option<u32>,
        to: &Self::To,
    ) -> Wr<'l>;
}

impl Sends for Rc {
    type To = ();
    const BEFORE: usize = 0;
    const LOSES: bool = false;

    #[inline]
    fn add<'l>(
        list: &'l mut Postlist<Rc>,
        payload: impl Payload,
        imm: Option<u32>,
        (): &(),
    ) -> Wr<'l> {
        match imm {
            Some(imm) => list.send_with_imm(payload, imm),
            None => list.send(payload),
        }
    }
}

impl Sends for Ud {
    type To = UdDestination;
    const BEFORE: usize = verbs::GRH_BYTES;
    const LOSES: bool = true;

    #[inline]
    fn add<'l>(
        list: &'l mut Postlist<Ud>,
        payload: impl Payload,
        imm: Option<u32>,
        to: &UdDestination,
    ) -> Wr<'l> {
        match imm {
            Some(imm) => list.send_with_imm(payload, to, imm),
            None => list.send(payload, to),
        }
    }
}

/// Messages that the receiver takes from one report to the next.
fn chunk(stream: &Stream) -> usize {
    gcd(stream.window, (stream.window / 4).max(1))
}

/// Reports that can be on their way to the sender.
fn reports(stream: &Stream) -> usize {
    2 * stream.window / chunk(stream)
}

/// Queue pair sizes of a side.
struct Sizes {
    send_wrs: usize,
    recv_wrs: usize,
    inline: usize,
}

fn sender_sizes(stream: &Stream) -> Sizes {
    Sizes {
        send_wrs: stream.window,
        recv_wrs: 2 * reports(stream),
        inline: if stream.inline {
            stream.payload_bytes
        } else {
            0
        },
    }
}

fn receiver_sizes(stream: &Stream) -> Sizes {
    Sizes {
        send_wrs: REPORT_WRS,
        recv_wrs: stream.window,
        inline: 0,
    }
}

macro_rules! qp {
    ($nic:expr, $sizes:expr, $transport:ty) => {{
        let (send_cq, recv_cq) = ($nic.cq($sizes.send_wrs + 1)?, $nic.cq($sizes.recv_wrs + 1)?);
        $nic.qp::<$transport>(&send_cq, &recv_cq)
            .max_send_wr(small($sizes.send_wrs))
            .max_recv_wr(small($sizes.recv_wrs))
            .max_inline_data(small($sizes.inline))
            .build()
            .context("cannot make a queue pair for this window and inline payload; lower them")?
    }};
}

/// Makes the UD queue pairs of each side known to the other.
fn meet_ud(
    link: &mut Link,
    nic: &Nic,
    qps: &[QueuePair<Ud>],
    stream: &Stream,
) -> Result<Vec<UdDestination>> {
    let own: Vec<_> = qps.iter().map(QueuePair::endpoint).collect();
    let peers = exchange(link, &own)?;
    let destination = |(qp, peer): (&QueuePair<Ud>, &QpEndpoint)| {
        let mtu = qp.endpoint().mtu.min(peer.mtu).bytes();
        if stream.payload_bytes > mtu as usize {
            bail!(
                "a datagram of {} bytes is longer than the path MTU of {mtu}; lower the payload",
                stream.payload_bytes
            );
        }
        Ok(nic.pd.ud_destination(qp.port().port_num, peer)?)
    };
    qps.iter().zip(&peers).map(destination).collect()
}

pub(super) fn drive(link: &mut Link, nic: &Nic, stream: &Stream) -> Result<Rate> {
    let sizes = sender_sizes(stream);
    let place = nic.pd.alloc(verbs::GRH_BYTES, Access::LOCAL_WRITE)?;
    let filled = |mut recvs: RecvList| -> Result<RecvList> {
        for _ in 0..recvs.capacity() {
            recvs.recv(place.slice(..)?, 0);
        }
        Ok(recvs)
    };
    if stream.verb == Verb::UdSend {
        let (mut qps, mut reports) = (Vec::new(), Vec::new());
        for _ in 0..stream.queue_pairs {
            let qp = qp!(nic, sizes, Ud);
            let mut recvs = filled(qp.recv_list(sizes.recv_wrs))?;
            qp.post_recv(&mut recvs)?;
            qps.push(qp);
            reports.push(recvs);
        }
        let to = meet_ud(link, nic, &qps, stream)?;
        send(link, nic, stream, &qps, &to, reports)
    } else {
        let (mut qps, mut reports) = (Vec::new(), Vec::new());
        for _ in 0..stream.queue_pairs {
            let qp = qp!(nic, sizes, Rc);
            let mut recvs = filled(qp.recv_list(sizes.recv_wrs))?;
            qp.post_recv(&mut recvs)?;
            qps.push(qp);
            reports.push(recvs);
        }
        let qps = connect_all(link, qps)?;
        send(link, nic, stream, &qps, &vec![(); qps.len()], reports)
    }
}

/// Sends on all queue pairs for the time of the stream.
fn send<T: Sends>(
    link: &mut Link,
    nic: &Nic,
    stream: &Stream,
    qps: &[QueuePair<T>],
    to: &[T::To],
    reports: Vec<RecvList>,
) -> Result<Rate> {
    let senders = qps.iter().zip(to).zip(reports);
    let senders = senders.map(|((qp, to), recvs)| Sender::new(nic, qp, to, stream, recvs));
    let mut senders: Vec<_> = senders.collect::<Result<_>>()?;
    meet(link)?;
    let mut pace = Pace::new(stream.duration_ms);
    let mut sent = 0;
    let mut last = false;
    while !last {
        last = pace.is_over() && stream.can_end_after(sent);
        for sender in &mut senders {
            sender.make_room(sent)?;
            sender.post(sent, last)?;
        }
        sent += stream.batch as u64;
    }
    for sender in &mut senders {
        let mut patience = Patience::new(PATIENCE_NS);
        while sender.completed < sent {
            if sender.reap_sends()? == 0 {
                patience.check("completions of the last SENDs")?;
            }
        }
    }
    let sent = sent * senders.len() as u64;
    let found: Found = link.recv()?;
    if let Some(wrong) = found.wrong {
        bail!("the receiver found {wrong}");
    }
    if !T::LOSES && found.received != sent {
        bail!("the receiver got {} of {sent} messages", found.received);
    }
    let timed = super::pace::Timed {
        ops: found.ops,
        elapsed_ns: found.elapsed_ns,
    };
    let lost = sent.saturating_sub(found.received);
    Ok(Rate::new(stream, timed, found.received, lost))
}

/// What a message's payload is.
enum Form {
    HeaderOnly,
    /// Its number alone, inline.
    Short,
    Inline(Vec<u8>),
    Memory {
        source: MemoryRegion,
        slices: Vec<MrSlice>,
    },
}

struct Sender<'q, T: Sends> {
    qp: &'q QueuePair<T>,
    to: &'q T::To,
    stream: &'q Stream,
    list: Postlist<T>,
    form: Form,
    turn: Turn,
    wcs: WcBuffer<32>,
    /// RECVs for reports, posted again as a whole when half of them are used.
    recvs: RecvList,
    used_recvs: usize,
    /// Messages whose WRs have completed.
    completed: u64,
    /// How far the receiver has come.
    credit: u64,
}

impl<'q, T: Sends> Sender<'q, T> {
    fn new(
        nic: &Nic,
        qp: &'q QueuePair<T>,
        to: &'q T::To,
        stream: &'q Stream,
        recvs: RecvList,
    ) -> Result<Sender<'q, T>> {
        let form = if stream.payload_bytes == 0 {
            Form::HeaderOnly
        } else if stream.payload_bytes == SHORT_BYTES {
            Form::Short
        } else if stream.inline {
            Form::Inline(vec![0x5a; stream.payload_bytes])
        } else {
            let stride = stream.stride();
            let bytes = stride * stream.window;
            let source = nic.alloc(bytes, Access::LOCAL_READ, stream.pages)?;
            let slices = (0..stream.window)
                .map(|slot| source.slice(slot * stride..slot * stride + stream.payload_bytes))
                .collect::<Result<_, _>>()?;
            Form::Memory { source, slices }
        };
        Ok(Sender {
            qp,
            to,
            stream,
            list: qp.postlist(stream.batch),
            form,
            turn: Turn::new(stream.window, stream.signal_every),
            wcs: WcBuffer::new(),
            recvs,
            used_recvs: 0,
            completed: 0,
            credit: 0,
        })
    }

    /// Posts the list that starts with number `first`.
    #[inline]
    fn post(&mut self, first: u64, last: bool) -> Result<(), PostError> {
        let end = first + self.stream.batch as u64;
        self.list.clear();
        for number in first..end {
            let (slot, signaled) = self.turn.next();
            let is_last = last && number + 1 == end;
            let stamp = number | if is_last { LAST } else { 0 };
            let list = &mut self.list;
            let wr = match &mut self.form {
                Form::HeaderOnly => {
                    let imm = low(number) | if is_last { LAST_IMM } else { 0 };
                    T::add(list, HeaderOnly, Some(imm), self.to)
                }
                Form::Short => {
                    let word = low(number) | if is_last { LAST_IMM } else { 0 };
                    T::add(list, Inline(&word.to_le_bytes()), None, self.to)
                }
                Form::Inline(bytes) => {
                    bytes[..8].copy_from_slice(&stamp.to_le_bytes());
                    let tail = tail(bytes.len());
                    bytes[tail..tail + 8].copy_from_slice(&stamp.to_le_bytes());
                    T::add(list, Inline(bytes), None, self.to)
                }
                Form::Memory { source, slices } => {
                    let at = slot * self.stream.stride();
                    let stamped = source.write_u64(at, stamp.to_le()).and_then(|()| {
                        source.write_u64(at + tail(self.stream.payload_bytes), stamp.to_le())
                    });
                    debug_assert!(stamped.is_ok(), "the source has room for the window");
                    T::add(list, slices[slot], None, self.to)
                }
            };
            if signaled {
                wr.signaled();
            }
        }
        self.qp.post_send(&mut self.list)
    }

    /// Waits until a postlist may be sent after the first `sent` messages.
    #[inline]
    fn make_room(&mut self, sent: u64) -> Result<()> {
        let least = self.stream.done_before_next(sent);
        if self.completed.min(self.credit) >= least {
            return Ok(());
        }
        self.wait(least, sent + self.stream.batch as u64)
    }

    fn wait(&mut self, least: u64, end: u64) -> Result<()> {
        let mut patience = Patience::new(PATIENCE_NS);
        let mut lost = Patience::new(LOST_NS);
        while self.completed.min(self.credit) < least {
            // Both queues, whichever is late: a NIC in software makes progress when it is polled.
            let done = self.reap_sends()?;
            let taken = self.reap_reports(end)?;
            if done + taken > 0 {
                patience.reset();
                lost.reset();
                continue;
            }
            // Of datagrams any may be lost, also a report; then what was sent is no longer there.
            if T::LOSES && self.completed >= least && lost.is_over() {
                self.credit = least;
            }
            patience.check("completions of SENDs, or reports of the receiver")?;
        }
        Ok(())
    }

    /// Takes reports of the receiver; `near` is about how far it can be.
    fn reap_reports(&mut self, near: u64) -> Result<usize> {
        let mut credit = self.credit;
        let taken = reap(self.qp.recv_cq(), &mut self.wcs, |wc| {
            let imm = wc.imm().context("a report without its number")?;
            credit = credit.max(nearest(imm, near));
            Ok(())
        })?;
        self.credit = credit;
        self.used_recvs += taken;
        if self.used_recvs >= self.recvs.capacity() / 2 {
            self.recvs.set_len(self.used_recvs);
            self.qp.post_recv(&mut self.recvs)?;
            self.used_recvs = 0;
        }
        Ok(taken)
    }

    #[inline]
    fn reap_sends(&mut self) -> Result<usize> {
        let done = reap(self.qp.send_cq(), &mut self.wcs, |_| Ok(()))?;
        self.completed += done as u64 * self.stream.signal_every as u64;
        Ok(done)
    }
}

pub(super) fn work(link: &mut Link, nic: &Nic, stream: &Stream) -> Result<()> {
    let sizes = receiver_sizes(stream);
    let found = if stream.verb == Verb::UdSend {
        let (mut qps, mut all) = (Vec::new(), Vec::new());
        for _ in 0..stream.queue_pairs {
            let qp = qp!(nic, sizes, Ud);
            let places = Places::new::<Ud>(nic, stream, |n| qp.recv_list(n))?;
            all.push(places.posted(|list| qp.post_recv(list))?);
            qps.push(qp);
        }
        let to = meet_ud(link, nic, &qps, stream)?;
        meet(link)?;
        receive(stream, &qps, &to, all)?
    } else {
        let (mut qps, mut all) = (Vec::new(), Vec::new());
        for _ in 0..stream.queue_pairs {
            let qp = qp!(nic, sizes, Rc);
            let places = Places::new::<Rc>(nic, stream, |n| qp.recv_list(n))?;
            all.push(places.posted(|list| qp.post_recv(list))?);
            qps.push(qp);
        }
        let qps = connect_all(link, qps)?;
        meet(link)?;
        receive(stream, &qps, &vec![(); qps.len()], all)?
    };
    link.send(&found)
}

/// Receives on all queue pairs until each has its last message, or nothing comes any more.
fn receive<T: Sends>(
    stream: &Stream,
    qps: &[QueuePair<T>],
    to: &[T::To],
    places: Vec<Places>,
) -> Result<Found> {
    let receivers = qps.iter().zip(to).zip(places);
    let receivers = receivers.map(|((qp, to), places)| Receiver::new(qp, to, stream, places));
    let mut receivers: Vec<_> = receivers.collect();
    let mut wcs = WcBuffer::<32>::new();
    let mut meter = Meter::new(stream.duration_ms);
    let mut patience = Patience::new(if T::LOSES { 4 * LOST_NS } else { PATIENCE_NS });
    let mut received = 0u64;
    let mut quiet = false;
    while !quiet && receivers.iter().any(|receiver| !receiver.ended) {
        let mut taken = 0;
        for receiver in receivers.iter_mut().filter(|receiver| !receiver.ended) {
            let came = reap(receiver.qp.recv_cq(), &mut wcs, |wc| receiver.take(&wc))?;
            if came > 0 {
                taken += came;
                received += came as u64;
                if receiver.give_back(came, &mut wcs)? {
                    meter.tick(received);
                }
            }
        }
        if taken > 0 {
            patience.reset();
        } else {
            quiet = patience.is_over();
        }
    }
    let timed = meter.finish(received, patience.quiet_since_ns());
    Ok(Found {
        received,
        ops: timed.ops,
        elapsed_ns: timed.elapsed_ns,
        wrong: receivers.into_iter().find_map(|receiver| receiver.wrong),
    })
}

/// Where messages arrive: a RECV for each of a window, in lists of a chunk.
struct Places {
    memory: MemoryRegion,
    lists: Vec<RecvList>,
}

impl Places {
    fn new<T: Sends>(
        nic: &Nic,
        stream: &Stream,
        mut list: impl FnMut(usize) -> RecvList,
    ) -> Result<Places> {
        let room = (T::BEFORE + stream.payload_bytes).max(8);
        // Nobody reads a header: all share one place for it.
        let stride = if stream.payload_bytes == 0 {
            0
        } else {
            room.next_multiple_of(8)
        };
        let bytes = (stride * stream.window).max(room);
        let memory = nic.alloc(bytes, Access::LOCAL_WRITE, stream.pages)?;
        let chunk = chunk(stream);
        let mut lists = Vec::new();
        for first in (0..stream.window).step_by(chunk) {
            let mut recvs = list(chunk);
            for slot in first..first + chunk {
                let at = slot * stride;
                recvs.recv(memory.slice(at..at + room)?, (at + T::BEFORE) as u64);
            }
            lists.push(recvs);
        }
        Ok(Places { memory, lists })
    }

    fn posted(
        mut self,
        mut post: impl FnMut(&mut RecvList) -> Result<(), PostError>,
    ) -> Result<Places> {
        for list in &mut self.lists {
            post(list)?;
        }
        Ok(self)
    }
}

struct Receiver<'q, T: Sends> {
    qp: &'q QueuePair<T>,
    to: &'q T::To,
    stream: &'q Stream,
    places: Places,
    /// Messages whose RECVs are not posted again yet, and the next list of those that are.
    used: usize,
    next: usize,
    report: Postlist<T>,
    reported: usize,
    signals: usize,
    /// The number that is due.
    due: u64,
    ended: bool,
    wrong: Option<String>,
}

impl<'q, T: Sends> Receiver<'q, T> {
    fn new(
        qp: &'q QueuePair<T>,
        to: &'q T::To,
        stream: &'q Stream,
        places: Places,
    ) -> Receiver<'q, T> {
        Receiver {
            qp,
            to,
            stream,
            places,
            used: 0,
            next: 0,
            report: qp.postlist(1),
            reported: 0,
            signals: 0,
            due: 0,
            ended: false,
            wrong: None,
        }
    }

    /// After so many messages posts RECVs again, in whole chunks, and reports; whether there was a chunk.
    fn give_back(&mut self, came: usize, wcs: &mut WcBuffer<32>) -> Result<bool> {
        let chunk = chunk(self.stream);
        self.used += came;
        let whole = self.used >= chunk;
        while self.used >= chunk {
            self.used -= chunk;
            self.qp.post_recv(&mut self.places.lists[self.next])?;
            self.next = (self.next + 1) % self.places.lists.len();
            // Not those that came in the meantime: their RECVs are not posted again yet.
            self.report(self.due - self.used as u64, wcs)?;
        }
        Ok(whole)
    }

    #[inline]
    fn take(&mut self, wc: &WorkCompletion<'_>) -> Result<()> {
        let payload_bytes = self.stream.payload_bytes;
        let (number, last) = if payload_bytes <= SHORT_BYTES {
            let word = if payload_bytes == 0 {
                wc.imm().context("a message without its number")?
            } else {
                let at = usize::try_from(wc.wr_id())?;
                let word = self.places.memory.read_u64(at)?.to_ne_bytes();
                u32::from_le_bytes([word[0], word[1], word[2], word[3]])
            };
            (nearest(word & !LAST_IMM, self.due), word & LAST_IMM != 0)
        } else {
            let at = usize::try_from(wc.wr_id())?;
            let stamp = u64::from_le(self.places.memory.read_u64(at)?);
            let behind = u64::from_le(self.places.memory.read_u64(at + tail(payload_bytes))?);
            if behind != stamp {
                let wrong = || format!("{behind:#x} at the end of message {stamp:#x}");
                self.wrong.get_or_insert_with(wrong);
            }
            (stamp & !LAST, stamp & LAST != 0)
        };
        let due = self.due;
        if number < due || (number > due && !T::LOSES) {
            let wrong = || format!("number {number} where {due} was due");
            self.wrong.get_or_insert_with(wrong);
        }
        if wc.byte_len() as usize != T::BEFORE + payload_bytes {
            let wrong = || format!("a message of {} bytes", wc.byte_len());
            self.wrong.get_or_insert_with(wrong);
        }
        self.due = number + 1;
        self.ended |= last;
        Ok(())
    }

    /// Tells the sender how far it is: a window from there has RECVs.
    fn report(&mut self, credit: u64, wcs: &mut WcBuffer<32>) -> Result<()> {
        self.reported += 1;
        let signaled = self.reported.is_multiple_of(REPORTS_SIGNALED);
        self.report.clear();
        let wr = T::add(&mut self.report, HeaderOnly, Some(low(credit)), self.to);
        if signaled {
            wr.signaled();
            self.signals += 1;
        }
        self.qp.post_send(&mut self.report)?;
        let mut patience = Patience::new(PATIENCE_NS);
        while self.signals >= REPORT_WRS / REPORTS_SIGNALED / 2 {
            let done = reap(self.qp.send_cq(), wcs, |_| Ok(()))?;
            self.signals -= done;
            if done == 0 {
                patience.check("completions of reports")?;
            }
        }
        Ok(())
    }
}

/// The lower 31 bits of a number.
fn low(number: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation)] // that is the point; see `nearest`
    {
        number as u32 & !LAST_IMM
    }
}

/// The number nearest to `near` whose lower 31 bits are `imm`.
fn nearest(imm: u32, near: u64) -> u64 {
    // Shifted up, the sign of 31 bits is that of 32.
    let ahead = (imm.wrapping_sub(low(near)) << 1).cast_signed() >> 1;
    near.saturating_add_signed(i64::from(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::Knobs;

    #[test]
    fn numbers_survive_their_lower_half() {
        for near in [
            0u64,
            5,
            0x7fff_fff0,
            0x8000_0000,
            0xffff_fff0,
            0x5_8000_0000,
        ] {
            for ahead in [-3i64, 0, 1, 500] {
                if let Some(full) = near.checked_add_signed(ahead) {
                    assert_eq!(nearest(low(full), near), full, "{near} {ahead}");
                }
            }
        }
    }

    #[test]
    fn reports_come_in_whole_chunks() {
        for window in 1..=300 {
            let knobs = Knobs {
                batch: Some(1),
                signal_every: Some(1),
                window: Some(window),
                ..Knobs::default()
            };
            let stream = Stream::new(Verb::RcSend, &knobs, 1).unwrap();
            let chunk = chunk(&stream);
            assert!(window.is_multiple_of(chunk) && chunk <= (window / 4).max(1));
            assert!(reports(&stream) >= 2);
        }
    }
}
