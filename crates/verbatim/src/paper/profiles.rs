//! Published numbers that are counted or summed from the profiles.

use nicmodel::pcie::{self, TransactionPurpose};
use nicmodel::{
    Footprint, Operation, PayloadDestination, PostMethod, Transport, Verb, atomic_locks, published,
    wqe,
};

use super::nics::PublicationNicProfiles;
use super::number::{OurNumber, PublishedRelation};

/// Returns our number for the published number `id`; `None` if it does not follow from the profiles.
pub(super) fn our_number_for(nics: &PublicationNicProfiles, id: &str) -> Option<OurNumber> {
    let value = wqe_or_header_bytes(nics, id).or_else(|| pcie_traffic_or_atomic_locks(nics, id));
    let value = value
        .or_else(|| pcie_link_property(nics, id))
        .or_else(|| cluster_property(nics, id));
    value
        .map(OurNumber::arithmetic)
        .or_else(|| number_published_as_bound(nics, id))
}

fn ud_send_operation(payload: u32) -> Operation {
    Operation::new(Verb::Send, Transport::Ud, payload).inlined()
}

fn cache_line_count_of_wqe(nics: &PublicationNicProfiles, operation: &Operation) -> f64 {
    f64::from(wqe::cache_line_count(
        operation.wqe_bytes(nics.profile_by_name("cib")),
    ))
}

fn wqe_slot_bytes(nics: &PublicationNicProfiles, operation: &Operation) -> f64 {
    f64::from(wqe::send_queue_slot_bytes(
        operation.wqe_bytes(nics.profile_by_name("cib")),
    ))
}

fn footprint_of_postlist(
    nics: &PublicationNicProfiles,
    name: &str,
    operation: &Operation,
    method: PostMethod,
    len: u32,
) -> Footprint {
    Footprint::of_postlist(nics.profile_by_name(name), operation, method, len)
        .expect("every NIC can do it")
}

/// Returns a WRITE whose WQE has this number of bytes.
fn rdma_write_with_wqe_bytes(nics: &PublicationNicProfiles, bytes: u32) -> Operation {
    let header = nics.profile_by_name("cib").wqe.uc_header_bytes.value;
    Operation::new(Verb::RdmaWrite, Transport::Uc, bytes - header).inlined()
}

/// Computes sizes of WQEs, headers and immediates.
fn wqe_or_header_bytes(nics: &PublicationNicProfiles, id: &str) -> Option<f64> {
    let cib = nics.profile_by_name("cib");
    let header_only = Operation::header_only(Transport::Ud);
    let header = |verb, transport| f64::from(wqe::header_bytes(cib, verb, transport));
    let longest = |verb, transport, lines| {
        wqe::max_inline_payload(cib, verb, transport, lines).map(f64::from)
    };
    let response = ud_send_operation(8).wqe_bytes(cib);
    let write = |imm| {
        let plain = Operation::new(Verb::RdmaWrite, Transport::Uc, 8).inlined();
        let operation = if imm { plain.with_imm() } else { plain };
        let one = footprint_of_postlist(nics, "cib", &operation, PostMethod::WqeByMmio, 1);
        one.network_packets.to_responder.bytes_without_gaps
    };
    Some(match id {
        "wqe_hdr_rc" => header(Verb::RdmaRead, Transport::Rc),
        "wqe_hdr_uc" => header(Verb::RdmaWrite, Transport::Uc),
        "wqe_hdr_ud" => header(Verb::Send, Transport::Ud),
        "wqe_hdr_recv" => f64::from(cib.wqe.recv_bytes.value),
        "wqe_ud_min_lines" => cache_line_count_of_wqe(nics, &ud_send_operation(1)),
        "wqe_ud_ho_lines" => cache_line_count_of_wqe(nics, &header_only),
        "wqe_slide18_header" => f64::from(header_only.wqe_bytes(cib)),
        "wqe_slide18_size" => f64::from(cib.wqe.inline_size_bytes.value),
        "wqe_slide18_data" => f64::from(response) - header(Verb::Send, Transport::Ud),
        "wqe_slide18_unused" => f64::from(wqe::send_queue_slot_bytes(response) - response),
        "seq_rpc_response_dma_bytes" => wqe_slot_bytes(nics, &ud_send_operation(8)),
        "seq_spec_s0_response_dma_bytes" => wqe_slot_bytes(nics, &header_only),
        "seq_spec_s0_dma_reduction" => {
            100.0
                * (1.0
                    - wqe_slot_bytes(nics, &header_only)
                        / wqe_slot_bytes(nics, &ud_send_operation(8)))
        }
        "seq_imm_bytes" | "gen_imm_app_bytes" => write(true) - write(false),
        "seq_counter_bytes" => f64::from(nicmodel::ATOMIC_BYTES),
        // A client guesses the upper half of a number; the guess is wrong for one number in 2^32.
        "seq_spec_s0_regular_fraction" => 2f64.powf(-8.0 * (write(true) - write(false))),
        "ud_send_2line_max_payload" => longest(Verb::Send, Transport::Ud, 2)?,
        "out_write_1line_max" => longest(Verb::RdmaWrite, Transport::Uc, 1)?,
        "ud_recv_inline_limit" => f64::from(
            nics.profile_by_name("cx3")
                .wqe
                .inline_recv_bytes
                .as_ref()?
                .value,
        ),
        "dpu_inline_limit" => f64::from(nics.profile_by_name("bf2").wqe.max_inline_bytes.value),
        "host_llc" => f64::from(nics.profile_by_name("bf2").host.cache_bytes.as_ref()?.value),
        "dpu_llc" => f64::from(
            nics.profile_by_name("bf2")
                .dpu
                .as_ref()?
                .cache_bytes
                .as_ref()?
                .value,
        ),
        "dpu_mem_latency_knee" => f64::from(
            nics.profile_by_name("bf2")
                .dpu
                .as_ref()?
                .core_cache_bytes
                .as_ref()?
                .value,
        ),
        _ => return None,
    })
}

/// Returns our number for a published number of PCIe transactions or bytes, or of locks of atomics.
fn pcie_traffic_or_atomic_locks(nics: &PublicationNicProfiles, id: &str) -> Option<f64> {
    let ten = |method| {
        footprint_of_postlist(
            nics,
            "cib",
            &rdma_write_with_wqe_bytes(nics, 65),
            method,
            10,
        )
    };
    let written = |bytes| {
        let one = footprint_of_postlist(
            nics,
            "cib",
            &rdma_write_with_wqe_bytes(nics, bytes),
            PostMethod::WqeByMmio,
            1,
        );
        one.requester.mmio_writes()
    };
    let responder = |operation: &Operation| {
        footprint_of_postlist(nics, "cx3", operation, PostMethod::WqeByMmio, 1).responder
    };
    let send = Operation::new(Verb::Send, Transport::Ud, 32);
    Some(match id {
        "appA_bytes_mmio" => ten(PostMethod::WqeByMmio).requester.bytes_to_device(),
        "appA_bytes_doorbell" => ten(PostMethod::Doorbell).requester.bytes_to_device(),
        "appA_doorbell_bytes" => {
            let rung = ten(PostMethod::Doorbell).requester.transactions;
            rung.iter()
                .find(|t| t.purpose == TransactionPurpose::Doorbell)?
                .data_bytes
        }
        "appA_slot_bytes" => f64::from(wqe::send_queue_slot_bytes(65)),
        "shrink_129_mmio" => written(129),
        "shrink_128_mmio" => written(128),
        "batch_mmio_count" => ten(PostMethod::Doorbell).requester.mmio_writes(),
        "counter_split_read" => f64::from(u32::try_from(wqe::cache_lines_touched(62, 4)).ok()?),
        "responder_in_read" => responder(&Operation::new(Verb::RdmaRead, Transport::Rc, 32))
            .dma_reads_without_recv_wqes(),
        "responder_in_write" => {
            responder(&Operation::new(Verb::RdmaWrite, Transport::Uc, 32)).dma_writes()
        }
        "ud_recv_dma_regular" => responder(&send).dma_writes(),
        "ud_recv_dma_inline" => {
            responder(&send.with_recv_destination(PayloadDestination::Inline)).dma_writes()
        }
        "ud_recv_dma_ho" => responder(&Operation::header_only(Transport::Ud)).dma_writes(),
        // The publication counts the NIC's reads for a small inlined WRITE by MMIO as WQE-cache misses.
        "out_write_wqe_miss" => {
            let write = Operation::new(Verb::RdmaWrite, Transport::Rc, 8).inlined();
            let one = footprint_of_postlist(nics, "cib", &write, PostMethod::WqeByMmio, 1);
            one.requester.dma_reads_without_recv_wqes()
        }
        "atomics_cib_lsb" => f64::from(
            nics.profile_by_name("cib")
                .atomics
                .lock_bits
                .as_ref()?
                .value,
        ),
        "atomics_cib_buckets" => f64::from(atomic_locks::lock_count_of_counters(
            nics.profile_by_name("cib"),
            u64::MAX,
            1,
        )?),
        _ => return None,
    })
}

/// Computes bandwidths, headers and lanes of PCIe links.
fn pcie_link_property(nics: &PublicationNicProfiles, id: &str) -> Option<f64> {
    let (cib, cx3, cx) = (
        nics.profile_by_name("cib"),
        nics.profile_by_name("cx3"),
        nics.profile_by_name("cx"),
    );
    let header_only = Operation::header_only(Transport::Ud);
    Some(match id {
        "ud_send_dma_bw" => pcie::dma_read_mbytes_per_s(cib),
        "ud_send_dma_bound" => {
            pcie::dma_read_mbytes_per_s(cib) / wqe_slot_bytes(nics, &ud_send_operation(60))
        }
        "derived_cib_ho_dma_bound" => {
            pcie::dma_read_mbytes_per_s(cib) / wqe_slot_bytes(nics, &header_only)
        }
        "mmio_line_rate" => pcie::max_mmio_line_mops(cib),
        "ud_send_mmio_bound" => {
            pcie::max_mmio_line_mops(cib) / cache_line_count_of_wqe(nics, &ud_send_operation(60))
        }
        "derived_cx3_dma_bw" => pcie::dma_read_mbytes_per_s(cx3),
        "derived_cx3_mmio_lines" => pcie::max_mmio_line_mops(cx3),
        "derived_cx_dma_bw" => pcie::dma_read_mbytes_per_s(cx),
        "derived_cx_mmio_lines" => pcie::max_mmio_line_mops(cx),
        "derived_pcie3_Pbw" => cib.pcie.lane_mbps.value,
        "derived_pcie2_Pbw_cx" => cx.pcie.lane_mbps.value,
        "derived_pcie3_Pr" | "pcie_hdr_hi" => f64::from(cib.pcie.request_header_bytes.value),
        "derived_pcie3_Pc" => f64::from(cib.pcie.completion_header_bytes.value),
        "derived_pcie2_Pr" => f64::from(cx.pcie.request_header_bytes.value),
        "derived_pcie2_Pc" | "pcie_hdr_lo" => f64::from(cx.pcie.completion_header_bytes.value),
        "pcie_crc" => f64::from(cib.pcie.read_completion_bytes.value),
        "pcie_mmio_granule" => f64::from(wqe::CACHE_LINE_BYTES),
        "pcie_max_lanes" => f64::from(cib.pcie.lanes.value),
        "dpu_link" => nics.profile_by_name("bf2").port.gbps.value,
        _ => return None,
    })
}

/// Returns ports, lanes and cores of the clusters (Table 2).
fn cluster_property(nics: &PublicationNicProfiles, id: &str) -> Option<f64> {
    match id {
        "gen_cib_ports" => return cluster_property(nics, "cluster_ru_cib_ports"),
        "herd_max_cores_axis" | "out_fig13_threads" => {
            return cluster_property(nics, "cluster_ru_cib_cores");
        }
        "in_read_cib_saturates" => {
            return Some(
                cluster_property(nics, "gen_cib_ports")?
                    * cluster_property(nics, "cluster_ru_cib_port_gbps")?,
            );
        }
        "in_read_cx3_saturates" => return cluster_property(nics, "cluster_ru_cx3_port_gbps"),
        _ => {}
    }
    let (name, what) = id.strip_prefix("cluster_ru_")?.split_once('_')?;
    let profile = nics.all().iter().find(|profile| profile.name == name)?;
    // Factors from data rates to line rates. The coding is 8b/10b in PCIe 1 and 2 and in DDR; later codings are
    // more efficient.
    let old = name == "cx";
    let (lane, line) = if old {
        (10.0 / 8.0, 10.0 / 8.0)
    } else {
        (130.0 / 128.0, 66.0 / 64.0)
    };
    Some(match what {
        "ports" => f64::from(profile.port.count.value),
        // Nominal rates are rounded down: FDR is 56.25 Gb/s.
        "port_gbps" => (profile.port.gbps.value * line).floor(),
        "lanes" => f64::from(profile.pcie.lanes.value),
        "gtps" => profile.pcie.lane_mbps.value * 1e-3 * 8.0 * lane,
        "cores" => f64::from(profile.host.cores.value),
        "ghz" => profile.host.clock_ghz.as_ref()?.value,
        _ => return None,
    })
}

/// Computes quantities for which the paper gives only a bound.
fn number_published_as_bound(nics: &PublicationNicProfiles, id: &str) -> Option<OurNumber> {
    let cib = nics.profile_by_name("cib");
    let printed = |id| published::published_number_by_id(id).map(|published| published.value);
    let at_most =
        |value| Some(OurNumber::arithmetic(value).with_relation(PublishedRelation::AtMost));
    // Computes by how many percent the printed measurement is below our bound.
    let below = |measured: f64, bound: f64| 100.0 * (1.0 - measured / bound);
    match id {
        "ud_send_dma_within" => at_most(below(
            printed("ud_send_batched_peak")?,
            pcie::dma_read_mbytes_per_s(cib) / wqe_slot_bytes(nics, &ud_send_operation(60)),
        )),
        "ud_send_mmio_within" => at_most(below(
            printed("ud_send_nobatch_peak")?,
            pcie::max_mmio_line_mops(cib) / cache_line_count_of_wqe(nics, &ud_send_operation(60)),
        )),
        "appA_ll_overhead" => {
            let tlp = f64::from(wqe::CACHE_LINE_BYTES + cib.pcie.request_header_bytes.value);
            at_most(100.0 * cib.pcie.link_layer_bytes_per_tlp.value / tlp)
        }
        _ => None,
    }
}
