//! Many queue pairs: their cost in an idle process, and the time to create and connect them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use verbs::{Access, HeaderOnly, PreparedQp, QpEndpoint, QueuePair, Rc, WcBuffer};

use crate::clock::now_ns;
use crate::core_pinning::run_pinned;
use crate::job::{ConnectionsJob, Job};
use crate::link::WorkerLink;
use crate::open_nic::{NicChoice, OpenNic, poll_successful_completions};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};
use crate::resource_usage::ResourceUsage;
use crate::setup::{BenchSetup, RowFigure};

/// Number of queue pairs of the idle process.
pub(super) const IDLE_QUEUE_PAIRS: u64 = 1_000;

/// Number of queue pairs that are created and connected.
const CONNECTED_QUEUE_PAIRS: u64 = 10_000;

/// Measures [`Row::IdleCpu`](crate::goal::Row::IdleCpu) once.
pub(super) fn measure_idle_cpu(bench: &BenchSetup) -> Result<RowFigure> {
    let order = make_job(bench, IDLE_QUEUE_PAIRS, true)?;
    Ok(with_worker(bench, |link| measure_idle_cost(link, &order))?.cpu_percent)
}

/// Measures [`Row::IdleMemory`](crate::goal::Row::IdleMemory) once.
pub(super) fn measure_idle_memory(bench: &BenchSetup) -> Result<RowFigure> {
    let order = make_job(bench, IDLE_QUEUE_PAIRS, true)?;
    Ok(with_worker(bench, |link| measure_idle_cost(link, &order))?.resident_mib)
}

/// Measures [`Row::Connect`](crate::goal::Row::Connect) once.
pub(super) fn measure_connect(bench: &BenchSetup) -> Result<RowFigure> {
    let order = make_job(bench, CONNECTED_QUEUE_PAIRS, false)?;
    with_worker(bench, |link| measure_connect_time(link, &order))
}

/// Measures the CPU time of the idle process at the other end of `link`, which has `queue_pairs`
/// queue pairs.
pub(super) fn measure_idle_cpu_over(
    link: &mut WorkerLink,
    nic: &NicChoice,
    queue_pairs: usize,
) -> Result<RowFigure> {
    let order = ConnectionsJob {
        nic: nic.clone(),
        queue_pairs,
        sleeps_after_connecting: true,
    };
    Ok(measure_idle_cost(link, &order)?.cpu_percent)
}

fn make_job(bench: &BenchSetup, queue_pairs: u64, idle: bool) -> Result<ConnectionsJob> {
    Ok(ConnectionsJob {
        nic: bench.nic.clone(),
        queue_pairs: usize::try_from(bench.shrink_count(queue_pairs))?,
        sleeps_after_connecting: idle,
    })
}

fn with_worker<R: Send>(
    bench: &BenchSetup,
    drive: impl FnOnce(&mut WorkerLink) -> Result<R> + Send,
) -> Result<R> {
    run_pinned(bench.cores.requester, || {
        drive(&mut WorkerLink::spawn(
            &bench.worker_command,
            bench.cores.responder,
        )?)
    })
}

/// Maximum messages in flight while connections are checked.
const MAX_CHECKS_IN_FLIGHT: usize = 64;

/// Cost of an idle process.
struct IdleCost {
    /// CPU time in percent of a core.
    cpu_percent: RowFigure,
    /// Resident memory in MiB.
    resident_mib: RowFigure,
}

fn measure_idle_cost(link: &mut WorkerLink, order: &ConnectionsJob) -> Result<IdleCost> {
    let nic = OpenNic::open(&order.nic)?;
    let pid = link.worker_pid().unwrap_or_else(std::process::id);
    let (qps, _) = time_connect_all(link, &nic, order)?;
    send_over_each_connection(&qps)?;
    let checked: usize = link.recv()?;
    // Wait until the work after the last message (timers, going to sleep) is done.
    std::thread::sleep(Duration::from_millis(500));
    let before = ResourceUsage::of_process(pid)?;
    let begin_ns = now_ns();
    std::thread::sleep(Duration::from_secs(1));
    let after = ResourceUsage::of_process(pid)?;
    let elapsed_ns = now_ns() - begin_ns;
    link.send(&"wake up")?;
    let measured = |value| RowFigure {
        value,
        verified_ops: checked as u64,
        lost_messages: 0,
    };
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let (cpu, memory) = (
        // The difference can be negative: a thread that ends takes its time out of the sum.
        100.0 * after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / elapsed_ns.max(1) as f64,
        after.resident_bytes as f64 / f64::from(1 << 20),
    );
    Ok(IdleCost {
        // Two digits are kept; the kernel's own accounting shows beyond them.
        cpu_percent: measured((cpu * 100.0).round() / 100.0),
        resident_mib: measured(memory),
    })
}

fn measure_connect_time(link: &mut WorkerLink, order: &ConnectionsJob) -> Result<RowFigure> {
    let queue_pairs = order.queue_pairs;
    let nic = OpenNic::open(&order.nic)?;
    let (qps, elapsed_ns) = time_connect_all(link, &nic, order)?;
    send_over_each_connection(&qps)?;
    let checked: usize = link.recv()?;
    if checked != queue_pairs {
        bail!("{checked} of {queue_pairs} connections carry messages");
    }
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let value = elapsed_ns as f64 / 1e9;
    Ok(RowFigure {
        value,
        verified_ops: checked as u64,
        lost_messages: 0,
    })
}

/// Creates queue pairs here and as many at the worker, and connects them. Returns them with the
/// time from the first creation to the last connection in ns, including the exchange of addresses.
fn time_connect_all(
    link: &mut WorkerLink,
    nic: &OpenNic,
    order: &ConnectionsJob,
) -> Result<(Vec<QueuePair<Rc>>, u64)> {
    let count = order.queue_pairs;
    link.send(&Job::Connections(order.clone()))?;
    let _: String = link.recv()?;
    let begin_ns = now_ns();
    link.send(&"go")?;
    let cq = nic.create_cq(2 * MAX_CHECKS_IN_FLIGHT)?;
    let prepared: Vec<PreparedQp<Rc>> = (0..count)
        .map(|_| {
            let qp = nic.qp_builder::<Rc>(&cq, &cq).max_send_wr(16u32);
            Ok(qp.max_recv_wr(1u32).max_inline_data(0u32).build()?)
        })
        .collect::<Result<_>>()?;
    let peers: Vec<QpEndpoint> = link.recv()?;
    if peers.len() != count {
        bail!("the worker has {} queue pairs of {count}", peers.len());
    }
    link.send(
        &prepared
            .iter()
            .map(PreparedQp::endpoint)
            .collect::<Vec<_>>(),
    )?;
    let qps = prepared.into_iter().zip(&peers);
    let qps = qps
        .map(|(qp, peer)| Ok(qp.connect(peer)?))
        .collect::<Result<_>>()?;
    let _: String = link.recv()?;
    Ok((qps, now_ns() - begin_ns))
}

/// Sends a message over each connection.
fn send_over_each_connection(qps: &[QueuePair<Rc>]) -> Result<()> {
    let Some(first) = qps.first() else {
        return Ok(());
    };
    let mut list = first.postlist(1);
    list.send_with_imm(HeaderOnly, 0).signaled();
    let mut wcs = WcBuffer::<MAX_CHECKS_IN_FLIGHT>::new();
    let mut outstanding = 0;
    let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
    let mut wait = |outstanding: &mut usize, left: usize| -> Result<()> {
        while *outstanding > left {
            let done = poll_successful_completions(first.send_cq(), &mut wcs, |_| Ok(()))?;
            *outstanding -= done;
            if done == 0 {
                timeout.fail_if_over_after_empty_poll("completions of SENDs")?;
            } else {
                timeout.reset();
            }
        }
        Ok(())
    };
    for (number, qp) in qps.iter().enumerate() {
        list.set_imm(0, u32::try_from(number)?);
        qp.post_send(&mut list)?;
        outstanding += 1;
        wait(&mut outstanding, MAX_CHECKS_IN_FLIGHT - 1)?;
    }
    wait(&mut outstanding, 0)
}

/// Runs the worker's end.
///
/// # Errors
/// When a verb fails, or the driver is gone.
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: &ConnectionsJob) -> Result<()> {
    let nic = OpenNic::open(&order.nic)?;
    let mut connected = WorkerQps::new(link, &nic, order.queue_pairs)?;
    let checked = connected.receive_one_over_each_and_count_right()?;
    link.send(&checked)?;
    if order.sleeps_after_connecting {
        // The worker sleeps here while the driver measures.
        let _: String = link.recv()?;
    }
    Ok(())
}

/// The worker's queue pairs, which share a receive queue.
struct WorkerQps {
    qps: Vec<QueuePair<Rc>>,
    cq: verbs::CompletionQueue,
    srq: verbs::SharedReceiveQueue,
    recv_list: verbs::RecvList,
    _memory: verbs::MemoryRegion,
}

impl WorkerQps {
    fn new(link: &mut WorkerLink, nic: &OpenNic, count: usize) -> Result<WorkerQps> {
        let recvs_at_once = 4 * MAX_CHECKS_IN_FLIGHT;
        let srq = nic.pd.create_srq(u32::try_from(recvs_at_once)?, 1)?;
        let memory = nic.pd.alloc(64, Access::LOCAL_WRITE)?;
        let mut recvs = srq.recv_list(recvs_at_once);
        for _ in 0..recvs_at_once {
            recvs.recv(memory.slice(..)?, 0);
        }
        srq.post_recv(&mut recvs)?;
        link.send(&"there")?;
        let _: String = link.recv()?;
        let cq = nic.create_cq(2 * recvs_at_once)?;
        let prepared: Vec<PreparedQp<Rc>> = (0..count)
            .map(|_| {
                let qp = nic.qp_builder::<Rc>(&cq, &cq).srq(&srq).max_send_wr(16u32);
                Ok(qp.max_inline_data(0u32).build()?)
            })
            .collect::<Result<_>>()?;
        link.send(
            &prepared
                .iter()
                .map(PreparedQp::endpoint)
                .collect::<Vec<_>>(),
        )?;
        let peers: Vec<QpEndpoint> = link.recv()?;
        let qps = prepared.into_iter().zip(&peers);
        let qps = qps
            .map(|(qp, peer)| Ok(qp.connect(peer)?))
            .collect::<Result<_>>()?;
        link.send(&"connected")?;
        Ok(WorkerQps {
            qps,
            cq,
            srq,
            recv_list: recvs,
            _memory: memory,
        })
    }

    /// Receives one message over each connection. Returns the number of messages that came over the
    /// right connection.
    fn receive_one_over_each_and_count_right(&mut self) -> Result<usize> {
        let mut seen = vec![false; self.qps.len()];
        let mut wcs = WcBuffer::<MAX_CHECKS_IN_FLIGHT>::new();
        let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
        let mut taken = 0;
        while taken < self.qps.len() {
            let qps = &self.qps;
            let came = poll_successful_completions(&self.cq, &mut wcs, |wc| {
                let number = wc.imm().context("a message without its number")? as usize;
                let right = qps.get(number).is_some_and(|qp| qp.qpn() == wc.qp_num());
                if right {
                    seen[number] = true;
                }
                Ok(())
            })?;
            taken += came;
            if came == 0 {
                timeout.fail_if_over_after_empty_poll("a message over each connection")?;
                continue;
            }
            timeout.reset();
            self.recv_list.set_len(came);
            self.srq.post_recv(&mut self.recv_list)?;
        }
        Ok(seen.iter().filter(|seen| **seen).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny<R>(idle: bool, drive: impl FnOnce(&mut WorkerLink, &ConnectionsJob) -> Result<R>) -> R {
        let order = ConnectionsJob {
            nic: NicChoice::first_device_of("softnic"),
            queue_pairs: 64,
            sleeps_after_connecting: idle,
        };
        let (mut left, mut right) = WorkerLink::pair().unwrap();
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || match right.recv()? {
                Job::Connections(order) => run_worker_side(&mut right, &order),
                job => bail!("{job:?} is of no connections"),
            });
            let measured = drive(&mut left, &order);
            drop(left);
            worker.join().unwrap().unwrap();
            measured.unwrap()
        })
    }

    #[test]
    fn many_queue_pairs() {
        assert_eq!(tiny(false, measure_connect_time).verified_ops, 64);
        assert!(tiny(true, measure_idle_cost).resident_mib.value > 0.0);
    }
}
