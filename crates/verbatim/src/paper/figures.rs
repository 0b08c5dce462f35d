//! Draws the figures of the paper as SVG with the published points marked, and writes their data as CSV.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::simulated::read_write_windows;
use chart::{Axis, Chart, Series};
use nicmodel::bounds::Resource;
use nicmodel::profile::{Profile, builtin_profile};
use nicmodel::{
    Bounds, Mix, MixOperation, Operation, Role, Transport, Verb, atomic_locks, mixes, pcie,
    published, wqe,
};
use sequencer::Design;

use super::dpu_btree;
use super::simulated::SimulationResults;
use crate::output::write_file;
use crate::picture::svg_with_interrupt_note;

/// A figure of the paper.
struct Figure {
    file_name: &'static str,
    title: &'static str,
    /// Source of the curves: model, simulation or arithmetic.
    curve_source: &'static str,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    /// Published values without an x coordinate, which are drawn as levels.
    published_levels: Vec<(String, f64)>,
}

const MODEL_SOURCE_LABEL: &str = "model: bounds of the resources";
const SIMULATION_SOURCE_LABEL: &str = "simulated: the sequencer's own code";

/// Draws all figures into a folder; returns the names of their files.
pub(super) fn write_svg_and_csv_files(
    folder: &Path,
    simulated: &SimulationResults,
) -> Result<Vec<&'static str>> {
    let cib = builtin_profile("cib").context("Connect-IB is built in")?;
    let figures = [
        pcie_bytes_figure(cib),
        sequencer_cores_figure(simulated),
        spec_s0_latency_figure(simulated),
        herd_cores_figure(cib, simulated),
        drtm_figure(simulated),
        ud_send_figure(cib),
        multi_queue_figure(cib),
        inbound_reads_figure(),
        inbound_writes_figure(),
        wqe_cache_figure(cib, simulated)?,
        rdma_read_rates_by_window_figure(simulated),
        atomics_figure(),
        host_dpu_split_by_rpc_figure(simulated),
        host_dpu_split_by_reads_figure(simulated),
    ];
    for figure in &figures {
        let path = folder.join(figure.file_name);
        let chart = build_chart(figure);
        write_file(&path, &svg_with_interrupt_note(&chart))?;
        write_file(&path.with_extension("csv"), &chart.csv())?;
    }
    Ok(figures.iter().map(|figure| figure.file_name).collect())
}

fn predicted_rate_mops(profile: &Profile, mix: &Mix) -> Option<f64> {
    Bounds::of(profile, mix).ok()?.predicted_mops
}

/// Returns the points of the published values at the given x coordinates.
fn published_points(points: &[(f64, &str)]) -> Vec<(f64, f64)> {
    let at = |&(x, id): &(f64, &str)| Some((x, published::published_number_by_id(id)?.value));
    points.iter().filter_map(at).collect()
}

/// Returns the powers of two whose exponents are in `range`.
fn powers_of_two(range: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = u32> {
    range.map(|power| 1 << power)
}

/// Returns a curve of the model, which is defined at every x.
fn model_curve(name: &str, points: impl Iterator<Item = (f64, Option<f64>)>) -> Series {
    Series::without_markers(name, points.filter_map(|(x, y)| Some((x, y?))))
}

fn pcie_bytes_figure(cib: &Profile) -> Figure {
    // Plot every size: lines between fewer points would turn the steps into ramps.
    let sizes = || 1..=1024u32;
    let of = |bytes: fn(&Profile, u32) -> f64| {
        sizes().map(move |size| (f64::from(size), Some(bytes(cib, size))))
    };
    Figure {
        file_name: "figure-2b.svg",
        title: "Figure 2b: bytes on PCIe 3.0 to hand over data",
        curve_source: "arithmetic",
        x: Axis::linear("data, bytes"),
        y: Axis::linear("bytes on the link"),
        series: vec![
            model_curve("DMA read", of(pcie::bytes_to_device_for_dma_read)),
            model_curve("MMIO write", of(pcie::bytes_to_device_for_mmio_write)),
        ],
        published_levels: Vec::new(),
    }
}

fn sequencer_cores_figure(simulated: &SimulationResults) -> Figure {
    let atomics = simulated
        .sequencer_rates_by_cores(Design::Atomics)
        .first()
        .map_or(0.0, |point| point.1);
    let published = |design: Design| match design {
        Design::Atomics => published_points(&[(14.0, "seq_t3_atomics")]),
        Design::Rpc => published_points(&[(1.0, "seq_rpc_base_1c"), (14.0, "seq_t3_baseline")]),
        Design::RpcBatch => published_points(&[(1.0, "seq_rpc_batch_1c")]),
        Design::RpcBatchMq => {
            published_points(&[(1.0, "seq_rpc_batch_mq_1c"), (6.0, "seq_rpc_batch_mq_6c")])
        }
        Design::SpecS0 => published_points(&[(10.0, "seq_t3_spec_s0")]),
    };
    // The rate of atomics does not depend on the server's cores, which take no part in them.
    let level = Series::without_markers("atomics", [(1.0, atomics), (14.0, atomics)]);
    let mut series = vec![level.with_published_points(published(Design::Atomics))];
    for design in Design::ALL.into_iter().skip(1) {
        let rates = Series::new(
            design.to_string(),
            simulated.sequencer_rates_by_cores(design),
        );
        series.push(rates.with_published_points(published(design)));
    }
    Figure {
        file_name: "figure-7.svg",
        title: "Figure 7: sequencer on Connect-IB",
        curve_source: SIMULATION_SOURCE_LABEL,
        x: Axis::linear("cores of the server"),
        y: Axis::auto("10⁶ requests/s"),
        series,
        published_levels: Vec::new(),
    }
}

fn spec_s0_latency_figure(simulated: &SimulationResults) -> Figure {
    let batched = simulated.spec_s0_latency_and_rate_points(16);
    let slowest = batched.last().map_or(0.0, |point| point.0);
    let mut alone = simulated.spec_s0_latency_and_rate_points(1);
    // Drop loads beyond the peak, which only raise the latency.
    alone.retain(|point| point.0 <= slowest);
    Figure {
        file_name: "figure-8.svg",
        title: "Figure 8: Spec-S0 on 10 cores under rising load",
        curve_source: SIMULATION_SOURCE_LABEL,
        x: Axis::linear("median latency, µs").with_ticks_at_round_numbers(),
        y: Axis::linear("10⁶ requests/s"),
        series: vec![
            Series::new("up to 16 answers to a doorbell", batched),
            Series::new("an answer to a doorbell", alone),
        ],
        // The publication gives the rate, but not the latency at that rate.
        published_levels: published_points(&[(0.0, "seq_t3_spec_s0")])
            .into_iter()
            .map(|(_, rate)| ("published peak".to_owned(), rate))
            .collect(),
    }
}

/// Draws Figure 4 of the study of BlueField-2: each curve relative to the host alone.
fn host_dpu_split_by_rpc_figure(simulated: &SimulationResults) -> Figure {
    let relative = |name: &str, keys| {
        let rates = simulated.dpu.btree.rpc_rates_by_dpu_share(keys);
        let host = rates.first().map_or(1.0, |&(_, rate)| rate);
        let points = rates
            .iter()
            .map(|&(share, rate)| (share, 100.0 * rate / host));
        Series::new(format!("{name}, 100 % = {host:.1} M/s"), points)
    };
    let gained = published_points(&[(0.25, "dpu_bt_gain_1m")]).into_iter();
    let gained = gained.map(|(share, gain)| (share, 100.0 + gain));
    Figure {
        file_name: "figure-dpu-split.svg",
        title: "Look-ups by RPC over the split of a B-tree between the host and the DPU of a BlueField-2",
        curve_source: "simulated: the B-tree's own code",
        x: Axis::linear("share of the keys on the DPU"),
        y: Axis::auto("look-ups/s, % of the host's alone"),
        series: vec![
            relative("1 M keys", dpu_btree::SMALL_TREE_KEYS).with_published_points(gained),
            relative("256 M keys", dpu_btree::LARGE_TREE_KEYS),
        ],
        published_levels: Vec::new(),
    }
}

/// Draws Figure 9 of the study: the published rate is flat.
fn host_dpu_split_by_reads_figure(simulated: &SimulationResults) -> Figure {
    // The axis shows whole numbers only, so rates are in thousands.
    let thousands = |(share, rate): (f64, f64)| (share, 1e3 * rate);
    let rates = simulated.dpu.btree.rdma_read_rates_by_dpu_share();
    Figure {
        file_name: "figure-dpu-split-reads.svg",
        title: "Look-ups by READs over the split of a B-tree between the host and the DPU of a BlueField-2",
        curve_source: "simulated: the B-tree's own code",
        x: Axis::linear("share of the keys on the DPU"),
        y: Axis::auto("10³ look-ups/s"),
        series: vec![Series::new(
            "nodes of 2 KiB, 256 M keys",
            rates.into_iter().map(thousands),
        )],
        published_levels: published_points(&[(0.0, "dpu_os_best")])
            .into_iter()
            .map(thousands)
            .map(|(_, rate)| ("published".to_owned(), rate))
            .collect(),
    }
}

fn multi_queue_figure(cib: &Profile) -> Figure {
    let at = |postlist, queue_pairs| {
        let send = Operation::new(Verb::Send, Transport::Ud, 60).inlined();
        let load = MixOperation::new(send, Role::Requester).in_postlists(postlist);
        let mix = Mix::new(vec![load.on_queue_pairs(queue_pairs)]).on_cores(1);
        predicted_rate_mops(cib, &mix)
    };
    let over = |postlist| {
        let relative = move |queue_pairs| Some(at(postlist, queue_pairs)? / at(1.0, 1)?);
        (1..=8u32).map(move |queue_pairs| (f64::from(queue_pairs), relative(queue_pairs)))
    };
    Figure {
        file_name: "figure-11b.svg",
        title: "Figure 11b: UD SENDs of 60 bytes from one core of Connect-IB",
        curve_source: MODEL_SOURCE_LABEL,
        x: Axis::linear("queue pairs"),
        y: Axis::auto("rate, as a multiple of one a post on one queue pair"),
        series: vec![
            model_curve("postlists of 16", over(16.0))
                .with_published_points(published_points(&[(4.0, "ud_send_1c_mq4_gain_hi")])),
            model_curve("one a post", over(1.0))
                .with_published_points(published_points(&[(4.0, "ud_send_1c_nobatch_mq_gain")])),
        ],
        published_levels: Vec::new(),
    }
}

fn wqe_cache_figure(cib: &Profile, simulated: &SimulationResults) -> Result<Figure> {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let at = |(window, outcome)| (window as f64, outcome);
    let reads: Vec<_> = simulated
        .rdma_read_results_by_window("cib")
        .map(at)
        .collect();
    let writes = reads.iter().map(|&(window, _)| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small and whole
        let setup = read_write_windows::WindowParameters {
            verb: Verb::RdmaWrite,
            window: window as usize,
            measured_time: Duration::from_micros(300),
        };
        Ok((window, read_write_windows::run(cib, &setup)?))
    });
    let writes: Vec<_> = writes.collect::<Result<_>>()?;
    let of = |name: &str,
              runs: &[(f64, read_write_windows::WindowResult)],
              of: fn(&read_write_windows::WindowResult) -> f64| {
        let points = runs.iter().map(|(window, outcome)| (*window, of(outcome)));
        Series::new(name, points)
    };
    Ok(Figure {
        file_name: "figure-13.svg",
        title: "Figure 13: windows of 8-byte READs and WRITEs, 14 cores of Connect-IB",
        curve_source: "simulated",
        x: Axis::log("window of each core"),
        y: Axis::auto("10⁶/s"),
        series: vec![
            of("READs", &reads, |o| o.rate_mops)
                .with_published_points(published_points(&[(512.0, "out_read")])),
            of("WRITEs", &writes, |o| o.rate_mops),
            of("WQE cache misses of READs", &reads, |o| {
                o.wqe_cache_misses_mops
            }),
            of("WQE cache misses of WRITEs", &writes, |o| {
                o.wqe_cache_misses_mops
            })
            .with_published_points(published_points(&[(512.0, "out_write_wqe_miss")])),
        ],
        published_levels: Vec::new(),
    })
}

/// Draws the rate of READs over windows. The best windows of two NICs differ by a factor of 32.
fn rdma_read_rates_by_window_figure(simulated: &SimulationResults) -> Figure {
    let of = |nic| -> Vec<(f64, f64)> {
        let points: Vec<_> = simulated.rdma_read_results_by_window(nic).collect();
        let most = points.iter().map(|(_, o)| o.rate_mops).fold(0.0, f64::max);
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let relative = |(window, outcome): (usize, read_write_windows::WindowResult)| {
            (window as f64, 100.0 * outcome.rate_mops / most)
        };
        points.into_iter().map(relative).collect()
    };
    let best = |name: &str, nic, id| {
        let published = published::published_number_by_id(id).map(|p| (p.value, 100.0));
        Series::new(name, of(nic)).with_published_points(published)
    };
    Figure {
        file_name: "figure-13-best.svg",
        title: "Section 5.3.2: windows of 8-byte READs from all cores",
        curve_source: "simulated",
        x: Axis::log("window of each core"),
        y: Axis::auto("READs/s, % of the most"),
        series: vec![
            best("Connect-IB", "cib", "out_read_best_window_cib"),
            best("ConnectX-3", "cx3", "out_read_best_window_cx3"),
        ],
        published_levels: Vec::new(),
    }
}

fn herd_cores_figure(cib: &Profile, simulated: &SimulationResults) -> Figure {
    Figure {
        file_name: "figure-9.svg",
        title: "Figure 9: HERD key-value store on Connect-IB",
        curve_source: "simulated: the store's own code; READ-based: model",
        x: Axis::linear("cores"),
        y: Axis::auto("10⁶ requests/s"),
        series: vec![
            Series::new("HERD", simulated.herd_rates_by_cores(false)).with_published_points(
                published_points(&[(1.0, "herd_base_1c"), (14.0, "herd_base_peak")]),
            ),
            Series::new("with batches", simulated.herd_rates_by_cores(true)).with_published_points(
                published_points(&[(1.0, "herd_batch_1c"), (12.0, "herd_batch_peak")]),
            ),
            model_curve(
                "READ-based",
                (1..=14u32).map(|cores| {
                    let read = mixes::mix_by_name(cib, "read-kv");
                    (
                        f64::from(cores),
                        read.and_then(|named| predicted_rate_mops(cib, &named.mix)),
                    )
                }),
            )
            .with_published_points(published_points(&[(14.0, "derived_read_kv_line")])),
        ],
        published_levels: Vec::new(),
    }
}

/// Draws Figure 10 relative to the rate of GETs alone, as the published numbers are.
fn drtm_figure(simulated: &SimulationResults) -> Figure {
    let relative = |name: &str, rates: Vec<(f64, f64)>| {
        let gets = rates.first().map_or(1.0, |&(_, rate)| rate);
        let points = rates
            .iter()
            .map(|&(puts, rate)| (puts, 100.0 * rate / gets));
        Series::new(format!("{name}, 100 % = {gets:.0} M/s"), points)
    };
    let kept = published_points(&[(100.0, "drtm_cx3_put100")]);
    let lost = published_points(&[(10.0, "drtm_cib_put10")]).into_iter();
    let lost = lost.map(|(puts, lost)| (puts, 100.0 - lost));
    Figure {
        file_name: "figure-10.svg",
        title: "Figure 10: DrTM-KV",
        curve_source: "simulated",
        x: Axis::linear("PUTs, %"),
        y: Axis::auto("requests/s, % of those with GETs alone"),
        series: vec![
            relative(
                "Connect-IB, emulation: 2 atomics a PUT",
                simulated.drtm_rates_by_put_percent("cib"),
            )
            .with_published_points(lost),
            relative(
                "ConnectX-3, emulation",
                simulated.drtm_rates_by_put_percent("cx3"),
            )
            .with_published_points(kept),
            relative(
                "Connect-IB, a whole store",
                simulated.atomics_store_rates_by_put_percent("cib"),
            ),
            relative(
                "ConnectX-3, a whole store",
                simulated.atomics_store_rates_by_put_percent("cx3"),
            ),
        ],
        published_levels: Vec::new(),
    }
}

fn ud_send_figure(cib: &Profile) -> Figure {
    let operation = |payload| {
        if payload == 0 {
            Operation::header_only(Transport::Ud)
        } else {
            Operation::new(Verb::Send, Transport::Ud, payload).inlined()
        }
    };
    let over = |postlist: f64| {
        (0..=192u32).map(move |payload| {
            let load =
                MixOperation::new(operation(payload), Role::Requester).in_postlists(postlist);
            (
                f64::from(payload),
                predicted_rate_mops(cib, &Mix::new(vec![load]).on_cores(14)),
            )
        })
    };
    let limit = |bound: fn(&Profile, u32) -> f64| {
        (0..=192u32).map(move |payload| {
            let lines = wqe::cache_line_count(operation(payload).wqe_bytes(cib));
            (f64::from(payload), Some(bound(cib, lines)))
        })
    };
    Figure {
        file_name: "figure-11a.svg",
        title: "Figure 11a: UD SENDs of Connect-IB",
        curve_source: MODEL_SOURCE_LABEL,
        x: Axis::linear("payload, bytes"),
        y: Axis::auto("10⁶ SENDs/s"),
        series: vec![
            model_curve("postlists of 16", over(16.0)).with_published_points(published_points(&[
                (60.0, "ud_send_batched_peak"),
                (0.0, "ud_send_batched_ho_peak"),
            ])),
            model_curve("one a post", over(1.0))
                .with_published_points(published_points(&[(60.0, "ud_send_nobatch_peak")])),
            model_curve(
                "DMA limit",
                limit(|nic, lines| pcie::dma_read_mbytes_per_s(nic) / f64::from(64 * lines)),
            ),
            model_curve(
                "MMIO limit",
                limit(|nic, lines| pcie::max_mmio_line_mops(nic) / f64::from(lines)),
            ),
        ],
        published_levels: Vec::new(),
    }
}

/// Returns the rate of READs at which their responses fill the responder's link.
fn rdma_read_rate_mops_at_link_limit(profile: &Profile, payload: u32) -> Option<f64> {
    let read = Operation::new(Verb::RdmaRead, Transport::Rc, payload);
    let mix = Mix::new(vec![MixOperation::new(read, Role::Responder)]);
    let bounds = Bounds::of(profile, &mix).ok()?.bounds;
    let link = bounds.iter().find(|b| b.resource == Resource::LinkOut);
    link.map(|bound| bound.rate_mops)
}

/// NICs of Figure 12.
const INBOUND_RATE_NICS: [(&str, &str); 3] = [
    ("cib", "Connect-IB"),
    ("cx3", "ConnectX-3"),
    ("cx", "ConnectX"),
];

/// Returns the model's rate of arriving operations of a verb on a NIC, over payloads.
fn inbound_rates_by_payload(nic: &str, verb: Verb, transport: Transport) -> Vec<(f64, f64)> {
    let at = |payload| {
        let load = MixOperation::new(Operation::new(verb, transport, payload), Role::Responder);
        Some((
            f64::from(payload),
            predicted_rate_mops(builtin_profile(nic)?, &Mix::new(vec![load]))?,
        ))
    };
    four_payload_sizes_per_power_of_two()
        .filter_map(at)
        .collect()
}

/// Returns four payload sizes for each power of two, so that bends of the curves are visible.
fn four_payload_sizes_per_power_of_two() -> impl Iterator<Item = u32> {
    (8..=40u32).map(|quarters| {
        let (power, quarter) = (quarters / 4, quarters % 4);
        (1 << power) + (1 << power) * quarter / 4
    })
}

fn inbound_reads_figure() -> Figure {
    // The limit for small READs is far above the curves and would dominate the figure.
    let limit = |nic: &str| -> Vec<(f64, f64)> {
        let at = |payload| {
            Some((
                f64::from(payload),
                rdma_read_rate_mops_at_link_limit(builtin_profile(nic)?, payload)?,
            ))
        };
        let large = four_payload_sizes_per_power_of_two().filter(|payload| *payload >= 32);
        large.filter_map(at).collect()
    };
    let published = |nic| match nic {
        "cib" => published_points(&[(64.0, "in_read_le64"), (128.0, "in_read_128")]),
        _ => Vec::new(),
    };
    let reads = INBOUND_RATE_NICS.map(|(nic, name)| {
        let points = inbound_rates_by_payload(nic, Verb::RdmaRead, Transport::Rc);
        Series::without_markers(name, points).with_published_points(published(nic))
    });
    let limits = INBOUND_RATE_NICS.map(|(nic, name)| {
        Series::without_markers(format!("InfiniBand limit, {name}"), limit(nic))
    });
    Figure {
        file_name: "figure-12.svg",
        title: "Figure 12: inbound READs",
        curve_source: MODEL_SOURCE_LABEL,
        x: Axis::log("payload, bytes").in_bytes(),
        y: Axis::auto("10⁶ READs/s"),
        series: reads.into_iter().chain(limits).collect(),
        published_levels: Vec::new(),
    }
}

fn inbound_writes_figure() -> Figure {
    let writes = INBOUND_RATE_NICS.map(|(nic, name)| {
        let points = inbound_rates_by_payload(nic, Verb::RdmaWrite, Transport::Uc);
        let published = match nic {
            "cib" => published_points(&[(4.0, "in_write_small")]),
            _ => Vec::new(),
        };
        Series::without_markers(name, points).with_published_points(published)
    });
    Figure {
        file_name: "figure-12-writes.svg",
        title: "Figure 12: inbound WRITEs",
        curve_source: MODEL_SOURCE_LABEL,
        x: Axis::log("payload, bytes").in_bytes(),
        y: Axis::auto("10⁶ WRITEs/s"),
        series: writes.to_vec(),
        published_levels: Vec::new(),
    }
}

fn atomics_figure() -> Figure {
    let over = |nic: &str| {
        let profile = builtin_profile(nic);
        powers_of_two(0..=12).map(move |counters| {
            let at = profile.and_then(|profile| {
                let slots = atomic_locks::lock_count_of_counters(profile, u64::from(counters), 8)?;
                let atomic = Operation::new(Verb::AtomicFetchAndAdd, Transport::Rc, 8);
                let load = MixOperation::new(atomic, Role::Responder).on_lock_slots(slots);
                predicted_rate_mops(profile, &Mix::new(vec![load]))
            });
            (f64::from(counters), at)
        })
    };
    Figure {
        file_name: "figure-14.svg",
        title: "Figure 14: atomics over the number of counters",
        curve_source: MODEL_SOURCE_LABEL,
        x: Axis::log("counters of 8 bytes"),
        y: Axis::auto("10⁶ atomics/s"),
        series: vec![
            model_curve("Connect-IB", over("cib")).with_published_points(published_points(&[
                (1.0, "atomics_cib_z1"),
                (4096.0, "atomics_cib_zbig"),
            ])),
            model_curve("ConnectX-3", over("cx3"))
                .with_published_points(published_points(&[(64.0, "atomics_cx3")])),
        ],
        published_levels: Vec::new(),
    }
}

fn build_chart(figure: &Figure) -> Chart {
    Chart {
        title: figure.title.to_owned(),
        caption: figure.curve_source.to_owned(),
        x: figure.x.clone(),
        y: figure.y.clone(),
        series: figure.series.clone(),
        constant_levels: figure.published_levels.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inbound_reads_of_three_nics_stay_below_the_infiniband_limit() {
        let (reads, writes) = (inbound_reads_figure(), inbound_writes_figure());
        assert_eq!(writes.series.len(), INBOUND_RATE_NICS.len());
        let (reads, limits) = reads.series.split_at(INBOUND_RATE_NICS.len());
        for (reads, limits) in reads.iter().zip(limits) {
            let (nic, reads, limit) = (&reads.name, &reads.points, &limits.name);
            let limits = &limits.points;
            assert_eq!(*limit, format!("InfiniBand limit, {nic}"));
            for limit in limits {
                let read = reads.iter().find(|read| read.x == limit.x).expect("drawn");
                let payload = limit.x;
                assert!(
                    read.y <= limit.y * 1.0001,
                    "{nic}: READs of {payload} bytes"
                );
            }
            // The largest READs reach the limit, except on the oldest NIC, whose PCIe link is slower than its
            // port.
            let last = |points: &[chart::Point]| points.last().expect("drawn").y;
            let reaches = (last(reads) / last(limits) - 1.0).abs() < 1e-6;
            assert_eq!(reaches, nic.as_str() != "ConnectX", "{nic}");
        }
    }
}
