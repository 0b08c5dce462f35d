//! Small programs, two for each design guideline: one breaks the guideline, the other keeps it.
//! Both do the same work.
//!
//! Most programs are streams of one verb ([`crate::micro`]). On the software NIC, a stream goes to
//! another process. On a simulated NIC, streams go from all cores of a machine to other machines.
//! The remaining programs send to themselves through queue pairs of one process.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nicmodel::op_profile::{OperationProfile, Thread};
use nicmodel::{PayloadDestination, Profile};
use verbs::{
    Access, CompletionQueue, Connected, Inline, MemoryRegion, Postlist, ProtectionDomain, Provider,
    QueuePair, Rc, RecvList, RemoteMemory, Transport as Service, Uc, Ud, UdDestination, WcBuffer,
};

use crate::core_pinning::CorePair;
use crate::link::WorkerCommand;
use crate::micro::{
    MeasuredRole, MeasurementTask, MicroParameters, TaskResult, Verb, VerbStream, WorkerPool,
};
use crate::open_nic::NicChoice;
use crate::simulated;

/// A guideline's two programs.
pub struct GuidelinePrograms {
    /// Name of the guideline in `nicmodel::guidelines`.
    pub guideline: &'static str,
    /// Profile of the NIC to which the guideline applies.
    pub nic_profile_name: &'static str,
    /// Description of the program that breaks the guideline.
    pub breaking_description: &'static str,
    /// Description of the program that keeps the guideline.
    pub keeping_description: &'static str,
    /// Number of threads of the program on that NIC. Each does what the single thread on the
    /// software NIC does.
    threads_on_guideline_nic: u32,
    /// Machines that these threads send to or READ from.
    peer_machine_count: u32,
    program: ProgramKind,
}

/// Kind of program.
enum ProgramKind {
    /// A stream of one verb. If `in_bytes` is true, its work is counted in bytes instead of
    /// operations.
    Stream {
        parameters: fn(bool) -> (Verb, MicroParameters),
        in_bytes: bool,
        receive: fn(bool) -> PayloadDestination,
    },
    /// Rounds of a function on the software NIC, and the equivalent on a simulated NIC.
    Rounds {
        run: fn(&ProgramResources, bool, u64) -> Result<()>,
        simulated: SimulatedRounds,
    },
}

/// Equivalent of a program of rounds on a simulated NIC.
enum SimulatedRounds {
    /// Computes the rate, in 10^6 per second.
    ComputedRate(fn(&Profile, bool) -> Result<f64>),
    /// No equivalent exists, for this reason.
    Unavailable(&'static str),
}

/// Virtual duration of a stream, in ms.
const SIMULATED_STREAM_MS: u64 = 3;

const fn stream_program(of: fn(bool) -> (Verb, MicroParameters)) -> ProgramKind {
    ProgramKind::Stream {
        parameters: of,
        in_bytes: false,
        receive: |_| PayloadDestination::Regular,
    }
}

/// Returns `kept` if `keeps` is true, and `broken` otherwise.
fn choose<T>(keeps: bool, kept: T, broken: T) -> T {
    if keeps { kept } else { broken }
}

/// The programs of all guidelines.
pub const ALL_GUIDELINE_PROGRAMS: [GuidelinePrograms; 13] = [
    GuidelinePrograms {
        guideline: "doorbell-batching",
        nic_profile_name: "cib",
        breaking_description: "SENDs of 60 bytes one by one",
        keeping_description: "the same in lists of 16",
        threads_on_guideline_nic: 14,
        peer_machine_count: 14,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                payload_bytes: Some(60),
                wrs_per_doorbell: Some(choose(keeps, 16, 1)),
                queue_pairs_per_thread: Some(6),
                ..MicroParameters::default()
            };
            (Verb::UdSend, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "wqe-shrinking",
        nic_profile_name: "cib",
        breaking_description: "SENDs of 61 bytes, whose WQE is a byte over two cache lines",
        keeping_description: "SENDs of 60 bytes, whose WQE fills them",
        threads_on_guideline_nic: 14,
        peer_machine_count: 14,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                payload_bytes: Some(choose(keeps, 60, 61)),
                wrs_per_doorbell: Some(1),
                queue_pairs_per_thread: Some(6),
                ..MicroParameters::default()
            };
            (Verb::UdSend, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "inlining",
        nic_profile_name: "cib",
        breaking_description: "SENDs of 16 bytes from registered memory, in lists",
        keeping_description: "the same, inlined",
        threads_on_guideline_nic: 14,
        peer_machine_count: 14,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                payload_bytes: Some(16),
                inline: Some(keeps),
                queue_pairs_per_thread: Some(6),
                ..MicroParameters::default()
            };
            (Verb::UdSend, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "unsignaled",
        nic_profile_name: "cib",
        breaking_description: "a core that signals every WRITE",
        keeping_description: "one that signals one WRITE in 64",
        threads_on_guideline_nic: 1,
        peer_machine_count: 1,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                signal_every: Some(choose(keeps, 64, 1)),
                queue_pairs_per_thread: Some(10),
                ..MicroParameters::default()
            };
            (Verb::RcWrite, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "header-only",
        nic_profile_name: "cib",
        breaking_description: "SENDs of 4 bytes, all to one machine",
        keeping_description: "SENDs without payload, the 4 bytes in the immediate",
        threads_on_guideline_nic: 14,
        peer_machine_count: 1,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                payload_bytes: Some(choose(keeps, 0, 4)),
                queue_pairs_per_thread: Some(6),
                other_side_processes: Some(1),
                ..MicroParameters::default()
            };
            (Verb::UdSend, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "inline-recv",
        nic_profile_name: "cx3",
        breaking_description: "RECVs take 32 bytes into a buffer",
        keeping_description: "RECVs take them in the completion (the NIC's doing: the same program on the software NIC)",
        threads_on_guideline_nic: 8,
        peer_machine_count: 8,
        program: ProgramKind::Stream {
            parameters: |_| {
                let parameters = MicroParameters {
                    payload_bytes: Some(32),
                    measured_role: MeasuredRole::Inbound,
                    ..MicroParameters::default()
                };
                (Verb::UdSend, parameters)
            },
            in_bytes: false,
            receive: |keeps| {
                choose(
                    keeps,
                    PayloadDestination::Inline,
                    PayloadDestination::Regular,
                )
            },
        },
    },
    GuidelinePrograms {
        guideline: "multi-queue",
        nic_profile_name: "cib",
        breaking_description: "a core's lists of 16 WRITEs on one queue pair",
        keeping_description: "the same on 10 in turn",
        threads_on_guideline_nic: 1,
        peer_machine_count: 1,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                queue_pairs_per_thread: Some(choose(keeps, 10, 1)),
                ..MicroParameters::default()
            };
            (Verb::RcWrite, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "atomic-locks",
        nic_profile_name: "cib",
        breaking_description: "fetch-and-adds on one word of each of 8 pages",
        keeping_description: "fetch-and-adds on all words of a page",
        threads_on_guideline_nic: 14,
        peer_machine_count: 1,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                atomic_counters: Some(choose(keeps, 512, 8)),
                counter_spacing_bytes: Some(choose(keeps, 8, 4096)),
                window: Some(64),
                queue_pairs_per_thread: Some(2),
                other_side_processes: Some(1),
                ..MicroParameters::default()
            };
            (Verb::Atomics, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "cpu-bypass",
        nic_profile_name: "cib",
        breaking_description: "numbers by fetch-and-add",
        keeping_description: "numbers by a request (UC WRITE) and a response (UD SEND)",
        threads_on_guideline_nic: 14,
        peer_machine_count: 1,
        program: ProgramKind::Rounds {
            run: |testbed, keeps, rounds| {
                if keeps {
                    return testbed.run_request_rounds(16, rounds);
                }
                let into = testbed.region.slice(0..8)?;
                testbed.run_one_sided_rounds(16, 16, 1, rounds, |list, to, _| {
                    list.atomic_fetch_and_add(into, to, 1)
                })
            },
            simulated: SimulatedRounds::ComputedRate(|profile, keeps| {
                use simulated::sequencer::{SequencerParameters, run};
                let design = choose(keeps, sequencer::Design::Rpc, sequencer::Design::Atomics);
                let cores = usize::try_from(profile.host.cores.value)?;
                Ok(run(profile, &SequencerParameters::paper_setup(design, cores))?.rate_mops)
            }),
        },
    },
    GuidelinePrograms {
        guideline: "read-size",
        nic_profile_name: "cib",
        breaking_description: "memory by READs of 24 bytes, in lists",
        keeping_description: "the same by half as many READs of 48 bytes a list",
        threads_on_guideline_nic: 14,
        peer_machine_count: 1,
        program: ProgramKind::Stream {
            parameters: |keeps| {
                let parameters = MicroParameters {
                    payload_bytes: Some(choose(keeps, 48, 24)),
                    wrs_per_doorbell: Some(choose(keeps, 8, 16)),
                    queue_pairs_per_thread: Some(2),
                    other_side_processes: Some(1),
                    ..MicroParameters::default()
                };
                (Verb::RcRead, parameters)
            },
            in_bytes: true,
            receive: |_| PayloadDestination::Regular,
        },
    },
    GuidelinePrograms {
        guideline: "read-window",
        nic_profile_name: "cib",
        breaking_description: "1024 READs outstanding on each core",
        keeping_description: "256 READs outstanding on each core",
        threads_on_guideline_nic: 14,
        peer_machine_count: 14,
        program: stream_program(|keeps| {
            let parameters = MicroParameters {
                window: Some(choose(keeps, 256, 1024)),
                ..MicroParameters::default()
            };
            (Verb::RcRead, parameters)
        }),
    },
    GuidelinePrograms {
        guideline: "connected-qps",
        nic_profile_name: "cib",
        breaking_description: "450 connected queue pairs, a SEND on each",
        keeping_description: "450 SENDs on one UD queue pair",
        threads_on_guideline_nic: 1,
        peer_machine_count: 1,
        program: ProgramKind::Rounds {
            run: |testbed, keeps, rounds| {
                if keeps {
                    testbed.run_datagram_rounds(15, 30 * rounds, |list, to| {
                        list.send(Inline(&[7; 16]), to);
                    })
                } else {
                    testbed.run_send_rounds(450, rounds)
                }
            },
            simulated: SimulatedRounds::Unavailable(
                "has room for the state of any number of queue pairs",
            ),
        },
    },
    GuidelinePrograms {
        guideline: "huge-pages",
        nic_profile_name: "cib",
        breaking_description: "128 MiB registered in pages of 4 KiB",
        keeping_description: "8 MiB registered: no more than it uses",
        threads_on_guideline_nic: 1,
        peer_machine_count: 1,
        program: ProgramKind::Rounds {
            run: |testbed, keeps, rounds| {
                let bytes = choose(keeps, 8 << 20, 128 << 20);
                let _pool = testbed.pd.alloc(bytes, Access::LOCAL_WRITE)?;
                testbed.run_one_sided_rounds(16, 16, 16, rounds, |list, to, _| {
                    list.rdma_write(Inline(&[7; 16]), to)
                })
            },
            simulated: SimulatedRounds::Unavailable("translates no addresses"),
        },
    },
];

/// Returns the programs of a guideline.
#[must_use]
pub fn programs_of_guideline(guideline: &str) -> Option<&'static GuidelinePrograms> {
    ALL_GUIDELINE_PROGRAMS
        .iter()
        .find(|programs| programs.guideline == guideline)
}

impl GuidelinePrograms {
    /// Runs one of the two programs on the software NIC and returns its work per second. A program
    /// of rounds runs `rounds` rounds; a stream runs 1 ms per 100 rounds. `worker` starts the other
    /// process of a stream.
    ///
    /// # Errors
    /// The device cannot run the program, or a completion failed or did not arrive.
    pub fn measure_work_per_s_on_softnic(
        &self,
        keeps: bool,
        rounds: u64,
        worker: WorkerCommand,
    ) -> Result<f64> {
        match &self.program {
            ProgramKind::Rounds { run, .. } => {
                let testbed = ProgramResources::new()?;
                // Warm up: touch connections and memory before the timed run.
                run(&testbed, keeps, 1)?;
                let begun = Instant::now();
                run(&testbed, keeps, rounds)?;
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                let rounds = rounds as f64;
                Ok(rounds / begun.elapsed().as_secs_f64().max(1e-9))
            }
            ProgramKind::Stream { .. } => {
                let task = self.measurement_task(keeps, (rounds / 100).max(1), 1, 1)?;
                let mut runner = WorkerPool::new(CorePair::first_two()?, worker);
                let outcome = runner.measure(&NicChoice::first_device_of("softnic"), &task)?;
                self.work_per_second(&task, &outcome)
            }
        }
    }

    /// Runs one of the two programs on simulated machines with a NIC, in virtual time. Returns its
    /// work per second, or as the inner error the reason why the program cannot be simulated.
    ///
    /// # Errors
    /// When the profile lacks what a simulation needs, or a verb fails.
    pub fn simulate_work_per_s(
        &self,
        keeps: bool,
        profile: &Profile,
    ) -> Result<Result<f64, &'static str>> {
        match &self.program {
            ProgramKind::Rounds { simulated, .. } => match simulated {
                SimulatedRounds::ComputedRate(rate) => {
                    rate(profile, keeps).map(|rate| Ok(rate * 1e6))
                }
                SimulatedRounds::Unavailable(why) => Ok(Err(why)),
            },
            ProgramKind::Stream { receive, .. } => {
                let (threads, peers) = (
                    self.threads_on_guideline_nic as usize,
                    self.peer_machine_count as usize,
                );
                let task = self.measurement_task(keeps, SIMULATED_STREAM_MS, threads, peers)?;
                let outcome =
                    simulated::micro::run_with_payload_destination(profile, &task, receive(keeps))?
                        .0;
                self.work_per_second(&task, &outcome).map(Ok)
            }
        }
    }

    /// Selects the relevant process among those counted on the software NIC and scales its profile
    /// up. The result has all threads of the program on the guideline's NIC.
    #[must_use]
    pub fn profile_scaled_to_guideline_nic(
        &self,
        keeps: bool,
        counted: &[OperationProfile],
    ) -> Option<OperationProfile> {
        let (inbound, receive) = match &self.program {
            ProgramKind::Stream {
                parameters: of,
                receive,
                ..
            } => (
                of(keeps).1.measured_role == MeasuredRole::Inbound,
                receive(keeps),
            ),
            ProgramKind::Rounds { .. } => (false, PayloadDestination::Regular),
        };
        let received = |process: &&OperationProfile| {
            let all = process.queue_pairs.iter().flat_map(|qp| &qp.received);
            all.map(|counted| counted.count).max()
        };
        let one = match inbound {
            true => counted.iter().max_by_key(received)?,
            false => counted
                .iter()
                .max_by_key(|process| process.posted_operations())?,
        };
        let mut all = one.clone();
        // The NIC decides how it delivers a message; the counts of a program cannot show it.
        for counted in all.queue_pairs.iter_mut().flat_map(|qp| &mut qp.received) {
            counted.operation.payload_destination = receive;
        }
        let posting: Vec<Thread> = all
            .threads
            .iter()
            .filter(|t| t.posts > 0)
            .cloned()
            .collect();
        let queue_pairs = all.queue_pairs.clone();
        for _ in 1..self.threads_on_guideline_nic {
            all.threads.extend(posting.iter().cloned());
            all.queue_pairs.extend(queue_pairs.iter().cloned());
        }
        all.peer_count = self.peer_machine_count;
        Some(all)
    }

    fn measurement_task(
        &self,
        keeps: bool,
        ms: u64,
        threads: usize,
        processes: usize,
    ) -> Result<MeasurementTask> {
        let ProgramKind::Stream { parameters: of, .. } = &self.program else {
            bail!("{} is no stream", self.guideline);
        };
        let (verb, mut parameters) = of(keeps);
        parameters.threads = Some(threads);
        parameters.other_side_processes = Some(processes);
        Ok(MeasurementTask::Stream(VerbStream::new(
            verb,
            &parameters,
            ms,
        )?))
    }

    /// Returns the work per second, in operations or in bytes.
    fn work_per_second(&self, task: &MeasurementTask, outcome: &TaskResult) -> Result<f64> {
        let TaskResult::Rate(rate) = outcome else {
            bail!("a stream has a rate");
        };
        let in_bytes = matches!(self.program, ProgramKind::Stream { in_bytes: true, .. });
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let each = if in_bytes {
            task.payload_bytes() as f64
        } else {
            1.0
        };
        Ok(rate.rate_mops * 1e6 * each)
    }
}

/// Maximum wait for a completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of memory that the programs read and write.
const REGION_BYTES: usize = 64 << 10;

/// Resources that every program uses: a device, memory, and a completion queue.
struct ProgramResources {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    region: MemoryRegion,
}

impl ProgramResources {
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

    fn connected_qp_pair<T: Connected>(&self) -> Result<(QueuePair<T>, QueuePair<T>)> {
        let make = || {
            let qp = self.pd.qp_builder::<T>(&self.cq, &self.cq);
            qp.max_send_wr(128)
                .max_recv_wr(16)
                .max_inline_data(256)
                .build()
        };
        let (a, b) = (make()?, make()?);
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        Ok((a.connect(&to_b)?, b.connect(&to_a)?))
    }

    /// Creates a UD queue pair and its destination.
    fn ud_qp_and_destination(&self) -> Result<(QueuePair<Ud>, UdDestination)> {
        let qp = self.pd.qp_builder::<Ud>(&self.cq, &self.cq);
        let qp = qp
            .max_send_wr(128)
            .max_recv_wr(128)
            .max_inline_data(128)
            .build()?;
        let to = self.pd.ud_destination(1, &qp.endpoint())?;
        Ok((qp, to))
    }

    fn build_recv_list<T: Service>(&self, qp: &QueuePair<T>, count: usize) -> Result<RecvList> {
        let mut recvs = qp.recv_list(count);
        for wr_id in 0..count {
            recvs.recv(
                self.region.slice(32768..32768 + 1024)?,
                u64::try_from(wr_id)?,
            );
        }
        Ok(recvs)
    }

    /// Waits for `count` successful completions.
    fn wait_for_completions(&self, mut count: usize) -> Result<()> {
        let mut buffer = WcBuffer::<32>::new();
        while count > 0 {
            let found = verbs::poll_until(COMPLETION_TIMEOUT, || match self.cq.poll(&mut buffer) {
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

    /// Runs rounds of one-sided operations. Each round posts `window` operations in postlists,
    /// signals some of them, and waits for all completions.
    fn run_one_sided_rounds(
        &self,
        window: usize,
        list_len: usize,
        signal_every: usize,
        rounds: u64,
        add: impl for<'l> Fn(&'l mut Postlist<Rc>, RemoteMemory, u64) -> verbs::WrBuilder<'l>,
    ) -> Result<()> {
        let (qp, _peer) = self.connected_qp_pair::<Rc>()?;
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
            self.wait_for_completions(signaled)?;
        }
        Ok(())
    }

    /// Runs rounds that send a postlist of datagrams and receive all of them.
    fn run_datagram_rounds(
        &self,
        window: usize,
        rounds: u64,
        add: impl Fn(&mut Postlist<Ud>, &UdDestination),
    ) -> Result<()> {
        let (receiver, to) = self.ud_qp_and_destination()?;
        let mut recvs = self.build_recv_list(&receiver, window)?;
        let (sender, _) = self.ud_qp_and_destination()?;
        let mut list = sender.postlist(window);
        for _ in 0..rounds {
            receiver.post_recv(&mut recvs)?;
            for _ in 0..window {
                add(&mut list, &to);
            }
            list.set_signaled(list.len() - 1, true);
            sender.post_send(&mut list)?;
            list.clear();
            self.wait_for_completions(window + 1)?;
        }
        Ok(())
    }

    /// Runs rounds of requests by UC WRITEs and responses by UD SENDs, both in postlists.
    fn run_request_rounds(&self, window: usize, rounds: u64) -> Result<()> {
        let (client, _server) = self.connected_qp_pair::<Uc>()?;
        let (receiver, to) = self.ud_qp_and_destination()?;
        let (server, _) = self.ud_qp_and_destination()?;
        let mut recvs = self.build_recv_list(&receiver, window)?;
        let mut requests = client.postlist(window);
        let mut responses = server.postlist(window);
        let mut next = 0u64;
        for _ in 0..rounds {
            receiver.post_recv(&mut recvs)?;
            requests.clear();
            responses.clear();
            for index in 0..window {
                let place = u64::try_from(index)? * 16;
                let at = self
                    .region
                    .remote()
                    .starting_at(place)
                    .context("in the region")?;
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
            self.wait_for_completions(window + 2)?;
        }
        Ok(())
    }

    /// Runs rounds of one SEND on each of `queue_pairs` connected queue pairs.
    fn run_send_rounds(&self, queue_pairs: usize, rounds: u64) -> Result<()> {
        let mut pairs = Vec::new();
        for _ in 0..queue_pairs {
            let (a, b) = self.connected_qp_pair::<Rc>()?;
            let recvs = self.build_recv_list(&b, 1)?;
            pairs.push((a, b, recvs));
        }
        for _ in 0..rounds {
            for (a, b, recvs) in &mut pairs {
                b.post_recv(recvs)?;
                a.post_one(|list| {
                    list.send(Inline(&[7; 16])).signaled();
                })?;
            }
            self.wait_for_completions(2 * queue_pairs)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::profile::builtin_profile;

    #[test]
    fn every_guideline_has_programs_that_run_and_are_simulated() {
        for guideline in nicmodel::guidelines::ALL_GUIDELINES {
            let programs =
                programs_of_guideline(guideline.name).expect("each guideline has programs");
            let profile = builtin_profile(programs.nic_profile_name).expect("built in");
            let work = |keeps| {
                let simulated = programs.simulate_work_per_s(keeps, profile);
                simulated.unwrap_or_else(|error| panic!("{}: {error:#}", guideline.name))
            };
            if let (Ok(broken), Ok(kept)) = (work(false), work(true)) {
                // The NIC serves other READs while it fetches the WQEs that its cache missed, so
                // the rates may be equal.
                let least = choose(guideline.name == "read-window", 0.99, 1.15);
                assert!(kept > least * broken, "{}: {broken} {kept}", guideline.name);
            }
            if let ProgramKind::Rounds { run, .. } = &programs.program {
                for keeps in [false, true] {
                    let testbed = ProgramResources::new().expect("a device");
                    let ran = run(&testbed, keeps, 3);
                    assert!(ran.is_ok(), "{} {keeps}: {ran:?}", guideline.name);
                }
            }
        }
    }
}
