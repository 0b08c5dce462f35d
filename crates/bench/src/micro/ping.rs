//! Latencies: one message at a time.
//!
//! Of SENDs and WRITEs the worker sends back what it got, and the latency is half of a round trip;
//! of READs and atomics it is the time from the post to the completion. Each exchange is timed and
//! goes into a histogram; what the clock itself takes is measured first and subtracted, since where
//! the kernel must be asked for the time that is more than the message.

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use verbs::{
    Access, CompletionQueue, Connected, HeaderOnly, Inline, MemoryRegion, Payload, PostError,
    Postlist, QueuePair, Rc, RecvList, RemoteMemory, Transport, Uc, Ud, UdDestination, WcBuffer,
};

use super::{Latency, PingPong, Verb, tail};
use crate::link::Link;
use crate::workload::{Nic, PATIENCE_NS, Patience, connect, meet, now_ns, reap, small};

/// Marks the last number.
const LAST: u32 = 1 << 31;

/// Exchanges that are measured at least.
const LEAST: u64 = 20;

/// Send WRs of either side.
const SEND_WRS: usize = 32;

/// One WR in so many is signaled when its payload is its own (inline or none). Else each is: its
/// buffer is the NIC's until it completes.
const SIGNALED: u32 = 16;

/// RECVs of either side, in two lists that take turns: so many that posting them again is seldom,
/// but few when they are long.
fn recvs(payload_bytes: usize) -> usize {
    if payload_bytes <= 1 << 16 { 64 } else { 8 }
}

pub(super) fn drive(link: &mut Link, nic: &Nic, ping: &PingPong) -> Result<Latency> {
    match ping.verb {
        Verb::RcSend | Verb::UdSend => {
            let mut end = sends(link, nic, ping)?;
            timed(ping, |number| {
                end.post(number)?;
                end.echoed(number)
            })
        }
        Verb::RcWrite => {
            let mut end = Writes::<Rc>::new(link, nic, ping)?;
            timed(ping, |number| end.exchange(number))
        }
        Verb::UcWrite => {
            let mut end = Writes::<Uc>::new(link, nic, ping)?;
            timed(ping, |number| end.exchange(number))
        }
        Verb::RcRead | Verb::Atomics => {
            let latency = {
                let mut end = Fetches::new(link, nic, ping)?;
                timed(ping, |number| end.fetch(number))?
            };
            link.send(&"done")?;
            Ok(latency)
        }
    }
}

pub(super) fn work(link: &mut Link, nic: &Nic, ping: &PingPong) -> Result<()> {
    match ping.verb {
        Verb::RcSend | Verb::UdSend => {
            let mut end = sends(link, nic, ping)?;
            loop {
                let number = end.receive()?;
                end.post(number)?;
                if number & LAST != 0 {
                    return end.drain();
                }
            }
        }
        Verb::RcWrite => Writes::<Rc>::new(link, nic, ping)?.echo(),
        Verb::UcWrite => Writes::<Uc>::new(link, nic, ping)?.echo(),
        Verb::RcRead | Verb::Atomics => {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let memory = nic.pd.alloc(ping.payload_bytes, access)?;
            link.send(&memory.remote())?;
            let cq = nic.cq(1)?;
            let _qp = connect(link, nic.qp::<Rc>(&cq, &cq).max_recv_wr(1u32).build()?)?;
            let _: String = link.recv()?;
            Ok(())
        }
    }
}

/// Calls `exchange` with rising numbers for the time of `ping`; the last is marked.
fn timed(ping: &PingPong, mut exchange: impl FnMut(u32) -> Result<()>) -> Result<Latency> {
    let clock_ns = clock_ns();
    // Up to ten minutes, to three digits.
    let mut histogram = Histogram::<u64>::new_with_max(600_000_000_000, 3)?;
    let duration_ns = ping.duration_ms.saturating_mul(1_000_000);
    let begin_ns = now_ns();
    let (mut before_ns, mut number) = (begin_ns, 0u32);
    loop {
        let enough = histogram.len() >= LEAST && before_ns - begin_ns >= duration_ns;
        let last = enough || number == LAST - 2;
        number += 1;
        exchange(number | if last { LAST } else { 0 })?;
        let now = now_ns();
        if number > 8 && now - begin_ns >= duration_ns / 10 {
            histogram.saturating_record((now - before_ns).saturating_sub(clock_ns));
        }
        before_ns = now;
        if last {
            break;
        }
    }
    let parts = if ping.is_one_way() { 2.0 } else { 1.0 };
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let ns = |whole: u64| whole as f64 / parts;
    Ok(Latency {
        latency_ns_p50: ns(histogram.value_at_quantile(0.5)),
        latency_ns_p99: ns(histogram.value_at_quantile(0.99)),
        latency_ns_p999: ns(histogram.value_at_quantile(0.999)),
        latency_ns_max: ns(histogram.max()),
        latency_ns_mean: histogram.mean() / parts,
        #[allow(clippy::cast_precision_loss)]
        clock_ns: clock_ns as f64,
        verified_ops: number.into(),
        histogram: histogram
            .iter_recorded()
            .map(|step| (ns(step.value_iterated_to()), step.count_at_value()))
            .collect(),
    })
}

/// The median time that one reading of the clock takes: that of many in a row, so that a clock
/// coarser than it does not hide it.
fn clock_ns() -> u64 {
    const IN_A_ROW: u64 = 32;
    let mut times: Vec<u64> = (0..31)
        .map(|_| {
            let begin = now_ns();
            let end = (0..IN_A_ROW).fold(begin, |_, _| now_ns());
            (end - begin) / IN_A_ROW
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The number that a word holds at both ends of a payload; the marked one is part of it.
fn stamp(number: u32) -> u64 {
    u64::from(number).to_le()
}

/// An end that exchanges SENDs.
enum Sends {
    Rc(SendEnd<Rc>),
    Ud(SendEnd<Ud>, Box<UdDestination>),
}

fn sends(link: &mut Link, nic: &Nic, ping: &PingPong) -> Result<Sends> {
    let recvs = recvs(ping.payload_bytes);
    let cqs = (nic.cq(SEND_WRS)?, nic.cq(recvs + 1)?);
    let inline = if ping.inline { ping.payload_bytes } else { 0 };
    if ping.verb == Verb::UdSend {
        let qp = nic
            .qp::<Ud>(&cqs.0, &cqs.1)
            .max_send_wr(small(SEND_WRS))
            .max_recv_wr(small(recvs))
            .max_inline_data(small(inline))
            .build()?;
        let place = RecvPlaces::new(nic, ping, verbs::GRH_BYTES, |n| qp.recv_list(n))?;
        let place = place.posted(|list| qp.post_recv(list))?;
        let own = qp.endpoint();
        link.send(&own)?;
        let peer: verbs::QpEndpoint = link.recv()?;
        let mtu = own.mtu.min(peer.mtu).bytes();
        if ping.payload_bytes > mtu as usize {
            bail!(
                "a datagram of {} bytes is longer than the path MTU of {mtu}; lower the payload",
                ping.payload_bytes
            );
        }
        let to = nic.pd.ud_destination(qp.port().port_num, &peer)?;
        meet(link)?;
        let source = Source::new(nic, ping)?;
        Ok(Sends::Ud(SendEnd::new(qp, source, place), Box::new(to)))
    } else {
        let qp = nic
            .qp::<Rc>(&cqs.0, &cqs.1)
            .max_send_wr(small(SEND_WRS))
            .max_recv_wr(small(recvs))
            .max_inline_data(small(inline))
            .build()?;
        let place = RecvPlaces::new(nic, ping, 0, |n| qp.recv_list(n))?;
        let place = place.posted(|list| qp.post_recv(list))?;
        let qp = connect(link, qp)?;
        meet(link)?;
        let source = Source::new(nic, ping)?;
        Ok(Sends::Rc(SendEnd::new(qp, source, place)))
    }
}

impl Sends {
    #[inline]
    fn post(&mut self, number: u32) -> Result<()> {
        match self {
            Sends::Rc(end) => end.post(number, |list, form, imm| match form {
                Form::HeaderOnly => list.send_with_imm(HeaderOnly, imm),
                Form::Inline(bytes) => list.send(Inline(bytes)),
                Form::Memory(slice) => list.send(slice),
            }),
            Sends::Ud(end, to) => end.post(number, |list, form, imm| match form {
                Form::HeaderOnly => list.send_with_imm(HeaderOnly, to, imm),
                Form::Inline(bytes) => list.send(Inline(bytes), to),
                Form::Memory(slice) => list.send(slice, to),
            }),
        }
    }

    #[inline]
    fn receive(&mut self) -> Result<u32> {
        match self {
            Sends::Rc(end) => end.receive(),
            Sends::Ud(end, _) => end.receive(),
        }
    }

    #[inline]
    fn echoed(&mut self, number: u32) -> Result<()> {
        let echoed = self.receive()?;
        if echoed != number {
            bail!("the echo of {number:#x} was {echoed:#x}");
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        match self {
            Sends::Rc(end) => end.source.wait(end.qp.send_cq(), 0),
            Sends::Ud(end, _) => end.source.wait(end.qp.send_cq(), 0),
        }
    }
}

/// One payload, as a WR takes it.
enum Form<'s> {
    HeaderOnly,
    Inline(&'s [u8]),
    Memory(verbs::MrSlice),
}

/// Payloads to send: stamped bytes, or two places in memory that take turns.
struct Source {
    bytes: Vec<u8>,
    memory: Option<MemoryRegion>,
    payload_bytes: usize,
    posted: u32,
    /// Signaled WRs that have not completed.
    outstanding: usize,
    wcs: WcBuffer<4>,
}

impl Source {
    fn new(nic: &Nic, ping: &PingPong) -> Result<Source> {
        let in_memory = !ping.inline && ping.payload_bytes > 0;
        let stride = ping.payload_bytes.next_multiple_of(8);
        let memory = in_memory
            .then(|| nic.pd.alloc(2 * stride, Access::LOCAL_READ))
            .transpose()?;
        Ok(Source {
            bytes: vec![0x5a; if in_memory { 0 } else { ping.payload_bytes }],
            memory,
            payload_bytes: ping.payload_bytes,
            posted: 0,
            outstanding: 0,
            wcs: WcBuffer::new(),
        })
    }

    /// Makes the next payload carry `number`; also whether its WR is to be signaled.
    #[inline]
    fn next(&mut self, cq: &CompletionQueue, number: u32) -> Result<(Form<'_>, bool)> {
        self.posted = self.posted.wrapping_add(1);
        let tail = tail(self.payload_bytes);
        if self.memory.is_some() {
            // The WR before the last has completed: its place is free.
            self.wait(cq, 1)?;
        } else {
            self.wait(cq, SEND_WRS / SIGNALED as usize - 1)?;
        }
        let signaled =
            self.memory.is_some() || self.posted.is_multiple_of(SIGNALED) || number & LAST != 0;
        self.outstanding += usize::from(signaled);
        let form = match &self.memory {
            Some(memory) => {
                let stride = self.payload_bytes.next_multiple_of(8);
                let at = if self.posted.is_multiple_of(2) {
                    stride
                } else {
                    0
                };
                memory.write_u64(at, stamp(number))?;
                memory.write_u64(at + tail, stamp(number))?;
                Form::Memory(memory.slice(at..at + self.payload_bytes)?)
            }
            None if self.payload_bytes == 0 => Form::HeaderOnly,
            None => {
                let stamp = u64::from(number).to_le_bytes();
                self.bytes[..8].copy_from_slice(&stamp);
                self.bytes[tail..tail + 8].copy_from_slice(&stamp);
                Form::Inline(&self.bytes)
            }
        };
        Ok((form, signaled))
    }

    /// Waits until at most `left` signaled WRs are outstanding.
    #[inline]
    fn wait(&mut self, cq: &CompletionQueue, left: usize) -> Result<()> {
        if self.outstanding <= left {
            return Ok(());
        }
        let mut patience = Patience::eager(PATIENCE_NS);
        while self.outstanding > left {
            let done = reap(cq, &mut self.wcs, |_| Ok(()))?;
            self.outstanding = self.outstanding.saturating_sub(done);
            if done == 0 {
                patience.check("completions")?;
            }
        }
        Ok(())
    }
}

/// Where SENDs arrive.
struct RecvPlaces {
    memory: MemoryRegion,
    /// The first is in use, the other comes behind it.
    lists: [RecvList; 2],
    /// Messages that came to the first.
    received: usize,
}

impl RecvPlaces {
    fn new(
        nic: &Nic,
        ping: &PingPong,
        before: usize,
        list: impl Fn(usize) -> RecvList,
    ) -> Result<RecvPlaces> {
        let room = (before + ping.payload_bytes).max(8);
        let stride = room.next_multiple_of(8);
        let half = recvs(ping.payload_bytes) / 2;
        let memory = nic.pd.alloc(2 * half * stride, Access::LOCAL_WRITE)?;
        let mut lists = [list(half), list(half)];
        for slot in 0..2 * half {
            let at = slot * stride;
            let wr_id = (at + before) as u64;
            lists[slot / half].recv(memory.slice(at..at + room)?, wr_id);
        }
        Ok(RecvPlaces {
            memory,
            lists,
            received: 0,
        })
    }

    fn posted(
        mut self,
        mut post: impl FnMut(&mut RecvList) -> Result<(), PostError>,
    ) -> Result<RecvPlaces> {
        for list in &mut self.lists {
            post(list)?;
        }
        Ok(self)
    }
}

struct SendEnd<T: Transport> {
    qp: QueuePair<T>,
    list: Postlist<T>,
    source: Source,
    places: RecvPlaces,
    wcs: WcBuffer<1>,
}

impl<T: Transport> SendEnd<T> {
    fn new(qp: QueuePair<T>, source: Source, places: RecvPlaces) -> SendEnd<T> {
        SendEnd {
            list: qp.postlist(1),
            qp,
            source,
            places,
            wcs: WcBuffer::new(),
        }
    }

    #[inline]
    fn post(
        &mut self,
        number: u32,
        add: impl for<'l> FnOnce(&'l mut Postlist<T>, Form<'_>, u32) -> verbs::Wr<'l>,
    ) -> Result<()> {
        let (form, signaled) = self.source.next(self.qp.send_cq(), number)?;
        self.list.clear();
        let wr = add(&mut self.list, form, number);
        if signaled {
            wr.signaled();
        }
        Ok(self.qp.post_send(&mut self.list)?)
    }

    #[inline]
    fn receive(&mut self) -> Result<u32> {
        let mut patience = Patience::eager(PATIENCE_NS);
        let payload_bytes = self.source.payload_bytes;
        let memory = &self.places.memory;
        let mut number = 0;
        loop {
            let taken = reap(self.qp.recv_cq(), &mut self.wcs, |wc| {
                number = if payload_bytes == 0 {
                    wc.imm().context("a message without its number")?
                } else {
                    let at = usize::try_from(wc.wr_id())?;
                    let first = u64::from_le(memory.read_u64(at)?);
                    let last = u64::from_le(memory.read_u64(at + tail(payload_bytes))?);
                    if first != last {
                        bail!("{last:#x} at the end of message {first:#x}");
                    }
                    u32::try_from(first).context("another payload")?
                };
                Ok(())
            })?;
            if taken > 0 {
                break;
            }
            patience.check("the other end's SEND")?;
        }
        self.places.received += 1;
        if self.places.received == self.places.lists[0].len() {
            self.places.received = 0;
            self.qp.post_recv(&mut self.places.lists[0])?;
            self.places.lists.swap(0, 1);
        }
        Ok(number)
    }
}

/// An end that exchanges RDMA WRITEs and looks for the other's in its memory.
struct Writes<T: Connected> {
    qp: QueuePair<T>,
    list: Postlist<T>,
    source: Source,
    memory: MemoryRegion,
    remote: RemoteMemory,
}

impl<T: Connected> Writes<T> {
    fn new(link: &mut Link, nic: &Nic, ping: &PingPong) -> Result<Writes<T>> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = nic
            .pd
            .alloc(ping.payload_bytes.next_multiple_of(8), access)?;
        link.send(&memory.remote())?;
        let remote = link.recv()?;
        let cq = nic.cq(SEND_WRS)?;
        let inline = if ping.inline { ping.payload_bytes } else { 0 };
        let qp = nic
            .qp::<T>(&cq, &cq)
            .max_send_wr(small(SEND_WRS))
            .max_recv_wr(1u32)
            .max_inline_data(small(inline))
            .build()?;
        let qp = connect(link, qp)?;
        meet(link)?;
        Ok(Writes {
            list: qp.postlist(1),
            qp,
            source: Source::new(nic, ping)?,
            memory,
            remote,
        })
    }

    #[inline]
    fn post(&mut self, number: u32) -> Result<()> {
        let (form, signaled) = self.source.next(self.qp.send_cq(), number)?;
        self.list.clear();
        fn add<'l, T: Connected>(
            list: &'l mut Postlist<T>,
            payload: impl Payload,
            remote: RemoteMemory,
        ) -> verbs::Wr<'l> {
            list.rdma_write(payload, remote)
        }
        let wr = match form {
            Form::HeaderOnly => add(&mut self.list, HeaderOnly, self.remote),
            Form::Inline(bytes) => add(&mut self.list, Inline(bytes), self.remote),
            Form::Memory(slice) => add(&mut self.list, slice, self.remote),
        };
        if signaled {
            wr.signaled();
        }
        Ok(self.qp.post_send(&mut self.list)?)
    }

    /// Waits for the WRITE after number `before`: all of it, from its first word to its last.
    #[inline]
    fn receive(&mut self, before: u32) -> Result<u32> {
        let mut patience = Patience::eager(PATIENCE_NS);
        let tail = tail(self.source.payload_bytes);
        loop {
            // Nobody promises an order of the bytes of one WRITE, so both words are waited for.
            let last = u64::from_le(self.memory.read_u64(tail)?);
            if last != u64::from(before) {
                let first = u64::from_le(self.memory.read_u64(0)?);
                if first == last {
                    return u32::try_from(last).context("another payload");
                }
            }
            patience.check("the other end's WRITE")?;
        }
    }

    #[inline]
    fn exchange(&mut self, number: u32) -> Result<()> {
        self.post(number)?;
        let echoed = self.receive((number & !LAST) - 1)?;
        if echoed != number {
            bail!("the echo of {number:#x} was {echoed:#x}");
        }
        if number & LAST != 0 {
            self.source.wait(self.qp.send_cq(), 0)?;
        }
        Ok(())
    }

    fn echo(&mut self) -> Result<()> {
        let mut number = 0;
        while number & LAST == 0 {
            number = self.receive(number)?;
            self.post(number)?;
        }
        self.source.wait(self.qp.send_cq(), 0)
    }
}

/// An end that fetches: READs, or fetch-and-adds.
struct Fetches {
    qp: QueuePair<Rc>,
    list: Postlist<Rc>,
    into: MemoryRegion,
    verb: Verb,
    wcs: WcBuffer<1>,
}

impl Fetches {
    fn new(link: &mut Link, nic: &Nic, ping: &PingPong) -> Result<Fetches> {
        let remote: RemoteMemory = link.recv()?;
        let cq = nic.cq(1)?;
        let qp = nic.qp::<Rc>(&cq, &cq).max_recv_wr(1u32).build()?;
        let qp = connect(link, qp)?;
        let into = nic.pd.alloc(ping.payload_bytes, Access::LOCAL_WRITE)?;
        let mut list = qp.postlist(1);
        let slice = into.slice(..)?;
        if ping.verb == Verb::Atomics {
            list.atomic_fetch_and_add(slice, remote, 1).signaled();
        } else {
            list.rdma_read(slice, remote).signaled();
        }
        Ok(Fetches {
            qp,
            list,
            into,
            verb: ping.verb,
            wcs: WcBuffer::new(),
        })
    }

    #[inline]
    fn fetch(&mut self, number: u32) -> Result<()> {
        let end = tail(self.into.len());
        self.into.write_u64(0, u64::MAX)?;
        self.into.write_u64(end, u64::MAX)?;
        self.qp.post_send(&mut self.list)?;
        let mut patience = Patience::eager(PATIENCE_NS);
        while reap(self.qp.send_cq(), &mut self.wcs, |_| Ok(()))? == 0 {
            patience.check("the completion")?;
        }
        // A READ finds zeros; fetch-and-add n returns n - 1.
        let want = match self.verb {
            Verb::Atomics => u64::from(number & !LAST) - 1,
            _ => 0,
        };
        let got = [self.into.read_u64(0)?, self.into.read_u64(end)?];
        if got != [want; 2] {
            bail!("number {number:#x} fetched {got:?}, not {want}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::Knobs;

    #[test]
    fn half_of_a_round_trip_or_all_of_it() {
        let latency = |verb| {
            let ping = PingPong::new(verb, &Knobs::default(), 20).unwrap();
            let mut numbers = Vec::new();
            let latency = timed(&ping, |number| {
                numbers.push(number);
                std::thread::sleep(std::time::Duration::from_millis(1));
                Ok(())
            })
            .unwrap();
            let last = numbers.pop().unwrap();
            assert_eq!(last & !LAST, u32::try_from(numbers.len()).unwrap() + 1);
            // Nothing but the warm-up is missing among the raw samples.
            let recorded: u64 = latency.histogram.iter().map(|(_, count)| count).sum();
            assert!(
                (LEAST..latency.verified_ops).contains(&recorded),
                "{latency:?}"
            );
            let longest = latency.histogram.last().unwrap().0;
            assert!(
                (longest / latency.latency_ns_max - 1.0).abs() < 0.01,
                "{latency:?}"
            );
            assert!(last & LAST != 0 && numbers.iter().all(|n| n & LAST == 0));
            latency
        };
        assert!(latency(Verb::RcSend).latency_ns_p50 >= 490_000.0);
        assert!(latency(Verb::RcRead).latency_ns_p50 >= 990_000.0);
    }

    #[test]
    fn the_clock_takes_time() {
        assert!(clock_ns() < 1_000_000);
    }
}
