//! Rates of RDMA WRITEs, READs and fetch-and-adds.
//!
//! The worker offers memory and sleeps. Of READs and atomics the driver checks each result when its
//! completion, or that of a later WR, is there. Of WRITEs the worker checks at the end what came last
//! to each place, which by the order of a queue pair tells of all.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, Connected, Inline, MemoryRegion, MrSlice, Postlist, QueuePair, Rc, RemoteMemory, Uc,
    WcBuffer, Wr,
};

use super::pace::{Meter, Pace, Timed, Turn};
use super::{Rate, Stream, Verb, tail};
use crate::link::Link;
use crate::workload::{Nic, PATIENCE_NS, Patience, connect, meet, now_ns, reap, small};

/// How long the worker waits for a WRITE that has completed at the other side: on UC that means that
/// it was sent.
const ARRIVAL_NS: u64 = PATIENCE_NS / 5;

/// Numbers that were written or added.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Count(u64);

pub(super) fn drive(link: &mut Link, nic: &Nic, stream: &Stream) -> Result<Rate> {
    let remote: RemoteMemory = link.recv()?;
    let (timed, count) = match stream.verb {
        Verb::UcWrite => writes(nic, &connected::<Uc>(link, nic, stream)?, stream, remote)?,
        Verb::RcRead => reads(nic, &connected::<Rc>(link, nic, stream)?, stream, remote)?,
        Verb::Atomics => adds(nic, &connected::<Rc>(link, nic, stream)?, stream, remote)?,
        _ => writes(nic, &connected::<Rc>(link, nic, stream)?, stream, remote)?,
    };
    link.send(&Count(count))?;
    let wrong: Option<String> = link.recv()?;
    if let Some(wrong) = wrong {
        bail!("the target found {wrong}");
    }
    Ok(Rate::new(stream, timed, count, 0))
}

fn connected<T: Connected>(link: &mut Link, nic: &Nic, stream: &Stream) -> Result<QueuePair<T>> {
    let cq = nic.cq(stream.window + 1)?;
    let inline = if stream.inline {
        stream.payload_bytes
    } else {
        0
    };
    let qp = nic
        .qp::<T>(&cq, &cq)
        .max_send_wr(small(stream.window))
        .max_recv_wr(1u32)
        .max_inline_data(small(inline))
        .build()
        .context("cannot make a queue pair for this window and inline payload; lower them")?;
    let qp = connect(link, qp)?;
    // UC drops what comes before the other side is ready.
    meet(link)?;
    Ok(qp)
}

/// The places of a window in `remote`.
fn remote_places(stream: &Stream, remote: RemoteMemory) -> Result<Vec<RemoteMemory>> {
    (0..stream.window)
        .map(|slot| {
            let at = (slot * stream.stride()) as u64;
            remote.at(at).context("the worker offers too little memory")
        })
        .collect()
}

/// The places of a window in `local`.
fn local_places(stream: &Stream, local: &MemoryRegion) -> Result<Vec<MrSlice>> {
    let places = (0..stream.window).map(|slot| {
        let at = slot * stream.stride();
        local.slice(at..at + stream.payload_bytes)
    });
    Ok(places.collect::<Result<_, _>>()?)
}

fn writes<T: Connected>(
    nic: &Nic,
    qp: &QueuePair<T>,
    stream: &Stream,
    remote: RemoteMemory,
) -> Result<(Timed, u64)> {
    let places = remote_places(stream, remote)?;
    let tail = tail(stream.payload_bytes);
    if stream.inline {
        let mut bytes = vec![0x5a; stream.payload_bytes];
        let add = |list: &mut Postlist<T>, slot: usize, number: u64, signaled: bool| {
            let stamp = (number + 1).to_le_bytes();
            bytes[..8].copy_from_slice(&stamp);
            bytes[tail..tail + 8].copy_from_slice(&stamp);
            signal(list.rdma_write(Inline(&bytes), places[slot]), signaled);
            Ok(())
        };
        return run(qp, stream, add, |_, _| Ok(()));
    }
    let source = nic
        .pd
        .alloc(stream.stride() * stream.window, Access::LOCAL_READ)?;
    let sources = local_places(stream, &source)?;
    let add = |list: &mut Postlist<T>, slot: usize, number: u64, signaled: bool| {
        let at = slot * stream.stride();
        source.write_u64(at, (number + 1).to_le())?;
        source.write_u64(at + tail, (number + 1).to_le())?;
        signal(list.rdma_write(sources[slot], places[slot]), signaled);
        Ok(())
    };
    run(qp, stream, add, |_, _| Ok(()))
}

fn reads(
    nic: &Nic,
    qp: &QueuePair<Rc>,
    stream: &Stream,
    remote: RemoteMemory,
) -> Result<(Timed, u64)> {
    let places = remote_places(stream, remote)?;
    let results = nic
        .pd
        .alloc(stream.stride() * stream.window, Access::LOCAL_WRITE)?;
    let into = local_places(stream, &results)?;
    let tail = tail(stream.payload_bytes);
    let add = |list: &mut Postlist<Rc>, slot: usize, _: u64, signaled: bool| {
        // So that what a READ of an earlier turn left there is not taken for this one's.
        let at = slot * stream.stride();
        results.write_u64(at, 0)?;
        results.write_u64(at + tail, 0)?;
        signal(list.rdma_read(into[slot], places[slot]), signaled);
        Ok(())
    };
    let check = |slot: usize, number: u64| {
        let at = slot * stream.stride();
        let got = [results.read_u64(at)?, results.read_u64(at + tail)?].map(u64::from_le);
        if got != [slot as u64 + 1; 2] {
            bail!("READ {number} brought {got:?} instead of {}", slot + 1);
        }
        Ok(())
    };
    run(qp, stream, add, check)
}

fn adds(
    nic: &Nic,
    qp: &QueuePair<Rc>,
    stream: &Stream,
    counter: RemoteMemory,
) -> Result<(Timed, u64)> {
    let results = nic.pd.alloc(8 * stream.window, Access::LOCAL_WRITE)?;
    let into = local_places(stream, &results)?;
    let add = |list: &mut Postlist<Rc>, slot: usize, _: u64, signaled: bool| {
        signal(list.atomic_fetch_and_add(into[slot], counter, 1), signaled);
        Ok(())
    };
    let check = |slot: usize, number: u64| {
        let got = results.read_u64(8 * slot)?;
        if got != number {
            bail!("fetch-and-add {number} returned {got}");
        }
        Ok(())
    };
    run(qp, stream, add, check)
}

#[inline]
fn signal(wr: Wr<'_>, signaled: bool) {
    if signaled {
        wr.signaled();
    }
}

/// Posts for the time of the stream; what was measured, and the number of all WRs.
///
/// `add` builds the WR of a number for its place in the window; `check` looks at what it brought.
fn run<T: Connected>(
    qp: &QueuePair<T>,
    stream: &Stream,
    mut add: impl FnMut(&mut Postlist<T>, usize, u64, bool) -> Result<()>,
    mut check: impl FnMut(usize, u64) -> Result<()>,
) -> Result<(Timed, u64)> {
    let (batch, window) = (stream.batch as u64, stream.window as u64);
    let signal_every = stream.signal_every as u64;
    let mut list = qp.postlist(stream.batch);
    let mut wcs = WcBuffer::<32>::new();
    let mut turn = Turn::new(stream.window, stream.signal_every);
    let mut checks = Turn::new(stream.window, 1);
    let mut meter = Meter::new(stream.duration_ms);
    let mut pace = Pace::new(stream.duration_ms);
    let (mut posted, mut completed) = (0u64, 0u64);
    let mut wait = |completed: &mut u64, until: u64| -> Result<()> {
        let mut patience = Patience::new(PATIENCE_NS);
        while *completed < until {
            let done = reap(qp.send_cq(), &mut wcs, |_| Ok(()))?;
            if done == 0 {
                patience.check("completions")?;
                continue;
            }
            patience.reset();
            for _ in 0..done as u64 * signal_every {
                check(checks.next().0, *completed)?;
                *completed += 1;
            }
            meter.tick(*completed);
        }
        Ok(())
    };
    loop {
        wait(&mut completed, (posted + batch).saturating_sub(window))?;
        // The last WR is signaled, so that every WR completes.
        let last = posted + batch >= stream.least_messages()
            && pace.is_over()
            && (posted + batch).is_multiple_of(signal_every);
        list.clear();
        for number in posted..posted + batch {
            let (slot, signaled) = turn.next();
            add(&mut list, slot, number, signaled)?;
        }
        qp.post_send(&mut list)?;
        posted += batch;
        if last {
            break;
        }
    }
    wait(&mut completed, posted)?;
    Ok((meter.finish(posted, now_ns()), posted))
}

pub(super) fn work(link: &mut Link, nic: &Nic, stream: &Stream) -> Result<()> {
    let access = Access::LOCAL_WRITE
        | match stream.verb {
            Verb::RcRead => Access::REMOTE_READ,
            Verb::Atomics => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_WRITE,
        };
    let memory = nic.pd.alloc(stream.stride() * stream.window, access)?;
    if stream.verb == Verb::RcRead {
        for slot in 0..stream.window {
            let (at, word) = (slot * stream.stride(), (slot as u64 + 1).to_le());
            memory.write_u64(at, word)?;
            memory.write_u64(at + tail(stream.payload_bytes), word)?;
        }
    }
    link.send(&memory.remote())?;
    if stream.verb == Verb::UcWrite {
        let _qp = connected::<Uc>(link, nic, stream)?;
        verify(link, stream, &memory)
    } else {
        let _qp = connected::<Rc>(link, nic, stream)?;
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
            Verb::Atomics => {
                let got = memory.read_u64(0)?;
                (got != count).then(|| format!("a counter of {got}, not {count}"))
            }
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
    for slot in 0..window {
        let turns = (count + window - 1 - slot) / window;
        let want = turns.checked_sub(1).map_or(0, |t| t * window + slot + 1);
        let at = usize::try_from(slot)? * stream.stride();
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
}
