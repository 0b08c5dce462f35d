//! The figures of the paper as SVG, with the published points marked.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::simulated::{kv, windows};
use nicmodel::bounds::Resource;
use nicmodel::profile::{Profile, builtin};
use nicmodel::{
    Bounds, Load, Mix, Operation, Role, Transport, Verb, locks, mixes, pcie, published, wqe,
};
use sequencer::Design;

use super::simulated::Simulated;
use crate::chart::Chart;

/// A figure.
struct Figure {
    file: &'static str,
    title: &'static str,
    /// Where its curves come from.
    kind: &'static str,
    x: &'static str,
    y: &'static str,
    /// Whether the x axis is logarithmic.
    log: bool,
    curves: Vec<(String, Vec<(f64, f64)>)>,
    /// Published points.
    points: Vec<(f64, f64)>,
}

const MODEL: &str = "model: bounds of the resources";
const SIMULATED: &str = "simulated: the sequencer's own code";

/// Draws all figures that there are into a folder; returns their files' names.
pub(super) fn draw(folder: &Path, simulated: &Simulated) -> Result<Vec<&'static str>> {
    let cib = builtin("cib").context("Connect-IB is built in")?;
    let figures = [
        pcie_bytes(cib),
        sequencer_cores(simulated),
        latency(simulated),
        herd_cores(cib)?,
        drtm(simulated),
        ud_send(cib),
        multi_queue(cib),
        inbound(),
        wqe_cache(cib)?,
        atomics(),
    ];
    for figure in &figures {
        let path = folder.join(figure.file);
        let text = svg(figure)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(figures.iter().map(|figure| figure.file).collect())
}

fn rate(profile: &Profile, mix: &Mix) -> Option<f64> {
    Bounds::of(profile, mix).ok()?.predicted_mops
}

/// Published values at these places.
fn published_at(points: &[(f64, &str)]) -> Vec<(f64, f64)> {
    let at = |&(x, id): &(f64, &str)| Some((x, published::get(id)?.value));
    points.iter().filter_map(at).collect()
}

/// Powers of two.
fn powers(range: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = u32> {
    range.map(|power| 1 << power)
}

fn curve(
    name: &str,
    points: impl Iterator<Item = (f64, Option<f64>)>,
) -> (String, Vec<(f64, f64)>) {
    let known = points.filter_map(|(x, y)| Some((x, y?)));
    (name.to_owned(), known.collect())
}

fn pcie_bytes(cib: &Profile) -> Figure {
    let sizes = || (1..=32).map(|lines| lines * 32u32);
    let of = |bytes: fn(&Profile, u32) -> f64| {
        sizes().map(move |size| (f64::from(size), Some(bytes(cib, size))))
    };
    Figure {
        file: "figure-2b.svg",
        title: "Figure 2b: bytes on PCIe 3.0 to hand over data",
        kind: "arithmetic",
        x: "data, bytes",
        y: "bytes on the link",
        log: false,
        curves: vec![
            curve("DMA read", of(pcie::dma_read_bytes)),
            curve("MMIO write", of(pcie::mmio_write_bytes)),
        ],
        points: Vec::new(),
    }
}

fn sequencer_cores(simulated: &Simulated) -> Figure {
    let atomics = simulated
        .rates(Design::Atomics)
        .first()
        .map_or(0.0, |point| point.1);
    let mut curves = vec![("atomics".to_owned(), vec![(1.0, atomics), (14.0, atomics)])];
    for design in Design::ALL.into_iter().skip(1) {
        curves.push((design.to_string(), simulated.rates(design)));
    }
    Figure {
        file: "figure-7.svg",
        title: "Figure 7: sequencer on Connect-IB",
        kind: SIMULATED,
        x: "cores of the server",
        y: "10^6 requests/s",
        log: false,
        curves,
        points: published_at(&[
            (1.0, "seq_rpc_base_1c"),
            (1.0, "seq_rpc_batch_1c"),
            (1.0, "seq_rpc_batch_mq_1c"),
            (6.0, "seq_rpc_batch_mq_6c"),
            (10.0, "seq_t3_spec_s0"),
            (14.0, "seq_t3_baseline"),
            (14.0, "seq_t3_atomics"),
        ]),
    }
}

fn latency(simulated: &Simulated) -> Figure {
    let batched = simulated.latencies(16);
    // The rate is published, and not at what latency.
    let peak = batched.last().map_or(0.0, |point| point.0);
    let mut alone = simulated.latencies(1);
    // Behind its peak it only gets slower.
    alone.retain(|point| point.0 <= peak);
    Figure {
        file: "figure-8.svg",
        title: "Figure 8: Spec-S0 on 10 cores under rising load",
        kind: SIMULATED,
        x: "median latency, µs",
        y: "10^6 requests/s",
        log: false,
        curves: vec![
            ("batches of up to 16".to_owned(), batched),
            ("no batches, an add for each number".to_owned(), alone),
        ],
        points: published_at(&[(peak, "seq_t3_spec_s0")]),
    }
}

fn multi_queue(cib: &Profile) -> Figure {
    let at = |postlist, queue_pairs| {
        let send = Operation::new(Verb::Send, Transport::Ud, 60).inlined();
        let load = Load::new(send, Role::Requester).in_postlists(postlist);
        let mix = Mix::new(vec![load.on_queue_pairs(queue_pairs)]).on_cores(1);
        rate(cib, &mix)
    };
    let over = |postlist| {
        let relative = move |queue_pairs| Some(at(postlist, queue_pairs)? / at(1.0, 1)?);
        (1..=8u32).map(move |queue_pairs| (f64::from(queue_pairs), relative(queue_pairs)))
    };
    Figure {
        file: "figure-11b.svg",
        title: "Figure 11b: UD SENDs of 60 bytes from one core of Connect-IB",
        kind: MODEL,
        x: "queue pairs",
        y: "rate, as a multiple of one a post on one queue pair",
        log: false,
        curves: vec![
            curve("postlists of 16", over(16.0)),
            curve("one a post", over(1.0)),
        ],
        points: published_at(&[
            (4.0, "ud_send_1c_mq4_gain_hi"),
            (4.0, "ud_send_1c_nobatch_mq_gain"),
        ]),
    }
}

fn wqe_cache(cib: &Profile) -> Result<Figure> {
    let over = |verb| -> Result<Vec<(f64, windows::Outcome)>> {
        let at = |window: u32| {
            let setup = windows::Setup {
                verb,
                window: window as usize,
                time: Duration::from_micros(400),
            };
            Ok((f64::from(window), windows::run(cib, &setup)?))
        };
        powers(0..=11).map(at).collect()
    };
    let (reads, writes) = (over(Verb::RdmaRead)?, over(Verb::RdmaWrite)?);
    let of = |name: &str, runs: &[(f64, windows::Outcome)], of: fn(&windows::Outcome) -> f64| {
        let points = runs.iter().map(|(window, outcome)| (*window, of(outcome)));
        (name.to_owned(), points.collect())
    };
    Ok(Figure {
        file: "figure-13.svg",
        title: "Figure 13: windows of 8-byte READs and WRITEs, 14 cores of Connect-IB",
        kind: "simulated",
        x: "window of each core",
        y: "10^6/s",
        log: true,
        curves: vec![
            of("READs", &reads, |o| o.rate_mops),
            of("WRITEs", &writes, |o| o.rate_mops),
            of("WQE cache misses of READs", &reads, |o| {
                o.wqe_cache_misses_mops
            }),
            of("WQE cache misses of WRITEs", &writes, |o| {
                o.wqe_cache_misses_mops
            }),
        ],
        points: published_at(&[(512.0, "out_read"), (512.0, "out_write_wqe_miss")]),
    })
}

fn herd_cores(cib: &Profile) -> Result<Figure> {
    let over = |batched| -> Result<Vec<(f64, f64)>> {
        let at = |cores: usize| {
            let outcome = kv::run(cib, &kv::Setup::paper(cores, batched))?;
            anyhow::ensure!(outcome.verified, "a value of the simulated store was wrong");
            #[allow(clippy::cast_precision_loss)] // few cores
            Ok((cores as f64, outcome.rate_mops))
        };
        [1, 2, 4, 8, 12, 14].into_iter().map(at).collect()
    };
    Ok(Figure {
        file: "figure-9.svg",
        title: "Figure 9: HERD key-value store on Connect-IB",
        kind: "simulated: the store's own code; READ-based: model",
        x: "cores",
        y: "10^6 requests/s",
        log: false,
        curves: vec![
            ("HERD".to_owned(), over(false)?),
            ("with batches".to_owned(), over(true)?),
            curve(
                "READ-based",
                (1..=14u32).map(|cores| {
                    let read = mixes::get(cib, "read-kv");
                    (
                        f64::from(cores),
                        read.and_then(|named| rate(cib, &named.mix)),
                    )
                }),
            ),
        ],
        points: published_at(&[
            (1.0, "herd_base_1c"),
            (1.0, "herd_batch_1c"),
            (14.0, "herd_base_peak"),
            (12.0, "herd_batch_peak"),
            (14.0, "derived_read_kv_line"),
        ]),
    })
}

/// The published numbers compare with GETs alone, and so do the curves.
fn drtm(simulated: &Simulated) -> Figure {
    let relative = |name: &str, nic| {
        let rates = simulated.drtm(nic);
        let gets = rates.first().map_or(1.0, |&(_, rate)| rate);
        let points = rates
            .iter()
            .map(|&(puts, rate)| (puts, 100.0 * rate / gets));
        (format!("{name}, 100 % = {gets:.0} M/s"), points.collect())
    };
    let mut points = published_at(&[(100.0, "drtm_cx3_put100")]);
    let lost = published_at(&[(10.0, "drtm_cib_put10")]);
    points.extend(lost.iter().map(|&(puts, lost)| (puts, 100.0 - lost)));
    Figure {
        file: "figure-10.svg",
        title: "Figure 10: DrTM-KV",
        kind: "simulated: the store's own code",
        x: "PUTs, %",
        y: "requests/s, % of those with GETs alone",
        log: false,
        curves: vec![relative("Connect-IB", "cib"), relative("ConnectX-3", "cx3")],
        points,
    }
}

fn ud_send(cib: &Profile) -> Figure {
    let operation = |payload| {
        if payload == 0 {
            Operation::header_only(Transport::Ud)
        } else {
            Operation::new(Verb::Send, Transport::Ud, payload).inlined()
        }
    };
    let over = |postlist: f64| {
        (0..=48u32).map(move |step| {
            let payload = step * 4;
            let load = Load::new(operation(payload), Role::Requester).in_postlists(postlist);
            (
                f64::from(payload),
                rate(cib, &Mix::new(vec![load]).on_cores(14)),
            )
        })
    };
    let limit = |bound: fn(&Profile, u32) -> f64| {
        (0..=48u32).map(move |step| {
            let lines = wqe::lines(wqe::bytes(cib, &operation(step * 4)));
            (f64::from(step * 4), Some(bound(cib, lines)))
        })
    };
    Figure {
        file: "figure-11a.svg",
        title: "Figure 11a: UD SENDs of Connect-IB",
        kind: MODEL,
        x: "payload, bytes",
        y: "10^6 SENDs/s",
        log: false,
        curves: vec![
            curve("postlists of 16", over(16.0)),
            curve("one a post", over(1.0)),
            curve(
                "DMA limit",
                limit(|nic, lines| pcie::dma_read_mbps(nic) / f64::from(64 * lines)),
            ),
            curve(
                "MMIO limit",
                limit(|nic, lines| pcie::mmio_lines_mops(nic) / f64::from(lines)),
            ),
        ],
        points: published_at(&[
            (60.0, "ud_send_nobatch_peak"),
            (60.0, "ud_send_batched_peak"),
            (0.0, "ud_send_batched_ho_peak"),
        ]),
    }
}

/// The rate of READs at which their responses fill the responder's link.
fn read_link_limit(profile: &Profile, payload: u32) -> Option<f64> {
    let read = Operation::new(Verb::RdmaRead, Transport::Rc, payload);
    let mix = Mix::new(vec![Load::new(read, Role::Responder)]);
    let bounds = Bounds::of(profile, &mix).ok()?.bounds;
    let link = bounds.iter().find(|b| b.resource == Resource::LinkOut);
    link.map(|bound| bound.rate_mops)
}

fn inbound() -> Figure {
    let over = |nic: &str, verb, transport| {
        let profile = builtin(nic);
        powers(2..=10).map(move |payload| {
            let load = Load::new(Operation::new(verb, transport, payload), Role::Responder);
            let mix = Mix::new(vec![load]);
            (
                f64::from(payload),
                profile.and_then(|profile| rate(profile, &mix)),
            )
        })
    };
    let reads = |nic| over(nic, Verb::RdmaRead, Transport::Rc);
    let writes = |nic| over(nic, Verb::RdmaWrite, Transport::Uc);
    // Small READs come nowhere near the limit, which would take most of the picture.
    let limit = |nic: &str| {
        let profile = builtin(nic);
        powers(5..=10).map(move |payload| {
            (
                f64::from(payload),
                profile.and_then(|profile| read_link_limit(profile, payload)),
            )
        })
    };
    Figure {
        file: "figure-12.svg",
        title: "Figure 12: inbound READs and WRITEs",
        kind: MODEL,
        x: "payload, bytes",
        y: "10^6 operations/s",
        log: true,
        curves: vec![
            curve("InfiniBand limit, Connect-IB", limit("cib")),
            curve("WRITE, Connect-IB", writes("cib")),
            curve("READ, Connect-IB", reads("cib")),
            curve("InfiniBand limit, ConnectX-3", limit("cx3")),
            curve("WRITE, ConnectX-3", writes("cx3")),
            curve("READ, ConnectX-3", reads("cx3")),
            curve("InfiniBand limit, ConnectX", limit("cx")),
            curve("WRITE, ConnectX", writes("cx")),
            curve("READ, ConnectX", reads("cx")),
        ],
        points: published_at(&[
            (64.0, "in_read_le64"),
            (128.0, "in_read_128"),
            (4.0, "in_write_small"),
        ]),
    }
}

fn atomics() -> Figure {
    let over = |nic: &str| {
        let profile = builtin(nic);
        powers(0..=12).map(move |counters| {
            let at = profile.and_then(|profile| {
                let slots = locks::used(profile, u64::from(counters), 8)?;
                let atomic = Operation::new(Verb::AtomicFetchAndAdd, Transport::Rc, 8);
                let load = Load::new(atomic, Role::Responder).on_lock_slots(slots);
                rate(profile, &Mix::new(vec![load]))
            });
            (f64::from(counters), at)
        })
    };
    Figure {
        file: "figure-14.svg",
        title: "Figure 14: atomics over the number of counters",
        kind: MODEL,
        x: "counters of 8 bytes",
        y: "10^6 atomics/s",
        log: true,
        curves: vec![
            curve("Connect-IB", over("cib")),
            curve("ConnectX-3", over("cx3")),
        ],
        points: published_at(&[
            (1.0, "atomics_cib_z1"),
            (4096.0, "atomics_cib_zbig"),
            (64.0, "atomics_cx3"),
        ]),
    }
}

fn svg(figure: &Figure) -> Result<String> {
    let chart = Chart {
        caption: format!("{} ({})", figure.title, figure.kind),
        x: figure.x,
        y: figure.y,
        log: figure.log,
        curves: &figure.curves,
        marks: figure.points.clone(),
        marks_are: "published",
    };
    chart.svg().with_context(|| figure.file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inbound_operations_of_three_nics_stay_below_the_infiniband_limit() {
        let figure = inbound();
        let curves: Vec<_> = figure.curves.iter().map(|(name, _)| name).collect();
        assert_eq!(curves.len(), 9, "{curves:?}");
        for nic in figure.curves.chunks(3) {
            let [(limit, limits), (write, writes), (read, reads)] = nic else {
                panic!("three curves for each NIC: {nic:?}");
            };
            assert!(read.starts_with("READ") && write.starts_with("WRITE"));
            assert!(limit.starts_with("InfiniBand limit, ") && limits.len() == 6);
            assert_eq!((reads.len(), writes.len()), (9, 9), "{read}");
            for (payload, limit) in limits {
                let (_, rate) = reads.iter().find(|(x, _)| x == payload).expect("drawn");
                assert!(*rate <= limit * 1.0001, "{read} of {payload} bytes");
            }
            // The largest READs reach it, but for the oldest NIC's: its PCIe is slower than its port.
            let (last, limit) = (reads[8].1, limits[5].1);
            let reaches = (last / limit - 1.0).abs() < 1e-6;
            assert_eq!(reaches, read != "READ, ConnectX", "{read}: {last} {limit}");
        }
    }
}
