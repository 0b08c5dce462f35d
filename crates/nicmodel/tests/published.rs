//! Tests of every published count and byte figure against the model.

use nicmodel::pcie::{self, TransactionKind, TransactionPurpose};
use nicmodel::profile::{Profile, builtin_profile};
use nicmodel::{
    Footprint, Operation, PayloadDestination, PostMethod, Transport, Verb, published, wqe,
};

fn nic(name: &str) -> &'static Profile {
    builtin_profile(name).expect("built in")
}

/// Returns the published value.
#[track_caller]
fn printed(id: &str) -> f64 {
    published::published_number_by_id(id)
        .expect("a published number")
        .value
}

/// Asserts that `ours` is the published number, to the last printed digit.
#[track_caller]
fn exact(id: &str, ours: f64) {
    assert_eq!(ours, printed(id), "{id}");
}

/// Asserts that `ours` rounds to the published number with its printed decimals.
#[track_caller]
fn rounds(id: &str, ours: f64, decimals: i32) {
    let scale = 10f64.powi(decimals);
    assert_eq!((ours * scale).round() / scale, printed(id), "{id}: {ours}");
}

fn postlist(nic_name: &str, operation: Operation, method: PostMethod, len: u32) -> Footprint {
    Footprint::of_postlist(nic(nic_name), &operation, method, len).expect("possible")
}

/// Returns a WRITE whose WQE has this number of bytes.
fn write_with_wqe(bytes: u32) -> Operation {
    Operation::new(Verb::RdmaWrite, Transport::Uc, bytes - 36).inlined()
}

#[test]
fn appendix_a() {
    let ten = |method| postlist("cib", write_with_wqe(65), method, 10);
    let mmio = ten(PostMethod::WqeByMmio);
    assert_eq!(mmio.wqe_bytes, 65);
    exact("appA_bytes_mmio", mmio.requester.bytes_to_device());
    assert_eq!(mmio.requester.mmio_writes(), 20.0);
    assert_eq!(mmio.requester.dma_reads_without_recv_wqes(), 0.0);
    let doorbell = ten(PostMethod::Doorbell);
    exact("appA_bytes_doorbell", doorbell.requester.bytes_to_device());
    assert_eq!(doorbell.requester.dma_reads_without_recv_wqes(), 1.0);
    exact("batch_mmio_count", doorbell.requester.mmio_writes());
    exact("appA_slot_bytes", f64::from(wqe::send_queue_slot_bytes(65)));
    let rings = doorbell.requester.transactions.iter();
    let ring = rings
        .into_iter()
        .find(|t| t.purpose == TransactionPurpose::Doorbell);
    exact("appA_doorbell_bytes", ring.expect("it rings").data_bytes);
}

#[test]
fn one_byte_over_a_cache_line_is_a_further_mmio_write() {
    let writes = |bytes| {
        let one = postlist("cib", write_with_wqe(bytes), PostMethod::WqeByMmio, 1);
        one.requester.mmio_writes()
    };
    exact("shrink_129_mmio", writes(129));
    exact("shrink_128_mmio", writes(128));
}

#[test]
fn wqe_headers_are_those_of_table_1() {
    let cib = nic("cib");
    for verb in [Verb::Send, Verb::RdmaWrite, Verb::RdmaRead] {
        exact(
            "wqe_hdr_rc",
            f64::from(wqe::header_bytes(cib, verb, Transport::Rc)),
        );
    }
    for verb in [Verb::Send, Verb::RdmaWrite] {
        exact(
            "wqe_hdr_uc",
            f64::from(wqe::header_bytes(cib, verb, Transport::Uc)),
        );
    }
    exact(
        "wqe_hdr_ud",
        f64::from(wqe::header_bytes(cib, Verb::Send, Transport::Ud)),
    );
    exact("wqe_hdr_recv", f64::from(cib.wqe.recv_bytes.value));
}

#[test]
fn wqe_sizes_and_thresholds() {
    let ud = |payload| Operation::new(Verb::Send, Transport::Ud, payload).inlined();
    let cib = nic("cib");
    let lines = |operation: Operation| f64::from(wqe::cache_line_count(operation.wqe_bytes(cib)));
    exact("wqe_ud_min_lines", lines(ud(1)));
    exact(
        "wqe_ud_ho_lines",
        lines(Operation::header_only(Transport::Ud)),
    );
    let most = |verb, transport, lines| {
        f64::from(wqe::max_inline_payload(cib, verb, transport, lines).expect("room"))
    };
    exact(
        "ud_send_2line_max_payload",
        most(Verb::Send, Transport::Ud, 2),
    );
    exact(
        "out_write_1line_max",
        most(Verb::RdmaWrite, Transport::Uc, 1),
    );
    assert_eq!(
        wqe::max_inline_payload(cib, Verb::Send, Transport::Ud, 1),
        None
    );
    assert_eq!((lines(ud(60)), lines(ud(61))), (2.0, 3.0));
    // Slide 18: 64 bytes of header, 4 of size, 8 of data, 52 unused.
    let header_only = Operation::header_only(Transport::Ud).wqe_bytes(cib);
    exact("wqe_slide18_header", f64::from(header_only));
    exact(
        "wqe_slide18_size",
        f64::from(cib.wqe.inline_size_bytes.value),
    );
    let response = ud(8).wqe_bytes(cib);
    exact(
        "wqe_slide18_unused",
        f64::from(wqe::send_queue_slot_bytes(response) - response),
    );
    exact(
        "seq_rpc_response_dma_bytes",
        f64::from(wqe::send_queue_slot_bytes(response)),
    );
    exact(
        "seq_spec_s0_response_dma_bytes",
        f64::from(wqe::send_queue_slot_bytes(header_only)),
    );
    exact("pcie_mmio_granule", f64::from(wqe::CACHE_LINE_BYTES));
    exact(
        "dpu_inline_limit",
        f64::from(nic("bf2").wqe.max_inline_bytes.value),
    );
}

#[test]
fn what_the_responder_does() {
    let responder =
        |operation: Operation| postlist("cx3", operation, PostMethod::WqeByMmio, 1).responder;
    let new = Operation::new;
    let read = responder(new(Verb::RdmaRead, Transport::Rc, 32));
    exact("responder_in_read", read.dma_reads_without_recv_wqes());
    assert_eq!(read.dma_writes(), 0.0);
    let write = responder(new(Verb::RdmaWrite, Transport::Uc, 32));
    exact("responder_in_write", write.dma_writes());
    assert_eq!(write.dma_reads_without_recv_wqes(), 0.0);
    let send = new(Verb::Send, Transport::Ud, 32);
    exact("ud_recv_dma_regular", responder(send).dma_writes());
    exact(
        "ud_recv_dma_inline",
        responder(send.with_recv_destination(PayloadDestination::Inline)).dma_writes(),
    );
    exact(
        "ud_recv_dma_ho",
        responder(Operation::header_only(Transport::Ud)).dma_writes(),
    );
    // An inline RECV that is too small for the payload, and a NIC that has none.
    let long = new(Verb::Send, Transport::Ud, 65).with_recv_destination(PayloadDestination::Inline);
    assert_eq!(responder(long).dma_writes(), 2.0);
    let on_cib = postlist(
        "cib",
        send.with_recv_destination(PayloadDestination::Inline),
        PostMethod::WqeByMmio,
        1,
    );
    assert_eq!(on_cib.responder.dma_writes(), 2.0);
    let atomic = postlist(
        "cib",
        new(Verb::AtomicFetchAndAdd, Transport::Rc, 8),
        PostMethod::WqeByMmio,
        1,
    );
    assert_eq!(atomic.responder.dma_reads_without_recv_wqes(), 1.0);
    assert_eq!(atomic.responder.dma_writes(), 1.0);
    assert_eq!(atomic.atomic_locks, 1.0);
}

/// Figures 5 and 13a: MMIO writes, DMA reads and DMA writes of the requester for each verb, inlined
/// or not, signaled or not, by MMIO and by doorbell.
#[test]
fn what_the_requester_does() {
    let cases = [
        // verb, transport, payload, DMA reads of payload when not inlined, DMA writes of a response
        (Verb::Send, Transport::Rc, 32, 1.0, 0.0),
        (Verb::Send, Transport::Uc, 32, 1.0, 0.0),
        (Verb::Send, Transport::Ud, 32, 1.0, 0.0),
        (Verb::RdmaWrite, Transport::Rc, 32, 1.0, 0.0),
        (Verb::RdmaWrite, Transport::Uc, 32, 1.0, 0.0),
        (Verb::RdmaRead, Transport::Rc, 32, 0.0, 1.0),
        (Verb::AtomicCmpAndSwp, Transport::Rc, 8, 0.0, 1.0),
        (Verb::AtomicFetchAndAdd, Transport::Rc, 8, 0.0, 1.0),
    ];
    let mut checked = 0;
    for (verb, transport, payload, fetches, placements) in cases {
        for inline in [false, true] {
            for signaled in [0.0, 1.0] {
                for len in [1, 16] {
                    let operation = Operation {
                        inline,
                        ..Operation::new(verb, transport, payload).with_signaled_fraction(signaled)
                    };
                    if inline && !verb.carries_payload_in_request() {
                        let refused = operation.check_executable(nic("cib"));
                        assert!(refused.is_err(), "{operation:?}");
                        continue;
                    }
                    let n = f64::from(len);
                    let lines = f64::from(wqe::cache_line_count(operation.wqe_bytes(nic("cib"))));
                    let payload_reads = if inline { 0.0 } else { n * fetches };
                    let mmio = postlist("cib", operation, PostMethod::WqeByMmio, len).requester;
                    assert_eq!(mmio.mmio_writes(), n * lines, "{operation:?}");
                    assert_eq!(mmio.doorbells(), 0.0, "{operation:?}");
                    assert_eq!(
                        mmio.dma_reads_without_recv_wqes(),
                        payload_reads,
                        "{operation:?}"
                    );
                    assert_eq!(
                        mmio.dma_writes(),
                        n * (placements + signaled),
                        "{operation:?}"
                    );
                    let rung = postlist("cib", operation, PostMethod::Doorbell, len).requester;
                    assert_eq!(rung.mmio_writes(), 1.0, "{operation:?}");
                    assert_eq!(rung.doorbells(), 1.0, "{operation:?}");
                    assert_eq!(
                        rung.dma_reads_without_recv_wqes(),
                        1.0 + payload_reads,
                        "{operation:?}"
                    );
                    assert_eq!(rung.dma_writes(), mmio.dma_writes(), "{operation:?}");
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, (5 * 2 + 3) * 2 * 2);
}

#[test]
fn older_nics_fetch_wqes_one_by_one() {
    let send = Operation::new(Verb::Send, Transport::Ud, 8).inlined();
    let reads = |name| {
        postlist(name, send, PostMethod::Doorbell, 16)
            .requester
            .dma_reads_without_recv_wqes()
    };
    assert_eq!((reads("cx"), reads("cx3"), reads("cib")), (16.0, 16.0, 1.0));
}

/// Section 5.2.1: bandwidths of the link.
#[test]
fn link_bandwidths() {
    let (cib, cx3, cx) = (nic("cib"), nic("cx3"), nic("cx"));
    rounds("ud_send_dma_bw", pcie::dma_read_mbytes_per_s(cib), 0);
    rounds("mmio_line_rate", pcie::max_mmio_line_mops(cib), 0);
    rounds(
        "ud_send_dma_bound",
        pcie::dma_read_mbytes_per_s(cib) / 128.0,
        0,
    );
    rounds("ud_send_mmio_bound", pcie::max_mmio_line_mops(cib) / 2.0, 1);
    rounds(
        "derived_cib_ho_dma_bound",
        pcie::dma_read_mbytes_per_s(cib) / 64.0,
        2,
    );
    rounds("derived_cx3_dma_bw", pcie::dma_read_mbytes_per_s(cx3), 2);
    rounds("derived_cx3_mmio_lines", pcie::max_mmio_line_mops(cx3), 2);
    rounds("derived_cx_dma_bw", pcie::dma_read_mbytes_per_s(cx), 2);
    rounds("derived_cx_mmio_lines", pcie::max_mmio_line_mops(cx), 2);
    rounds("derived_pcie3_Pbw", cib.pcie.lane_mbps.value, 3);
    exact("derived_pcie2_Pbw_cx", cx.pcie.lane_mbps.value);
    let headers = |profile: &Profile| {
        let pcie = &profile.pcie;
        let sizes = (&pcie.request_header_bytes, &pcie.completion_header_bytes);
        (f64::from(sizes.0.value), f64::from(sizes.1.value))
    };
    for pcie3 in [cib, cx3] {
        exact("derived_pcie3_Pr", headers(pcie3).0);
        exact("derived_pcie3_Pc", headers(pcie3).1);
    }
    exact("derived_pcie2_Pr", headers(cx).0);
    exact("derived_pcie2_Pc", headers(cx).1);
    exact("pcie_crc", f64::from(cib.pcie.read_completion_bytes.value));
}

/// Figure 2b: reading by DMA costs less than writing by MMIO, whatever the size.
#[test]
fn dma_beats_mmio_for_every_size() {
    let cib = nic("cib");
    for bytes in 1..=65_536 {
        let (dma, mmio) = (
            pcie::bytes_to_device_for_dma_read(cib, bytes),
            pcie::bytes_to_device_for_mmio_write(cib, bytes),
        );
        assert!(dma < mmio, "{bytes} bytes: {dma} by DMA, {mmio} by MMIO");
    }
    let ratio = pcie::bytes_to_device_for_mmio_write(cib, 65_536)
        / pcie::bytes_to_device_for_dma_read(cib, 65_536);
    assert_eq!(ratio, 1.2);
}

/// Checks that the doorbell costs more than MMIO for one WQE, and less for several.
#[test]
fn break_even_of_the_doorbell() {
    let bytes = |operation, method, len| {
        let list = postlist("cib", operation, method, len);
        list.requester.bytes_to_device()
    };
    let (mmio, doorbell) = (PostMethod::WqeByMmio, PostMethod::Doorbell);
    let one_line = write_with_wqe(64);
    let two_lines = write_with_wqe(128);
    assert_eq!(
        (bytes(one_line, mmio, 1), bytes(one_line, doorbell, 1)),
        (90.0, 120.0)
    );
    assert_eq!(
        (bytes(two_lines, mmio, 1), bytes(two_lines, doorbell, 1)),
        (180.0, 184.0)
    );
    assert_eq!(
        (bytes(one_line, mmio, 3), bytes(one_line, doorbell, 3)),
        (270.0, 270.0)
    );
    assert_eq!(
        (bytes(two_lines, mmio, 2), bytes(two_lines, doorbell, 2)),
        (360.0, 334.0)
    );
}

#[test]
fn counters_count_lines() {
    exact(
        "counter_split_read",
        f64::from(u32::try_from(wqe::cache_lines_touched(62, 4)).expect("few")),
    );
    assert_eq!(wqe::cache_lines_touched(60, 4), 1);
    assert_eq!(wqe::cache_lines_touched(0, 0), 0);
    let read = Operation::new(Verb::RdmaRead, Transport::Rc, 65);
    let footprint = postlist("cib", read, PostMethod::WqeByMmio, 1);
    assert_eq!(footprint.responder.cache_lines_read(), 2.0);
    assert_eq!(footprint.requester.cache_lines_written(), 2.0);
}

/// A SEND of 16 bytes into a RECV: all bytes of the link to the responder's host, by hand.
#[test]
fn bytes_to_the_responders_host() {
    let send = Operation::new(Verb::Send, Transport::Ud, 16).inlined();
    let responder = postlist("cib", send, PostMethod::WqeByMmio, 4).responder;
    // Four payloads and four CQEs with a header each, and one read request for four RECVs' WQEs.
    let expected = 4.0 * (16.0 + 26.0) + 4.0 * (64.0 + 26.0) + 26.0;
    assert_eq!(responder.bytes_to_host(), expected);
    assert_eq!(responder.recv_wqe_reads(), 1.0);
    assert_eq!(responder.bytes_to_device(), 64.0 + 22.0);
    assert_eq!(
        responder.bytes_to_device_of_kind(TransactionKind::MmioWrite),
        0.0
    );
}

#[test]
fn impossible_operations_are_refused_with_the_reason() {
    let refused = |operation: Operation, nic_name: &str, says: &str| {
        let result = Footprint::of_postlist(nic(nic_name), &operation, PostMethod::Doorbell, 1);
        let message = result.expect_err("impossible").to_string();
        assert!(message.contains(says), "{message}");
    };
    let new = Operation::new;
    refused(
        new(Verb::RdmaRead, Transport::Uc, 8),
        "cib",
        "UC does not carry READ (it carries SEND, WRITE)",
    );
    refused(
        new(Verb::RdmaWrite, Transport::Ud, 8),
        "cib",
        "UD does not carry WRITE",
    );
    refused(new(Verb::Send, Transport::Ud, 4097), "cib", "at most 4096");
    refused(
        new(Verb::Send, Transport::Rc, u32::MAX),
        "cib",
        "at most 2147483648",
    );
    refused(
        new(Verb::AtomicFetchAndAdd, Transport::Rc, 4),
        "cib",
        "works on 8 bytes, not on 4",
    );
    refused(
        new(Verb::RdmaRead, Transport::Rc, 8).inlined(),
        "cib",
        "could be inlined",
    );
    refused(
        new(Verb::Send, Transport::Ud, 237).inlined(),
        "bf2",
        "at most 236",
    );
    refused(
        new(Verb::RdmaRead, Transport::Rc, 8).with_imm(),
        "cib",
        "no immediate",
    );
    refused(
        new(Verb::Send, Transport::Ud, 8).with_signaled_fraction(1.5),
        "cib",
        "from 0 to 1",
    );
    refused(
        new(Verb::Send, Transport::Ud, 8).with_signaled_fraction(f64::NAN),
        "cib",
        "from 0 to 1",
    );
    let many = Operation {
        num_sge: 100,
        ..new(Verb::Send, Transport::Ud, 800)
    };
    refused(many, "cib", "longer than this NIC's longest, 1024");
    let none = Operation {
        num_sge: 0,
        ..new(Verb::Send, Transport::Ud, 8)
    };
    refused(none, "cib", "num_sge");
    let long = Footprint::of_postlist(
        nic("cib"),
        &new(Verb::Send, Transport::Ud, 8),
        PostMethod::Doorbell,
        0,
    );
    assert!(long.is_err());
}

/// Table 2 and related numbers.
#[test]
fn the_clusters() {
    for (name, signaling_over_data) in [
        ("cx", 10.0 / 8.0),
        ("cx3", 66.0 / 64.0),
        ("cib", 66.0 / 64.0),
    ] {
        let profile = nic(name);
        let id = |what: &str| format!("cluster_ru_{name}_{what}");
        exact(&id("ports"), f64::from(profile.port.count.value));
        exact(&id("lanes"), f64::from(profile.pcie.lanes.value));
        exact(&id("cores"), f64::from(profile.host.cores.value));
        exact(
            &id("ghz"),
            profile.host.clock_ghz.as_ref().expect("known").value,
        );
        // Nominal rates are those of the lines, before coding, and rounded down from 56.25.
        let nominal = (profile.port.gbps.value * signaling_over_data).floor();
        exact(&id("port_gbps"), nominal);
    }
    exact(
        "cluster_ru_cx_gtps",
        nic("cx").pcie.lane_mbps.value * 1e-3 * 8.0 * 10.0 / 8.0,
    );
    exact("pcie_max_lanes", f64::from(nic("cib").pcie.lanes.value));
    exact("dpu_link", nic("bf2").port.gbps.value);
    let window = |name| {
        let window = nic(name).cache.read_window.as_ref();
        f64::from(window.expect("known").value)
    };
    exact("out_read_best_window_cx3", window("cx3"));
    exact("out_read_best_window_cib", window("cib"));
    let threads = nic("cib").cache.read_window_threads.as_ref();
    exact(
        "out_fig13_threads",
        f64::from(threads.expect("known").value),
    );
    let bits = nic("cib").atomics.lock_bits.as_ref();
    exact("atomics_cib_lsb", f64::from(bits.expect("known").value));
    let inline = nic("cx3").wqe.inline_recv_bytes.as_ref();
    exact(
        "ud_recv_inline_limit",
        f64::from(inline.expect("known").value),
    );
}

#[test]
fn headers_and_link_layer_packets() {
    // The printed range of headers: completions of PCIe 2.0 to requests of PCIe 3.0.
    exact(
        "pcie_hdr_lo",
        f64::from(nic("cx").pcie.completion_header_bytes.value),
    );
    exact(
        "pcie_hdr_hi",
        f64::from(nic("cib").pcie.request_header_bytes.value),
    );
    // Two packets of 8 bytes for four to five transactions, less than 5 % of MMIO writes.
    let link_layer = nic("cib").pcie.link_layer_bytes_per_tlp.value;
    let packets = printed("appA_ll_packets") * printed("appA_ll_bytes");
    assert!((packets / 5.0..=packets / 4.0).contains(&link_layer));
    assert!(link_layer / 90.0 < printed("appA_ll_overhead") / 100.0);
}

/// An immediate costs only its 4 bytes on the wire; a WRITE's immediate also causes a completion.
#[test]
fn immediates() {
    let write = Operation::new(Verb::RdmaWrite, Transport::Uc, 8).inlined();
    let of = |operation| postlist("cib", operation, PostMethod::WqeByMmio, 1);
    let (plain, imm) = (of(write), of(write.with_imm()));
    assert_eq!(imm.requester, plain.requester);
    let wire = imm.network_packets.to_responder.bytes_without_gaps
        - plain.network_packets.to_responder.bytes_without_gaps;
    exact("seq_imm_bytes", wire);
    exact("gen_imm_app_bytes", wire);
    assert_eq!(
        (plain.responder.dma_writes(), imm.responder.dma_writes()),
        (1.0, 2.0)
    );
    assert_eq!(
        (
            plain.responder.recv_wqe_reads(),
            imm.responder.recv_wqe_reads()
        ),
        (0.0, 0.25)
    );
}
