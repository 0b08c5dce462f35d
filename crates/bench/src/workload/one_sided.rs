//! Rates of RDMA WRITEs and fetch-and-adds, and the bandwidth of long WRITEs.
//!
//! The worker only offers memory, sleeps, and checks at the end what is in it.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{Access, Inline, MemoryRegion, QueuePair, Rc, RemoteMemory, WcBuffer};

use super::{Nic, Order, PATIENCE_NS, Patience, Work, connect, mops, now_ns, reap, small};
use crate::link::Link;
use crate::peers::hostcopy::{pattern, stamp};
use crate::run::Measured;

/// Words that the small WRITEs go to in turn.
const WORDS: usize = 1024;

/// Fetch-and-adds in flight.
const OUTSTANDING: usize = 16;

/// Send WRs; a multiple of the postlist.
const SEND_WRS: usize = 256;

/// One small WRITE in so many is signaled.
const SIGNALED: usize = 16;

/// What the worker offers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Target {
    bytes: usize,
    /// Memory that every process of the host can map, or this process's alone.
    mapped: bool,
}

/// What the memory must hold at the end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Expected {
    /// Word `i` holds the last of the numbers `0..count` that went there.
    Words { count: u64 },
    /// The first word holds the number.
    Counter(u64),
    /// The pattern of a payload with this stamp.
    Payload { stamp: u64 },
}

pub(super) fn drive_writes(
    link: &mut Link,
    order: impl Fn(Work) -> Order,
    writes: u64,
    postlist: usize,
) -> Result<Measured> {
    let (nic, remote) = begin(link, order, WORDS * 8, true)?;
    let qp = connected(link, &nic)?;
    let mut list = qp.postlist(postlist);
    let mut wcs = WcBuffer::<16>::new();
    let mut outstanding = 0;
    let mut patience = Patience::new(PATIENCE_NS);
    let writes = writes.next_multiple_of(SIGNALED as u64);
    let words: Vec<RemoteMemory> = (0..WORDS as u64)
        .map(|word| remote.at(word * 8).context("the worker offers too little"))
        .collect::<Result<_>>()?;
    let begin_ns = now_ns();
    let mut number = 0u64;
    while number < writes {
        list.clear();
        for _ in 0..postlist {
            let word = words[usize::try_from(number % WORDS as u64)?];
            number += 1;
            let wr = list.rdma_write(Inline(&number.to_le_bytes()), word);
            if number.is_multiple_of(SIGNALED as u64) {
                wr.signaled();
                outstanding += 1;
            }
        }
        qp.post_send(&mut list)?;
        while outstanding >= SEND_WRS / SIGNALED / 2 {
            let done = reap(qp.send_cq(), &mut wcs, |_| Ok(()))?;
            outstanding -= done;
            if done == 0 {
                patience.check("completions of WRITEs")?;
            } else {
                patience.reset();
            }
        }
    }
    drain(&qp, &mut wcs, outstanding)?;
    let elapsed_ns = now_ns() - begin_ns;
    verify(link, &Expected::Words { count: writes })?;
    Ok(Measured {
        value: mops(writes, elapsed_ns),
        verified_ops: writes,
        lost_ops: 0,
    })
}

pub(super) fn drive_fetch_add(
    link: &mut Link,
    order: impl Fn(Work) -> Order,
    count: u64,
) -> Result<Measured> {
    let (nic, remote) = begin(link, order, 64, true)?;
    let qp = connected(link, &nic)?;
    let results = nic.pd.alloc(8 * OUTSTANDING, Access::LOCAL_WRITE)?;
    let mut list = qp.postlist(OUTSTANDING);
    for slot in 0..OUTSTANDING {
        let into = results.slice(8 * slot..8 * slot + 8)?;
        list.atomic_fetch_and_add(into, remote, 1)
            .signaled()
            .wr_id(slot as u64);
    }
    let mut wcs = WcBuffer::<OUTSTANDING>::new();
    let mut patience = Patience::new(PATIENCE_NS);
    let (mut posted, mut done) = (0u64, 0u64);
    let slot_of = |number: u64| usize::try_from(number % OUTSTANDING as u64);
    let begin_ns = now_ns();
    while done < count {
        // What is free lies in one run, or in two around the end of the slots.
        while posted < count && posted - done < OUTSTANDING as u64 {
            let first = slot_of(posted)?;
            let free = OUTSTANDING as u64 - (posted - done);
            let run = free.min(count - posted).min((OUTSTANDING - first) as u64);
            qp.post_send_range(&mut list, first..first + usize::try_from(run)?)?;
            posted += run;
        }
        let taken = reap(qp.send_cq(), &mut wcs, |wc| {
            let slot = slot_of(done)?;
            let got = results.read_u64(8 * slot)?;
            if wc.wr_id() != slot as u64 || got != done {
                bail!("fetch-and-add {done} returned {got} (slot {})", wc.wr_id());
            }
            done += 1;
            Ok(())
        })?;
        if taken == 0 {
            patience.check("completions of fetch-and-adds")?;
        } else {
            patience.reset();
        }
    }
    let elapsed_ns = now_ns() - begin_ns;
    verify(link, &Expected::Counter(count))?;
    Ok(Measured {
        value: mops(count, elapsed_ns),
        verified_ops: count,
        lost_ops: 0,
    })
}

/// Long WRITEs, one at a time, each with another stamp: as the peers copy.
pub(super) fn drive_bulk(
    link: &mut Link,
    order: impl Fn(Work) -> Order,
    mapped: bool,
    payload_bytes: usize,
    messages: u64,
) -> Result<Measured> {
    let (nic, remote) = begin(link, order, payload_bytes, mapped)?;
    let qp = connected(link, &nic)?;
    let source = nic.pd.alloc(payload_bytes, Access::LOCAL_READ)?;
    source.write_at(0, &pattern(payload_bytes))?;
    let mut list = qp.postlist(1);
    list.rdma_write(source.slice(..)?, remote).signaled();
    let mut wcs = WcBuffer::<16>::new();
    let mut write = |number: u64| -> Result<()> {
        source.write_at(0, &number.to_le_bytes())?;
        qp.post_send(&mut list)?;
        drain(&qp, &mut wcs, 1)
    };
    write(0)?;
    let begin_ns = now_ns();
    for number in 1..=messages {
        write(number)?;
    }
    let elapsed_ns = now_ns() - begin_ns;
    verify(link, &Expected::Payload { stamp: messages })?;
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let value = messages as f64 * payload_bytes as f64 / elapsed_ns.max(1) as f64;
    Ok(Measured {
        value,
        verified_ops: messages,
        lost_ops: 0,
    })
}

/// Waits for `outstanding` completions.
fn drain<const N: usize>(
    qp: &QueuePair<Rc>,
    wcs: &mut WcBuffer<N>,
    mut outstanding: usize,
) -> Result<()> {
    let mut patience = Patience::new(PATIENCE_NS);
    while outstanding > 0 {
        let done = reap(qp.send_cq(), wcs, |_| Ok(()))?;
        outstanding -= done;
        if done == 0 {
            patience.check("the last completions")?;
        }
    }
    Ok(())
}

fn begin(
    link: &mut Link,
    order: impl Fn(Work) -> Order,
    bytes: usize,
    mapped: bool,
) -> Result<(Nic, RemoteMemory)> {
    let order = order(Work::OneSided(Target { bytes, mapped }));
    let nic = Nic::open(&order.nic)?;
    link.send(&crate::worker::Job::Verbs(order))?;
    let remote = link.recv()?;
    Ok((nic, remote))
}

fn connected(link: &mut Link, nic: &Nic) -> Result<QueuePair<Rc>> {
    let cq = nic.cq(SEND_WRS)?;
    let qp = nic.qp::<Rc>(&cq, &cq);
    let qp = qp
        .max_send_wr(small(SEND_WRS))
        .max_recv_wr(1u32)
        .max_inline_data(8u32);
    connect(link, qp.build()?)
}

fn verify(link: &mut Link, expected: &Expected) -> Result<()> {
    link.send(expected)?;
    match link.recv()? {
        None => Ok(()),
        Some(wrong) => {
            let wrong: String = wrong;
            bail!("the target found {wrong}")
        }
    }
}

pub(super) fn work(link: &mut Link, nic: &Nic, target: Target) -> Result<()> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory = if target.mapped {
        nic.pd.alloc(target.bytes, access)?
    } else {
        nic.pd.register_vec(vec![0xa5; target.bytes], access)?
    };
    link.send(&memory.remote())?;
    let _qp = connected(link, nic)?;
    let expected = link.recv()?;
    link.send(&wrong_in(&memory, &expected)?)
}

/// What is wrong in the memory, if anything.
fn wrong_in(memory: &MemoryRegion, expected: &Expected) -> Result<Option<String>> {
    match *expected {
        Expected::Words { count } => {
            let words = WORDS as u64;
            for word in 0..words {
                // Number n + 1 was the (n + 1)-th and went to word n modulo WORDS.
                let rounds = (count + words - 1 - word) / words;
                let last = (rounds > 0).then(|| (rounds - 1) * words + word + 1);
                let got = u64::from_le(memory.read_u64(usize::try_from(word * 8)?)?);
                if got != last.unwrap_or(0) {
                    return Ok(Some(format!("{got} in word {word}, not {last:?}")));
                }
            }
            Ok(None)
        }
        Expected::Counter(count) => {
            let got = memory.read_u64(0)?;
            Ok((got != count).then(|| format!("a counter of {got}, not {count}")))
        }
        Expected::Payload { stamp: number } => {
            let mut want = pattern(memory.len());
            stamp(&mut want, number);
            let mut got = vec![0; memory.len()];
            memory.read_at(0, &mut got)?;
            let differs = got.iter().zip(&want).position(|(got, want)| got != want);
            Ok(differs.map(|at| format!("another byte at offset {at} of the last payload")))
        }
    }
}
