//! Fits the numbers of a profile to measured rates. Each number is the one with which the model
//! gives the measured rate, given the numbers fitted before it. `nicmodel` documents how a rate
//! follows from the numbers.

use nicmodel::Profile;
use nicmodel::bounds::Resource;

use super::probes::{
    COUNTER_DISTANCE_EXPONENTS, LINK_PROBE_PAYLOADS_BYTES, ONE_QP_POSTLIST_LENGTHS, ProbeResults,
    ProbedStream,
};

/// Result for one number of the profile.
#[derive(Clone, Debug, PartialEq)]
pub enum NumberFitOutcome {
    /// The number was fitted to rates.
    Fitted {
        /// Fitted value.
        value: f64,
        /// Rates that the value was fitted to.
        fitted_to: Vec<String>,
        /// How the value follows from the rates.
        derivation: String,
    },
    /// The measured rates do not depend on the number, or gave an impossible value.
    NotFitted {
        /// Reason why the number could not be fitted.
        reason: String,
    },
    /// The measured rates do not depend on the number, and the profile omits this optional key.
    Omitted,
}

/// Keys of a profile, such as `processing.send_ns`, each with its result.
pub(super) type FitOutcomesByKey = Vec<(&'static str, NumberFitOutcome)>;

type FitResult = Result<f64, String>;

/// Collects fitted numbers; a later number may build on an earlier one.
struct FitOutcomeCollector<'r> {
    probe_results: &'r ProbeResults,
    fit_outcomes: FitOutcomesByKey,
}

impl FitOutcomeCollector<'_> {
    /// Records the result for `key` and returns it. A negative or infinite number becomes an error.
    fn validate_and_record_number(
        &mut self,
        key: &'static str,
        from: &[ProbedStream],
        number: FitResult,
        how: &str,
    ) -> FitResult {
        let number = number.and_then(|value| {
            if value.is_finite() && value >= 0.0 {
                Ok(value)
            } else {
                Err(format!("what was measured gives {value:.3}, which is none"))
            }
        });
        let finding = match &number {
            Ok(value) => NumberFitOutcome::Fitted {
                value: *value,
                fitted_to: from
                    .iter()
                    .map(|probe| self.probe_results.evidence_text(*probe))
                    .collect(),
                derivation: how.to_owned(),
            },
            Err(why) => NumberFitOutcome::NotFitted {
                reason: why.clone(),
            },
        };
        self.fit_outcomes.push((key, finding));
        number
    }
}

/// Fits every number that the results show. Sizes of WQEs and headers are taken from the profile
/// `like`.
pub(super) fn fit_all_numbers(results: &ProbeResults, like: &Profile) -> FitOutcomesByKey {
    let mut fit = FitOutcomeCollector {
        probe_results: results,
        fit_outcomes: Vec::new(),
    };
    fit_cpu_times(&mut fit);
    let units = fit_processing_units(&mut fit);
    fit_arrival_processing(&mut fit);
    fit_atomic_locks(&mut fit);
    fit_link(&mut fit, like);
    fit_pcie(&mut fit, like);
    fit_latencies(&mut fit, &units);
    fit_wqe_cache(&mut fit);
    fit.fit_outcomes
}

/// Fits the CPU time of each verb.
fn fit_cpu_times(fit: &mut FitOutcomeCollector<'_>) {
    use ProbedStream::{
        OneLineWqes, ReceiveHeaderOnlySends, SignaledWritePostlists, ThreeLineWqes, WritePostlists,
    };
    let ns = |probe| fit.probe_results.ns_per_operation(probe);
    let numbers = || -> Result<[f64; 4], String> {
        let (one, three) = (ns(OneLineWqes)?, ns(ThreeLineWqes)?);
        let mmio = (three - one) / 2.0;
        let (lists, signaled) = (ns(WritePostlists)?, ns(SignaledWritePostlists)?);
        let poll = (signaled - lists) / (1.0 - 1.0 / 64.0);
        let post = lists - mmio / 32.0 - poll / 64.0;
        // After each part of a window of 256, the receiver posts a message of one line; one in 8 of
        // these messages is signaled.
        let report = (post + mmio + poll / 8.0) / 64.0;
        let receive =
            ns(ReceiveHeaderOnlySends).map_or(f64::NAN, |receive| receive - poll - report);
        Ok([mmio, poll, post, receive])
    };
    let (numbers, each) = match numbers() {
        Ok(numbers) => (numbers, Ok(())),
        Err(why) => ([0.0; 4], Err(why)),
    };
    let of = |place: usize| each.clone().map(|()| numbers[place]);
    let (mmio, poll, post, receive) = (of(0), of(1), of(2), of(3));
    let _ = fit.validate_and_record_number(
        "host.mmio_write_ns",
        &[OneLineWqes, ThreeLineWqes],
        mmio,
        "half of what two more lines take",
    );
    let _ = fit.validate_and_record_number(
        "host.poll_cqe_ns",
        &[WritePostlists, SignaledWritePostlists],
        poll,
        "what a completion each takes instead of one in 64",
    );
    let from = &[WritePostlists];
    let _ = fit.validate_and_record_number(
        "host.post_wqe_ns",
        from,
        post,
        "less one MMIO write in 32 and one completion in 64",
    );
    let how = "less a completion, and a report of 64 messages";
    let _ = fit.validate_and_record_number(
        "host.post_recv_ns",
        &[ReceiveHeaderOnlySends],
        receive,
        how,
    );
}

/// NIC time per operation: the time for which an operation occupies one of the NIC's processing
/// units.
struct NicTimePerOperation {
    /// Times of a WRITE and of a READ. If the processing units do not show, these are times of the
    /// whole NIC.
    write_ns: FitResult,
    read_ns: FitResult,
}

fn fit_processing_units(fit: &mut FitOutcomeCollector<'_>) -> NicTimePerOperation {
    use ProbedStream::{
        AllCoresHeaderOnlySends, AllCoresReads, OneLineWqes, OneQpSingleWrites, OneQpWritePostlists,
    };
    let ns = |probe| fit.probe_results.ns_per_operation(probe);
    let [short, _] = ONE_QP_POSTLIST_LENGTHS.map(OneQpWritePostlists);
    // If one queue pair is as fast as several queue pairs of one core, the core is the bottleneck. The
    // rates then do not depend on the number of units.
    let unit = ns(OneQpSingleWrites).and_then(|unit| {
        if unit > 1.1 * ns(OneLineWqes)? {
            Ok(unit)
        } else {
            Err("one queue pair is as fast as several of one core".to_owned())
        }
    });
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let waits = unit
        .clone()
        .and_then(|unit| Ok(ONE_QP_POSTLIST_LENGTHS[0] as f64 * (ns(short)? - unit)));
    let peak = ns(AllCoresHeaderOnlySends);
    let send = match (&unit, &waits) {
        (Ok(unit), Ok(wait)) => peak.map(|peak| peak / (1.0 + wait.max(0.0) / (16.0 * unit))),
        _ => peak,
    };
    let units = unit
        .clone()
        .and_then(|unit| Ok((unit / send.clone()?).round().max(1.0)));
    let shows = units.is_ok();
    let how = "the peak of the NIC, less the wait of its units for WQEs, one in 16";
    let send =
        fit.validate_and_record_number("processing.send_ns", &[AllCoresHeaderOnlySends], send, how);
    if shows {
        let from = &[OneQpSingleWrites, AllCoresHeaderOnlySends];
        let units = fit.validate_and_record_number(
            "processing.units",
            from,
            units,
            "a queue pair is served by one of them; rounded",
        );
        let how = "in lists of 4 a WRITE takes a quarter of it more";
        let _ = fit.validate_and_record_number(
            "processing.wqe_fetch_wait_ns",
            &[OneQpSingleWrites, short],
            waits,
            how,
        );
        let read = fit.validate_and_record_number(
            "processing.read_ns",
            &[AllCoresReads],
            ns(AllCoresReads),
            "the peak of the NIC",
        );
        let of_unit = |number: FitResult| number.and_then(|ns| Ok(ns * units.clone()?));
        return NicTimePerOperation {
            write_ns: of_unit(send),
            read_ns: of_unit(read),
        };
    }
    for key in ["processing.units", "processing.wqe_fetch_wait_ns"] {
        fit.fit_outcomes.push((key, NumberFitOutcome::Omitted));
    }
    let read_ns = fit.validate_and_record_number(
        "processing.read_ns",
        &[AllCoresReads],
        ns(AllCoresReads),
        "the peak of the NIC",
    );
    NicTimePerOperation {
        write_ns: send,
        read_ns,
    }
}

/// Fits the NIC time of arriving messages.
fn fit_arrival_processing(fit: &mut FitOutcomeCollector<'_>) {
    use ProbedStream::{
        InboundAtomicsOnManyCounters, InboundHeaderOnlySends, InboundPayloadSends, InboundWrite,
    };
    let ns = |probe| fit.probe_results.ns_per_operation(probe);
    let write = ns(InboundWrite);
    let second = ns(InboundPayloadSends)
        .and_then(|payload| Ok((payload - ns(InboundHeaderOnlySends)?).max(0.0)));
    let atomics = ns(InboundAtomicsOnManyCounters);
    let _ = fit.validate_and_record_number(
        "processing.inbound_ns",
        &[InboundWrite],
        write,
        "the peak of the NIC",
    );
    let from = &[InboundHeaderOnlySends, InboundPayloadSends];
    let _ = fit.validate_and_record_number(
        "processing.inbound_dma_ns",
        from,
        second,
        "what payload takes more",
    );
    let how = "with more counters than locks that are outstanding, no lock holds them up";
    let _ = fit.validate_and_record_number(
        "processing.atomic_ns",
        &[InboundAtomicsOnManyCounters],
        atomics,
        how,
    );
}

/// Fits the address bits and the hold time of the NIC's locks for atomics.
fn fit_atomic_locks(fit: &mut FitOutcomeCollector<'_>) {
    use ProbedStream::{InboundAtomicsOnOneCounter, InboundAtomicsOnTwoCounters};
    let ns = |probe| fit.probe_results.ns_per_operation(probe);
    let one = ns(InboundAtomicsOnOneCounter);
    let bits = one.clone().and_then(|one| {
        for bits in COUNTER_DISTANCE_EXPONENTS {
            // Two locks give about twice the rate of one; 0.75 leaves room for noise.
            if ns(InboundAtomicsOnTwoCounters(bits))? > 0.75 * one {
                return Ok(if bits == *COUNTER_DISTANCE_EXPONENTS.start() {
                    0
                } else {
                    bits
                });
            }
        }
        Err(format!(
            "counters 2^{} bytes apart have two locks still",
            COUNTER_DISTANCE_EXPONENTS.end()
        ))
    });
    let last = bits
        .as_ref()
        .copied()
        .unwrap_or(*COUNTER_DISTANCE_EXPONENTS.end())
        .max(*COUNTER_DISTANCE_EXPONENTS.start());
    let before = last
        .saturating_sub(1)
        .max(*COUNTER_DISTANCE_EXPONENTS.start());
    let from = [
        InboundAtomicsOnOneCounter,
        InboundAtomicsOnTwoCounters(before),
        InboundAtomicsOnTwoCounters(last),
    ];
    let how = "the first two counters, 2^bits apart, that are no faster than one";
    let _ = fit.validate_and_record_number("atomics.lock_bits", &from, bits.map(f64::from), how);
    let _ = fit.validate_and_record_number(
        "atomics.lock_hold_ns",
        &[InboundAtomicsOnOneCounter],
        one,
        "one after the other",
    );
}

/// Fits the network link to long inbound READs, whose responses leave by the measured port.
fn fit_link(fit: &mut FitOutcomeCollector<'_>, like: &Profile) {
    let [short, long] = LINK_PROBE_PAYLOADS_BYTES;
    let probes = LINK_PROBE_PAYLOADS_BYTES.map(ProbedStream::InboundReadsOfBytes);
    let ns = |bytes| {
        fit.probe_results
            .ns_per_operation(ProbedStream::InboundReadsOfBytes(bytes))
    };
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let bytes_per_ns = ns(short).and_then(|one| Ok((long - short) as f64 / (ns(long)? - one)));
    // Bytes between two response packets, beside their headers and the gap that the link has
    // between any two packets.
    let gap = bytes_per_ns.clone().and_then(|bytes_per_ns| {
        let stream = fit
            .probe_results
            .stream(probes[0])
            .ok_or("it was not measured")?;
        let footprint = stream.footprint(like).map_err(|error| error.to_string())?;
        let packets = footprint.network_packets.to_requester;
        let own = packets.bytes_without_gaps + packets.count * like.port.packet_gap_bytes.value;
        Ok((ns(short)? * bytes_per_ns - own).max(0.0))
    });
    let count = NumberFitOutcome::Fitted {
        value: 1.0,
        fitted_to: probes
            .map(|probe| fit.probe_results.evidence_text(probe))
            .to_vec(),
        derivation: "all ports of the NIC together are taken for one".to_owned(),
    };
    fit.fit_outcomes.push(("port.count", count));
    let how = "what longer payload takes longer; where PCIe is slower than the network, it is that";
    let _ = fit.validate_and_record_number(
        "port.gbps",
        &probes,
        bytes_per_ns.map(|bytes_per_ns| 8.0 * bytes_per_ns),
        how,
    );
    let how = "what a READ of 256 bytes takes of the link beside payload and headers";
    let _ = fit.validate_and_record_number("port.read_response_gap_bytes", &probes, gap, how);
}

/// Fits the PCIe link from streams that are limited by it.
fn fit_pcie(fit: &mut FitOutcomeCollector<'_>, like: &Profile) {
    use ProbedStream::{
        AllCoresHeaderOnlySends, AllCoresThreeLineWqesByMmio, AllCoresTwoLineWqePostlists,
    };
    let ns = |probe| fit.probe_results.ns_per_operation(probe);
    let lanes = f64::from(like.pcie.lanes.value);
    let known_gbytes = lanes * like.pcie.lane_mbps.value * 1e-3;
    // Time for which the link would be busy per operation at the speed that the profile `like`
    // gives.
    let busy_ns = |probe, resource| {
        let stream = fit
            .probe_results
            .stream(probe)
            .ok_or("it was not measured")?;
        let bounds = stream
            .rate_bounds(like)
            .map_err(|error| error.to_string())?;
        let rate = bounds
            .rate_mops(resource)
            .ok_or("it does not use the link")?;
        Ok::<_, String>(1e3 / rate)
    };
    let gbytes = ns(AllCoresTwoLineWqePostlists).and_then(|lists| {
        if lists < 1.1 * ns(AllCoresHeaderOnlySends)? {
            return Err(
                "WQEs of two lines in lists are as fast as those of one: PCIe does not bind"
                    .to_owned(),
            );
        }
        Ok(known_gbytes * busy_ns(AllCoresTwoLineWqePostlists, Resource::DmaRead)? / lists)
    });
    let overhead = gbytes.clone().and_then(|gbytes| {
        let own = like
            .pcie
            .mmio_overhead_bytes
            .as_ref()
            .map_or(0.0, |bytes| bytes.value);
        let bytes =
            busy_ns(AllCoresThreeLineWqesByMmio, Resource::Mmio)? * known_gbytes / 3.0 - own;
        Ok((ns(AllCoresThreeLineWqesByMmio)? * gbytes / 3.0 - bytes).max(0.0))
    });
    let how =
        format!("what their WQEs take of the link, with {lanes} lanes and headers as assumed");
    let lane = gbytes.map(|gbytes| 1e3 * gbytes / lanes);
    let _ = fit.validate_and_record_number(
        "pcie.lane_mbps",
        &[AllCoresTwoLineWqePostlists],
        lane,
        &how,
    );
    let how = "what a line takes of the link beside its bytes, if the link binds";
    let _ = fit.validate_and_record_number(
        "pcie.mmio_overhead_bytes",
        &[AllCoresThreeLineWqesByMmio],
        overhead,
        how,
    );
}

/// Fits the latencies of PCIe and of the port.
fn fit_latencies(fit: &mut FitOutcomeCollector<'_>, units: &NicTimePerOperation) {
    use ProbedStream::{
        InboundWrite, OneFetchedUcWriteAtATime, OneInlineUcWriteAtATime, OneReadAtATime,
    };
    let ns = |probe| fit.probe_results.ns_per_operation(probe);
    let pcie = ns(OneFetchedUcWriteAtATime)
        .and_then(|fetched| Ok((fetched - ns(OneInlineUcWriteAtATime)?) / 2.0));
    let how = "payload that is fetched takes a read, to and fro";
    let pcie = fit.validate_and_record_number(
        "pcie.latency_ns",
        &[OneInlineUcWriteAtATime, OneFetchedUcWriteAtATime],
        pcie,
        how,
    );
    // A READ and a WRITE both travel to the responder, and a completion comes back. A DMA read
    // takes as long at the responder as at the requester. A READ's data are written to the
    // requester's memory before its completion.
    let port = ns(OneReadAtATime).and_then(|read| {
        let units_ns = units.read_ns.clone()? - units.write_ns.clone()?;
        let longer = read - ns(OneFetchedUcWriteAtATime)?;
        Ok((longer - units_ns - ns(InboundWrite)? - pcie?) / 2.0)
    });
    let from = &[OneReadAtATime, OneFetchedUcWriteAtATime];
    let how = "half of what a READ takes longer than a WRITE whose payload is fetched, less the NICs' own times and pcie.latency_ns";
    let _ = fit.validate_and_record_number("port.latency_ns", from, port, how);
}

/// Fits the NIC's cache of WQEs.
fn fit_wqe_cache(fit: &mut FitOutcomeCollector<'_>) {
    let results = fit.probe_results;
    // Responses are written and WQEs arrive by MMIO, so the NIC reads memory only for WQEs that its
    // cache has lost. If the windows just fit, the NIC loses a few, because some cores run ahead of
    // others. If they do not fit, it loses nearly all.
    let misses = |window: &usize| {
        results
            .cache_lines_read_per_wr(ProbedStream::ReadWindow(*window))
            .is_some_and(|lines| lines > 0.1)
    };
    let windows: Vec<usize> = results.measured_read_windows().collect();
    let first = windows.iter().position(misses);
    let best = first.and_then(|first| windows.get(first.checked_sub(1)?));
    let Some(&best) = best else {
        for key in ["cache.read_window", "cache.read_window_threads"] {
            fit.fit_outcomes.push((key, NumberFitOutcome::Omitted));
        }
        return;
    };
    let from: Vec<_> = windows
        .iter()
        .take(first.unwrap_or(0) + 1)
        .map(|window| ProbedStream::ReadWindow(*window))
        .collect();
    let threads = results
        .stream(ProbedStream::ReadWindow(best))
        .map_or(1, |stream| stream.threads);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let (best, threads) = (best as f64, threads as f64);
    let how = "the longest window for which the NIC reads fewer than one WQE in ten again";
    let _ = fit.validate_and_record_number("cache.read_window", &from, Ok(best), how);
    let _ = fit.validate_and_record_number(
        "cache.read_window_threads",
        &from,
        Ok(threads),
        "those that posted",
    );
}
