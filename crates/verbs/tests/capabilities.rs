//! Tests devices that lack capabilities, and queue pairs on devices without inline payload.

mod limited;

use std::time::Duration;

use verbs::{
    Access, Capability, Context, MaxInlineBytes, Provider, Rc, Ud, WcBuffer, WcStatus, poll_until,
};

fn open(provider: Provider) -> Context {
    provider
        .device(None)
        .expect("a device")
        .open()
        .expect("the software NIC opens")
}

fn lacks(context: &Context) -> Vec<Capability> {
    let found = context.capabilities().expect("found out");
    found
        .missing_capabilities
        .iter()
        .map(|lack| lack.capability)
        .collect()
}

#[test]
fn a_refused_transport_is_a_lack_with_the_refusal_as_its_reason() {
    let context = open(limited::without_uc());
    assert_eq!(lacks(&context), [Capability::Uc]);
    let found = context.capabilities().expect("found out");
    assert_eq!(
        (found.provider_name, found.device_name.as_str()),
        ("without-uc", "softnic0")
    );
    assert_eq!(
        found.reason_missing(Capability::Uc),
        Some("ibv_create_qp failed: Operation not supported (os error 95)")
    );
    assert_eq!(found.reason_missing(Capability::Rc), None);
    let MaxInlineBytes { rc, uc, ud } = found.max_inline_bytes;
    assert!(rc > 0 && uc == 0 && ud > 0);
    let needs = [Capability::Ud, Capability::Uc, Capability::Immediates];
    assert_eq!(found.missing_of(&needs), found.missing_capabilities);
    assert_eq!(found.missing_of(&needs[..1]), []);
}

#[test]
fn atomics_are_what_the_device_says_they_are() {
    let context = open(limited::without_atomics());
    assert_eq!(lacks(&context), [Capability::Atomics]);
    let why = context.capabilities().expect("found out");
    assert_eq!(
        why.reason_missing(Capability::Atomics),
        Some("ibv_query_device says atomic_cap none")
    );
}

#[test]
fn what_stands_on_rc_falls_with_it() {
    let context = open(limited::only_datagrams());
    let all_but = [Capability::Ud, Capability::Immediates];
    // No probe determines the last four.
    let expected: Vec<_> = Capability::ALL[..8]
        .iter()
        .copied()
        .filter(|c| !all_but.contains(c))
        .collect();
    assert_eq!(lacks(&context), expected);
    let found = context.capabilities().expect("found out");
    assert_eq!(
        found.reason_missing(Capability::Atomics),
        Some("there is no RC")
    );
    let events = found
        .reason_missing(Capability::CompletionEvents)
        .unwrap_or("");
    assert!(
        events.starts_with("ibv_create_comp_channel failed"),
        "{events}"
    );
}

#[test]
fn want_of_memory_is_no_lack_of_the_device() {
    let context = open(limited::out_of_memory());
    let error = context
        .capabilities()
        .expect_err("nothing can be found out");
    assert_eq!(error.errno(), libc::ENOMEM);
}

#[test]
fn inline_payload_is_none_of_what_a_device_lacks_but_a_number() {
    for (provider, bytes) in [
        (limited::without_inline(), 0),
        (limited::grants_8_inline(), 8),
    ] {
        let context = open(provider);
        assert_eq!(lacks(&context), []);
        let found = context.capabilities().expect("found out");
        let MaxInlineBytes { rc, uc, ud } = found.max_inline_bytes;
        assert_eq!([rc, uc, ud], [bytes; 3], "{}", found.provider_name);
    }
}

#[test]
fn a_queue_pair_that_asks_for_what_would_be_good_to_have_gets_what_there_is() {
    for (provider, bytes) in [
        (limited::without_inline(), 0),
        (limited::grants_8_inline(), 8),
    ] {
        let context = open(provider);
        let (pd, cq) = (
            context.alloc_pd().expect("a PD"),
            context.create_cq(16).expect("a CQ"),
        );
        let qp = pd
            .qp_builder::<Ud>(&cq, &cq)
            .build()
            .expect("64 bytes are only a wish");
        assert_eq!(qp.max_inline_data(), bytes);
        assert_eq!(
            qp.max_send_wr() % 128,
            0,
            "{}: the other wishes hold",
            qp.max_send_wr()
        );
        let qp = pd
            .qp_builder::<Ud>(&cq, &cq)
            .max_inline_data_if_supported(16)
            .build()
            .expect("so are 16");
        assert_eq!(qp.max_inline_data(), bytes);
        let error = pd.qp_builder::<Ud>(&cq, &cq).max_inline_data(16).build();
        let error = error.expect_err("these 16 are demanded").to_string();
        assert!(error.starts_with("ibv_create_qp failed: "), "{error}");
    }
    let context = open(limited::without_uc());
    let (pd, cq) = (
        context.alloc_pd().expect("a PD"),
        context.create_cq(16).expect("a CQ"),
    );
    let error = pd
        .qp_builder::<verbs::Uc>(&cq, &cq)
        .build()
        .expect_err("no UC");
    assert_eq!(
        error.errno(),
        libc::EOPNOTSUPP,
        "the first refusal is what counts"
    );
}

#[test]
fn messages_go_without_inline_payload() {
    let context = open(limited::without_inline());
    let (pd, cq) = (
        context.alloc_pd().expect("a PD"),
        context.create_cq(16).expect("a CQ"),
    );
    let build = || pd.qp_builder::<Rc>(&cq, &cq).build().expect("a queue pair");
    let (a, b) = (build(), build());
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (a, _b) = (
        a.connect(&to_b).expect("connects"),
        b.connect(&to_a).expect("connects"),
    );
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (from, to) = (
        pd.alloc(64, access).expect("memory"),
        pd.alloc(64, access).expect("memory"),
    );
    from.write_at(8, b"registered").expect("inside");
    let part = from.slice(8..18).expect("inside");
    a.post_one(|list| {
        list.rdma_write(part, to.remote()).signaled();
    })
    .expect("posts");
    let mut buffer = WcBuffer::<4>::new();
    let status = poll_until(Duration::from_secs(60), || {
        let mut polled = cq.poll(&mut buffer).expect("a good CQ");
        polled
            .next()
            .map(|wc| wc.map_or_else(|e| e.status(), |_| WcStatus::Success))
    });
    assert_eq!(status, Some(WcStatus::Success));
    let mut got = [0; 10];
    to.read_at(0, &mut got).expect("inside");
    assert_eq!(&got, b"registered");
}
