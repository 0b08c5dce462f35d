//! The requester and the target of a probe.

use anyhow::Result;
use verbs::{Access, Connected, MemoryRegion, Postlist, QueuePair, Rc, RemoteMemory, Uc, WcBuffer};

use super::write_probe::{ProbeResult, ProbedProperty, WriteProbe};
use crate::connect::connect;
use crate::core_pinning::run_pinned;
use crate::job::{Job, ProbeJob};
use crate::link::WorkerLink;
use crate::micro::verb::Verb;
use crate::open_nic::{NicChoice, OpenNic, poll_successful_completions};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Runs a probe with the worker at the other end of `link` as the target.
///
/// # Errors
/// When a verb fails, or no message arrives for 10 s.
pub fn run(
    core: usize,
    link: &mut WorkerLink,
    nic: &NicChoice,
    probe: WriteProbe,
) -> Result<ProbeResult> {
    run_pinned(core, || {
        let own = OpenNic::open(nic)?;
        link.send(&Job::Probe(ProbeJob {
            nic: nic.clone(),
            probe,
        }))?;
        run_driver_side(link, &own, &probe)
    })
}

fn run_driver_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    probe: &WriteProbe,
) -> Result<ProbeResult> {
    match probe.verb {
        Verb::UcWrite => {
            WriteRequester::<Uc>::new(link, nic, probe)?.write_all_and_receive_result(link, probe)
        }
        _ => WriteRequester::<Rc>::new(link, nic, probe)?.write_all_and_receive_result(link, probe),
    }
}

/// Runs the target in the worker process.
///
/// # Errors
/// When a verb fails, or the driver is gone.
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: &ProbeJob) -> Result<()> {
    let nic = OpenNic::open(&order.nic)?;
    run_target(link, &nic, &order.probe)
}

fn run_target(link: &mut WorkerLink, nic: &OpenNic, probe: &WriteProbe) -> Result<()> {
    match probe.verb {
        Verb::UcWrite => {
            WriteTarget::<Uc>::new(link, nic, probe)?.inspect_writes_and_send_result(link, probe)
        }
        _ => WriteTarget::<Rc>::new(link, nic, probe)?.inspect_writes_and_send_result(link, probe),
    }
}

/// The requester. Every word of its memory holds the number of the current WRITE.
struct WriteRequester<T: Connected> {
    qp: QueuePair<T>,
    postlist: Postlist<T>,
    memory: MemoryRegion,
    wcs: WcBuffer<1>,
}

impl<T: Connected> WriteRequester<T> {
    fn new(link: &mut WorkerLink, nic: &OpenNic, probe: &WriteProbe) -> Result<Self> {
        let remote: RemoteMemory = link.recv()?;
        let cq = nic.create_cq(1)?;
        let qp = connect(
            link,
            nic.qp_builder::<T>(&cq, &cq).max_recv_wr(1u32).build()?,
        )?;
        let memory = nic.pd.alloc(probe.payload_bytes, Access::LOCAL_READ)?;
        let mut list = qp.postlist(1);
        list.rdma_write(memory.slice(..)?, remote).signaled();
        link.barrier()?;
        Ok(Self {
            qp,
            postlist: list,
            memory,
            wcs: WcBuffer::new(),
        })
    }

    /// WRITEs a number and waits for the completion.
    fn write_and_wait(&mut self, number: u32) -> Result<()> {
        for at in (0..self.memory.len()).step_by(8) {
            self.memory.write_u64(at, u64::from(number).to_le())?;
        }
        self.qp.post_send(&mut self.postlist)?;
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        while poll_successful_completions(self.qp.send_cq(), &mut self.wcs, |_| Ok(()))? == 0 {
            timeout.fail_if_over_after_empty_poll("the completion of a WRITE")?;
        }
        Ok(())
    }

    fn write_all_and_receive_result(
        mut self,
        link: &mut WorkerLink,
        probe: &WriteProbe,
    ) -> Result<ProbeResult> {
        for number in 1..=probe.write_count {
            self.write_and_wait(number)?;
            if probe.property == ProbedProperty::Visible {
                // Notify over the link: the NIC could order a notification behind the WRITE.
                link.send(&number)?;
                let _: u32 = link.recv()?;
            }
        }
        link.recv()
    }
}

/// The target, whose processor reads the written memory.
struct WriteTarget<T: Connected> {
    _qp: QueuePair<T>,
    memory: MemoryRegion,
}

impl<T: Connected> WriteTarget<T> {
    fn new(link: &mut WorkerLink, nic: &OpenNic, probe: &WriteProbe) -> Result<Self> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = nic.pd.alloc(probe.payload_bytes, access)?;
        link.send(&memory.remote())?;
        let cq = nic.create_cq(1)?;
        let qp = connect(
            link,
            nic.qp_builder::<T>(&cq, &cq).max_recv_wr(1u32).build()?,
        )?;
        link.barrier()?;
        Ok(Self { _qp: qp, memory })
    }

    /// Returns true if a word is of an older WRITE than `number`. Words are read from right to
    /// left: a WRITE that proceeds from left to right meanwhile can only have made words newer.
    fn has_older_words(&self, number: u32) -> Result<bool> {
        for at in (0..self.memory.len()).step_by(8).rev() {
            if u64::from_le(self.memory.read_u64(at)?) < u64::from(number) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn inspect_writes_and_send_result(
        self,
        link: &mut WorkerLink,
        probe: &WriteProbe,
    ) -> Result<()> {
        let mut result = ProbeResult::default();
        match probe.property {
            ProbedProperty::Visible => {
                for _ in 0..probe.write_count {
                    let number: u32 = link.recv()?;
                    result.inspected_writes += 1;
                    result.writes_with_missing_words += u64::from(self.has_older_words(number)?);
                    link.send(&number)?;
                }
            }
            ProbedProperty::Order => {
                let last = self.memory.len() - 8;
                let mut before = 0;
                while before < probe.write_count {
                    let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
                    let number = loop {
                        let word = u64::from_le(self.memory.read_u64(last)?);
                        if word > u64::from(before) {
                            break u32::try_from(word)?;
                        }
                        timeout.fail_if_over_after_empty_poll("the last word of a WRITE")?;
                    };
                    result.inspected_writes += 1;
                    result.writes_with_missing_words += u64::from(self.has_older_words(number)?);
                    before = number;
                }
            }
        }
        link.send(&result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(property: ProbedProperty, verb: Verb, payload_bytes: usize) -> ProbeResult {
        let nic = NicChoice::first_device_of("softnic");
        let probe = WriteProbe::new(property, verb, payload_bytes, 300).expect("it fits");
        let (mut left, mut right) = WorkerLink::pair().expect("pipes");
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| run_target(&mut right, &OpenNic::open(&nic)?, &probe));
            let result = run_driver_side(&mut left, &OpenNic::open(&nic).expect("a NIC"), &probe);
            worker.join().expect("no panic").expect("the target works");
            result.expect("the requester works")
        })
    }

    #[test]
    fn what_has_completed_is_seen() {
        for verb in [Verb::RcWrite, Verb::UcWrite] {
            for bytes in [16, 4096] {
                let result = probe(ProbedProperty::Visible, verb, bytes);
                assert_eq!(
                    (result.inspected_writes, result.writes_with_missing_words),
                    (300, 0),
                    "{verb:?} {bytes}"
                );
            }
        }
    }

    #[test]
    fn the_order_is_looked_at_until_the_last_write() {
        let result = probe(ProbedProperty::Order, Verb::RcWrite, 64);
        assert!((1..=300).contains(&result.inspected_writes), "{result:?}");
        assert!(result.writes_with_missing_words <= result.inspected_writes);
    }

    #[test]
    fn words_that_are_missing_are_found() {
        let nic = OpenNic::open(&NicChoice::first_device_of("softnic")).expect("a NIC");
        let memory = nic.pd.alloc(32, Access::LOCAL_WRITE).expect("memory");
        let cq = nic.create_cq(1).expect("a CQ");
        let make = || {
            nic.qp_builder::<Rc>(&cq, &cq)
                .max_recv_wr(1u32)
                .build()
                .expect("a QP")
        };
        let (a, b) = (make(), make());
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        let (a, _b) = (
            a.connect(&to_b).expect("connected"),
            b.connect(&to_a).expect("connected"),
        );
        let target = WriteTarget { _qp: a, memory };
        for at in [0, 8, 16, 24] {
            assert!(
                target.has_older_words(1).expect("in range"),
                "the word at {at} is missing"
            );
            target.memory.write_u64(at, 1u64.to_le()).expect("in range");
        }
        assert!(!target.has_older_words(1).expect("in range"));
        assert!(target.has_older_words(2).expect("in range"));
    }

    #[test]
    fn what_cannot_be_probed_is_refused() {
        let refused = |verb, bytes| WriteProbe::new(ProbedProperty::Order, verb, bytes, 1).is_err();
        assert!(refused(Verb::RcRead, 64) && refused(Verb::UdSend, 64));
        assert!(refused(Verb::RcWrite, 8) && refused(Verb::RcWrite, 20));
        assert!(!refused(Verb::UcWrite, 16));
    }
}
