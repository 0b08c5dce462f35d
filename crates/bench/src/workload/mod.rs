//! Our side of every row: the verbs workloads, written once for every provider.
//!
//! Each has a driver, which posts and measures, and a worker's part, which runs in the other
//! process and checks what arrives. Drivers that take their time from the receiving end use
//! `now_ns`, a clock that both processes share.

mod latency;
mod many;
mod one_sided;
mod programs;
mod send;
pub(crate) mod sequencer;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, CompletionQueue, Connected, Context, MemoryRegion, PageSize, PreparedQp,
    ProtectionDomain, Provider, QpBuilder, QpEndpoint, QueuePair, Transport,
};

use crate::goal::Row;
use crate::link::Link;
use crate::micro::Pages;
use crate::pin::pinned;
use crate::run::{BULK_MESSAGES, BULK_PAYLOAD_BYTES, Bench, Measured};

/// Which NIC a workload runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicChoice {
    /// Its provider: `softnic` or `system`.
    pub provider: String,
    /// Its name; the provider's first without one.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port_num: u8,
    /// The entry of the port's GID table that it sends from; the best without one.
    pub gid_index: Option<u8>,
}

impl NicChoice {
    /// The first device of a provider, and its first port.
    #[must_use]
    pub fn first_of(provider: &str) -> NicChoice {
        NicChoice {
            provider: provider.to_owned(),
            device: None,
            port_num: 1,
            gid_index: None,
        }
    }

    /// The name of the device that is chosen.
    ///
    /// # Errors
    /// When there is no such provider or device; the message lists those that are there.
    pub fn device_name(&self) -> Result<String> {
        let provider = Provider::by_name(&self.provider)?;
        Ok(provider.device(self.device.as_deref())?.name().to_owned())
    }
}

/// A workload, as the driver tells it to the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    nic: NicChoice,
    work: Work,
}

/// What the worker is the other end of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Work {
    UdSend { messages: u64 },
    RcSend { messages: u64 },
    Latency { rounds: u64 },
    OneSided(one_sided::Target),
    Idle { queue_pairs: usize },
    Connect { queue_pairs: usize },
}

/// WRs of a postlist in the rows that use them.
const POSTLIST: usize = 16;

/// Measures our side of `row` once.
pub(crate) fn measure(bench: &Bench, row: Row) -> Result<Measured> {
    if matches!(row, Row::Sequencer | Row::SequencerLead) {
        return sequencer::measure(bench);
    }
    if Row::DROP_IN.contains(&row) {
        return programs::measure(bench, row);
    }
    pinned(bench.cores.requester, || {
        let mut link = Link::spawn(&bench.worker, bench.cores.responder)?;
        drive(bench, row, &mut link)
    })
}

/// The driver's part, with a worker at the other end of `link`.
fn drive(bench: &Bench, row: Row, link: &mut Link) -> Result<Measured> {
    let order = |work| Order {
        nic: bench.nic.clone(),
        work,
    };
    match row {
        Row::UdSend => send::drive_ud(link, order, bench.scaled(16_000_000)),
        Row::RcSend => send::drive_rc(link, order, bench.scaled(12_000_000)),
        Row::RcLatency => latency::drive(link, order, bench.scaled(1_000_000)),
        Row::RcWrite => one_sided::drive_writes(link, order, bench.scaled(12_000_000), POSTLIST),
        Row::RcWriteSingle => one_sided::drive_writes(link, order, bench.scaled(12_000_000), 1),
        Row::FetchAdd => one_sided::drive_fetch_add(link, order, bench.scaled(8_000_000)),
        Row::WriteMapped | Row::WritePrivate => one_sided::drive_bulk(
            link,
            order,
            row == Row::WriteMapped,
            BULK_PAYLOAD_BYTES,
            bench.scaled(BULK_MESSAGES),
        ),
        Row::IdleCpu => Ok(many::drive_idle(link, order, bench.scaled(1_000))?.cpu),
        Row::IdleMemory => Ok(many::drive_idle(link, order, bench.scaled(1_000))?.memory),
        Row::Connect => many::drive_connect(link, order, bench.scaled(10_000)),
        _ => bail!("{} is measured by commands of its own", row.name()),
    }
}

/// The worker's part.
///
/// # Errors
/// When a verb fails, or the driver is gone.
pub(crate) fn work(link: &mut Link, order: &Order) -> Result<()> {
    let nic = Nic::open(&order.nic)?;
    match order.work {
        Work::UdSend { messages } => send::work_ud(link, &nic, messages),
        Work::RcSend { messages } => send::work_rc(link, &nic, messages),
        Work::Latency { rounds } => latency::work(link, &nic, rounds),
        Work::OneSided(target) => one_sided::work(link, &nic, target),
        Work::Idle { queue_pairs } => many::work_idle(link, &nic, queue_pairs),
        Work::Connect { queue_pairs } => many::work_connect(link, &nic, queue_pairs),
    }
}

/// An open device and a protection domain in it.
pub(crate) struct Nic {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    port_num: u8,
    gid_index: Option<u8>,
}

impl Nic {
    pub(crate) fn open(choice: &NicChoice) -> Result<Nic> {
        let provider = Provider::by_name(&choice.provider)?;
        let context = provider.device(choice.device.as_deref())?.open()?;
        Ok(Nic {
            port_num: choice.port_num,
            gid_index: choice.gid_index,
            ..Nic::on(&context)?
        })
    }

    /// The first port of an open device.
    pub(crate) fn on(context: &Context) -> Result<Nic> {
        Ok(Nic {
            pd: context.alloc_pd()?,
            context: context.clone(),
            port_num: 1,
            gid_index: None,
        })
    }

    /// Starts making a queue pair on the chosen port.
    pub(crate) fn qp<T: Transport>(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
    ) -> QpBuilder<T> {
        let qp = self.pd.qp::<T>(send_cq, recv_cq).port_num(self.port_num);
        match self.gid_index {
            Some(index) => qp.gid_index(index),
            None => qp,
        }
    }

    /// Registered memory, in pages of one kind if that was asked for.
    pub(crate) fn alloc(
        &self,
        bytes: usize,
        access: Access,
        pages: Option<Pages>,
    ) -> Result<MemoryRegion> {
        Ok(match pages {
            None => self.pd.alloc(bytes, access)?,
            Some(Pages::Small) => self.pd.alloc_in(bytes, access, PageSize::Small)?,
            Some(Pages::Huge) => {
                let memory = self.pd.alloc_in(bytes, access, PageSize::Huge);
                memory.with_context(|| no_huge_pages(bytes))?
            }
        })
    }

    pub(crate) fn cq(&self, cqe: usize) -> Result<CompletionQueue> {
        Ok(self.context.create_cq(u32::try_from(cqe)?)?)
    }
}

/// Why there is no memory in huge pages, and what to do.
fn no_huge_pages(bytes: usize) -> String {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = info
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    format!(
        "cannot have {bytes} bytes in huge pages of 2 MiB, of which the system has {} free; reserve some (as root: \
         sysctl vm.nr_hugepages=64) or take --pages small",
        free.map_or("none", str::trim)
    )
}

/// Connects `qp` to the other side's: both send what they have, then both receive.
pub(crate) fn connect<T: Connected>(link: &mut Link, qp: PreparedQp<T>) -> Result<QueuePair<T>> {
    let connected = connect_all(link, vec![qp])?.pop();
    connected.context("one queue pair was connected")
}

/// Connects each of `qps` to the other side's in its place.
pub(crate) fn connect_all<T: Connected>(
    link: &mut Link,
    qps: Vec<PreparedQp<T>>,
) -> Result<Vec<QueuePair<T>>> {
    let own: Vec<_> = qps.iter().map(PreparedQp::endpoint).collect();
    let peers = exchange(link, &own)?;
    let connected = qps
        .into_iter()
        .zip(&peers)
        .map(|(qp, peer)| qp.connect(peer));
    Ok(connected.collect::<Result<_, _>>()?)
}

/// Tells the other side this one's queue pairs; as many of its own.
pub(crate) fn exchange(link: &mut Link, own: &[QpEndpoint]) -> Result<Vec<QpEndpoint>> {
    link.send(&own)?;
    let peers: Vec<QpEndpoint> = link.recv()?;
    if peers.len() != own.len() {
        bail!(
            "the other side has {} queue pairs, and this one {}",
            peers.len(),
            own.len()
        );
    }
    Ok(peers)
}

/// Both sides come here before either goes on.
pub(crate) fn meet(link: &mut Link) -> Result<()> {
    link.meet()
}

/// The number of bytes or WRs of something small.
pub(crate) fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Nanoseconds of a clock that all processes of this host share; on a simulated core virtual ones.
pub(crate) fn now_ns() -> u64 {
    if let Some(now) = simnic::now() {
        return u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000;
    whole + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Operations and the time that they took, as a rate in 10^6 a second.
#[allow(clippy::cast_precision_loss)] // far below 2^52 of either
pub(crate) fn mops(ops: u64, elapsed_ns: u64) -> f64 {
    ops as f64 * 1e3 / elapsed_ns.max(1) as f64
}

/// Takes successful completions from `cq` into `on_each`; the number taken.
///
/// # Errors
/// The first failed completion.
#[inline]
pub(crate) fn reap<const N: usize>(
    cq: &CompletionQueue,
    buffer: &mut verbs::WcBuffer<N>,
    mut on_each: impl FnMut(verbs::WorkCompletion<'_>) -> Result<()>,
) -> Result<usize> {
    let mut taken = 0;
    for wc in cq.poll(buffer)? {
        match wc {
            Ok(wc) => on_each(wc)?,
            Err(failed) => return Err(anyhow::anyhow!("{failed}")),
        }
        taken += 1;
    }
    Ok(taken)
}

/// How long a benchmark waits for something that should come at once.
pub(crate) const PATIENCE_NS: u64 = 10_000_000_000;

/// What a look at memory that has not changed takes of a simulated core in nanoseconds, as in [`verbs::Waiter`].
const LOOK: u64 = 20;

/// Notices when nothing has come for too long, without reading the clock each time.
pub(crate) struct Patience {
    empty: u32,
    since_ns: Option<u64>,
    limit_ns: u64,
    pauses: bool,
}

impl Patience {
    pub(crate) fn new(limit_ns: u64) -> Patience {
        Patience {
            empty: 0,
            since_ns: None,
            limit_ns,
            pauses: true,
        }
    }

    /// One that looks again at once, for latencies: a processor's pause takes up to a hundred cycles,
    /// and makes an emulated one leave its translated code.
    pub(crate) fn eager(limit_ns: u64) -> Patience {
        Patience {
            pauses: false,
            ..Patience::new(limit_ns)
        }
    }

    /// Something came.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.empty = 0;
        self.since_ns = None;
    }

    /// Nothing came; true when that has been so for the whole time.
    #[inline]
    pub(crate) fn is_over(&mut self) -> bool {
        if simnic::is_simulated() {
            simnic::idle(LOOK, None);
        } else if self.pauses {
            std::hint::spin_loop();
        }
        self.empty = self.empty.wrapping_add(1);
        if !self.empty.is_multiple_of(4096) {
            return false;
        }
        let now = now_ns();
        now - *self.since_ns.get_or_insert(now) > self.limit_ns
    }

    /// When nothing came any more, about; now, if something did lately.
    pub(crate) fn quiet_since_ns(&self) -> u64 {
        self.since_ns.unwrap_or_else(now_ns)
    }

    /// As an error.
    #[inline]
    pub(crate) fn check(&mut self, what: &str) -> Result<()> {
        if self.is_over() {
            bail!(
                "nothing came for {} s: {what}",
                self.limit_ns / 1_000_000_000
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Exe;
    use crate::pin::Cores;
    use crate::run::Settings;

    /// Runs our side of `row` tiny, with the worker as a thread.
    fn tiny(row: Row) -> Measured {
        let bench = Bench {
            settings: Settings {
                rounds: 1,
                shrink: 10_000,
                rows: vec![row],
            },
            cores: Cores::first_two().unwrap(),
            worker: Exe {
                path: "unused".into(),
                args: vec![],
            },
            nic: NicChoice::first_of("softnic"),
        };
        let (mut left, mut right) = Link::pair().unwrap();
        let worker = std::thread::spawn(move || crate::worker::serve(&mut right, None));
        let measured = drive(&bench, row, &mut left);
        drop(left);
        let worked = worker.join().unwrap();
        match (measured, worked) {
            (Ok(measured), Ok(())) => measured,
            (measured, worked) => panic!("{}: {measured:?}, worker: {worked:?}", row.name()),
        }
    }

    #[test]
    fn ud_send() {
        let measured = tiny(Row::UdSend);
        assert_eq!(measured.verified_ops + measured.lost_ops, 1600);
    }

    #[test]
    fn rc_send() {
        let measured = tiny(Row::RcSend);
        assert_eq!((measured.verified_ops, measured.lost_ops), (1200, 0));
    }

    #[test]
    fn rc_latency() {
        assert_eq!(tiny(Row::RcLatency).verified_ops, 100);
    }

    #[test]
    fn rc_write() {
        assert_eq!(tiny(Row::RcWrite).verified_ops, 1200);
        assert_eq!(tiny(Row::RcWriteSingle).verified_ops, 1200);
    }

    #[test]
    fn fetch_add() {
        assert_eq!(tiny(Row::FetchAdd).verified_ops, 800);
    }

    #[test]
    fn bulk_writes() {
        assert_eq!(tiny(Row::WriteMapped).verified_ops, 64);
        assert_eq!(tiny(Row::WritePrivate).verified_ops, 64);
    }

    #[test]
    fn many_queue_pairs() {
        assert_eq!(tiny(Row::Connect).verified_ops, 64);
        assert!(tiny(Row::IdleMemory).value > 0.0);
    }

    #[test]
    fn a_wrong_nic_is_refused_with_what_there_is() {
        let choice = |provider: &str, device: Option<&str>| NicChoice {
            device: device.map(str::to_owned),
            ..NicChoice::first_of(provider)
        };
        assert!(choice("softnic", None).device_name().is_ok());
        let wrong = choice("softnic", Some("mlx5_0")).device_name().unwrap_err();
        assert!(wrong.to_string().contains("softnic0"), "{wrong}");
        assert!(choice("hardnic", None).device_name().is_err());
    }

    #[test]
    fn patience_ends() {
        let mut patience = Patience::new(1_000_000);
        while patience.check("the test").is_ok() {}
        patience.reset();
        assert!(!patience.is_over());
    }

    #[test]
    fn rates() {
        assert_eq!(mops(5_000_000, 1_000_000_000), 5.0);
        assert!(now_ns() > 0);
    }
}
