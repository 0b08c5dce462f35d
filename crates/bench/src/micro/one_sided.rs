//! Rates of RDMA WRITEs, READs and fetch-and-adds.
//!
//! The worker offers memory and sleeps. Of READs and atomics the driver checks each result when its
//! completion, or that of a later WR, is there. Of WRITEs the worker checks at the end what came last
//! to each place, which by the order of a queue pair tells of all.
//!
//! Each queue pair has a window of places of its own, of which number `n` uses the `n`th in turn.
//!
//! On UC a WRITE completes when it is sent, and nobody tells the requester whether it has arrived. That is the rate of a
//! requester. Where the responder is measured ([`credit`]), its processor looks for what has arrived and WRITEs back how
//! far it is, and the requester is at most a window ahead of that.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, Connected, Inline, MemoryRegion, MrSlice, Postlist, QueuePair, Rc, RemoteMemory, Uc,
    WcBuffer, Wr,
};

use super::credit::{self, Credits};
use super::pace::{Meter, Pace, Timed, Turn};
use super::{Rate, Stream, Target, Verb, tail};
use crate::link::Link;
use crate::workload::{Nic, PATIENCE_NS, Patience, connect_all, meet, now_ns, reap, small};

/// How long the worker waits for a WRITE that has completed at the other side: on UC that means that
/// it was sent.
const ARRIVAL_NS: u64 = PATIENCE_NS / 5;

/// Numbers that were written or added on each queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Count(u64);

pub(super) fn drive(link: &mut Link, nic: &Nic, stream: &Stream) -> Result<Rate> {
    let remote: RemoteMemory = link.recv()?;
    let (timed, count) = match stream.verb {
        Verb::UcWrite => {
            let credits = credit::wanted(stream).then(|| Credits::offer(link, nic, stream));
            let credits = credits.transpose()?;
            let qps = connected::<Uc>(link, nic, stream)?;
            let written = writes(nic, &qps, stream, remote, credits.as_ref())?;
            if credits.is_some() {
                credit::end(nic, &qps[0], stream, remote)?;
            }
            written
        }
        Verb::RcRead => reads(nic, &connected::<Rc>(link, nic, stream)?, stream, remote)?,
        Verb::Atomics => adds(nic, &connected::<Rc>(link, nic, stream)?, stream, remote)?,
        _ => {
            let qps = connected::<Rc>(link, nic, stream)?;
            writes(nic, &qps, stream, remote, None)?
        }
    };
    link.send(&Count(count))?;
    let wrong: Option<String> = link.recv()?;
    super::check(wrong)?;
    Ok(Rate::new(
        stream,
        timed,
        count * stream.queue_pairs as u64,
        0,
    ))
}

fn connected<T: Connected>(
    link: &mut Link,
    nic: &Nic,
    stream: &Stream,
) -> Result<Vec<QueuePair<T>>> {
    let inline = if stream.inline {
        stream.payload_bytes
    } else {
        0
    };
    let prepared = (0..stream.queue_pairs).map(|_| {
        let cq = nic.cq(stream.window.max(credit::SEND_WRS) + 1)?;
        let send_wrs = stream.window.max(credit::SEND_WRS);
        let qp = nic.qp::<T>(&cq, &cq).max_send_wr(small(send_wrs));
        let qp = qp.max_recv_wr(1u32).max_inline_data(small(inline)).build();
        qp.context("cannot make a queue pair for this window and inline payload; lower them")
    });
    let qps = connect_all(link, prepared.collect::<Result<_>>()?)?;
    // UC drops what comes before the other side is ready.
    meet(link)?;
    Ok(qps)
}

/// The places of all queue pairs in `remote`.
fn remote_places(stream: &Stream, remote: RemoteMemory) -> Result<Vec<RemoteMemory>> {
    (0..stream.places())
        .map(|place| {
            let at = (place * stream.stride()) as u64;
            remote.at(at).context("the worker offers too little memory")
        })
        .collect()
}

/// The places of all queue pairs in `local`.
fn local_places(stream: &Stream, local: &MemoryRegion) -> Result<Vec<MrSlice>> {
    let places = (0..stream.places()).map(|place| {
        let at = place * stream.stride();
        local.slice(at..at + stream.payload_bytes)
    });
    Ok(places.collect::<Result<_, _>>()?)
}

/// A WR among those of a measurement.
#[derive(Clone, Copy)]
struct Spot {
    /// Its place among those of all queue pairs.
    place: usize,
    /// Its number among those of its queue pair.
    number: u64,
    queue_pair: usize,
}

fn writes<T: Connected>(
    nic: &Nic,
    qps: &[QueuePair<T>],
    stream: &Stream,
    remote: RemoteMemory,
    credits: Option<&Credits>,
) -> Result<(Timed, u64)> {
    let places = remote_places(stream, remote)?;
    let tail = tail(stream.payload_bytes);
    if stream.inline {
        let mut bytes = vec![0x5a; stream.payload_bytes];
        let add = |list: &mut Postlist<T>, spot: Spot, signaled: bool| {
            let stamp = (spot.number + 1).to_le_bytes();
            bytes[..8].copy_from_slice(&stamp);
            bytes[tail..tail + 8].copy_from_slice(&stamp);
            signal(
                list.rdma_write(Inline(&bytes), places[spot.place]),
                signaled,
            );
            Ok(())
        };
        return run(qps, stream, credits, add, |_| Ok(()));
    }
    let source = nic.alloc(stream.window_bytes(), Access::LOCAL_READ, stream.pages)?;
    let sources = local_places(stream, &source)?;
    let add = |list: &mut Postlist<T>, spot: Spot, signaled: bool| {
        let at = spot.place * stream.stride();
        source.write_u64(at, (spot.number + 1).to_le())?;
        source.write_u64(at + tail, (spot.number + 1).to_le())?;
        signal(
            list.rdma_write(sources[spot.place], places[spot.place]),
            signaled,
        );
        Ok(())
    };
    run(qps, stream, credits, add, |_| Ok(()))
}

fn reads(
    nic: &Nic,
    qps: &[QueuePair<Rc>],
    stream: &Stream,
    remote: RemoteMemory,
) -> Result<(Timed, u64)> {
    let places = remote_places(stream, remote)?;
    let results = nic.alloc(stream.window_bytes(), Access::LOCAL_WRITE, stream.pages)?;
    let into = local_places(stream, &results)?;
    let tail = tail(stream.payload_bytes);
    let add = |list: &mut Postlist<Rc>, spot: Spot, signaled: bool| {
        // So that what a READ of an earlier turn left there is not taken for this one's.
        let at = spot.place * stream.stride();
        results.write_u64(at, 0)?;
        results.write_u64(at + tail, 0)?;
        signal(
            list.rdma_read(into[spot.place], places[spot.place]),
            signaled,
        );
        Ok(())
    };
    let check = |spot: Spot| {
        let at = spot.place * stream.stride();
        let got = [results.read_u64(at)?, results.read_u64(at + tail)?].map(u64::from_le);
        let want = spot.place as u64 + 1;
        if got != [want; 2] {
            bail!("READ {} brought {got:?} instead of {want}", spot.number);
        }
        Ok(())
    };
    run(qps, stream, None, add, check)
}

fn adds(
    nic: &Nic,
    qps: &[QueuePair<Rc>],
    stream: &Stream,
    remote: RemoteMemory,
) -> Result<(Timed, u64)> {
    let results = nic.alloc(stream.window_bytes(), Access::LOCAL_WRITE, stream.pages)?;
    let into = local_places(stream, &results)?;
    let counter = |number: usize| remote.at((number * stream.spacing_bytes) as u64);
    let counters: Option<Vec<_>> = (0..stream.addresses).map(counter).collect();
    let counters = counters.context("the worker offers too few counters")?;
    let exact = stream.has_own_counters();
    // Of each queue pair's adds to each counter: what the next one finds, or more.
    let mut next = vec![0u64; stream.addresses * qps.len()];
    // The counters of the adds that are outstanding.
    let chosen = std::cell::RefCell::new(vec![0usize; stream.places()]);
    let mut choice = Choice::new(u64::from(qps[0].qpn().0), stream.addresses);
    let add = |list: &mut Postlist<Rc>, spot: Spot, signaled: bool| {
        let counter = choice.next();
        chosen.borrow_mut()[spot.place] = counter;
        signal(
            list.atomic_fetch_and_add(into[spot.place], counters[counter], 1),
            signaled,
        );
        Ok(())
    };
    let check = |spot: Spot| {
        let got = results.read_u64(8 * spot.place)?;
        let counter = chosen.borrow()[spot.place];
        let next = &mut next[spot.queue_pair * stream.addresses + counter];
        if got < *next || (exact && got > *next) {
            bail!(
                "fetch-and-add {} on counter {counter} returned {got} and not {}{next}",
                spot.number,
                if exact { "" } else { "at least " }
            );
        }
        *next = got + 1;
        Ok(())
    };
    run(qps, stream, None, add, check)
}

/// Numbers below a limit, evenly and without order: an xorshift of 64 bits (Marsaglia, Journal of Statistical Software
/// 8(14), 2003).
struct Choice {
    state: u64,
    below: u64,
}

impl Choice {
    fn new(seed: u64, below: usize) -> Choice {
        Choice {
            // Any state but 0.
            state: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            below: below as u64,
        }
    }

    #[inline]
    fn next(&mut self) -> usize {
        if self.below == 1 {
            return 0;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let scaled = (u128::from(self.state) * u128::from(self.below)) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }
}

#[inline]
fn signal(wr: Wr<'_>, signaled: bool) {
    if signaled {
        wr.signaled();
    }
}

/// A queue pair at work.
struct Flow<'q, T: Connected> {
    qp: &'q QueuePair<T>,
    list: Postlist<T>,
    turn: Turn,
    checks: Turn,
    /// Its place among the queue pairs, and the first of its places.
    number: usize,
    first: usize,
    completed: u64,
}

impl<T: Connected> Flow<'_, T> {
    /// Waits until so many have completed; `done` are told of each that has.
    fn wait(
        &mut self,
        until: u64,
        signal_every: u64,
        mut done: impl FnMut(Spot) -> Result<()>,
    ) -> Result<()> {
        if self.completed >= until {
            return Ok(());
        }
        let mut wcs = WcBuffer::<32>::new();
        let mut patience = Patience::new(PATIENCE_NS);
        while self.completed < until {
            let came = reap(self.qp.send_cq(), &mut wcs, |_| Ok(()))?;
            if came == 0 {
                patience.check("completions")?;
                continue;
            }
            patience.reset();
            for _ in 0..came as u64 * signal_every {
                done(Spot {
                    place: self.first + self.checks.next().0,
                    number: self.completed,
                    queue_pair: self.number,
                })?;
                self.completed += 1;
            }
        }
        Ok(())
    }
}

/// Posts for the time of the stream; what was measured, and the number of all WRs of each queue pair.
///
/// `add` builds a WR; `check` looks at what it brought.
fn run<T: Connected>(
    qps: &[QueuePair<T>],
    stream: &Stream,
    credits: Option<&Credits>,
    mut add: impl FnMut(&mut Postlist<T>, Spot, bool) -> Result<()>,
    mut check: impl FnMut(Spot) -> Result<()>,
) -> Result<(Timed, u64)> {
    let signal_every = stream.signal_every as u64;
    let flow = |(number, qp): (usize, _)| Flow {
        qp,
        list: QueuePair::postlist(qp, stream.batch),
        turn: Turn::new(stream.window, stream.signal_every),
        checks: Turn::new(stream.window, 1),
        number,
        first: number * stream.window,
        completed: 0,
    };
    let mut flows: Vec<Flow<'_, T>> = qps.iter().enumerate().map(flow).collect();
    let mut meter = Meter::new(stream.duration_ms);
    let mut pace = Pace::new(stream.duration_ms);
    let mut posted = 0u64;
    let mut last = false;
    while !last {
        last = pace.is_over()
            && stream.can_end_after(posted)
            && credits.is_none_or(|credits| credits.can_end_at(posted + stream.batch as u64));
        let room = stream.done_before_next(posted);
        for flow in &mut flows {
            if let Some(credits) = credits {
                credits.wait(flow.number, room)?;
            }
            flow.wait(room, signal_every, &mut check)?;
            if stream.burst && room == posted {
                meter.tick(posted * qps.len() as u64);
            }
            flow.list.clear();
            for number in posted..posted + stream.batch as u64 {
                let (slot, signaled) = flow.turn.next();
                let spot = Spot {
                    place: flow.first + slot,
                    number,
                    queue_pair: flow.number,
                };
                add(&mut flow.list, spot, signaled)?;
            }
            flow.qp.post_send(&mut flow.list)?;
        }
        posted += stream.batch as u64;
        // With full windows as many are posted as complete; and not at once, as completions of a window are found.
        if !stream.burst && posted >= stream.window as u64 {
            meter.tick(posted * qps.len() as u64);
        }
    }
    let ended_ns = now_ns();
    for flow in &mut flows {
        flow.wait(posted, signal_every, &mut check)?;
        if let Some(credits) = credits {
            credits.wait(flow.number, posted)?;
        }
    }
    let ended_ns = if stream.burst { now_ns() } else { ended_ns };
    Ok((meter.finish(posted * qps.len() as u64, ended_ns), posted))
}

pub(super) fn work(link: &mut Link, nic: &Nic, stream: &Stream, target: &Target) -> Result<()> {
    if stream.verb == Verb::Atomics {
        link.send(&target.counters()?)?;
        let _qps = connected::<Rc>(link, nic, stream)?;
        let Count(count) = link.recv()?;
        target.added(count * stream.queue_pairs as u64);
        return link.send(&None::<String>);
    }
    let access = Access::LOCAL_WRITE
        | match stream.verb {
            Verb::RcRead => Access::REMOTE_READ,
            _ => Access::REMOTE_WRITE,
        };
    let credits = credit::wanted(stream);
    let end_bytes = if credits { credit::END_BYTES } else { 0 };
    let memory = nic.alloc(stream.window_bytes() + end_bytes, access, stream.pages)?;
    if stream.verb == Verb::RcRead {
        for place in 0..stream.places() {
            let (at, word) = (place * stream.stride(), (place as u64 + 1).to_le());
            memory.write_u64(at, word)?;
            memory.write_u64(at + tail(stream.payload_bytes), word)?;
        }
    }
    link.send(&memory.remote())?;
    if stream.verb == Verb::UcWrite {
        let to = if credits { Some(link.recv()?) } else { None };
        let qps = connected::<Uc>(link, nic, stream)?;
        if let Some(to) = to {
            credit::give(nic, &qps, stream, &memory, to)?;
        }
        verify(link, stream, &memory)
    } else {
        let _qps = connected::<Rc>(link, nic, stream)?;
        verify(link, stream, &memory)
    }
}

/// Hears how many there were, and tells what is wrong in the memory, if anything.
fn verify(link: &mut Link, stream: &Stream, memory: &MemoryRegion) -> Result<()> {
    let Count(count) = link.recv()?;
    let mut patience = Patience::new(ARRIVAL_NS);
    let wrong = loop {
        let wrong = match stream.verb {
            Verb::RcRead => None,
            _ => wrong_place(stream, memory, count)?,
        };
        if wrong.is_none() || patience.is_over() {
            break wrong;
        }
    };
    link.send(&wrong)
}

/// A place that does not hold the last of the numbers `0..count` that went there.
fn wrong_place(stream: &Stream, memory: &MemoryRegion, count: u64) -> Result<Option<String>> {
    let window = stream.window as u64;
    for place in 0..stream.places() {
        let slot = (place % stream.window) as u64;
        let turns = (count + window - 1 - slot) / window;
        let want = turns.checked_sub(1).map_or(0, |t| t * window + slot + 1);
        let at = place * stream.stride();
        for word in [at, at + tail(stream.payload_bytes)] {
            let got = u64::from_le(memory.read_u64(word)?);
            if got != want {
                return Ok(Some(format!("{got} at offset {word}, not {want}")));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::Knobs;
    use crate::workload::NicChoice;

    #[test]
    fn a_place_with_another_number_is_found() {
        let nic = Nic::open(&NicChoice::first_of("softnic")).unwrap();
        let knobs = Knobs {
            payload_bytes: Some(24),
            window: Some(4),
            ..Knobs::default()
        };
        let stream = Stream::new(Verb::RcWrite, &knobs, 1).unwrap();
        let memory = nic.pd.alloc(4 * 24, Access::LOCAL_WRITE).unwrap();
        assert_eq!(wrong_place(&stream, &memory, 0).unwrap(), None);
        // Six WRITEs: numbers 4 and 5 came to the first two places, stamped one higher.
        for (slot, stamp) in [(0, 5u64), (1, 6), (2, 3), (3, 4)] {
            memory.write_u64(slot * 24, stamp).unwrap();
            memory.write_u64(slot * 24 + 16, stamp).unwrap();
        }
        assert_eq!(wrong_place(&stream, &memory, 6).unwrap(), None);
        assert!(wrong_place(&stream, &memory, 5).unwrap().is_some());
        memory.write_u64(3 * 24 + 16, 8).unwrap();
        let wrong = wrong_place(&stream, &memory, 6).unwrap().unwrap();
        assert_eq!(wrong, "8 at offset 88, not 4");
    }

    #[test]
    fn counters_are_chosen_evenly() {
        let mut choice = Choice::new(7, 10);
        let mut times = [0; 10];
        for _ in 0..10_000 {
            times[choice.next()] += 1;
        }
        assert!(
            times.iter().all(|times| (850..1150).contains(times)),
            "{times:?}"
        );
        assert_eq!(Choice::new(0, 1).next(), 0);
    }
}
