//! Small programs, two for each design guideline: one breaks it and one keeps it, and both do the same work.
//!
//! They talk to themselves through queue pairs of one process, so that one ledger shows all of it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nicmodel::{Operation, Transport, Verb, wqe};
use verbs::{
    Access, CompletionQueue, Connected, HeaderOnly, Inline, MemoryRegion, Postlist,
    ProtectionDomain, Provider, QueuePair, Rc, RecvList, RemoteMemory, Transport as Service, Uc,
    Ud, UdDestination, WcBuffer,
};

/// A guideline's two programs.
pub struct Programs {
    /// The guideline, by its name in `nicmodel::guidelines`.
    pub guideline: &'static str,
    /// The NIC on which it applies.
    pub nic: &'static str,
    /// What the one does that breaks it.
    pub breaks: &'static str,
    /// What the other does instead.
    pub keeps: &'static str,
    run: fn(&Lab, bool, u64) -> Result<()>,
}

/// Every guideline's programs.
pub const ALL: [Programs; 13] = [
    Programs {
        guideline: "doorbell-batching",
        nic: "cib",
        breaks: "16 SENDs by 16 calls",
        keeps: "16 SENDs by one call, on 4 queue pairs in turn",
        run: |lab, keeps, rounds| {
            let list = if keeps { 16 } else { 1 };
            lab.datagrams(4, 16, list, rounds, |list, to| {
                list.send(Inline(&[7; 32]), to);
            })
        },
    },
    Programs {
        guideline: "wqe-shrinking",
        nic: "cib",
        breaks: "WRITEs whose WQE is a few bytes over a cache line",
        keeps: "WRITEs whose WQE fills the line",
        run: |lab, keeps, rounds| {
            let full = full_line("cib")?;
            let payload = [7; 256];
            let bytes = if keeps { full } else { full + 4 };
            let payload = payload.get(..bytes).context("a short payload")?;
            lab.one_sided(16, 16, 16, rounds, |list, to, _| {
                list.rdma_write(Inline(payload), to)
            })
        },
    },
    Programs {
        guideline: "inlining",
        nic: "cib",
        breaks: "WRITEs of 16 bytes from registered memory",
        keeps: "the same, inlined",
        run: |lab, keeps, rounds| {
            let from = lab.region.slice(0..16)?;
            lab.one_sided(16, 16, 16, rounds, |list, to, _| {
                if keeps {
                    list.rdma_write(Inline(&[7; 16]), to)
                } else {
                    list.rdma_write(from, to)
                }
            })
        },
    },
    Programs {
        guideline: "unsignaled",
        nic: "cib",
        breaks: "every WRITE is signaled",
        keeps: "one WRITE in 16 is signaled",
        run: |lab, keeps, rounds| {
            let every = if keeps { 16 } else { 1 };
            lab.one_sided(16, 16, every, rounds, |list, to, _| {
                list.rdma_write(Inline(&[7; 16]), to)
            })
        },
    },
    Programs {
        guideline: "header-only",
        nic: "cib",
        breaks: "SENDs of 4 bytes",
        keeps: "SENDs without payload, the 4 bytes in the immediate",
        run: |lab, keeps, rounds| {
            lab.datagrams(4, 16, 16, rounds, |list, to| {
                if keeps {
                    list.send_with_imm(HeaderOnly, to, 7);
                } else {
                    list.send(Inline(&[7; 4]), to);
                }
            })
        },
    },
    Programs {
        guideline: "inline-recv",
        nic: "cx3",
        breaks: "RECVs take 32 bytes into a buffer",
        keeps: "RECVs take an immediate and no payload",
        run: |lab, keeps, rounds| {
            lab.datagrams(1, 16, 16, rounds, |list, to| {
                if keeps {
                    list.send_with_imm(HeaderOnly, to, 7);
                } else {
                    list.send(Inline(&[7; 32]), to);
                }
            })
        },
    },
    Programs {
        guideline: "multi-queue",
        nic: "cib",
        breaks: "postlists of 16 on one queue pair",
        keeps: "the same on 4 in turn",
        run: |lab, keeps, rounds| {
            let queue_pairs = if keeps { 4 } else { 1 };
            lab.datagrams(queue_pairs, 16, 16, rounds, |list, to| {
                list.send(Inline(&[7; 60]), to);
            })
        },
    },
    Programs {
        guideline: "atomic-locks",
        nic: "cib",
        breaks: "fetch-and-adds on one word of every page",
        keeps: "fetch-and-adds on the words of one page",
        run: |lab, keeps, rounds| {
            let into = lab.region.slice(0..8)?;
            lab.one_sided(16, 16, 1, rounds, |list, to, index| {
                let word = if keeps {
                    8 * (index % 512)
                } else {
                    4096 * (index % 8)
                };
                let word = to.at(word).unwrap_or(to);
                list.atomic_fetch_and_add(into, word, 1)
            })
        },
    },
    Programs {
        guideline: "cpu-bypass",
        nic: "cx3",
        breaks: "a number by fetch-and-add",
        keeps: "a number by a request (UC WRITE) and a response (UD SEND)",
        run: |lab, keeps, rounds| {
            if keeps {
                return lab.requests(16, rounds);
            }
            let into = lab.region.slice(0..8)?;
            lab.one_sided(16, 16, 1, rounds, |list, to, _| {
                list.atomic_fetch_and_add(into, to, 1)
            })
        },
    },
    Programs {
        guideline: "read-size",
        nic: "cib",
        breaks: "256 bytes by 32 READs of neighbours",
        keeps: "256 bytes by one READ",
        run: |lab, keeps, rounds| {
            let (window, bytes) = if keeps { (1, 256) } else { (32, 8) };
            let into = lab.region.slice(0..bytes)?;
            lab.one_sided(window, 1, 1, rounds, |list, to, index| {
                let bytes = u64::try_from(bytes).unwrap_or(0);
                let from = to.at(bytes * (index % 32)).unwrap_or(to);
                list.rdma_read(into, from)
            })
        },
    },
    Programs {
        guideline: "read-window",
        nic: "cx3",
        breaks: "64 READs outstanding",
        keeps: "8 READs outstanding",
        run: |lab, keeps, rounds| {
            // The same READs, in windows of another size.
            let (window, rounds) = if keeps { (8, 8 * rounds) } else { (64, rounds) };
            let into = lab.region.slice(0..64)?;
            lab.one_sided(window, 1, 1, rounds, |list, to, index| {
                list.rdma_read(into, to.at(128 * (index % 64)).unwrap_or(to))
            })
        },
    },
    Programs {
        guideline: "connected-qps",
        nic: "cib",
        breaks: "450 connected queue pairs, a SEND on each",
        keeps: "450 SENDs on one UD queue pair",
        run: |lab, keeps, rounds| {
            if keeps {
                lab.datagrams(1, 15, 15, 30 * rounds, |list, to| {
                    list.send(Inline(&[7; 16]), to);
                })
            } else {
                lab.many(450, rounds)
            }
        },
    },
    Programs {
        guideline: "huge-pages",
        nic: "cib",
        breaks: "128 MiB registered in pages of 4 KiB",
        keeps: "8 MiB registered: no more than it uses",
        run: |lab, keeps, rounds| {
            let bytes = if keeps { 8 << 20 } else { 128 << 20 };
            let _pool = lab.pd.alloc(bytes, Access::LOCAL_WRITE)?;
            lab.one_sided(16, 16, 16, rounds, |list, to, _| {
                list.rdma_write(Inline(&[7; 16]), to)
            })
        },
    },
];

/// The programs of a guideline.
#[must_use]
pub fn by_name(guideline: &str) -> Option<&'static Programs> {
    ALL.iter().find(|programs| programs.guideline == guideline)
}

impl Programs {
    /// Runs one of the two, and says how long its rounds took.
    ///
    /// # Errors
    /// The device cannot, or a completion failed or did not come.
    pub fn run(&self, keeps: bool, rounds: u64) -> Result<Duration> {
        let lab = Lab::new()?;
        // Connections and memory are touched once before anything is timed.
        (self.run)(&lab, keeps, 1)?;
        let begun = Instant::now();
        (self.run)(&lab, keeps, rounds)?;
        Ok(begun.elapsed())
    }
}

/// Longest wait for a completion.
const PATIENCE: Duration = Duration::from_secs(30);
/// Memory that the programs read and write.
const REGION_BYTES: usize = 64 << 10;

/// The payload with which an inlined RC WRITE fills two cache lines of WQE on a NIC.
fn full_line(nic: &str) -> Result<usize> {
    let profile = nicmodel::profile::builtin(nic).with_context(|| format!("no NIC {nic}"))?;
    let bytes = |payload| {
        wqe::bytes(
            profile,
            &Operation::new(Verb::RdmaWrite, Transport::Rc, payload).inlined(),
        )
    };
    let full = (1..=128u32).rev().find(|payload| bytes(*payload) == 128);
    Ok(usize::try_from(full.context("no payload fills it")?)?)
}

/// What every program has: a device, memory, and a completion queue.
struct Lab {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl Lab {
    fn new() -> Result<Self> {
        let context = Provider::softnic().device(None)?.open()?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(4096)?);
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let region = pd.alloc(REGION_BYTES, all)?;
        Ok(Self { pd, cq, region })
    }

    fn connected<T: Connected>(&self) -> Result<(QueuePair<T>, QueuePair<T>)> {
        let make = || {
            let qp = self.pd.qp::<T>(&self.cq, &self.cq);
            qp.max_send_wr(128)
                .max_recv_wr(16)
                .max_inline_data(256)
                .build()
        };
        let (a, b) = (make()?, make()?);
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        Ok((a.connect(&to_b)?, b.connect(&to_a)?))
    }

    /// A UD queue pair, and the way to it.
    fn datagram(&self) -> Result<(QueuePair<Ud>, UdDestination)> {
        let qp = self.pd.qp::<Ud>(&self.cq, &self.cq);
        let qp = qp
            .max_send_wr(128)
            .max_recv_wr(128)
            .max_inline_data(128)
            .build()?;
        let to = self.pd.ud_destination(1, &qp.endpoint())?;
        Ok((qp, to))
    }

    fn recvs<T: Service>(&self, qp: &QueuePair<T>, count: usize) -> Result<RecvList> {
        let mut recvs = qp.recv_list(count);
        for wr_id in 0..count {
            recvs.recv(
                self.region.slice(32768..32768 + 1024)?,
                u64::try_from(wr_id)?,
            );
        }
        Ok(recvs)
    }

    /// Waits for so many completions, which must be good.
    fn wait(&self, mut count: usize) -> Result<()> {
        let mut buffer = WcBuffer::<32>::new();
        while count > 0 {
            let found = verbs::poll_until(PATIENCE, || match self.cq.poll(&mut buffer) {
                Ok(completions) if completions.is_empty() => None,
                Ok(completions) => {
                    let good = completions.map(|wc| wc.map(drop).map_err(|failed| failed.status()));
                    Some(good.collect::<Result<Vec<()>, _>>())
                }
                Err(_) => None,
            });
            match found {
                Some(Ok(found)) => count = count.saturating_sub(found.len()),
                Some(Err(status)) => bail!("a work request failed: {status:?}"),
                None => bail!("{count} completions did not come"),
            }
        }
        Ok(())
    }

    /// Rounds of one-sided operations: so many at a time, in lists, some signaled, and then a wait for all.
    fn one_sided(
        &self,
        window: usize,
        list_len: usize,
        signal_every: usize,
        rounds: u64,
        add: impl for<'l> Fn(&'l mut Postlist<Rc>, RemoteMemory, u64) -> verbs::Wr<'l>,
    ) -> Result<()> {
        let (qp, _peer) = self.connected::<Rc>()?;
        let to = self.region.remote();
        let mut list = qp.postlist(list_len);
        let mut index = 0;
        for _ in 0..rounds {
            let mut signaled = 0;
            for at in 0..window {
                let wr = add(&mut list, to, index);
                index += 1;
                if (at + 1) % signal_every == 0 || at + 1 == window {
                    wr.signaled();
                    signaled += 1;
                }
                if list.is_full() || at + 1 == window {
                    qp.post_send(&mut list)?;
                    list.clear();
                }
            }
            self.wait(signaled)?;
        }
        Ok(())
    }

    /// Rounds of datagrams that are received: so many at a time, in lists, on queue pairs in turn.
    fn datagrams(
        &self,
        queue_pairs: usize,
        window: usize,
        list_len: usize,
        rounds: u64,
        add: impl Fn(&mut Postlist<Ud>, &UdDestination),
    ) -> Result<()> {
        let (receiver, to) = self.datagram()?;
        let mut recvs = self.recvs(&receiver, window)?;
        let mut senders = Vec::new();
        for _ in 0..queue_pairs {
            let (qp, _) = self.datagram()?;
            let list = qp.postlist(list_len);
            senders.push((qp, list));
        }
        for round in 0..rounds {
            receiver.post_recv(&mut recvs)?;
            let turn = usize::try_from(round)? % queue_pairs;
            let (qp, list) = &mut senders[turn];
            for at in 0..window {
                add(list, &to);
                if at + 1 == window {
                    list.set_signaled(list.len() - 1, true);
                }
                if list.is_full() || at + 1 == window {
                    qp.post_send(list)?;
                    list.clear();
                }
            }
            self.wait(window + 1)?;
        }
        Ok(())
    }

    /// Rounds of requests by UC WRITE and responses by UD SENDs in lists.
    fn requests(&self, window: usize, rounds: u64) -> Result<()> {
        let (client, _server) = self.connected::<Uc>()?;
        let (receiver, to) = self.datagram()?;
        let (server, _) = self.datagram()?;
        let mut recvs = self.recvs(&receiver, window)?;
        let mut requests = client.postlist(window);
        let mut responses = server.postlist(window);
        let mut next = 0u64;
        for _ in 0..rounds {
            receiver.post_recv(&mut recvs)?;
            requests.clear();
            responses.clear();
            for index in 0..window {
                let place = u64::try_from(index)? * 16;
                let at = self.region.remote().at(place).context("in the region")?;
                let wr = requests.rdma_write(Inline(&[7; 16]), at);
                if index + 1 == window {
                    wr.signaled();
                }
            }
            client.post_send(&mut requests)?;
            for index in 0..window {
                next += 1;
                let wr = responses.send(Inline(&next.to_ne_bytes()), &to);
                if index + 1 == window {
                    wr.signaled();
                }
            }
            server.post_send(&mut responses)?;
            self.wait(window + 2)?;
        }
        Ok(())
    }

    /// Rounds of one SEND on each of so many connected queue pairs.
    fn many(&self, queue_pairs: usize, rounds: u64) -> Result<()> {
        let mut pairs = Vec::new();
        for _ in 0..queue_pairs {
            let (a, b) = self.connected::<Rc>()?;
            let recvs = self.recvs(&b, 1)?;
            pairs.push((a, b, recvs));
        }
        for _ in 0..rounds {
            for (a, b, recvs) in &mut pairs {
                b.post_recv(recvs)?;
                a.post_one(|list| {
                    list.send(Inline(&[7; 16])).signaled();
                })?;
            }
            self.wait(2 * queue_pairs)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guideline_has_programs_that_run() {
        for guideline in nicmodel::guidelines::ALL {
            let programs = by_name(guideline.name).expect("each guideline has programs");
            assert!(nicmodel::profile::builtin(programs.nic).is_some());
            for keeps in [false, true] {
                let ran = programs.run(keeps, 3);
                assert!(ran.is_ok(), "{} {keeps}: {ran:?}", guideline.name);
            }
        }
    }
}
