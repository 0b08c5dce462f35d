//! Tests of queue pair creation.

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::objects::{Context, QpInitAttr};
use crate::pair::QpSpec;

tests! { "qp";
    fields_say_how_it_was_created [],
    sizes_are_at_least_what_was_asked_for [],
    sizes_of_zero_are_fine [],
    numbers_differ_and_are_no_special_ones [],
    numbers_of_living_queue_pairs_are_unique [],
    unknown_types_are_refused [],
    more_than_the_device_has_is_refused [],
    huge_queue_sizes_are_refused [],
    missing_cqs_are_refused [ArgumentChecks],
    a_refused_creation_leaves_nothing_behind [],
    a_thousand_queue_pairs [],
    create_and_destroy_many_times [],
    more_than_max_qp_can_be_created_in_turn [],
    thousands_of_connected_pairs [],
    max_qp_queue_pairs_can_be_created [],
}

fn fields_say_how_it_was_created(env: &TestEnv) {
    let mut types = vec![IBV_QPT_RC];
    if env.expects_capability(NicCapability::Uc) {
        types.push(IBV_QPT_UC);
    }
    if env.expects_capability(NicCapability::Ud) {
        types.push(IBV_QPT_UD);
    }
    for qp_type in types {
        record_case(format!("QP type {qp_type}"));
        let ctx = Context::open(env);
        let (pd, send_cq, recv_cq) = (ctx.alloc_pd(), ctx.create_cq(32), ctx.create_cq(32));
        let mut init = QpInitAttr::new(qp_type, &send_cq, &recv_cq);
        pd.create_qp(&mut init).assert_creation_fields(&pd, &init);
        if env.expects_capability(NicCapability::Srq) {
            init.srq = Some(pd.create_srq());
            pd.create_qp(&mut init).assert_creation_fields(&pd, &init);
        }
    }
}

fn sizes_are_at_least_what_was_asked_for(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    let device = ctx.device_attr();
    for (wrs, sges) in [(1, 1), (2, 2), (3, 1), (17, 3), (1000, 4), (100, device.max_sge.cast_unsigned())] {
        record_case(format!("{wrs} WRs of {sges} SGEs"));
        let mut init = QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
        init.cap.max_send_wr = wrs;
        init.cap.max_recv_wr = wrs;
        // Some devices gather fewer SGEs than they scatter.
        init.cap.max_send_sge = sges.min(4);
        init.cap.max_recv_sge = sges;
        let asked = init.cap;
        let qp = pd.create_qp(&mut init);
        assert!(init.cap.max_send_wr >= asked.max_send_wr && init.cap.max_recv_wr >= asked.max_recv_wr);
        assert!(init.cap.max_send_sge >= asked.max_send_sge);
        assert!(init.cap.max_recv_sge >= asked.max_recv_sge);
        let queried = qp.query().1.cap;
        assert_eq!(queried.max_send_wr, init.cap.max_send_wr);
        assert_eq!(queried.max_recv_wr, init.cap.max_recv_wr);
        assert_eq!(queried.max_inline_data, init.cap.max_inline_data);
    }
}

fn sizes_of_zero_are_fine(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    let mut init = QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
    (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    drop(pd.create_qp(&mut init));
    let mut init = QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
    (init.cap.max_send_wr, init.cap.max_send_sge) = (0, 0);
    drop(pd.create_qp(&mut init));
}

/// IBTA vol. 1, 3.5.10: QP numbers have 24 bits; 0 and 1 are the management QPs, and all ones is
/// multicast.
fn numbers_differ_and_are_no_special_ones(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    let qps: Vec<_> = (0..50).map(|_| pd.create_qp(&mut QpInitAttr::new(IBV_QPT_RC, &cq, &cq))).collect();
    for qp in &qps {
        assert!((2..0x00ff_ffff).contains(&qp.qpn()), "QP number {:#x}", qp.qpn());
    }
}

fn numbers_of_living_queue_pairs_are_unique(env: &TestEnv) {
    let sides: Vec<_> = (0..4).map(|_| QpSpec::rc().create_qp_side(env)).collect();
    let mut siblings = Vec::new();
    for round in 0..200usize {
        siblings.push(sides[round % 4].create_side_on_same_pd_and_cqs());
        if round % 3 == 0 {
            siblings.swap_remove(round * 7 % siblings.len());
        }
        let mut numbers: Vec<u32> =
            sides.iter().chain(&siblings).map(|side| side.qp.qpn()).collect();
        numbers.sort_unstable();
        let all = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), all, "a number twice");
    }
}

fn unknown_types_are_refused(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    for qp_type in [0, 1, 7, 99, u32::MAX] {
        record_case(format!("QP type {qp_type}"));
        let refused = pd.try_create_qp(&mut QpInitAttr::new(qp_type, &cq, &cq)).err();
        let allowed = [Some(libc::EINVAL), Some(libc::EOPNOTSUPP), Some(libc::ENOSYS)];
        assert!(allowed.contains(&refused), "{refused:?}");
    }
}

type CapacityChange = fn(&mut ibv_qp_cap, &ibv_device_attr);

fn expect_creation_refused(env: &TestEnv, what: &str, change: CapacityChange) {
    record_case(what);
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    let mut init = QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
    change(&mut init.cap, &ctx.device_attr());
    let errno = pd.try_create_qp(&mut init).err();
    assert!([Some(libc::EINVAL), Some(libc::ENOMEM)].contains(&errno), "{errno:?}");
}

/// `ibv_create_qp(3)`: "will fail if the requested values are larger than the device supports".
fn more_than_the_device_has_is_refused(env: &TestEnv) {
    let changes: [(&str, CapacityChange); 5] = [
        ("max_send_wr", |cap, d| cap.max_send_wr = d.max_qp_wr.cast_unsigned() + 1),
        ("max_recv_wr", |cap, d| cap.max_recv_wr = d.max_qp_wr.cast_unsigned() + 1),
        ("max_send_sge", |cap, d| cap.max_send_sge = d.max_sge.cast_unsigned() + 1),
        ("max_recv_sge", |cap, d| cap.max_recv_sge = d.max_sge.cast_unsigned() + 1),
        ("max_inline_data", |cap, _| cap.max_inline_data = 1 << 20),
    ];
    for (what, change) in changes {
        expect_creation_refused(env, what, change);
    }
}

fn huge_queue_sizes_are_refused(env: &TestEnv) {
    let changes: [(&str, CapacityChange); 5] = [
        ("max_send_wr", |cap, _| cap.max_send_wr = u32::MAX),
        ("max_recv_wr", |cap, _| cap.max_recv_wr = u32::MAX),
        ("max_send_sge", |cap, _| cap.max_send_sge = u32::MAX),
        ("max_recv_sge", |cap, _| cap.max_recv_sge = 1 << 31),
        ("max_inline_data", |cap, _| cap.max_inline_data = u32::MAX),
    ];
    for (what, change) in changes {
        expect_creation_refused(env, what, change);
    }
}

fn missing_cqs_are_refused(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    for send in [true, false] {
        assert!(pd.try_create_qp_with_null_cq(&QpInitAttr::new(IBV_QPT_RC, &cq, &cq), send).is_none());
    }
}

fn a_refused_creation_leaves_nothing_behind(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    for _ in 0..10 {
        let mut init = QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
        init.cap.max_send_sge = u32::MAX;
        assert!(pd.try_create_qp(&mut init).is_err());
    }
    assert_eq!(cq.try_destroy(), 0);
    assert_eq!(pd.try_destroy(), 0);
}

fn a_thousand_queue_pairs(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(32));
    let mut qps = Vec::new();
    for _ in 0..1000 {
        qps.push(pd.create_qp(&mut QpInitAttr::new(IBV_QPT_RC, &cq, &cq)));
    }
    let mut numbers: Vec<u32> = qps.iter().map(|qp| qp.qpn()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 1000);
}

fn create_and_destroy_many_times(env: &TestEnv) {
    let first = QpSpec::rc().create_connected_pair(env);
    for _ in 0..500 {
        let mut pair = crate::pair::QpPair {
            a: first.a.create_side_on_same_pd_and_cqs(),
            b: first.b.create_side_on_same_pd_and_cqs(),
        };
        pair.connect();
    }
    first.check_transfers_both_ways();
}

/// QP numbers and other resources of a destroyed QP are reused.
fn more_than_max_qp_can_be_created_in_turn(env: &TestEnv) {
    let first = QpSpec::rc().create_qp_side(env);
    let most = first.ctx.device_attr().max_qp.min(20_000);
    for _ in 0..=most {
        drop(first.create_side_on_same_pd_and_cqs());
    }
}

/// All pairs are connected before any CQ is polled.
fn thousands_of_connected_pairs(env: &TestEnv) {
    let spec = QpSpec::rc().with_change(|s| {
        (s.max_send_wr, s.max_recv_wr, s.max_send_sge, s.max_recv_sge) = (4, 4, 1, 1);
        s.cqe = 4096;
    });
    let (a, b) = (spec.create_qp_side(env), spec.create_qp_side(env));
    let count = (a.ctx.device_attr().max_qp / 3).min(3000);
    let pairs: Vec<_> = (0..count)
        .map(|_| {
            let mut pair = crate::pair::QpPair {
                a: a.create_side_on_same_pd_and_cqs(),
                b: b.create_side_on_same_pd_and_cqs(),
            };
            pair.connect();
            pair
        })
        .collect();
    for (i, pair) in pairs.iter().enumerate() {
        pair.b.post_recv(i as u64, []);
        pair.a.post(crate::wr::send([]).with_id(i as u64));
    }
    let mut heard = vec![false; pairs.len()];
    for wc in b.rcq.wait_for_completions(pairs.len()) {
        let i = usize::try_from(wc.id()).expect("small");
        wc.expect_received(i as u64, 0);
        assert_eq!(wc.qpn(), pairs[i].b.qp.qpn());
        assert!(!std::mem::replace(&mut heard[i], true), "twice");
    }
    assert!(a.scq.wait_for_completions(pairs.len()).iter().all(|wc| wc.status() == 0));
}

/// Creates `max_qp` queue pairs if that number is feasible; another creation must return an error and
/// must not crash.
fn max_qp_queue_pairs_can_be_created(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(8));
    let most = ctx.device_attr().max_qp;
    if most > 20_000 {
        return;
    }
    let init = || {
        let mut init = QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
        init.cap = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        init
    };
    // Other programs may have queue pairs, too.
    let mut qps = Vec::new();
    let errno = loop {
        match pd.try_create_qp(&mut init()) {
            Ok(qp) => qps.push(qp),
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, libc::ENOMEM);
    assert!(qps.len() * 10 > usize::try_from(most).expect("positive") * 9, "only {}", qps.len());
    drop(qps.pop());
    drop(pd.try_create_qp(&mut init()).expect("one has gone"));
}
