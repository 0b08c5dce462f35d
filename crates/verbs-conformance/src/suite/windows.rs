//! Tests of memory windows of both types: bind, access through a window, and all ways to end this access.

use verbs_abi::*;

use crate::TestEnv;
use crate::harness::record_case;
use crate::memory::MemKind;
use crate::objects::{ALL_ACCESS, Buf};
use crate::pair::{QpPair, QpSide, QpSpec};
use crate::memory_window::{BufferPart, MemoryWindow, inc_rkey, local_inv, send_inv, remote_address_in_window};
use crate::wr::{RemoteAddress, Verb, fetch_add, read, send, write};

tests! { "windows";
    a_window_of_type_1_gives_access_until_it_is_rebound [Windows],
    binding_zero_bytes_unbinds_a_type_1_window [Windows],
    a_window_of_type_2_is_for_the_queue_pair_that_bound_it [Windows],
    a_window_gives_only_what_was_bound [Windows],
    a_zero_based_window_counts_from_its_start [Windows],
    local_invalidation_ends_access [Windows],
    remote_invalidation_ends_access_and_is_in_the_wc [Windows],
    deallocation_ends_access [Windows],
    a_region_with_a_bound_window_is_busy [Windows],
    binds_that_break_a_rule_fail [Windows],
    a_key_that_cannot_be_invalidated_fails_the_work_request [Windows],
    a_remote_invalidation_of_a_foreign_key_fails_both_sides [Windows],
    a_window_is_no_l_key [Windows],
    atomics_go_through_windows [Windows, Atomics],
}

const BUFFER_BYTES: usize = 4096;
const BINDABLE_ACCESS: i32 = ALL_ACCESS | IBV_ACCESS_MW_BIND;
const WRITE_ACCESS: i32 = IBV_ACCESS_REMOTE_WRITE;

fn bindable_buffer(side: &QpSide) -> Buf {
    side.alloc_buf_with_access(BUFFER_BYTES, BINDABLE_ACCESS)
}

fn middle_part(buf: &Buf, access: i32) -> BufferPart<'_> {
    BufferPart { buf, offset: 64, len: 128, access }
}

/// Binds a window of type 2 on `side`, and returns its key.
fn bind_type_2(side: &QpSide, window: &MemoryWindow, part: &BufferPart<'_>) -> u32 {
    let rkey = inc_rkey(window.rkey());
    side.post(window.bind_wr(rkey, part).with_id(90));
    side.await_send_completion().expect_success(90, IBV_WC_BIND_MW);
    rkey
}

/// Checks that `a` can write 8 bytes through a window of `b`.
#[track_caller]
fn write_and_expect_arrival(pair: &QpPair, to: RemoteAddress, buf: &Buf, value: u64) {
    let source = pair.a.alloc_buf(8);
    source.memory.store(0, value);
    pair.a.post(write([source.whole_sge()], to).with_id(value));
    pair.a.await_send_completion().expect_sent(value, Verb::RdmaWrite);
    let at = usize::try_from(to.addr - buf.memory.addr()).expect("an offset");
    assert_eq!(buf.memory.load(at), value);
}

/// Checks that a WRITE of `a` to `to` is refused; the refusal ends the connection of the pair.
#[track_caller]
fn write_and_expect_refusal(pair: &QpPair, to: RemoteAddress) {
    let source = pair.a.alloc_buf(8);
    pair.a.post(write([source.whole_sge()], to).with_id(77));
    pair.a.await_send_completion().expect_failed(77, &[IBV_WC_REM_ACCESS_ERR]);
}

fn a_window_of_type_1_gives_access_until_it_is_rebound(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let (buf, other) = (bindable_buffer(&pair.b), bindable_buffer(&pair.b));
        let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_1);
        let first = middle_part(&buf, WRITE_ACCESS);
        window.bind_type_1(&pair.b.qp, 1, &first).expect("ibv_bind_mw");
        pair.b.await_send_completion().expect_success(1, IBV_WC_BIND_MW);
        let old = window.rkey();
        write_and_expect_arrival(&pair, remote_address_in_window(old, &first, 8), &buf, 5);
        let second = middle_part(&other, WRITE_ACCESS);
        window.bind_type_1(&pair.b.qp, 2, &second).expect("ibv_bind_mw");
        pair.b.await_send_completion().expect_success(2, IBV_WC_BIND_MW);
        assert_ne!(window.rkey(), old);
        write_and_expect_arrival(&pair, remote_address_in_window(window.rkey(), &second, 8), &other, 6);
        write_and_expect_refusal(&pair, remote_address_in_window(old, &first, 8));
        assert_eq!(buf.memory.load(72), 5);
    }
}

fn binding_zero_bytes_unbinds_a_type_1_window(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_1);
    let bound = middle_part(&buf, WRITE_ACCESS);
    window.bind_type_1(&pair.b.qp, 1, &bound).expect("ibv_bind_mw");
    pair.b.await_send_completion().expect_success(1, IBV_WC_BIND_MW);
    write_and_expect_arrival(&pair, remote_address_in_window(window.rkey(), &bound, 0), &buf, 5);
    let key = window.rkey();
    window.bind_type_1(&pair.b.qp, 2, &BufferPart { len: 0, ..bound }).expect("ibv_bind_mw");
    pair.b.await_send_completion().expect_success(2, IBV_WC_BIND_MW);
    write_and_expect_refusal(&pair, remote_address_in_window(key, &bound, 0));
}

fn a_window_of_type_2_is_for_the_queue_pair_that_bound_it(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = middle_part(&buf, WRITE_ACCESS);
    let key = bind_type_2(&pair.b, &window, &bound);
    write_and_expect_arrival(&pair, remote_address_in_window(key, &bound, 0), &buf, 5);
    // `other` is another connection to the same protection domain.
    let mut other = QpPair { a: pair.a.create_side_on_same_pd_and_cqs(), b: pair.b.create_side_on_same_pd_and_cqs() };
    other.connect();
    write_and_expect_refusal(&other, remote_address_in_window(key, &bound, 0));
    assert_eq!(buf.memory.load(64), 5);
    write_and_expect_arrival(&pair, remote_address_in_window(key, &bound, 0), &buf, 6);
}

fn a_window_gives_only_what_was_bound(env: &TestEnv) {
    for (what, access, offset, len, verb) in [
        ("before", WRITE_ACCESS, -8, 8, Verb::RdmaWrite),
        ("behind", WRITE_ACCESS, 128, 8, Verb::RdmaWrite),
        ("across the end", WRITE_ACCESS, 124, 8, Verb::RdmaWrite),
        ("read", WRITE_ACCESS, 0, 8, Verb::RdmaRead),
        ("write", IBV_ACCESS_REMOTE_READ, 0, 8, Verb::RdmaWrite),
    ] {
        record_case(what.to_owned());
        let pair = QpSpec::rc().create_connected_pair(env);
        let buf = bindable_buffer(&pair.b);
        let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
        let bound = middle_part(&buf, access);
        let key = bind_type_2(&pair.b, &window, &bound);
        let local = pair.a.alloc_buf(len);
        let start = remote_address_in_window(key, &bound, 0);
        let to = RemoteAddress {
            addr: start.addr.wrapping_add_signed(offset),
            ..start
        };
        let wr = if verb == Verb::RdmaRead {
            read([local.whole_sge()], to)
        } else {
            write([local.whole_sge()], to)
        };
        pair.a.post(wr.with_id(3));
        pair.a.await_send_completion().expect_failed(3, &[IBV_WC_REM_ACCESS_ERR]);
    }
}

fn a_zero_based_window_counts_from_its_start(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = middle_part(&buf, WRITE_ACCESS | IBV_ACCESS_ZERO_BASED);
    let rkey = bind_type_2(&pair.b, &window, &bound);
    let source = pair.a.alloc_buf(8);
    source.memory.store(0, 9);
    pair.a.post(write([source.whole_sge()], RemoteAddress { addr: 16, rkey }).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    assert_eq!(buf.memory.load(64 + 16), 9);
}

fn local_invalidation_ends_access(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = middle_part(&buf, WRITE_ACCESS);
    let key = bind_type_2(&pair.b, &window, &bound);
    write_and_expect_arrival(&pair, remote_address_in_window(key, &bound, 0), &buf, 5);
    pair.b.post(local_inv(key).with_id(4));
    pair.b.await_send_completion().expect_success(4, IBV_WC_LOCAL_INV);
    // The window can be bound again, under the next key.
    let next = inc_rkey(key);
    pair.b.post(window.bind_wr(next, &bound).with_id(5));
    pair.b.await_send_completion().expect_success(5, IBV_WC_BIND_MW);
    write_and_expect_arrival(&pair, remote_address_in_window(next, &bound, 0), &buf, 6);
    write_and_expect_refusal(&pair, remote_address_in_window(key, &bound, 0));
}

fn remote_invalidation_ends_access_and_is_in_the_wc(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = middle_part(&buf, WRITE_ACCESS);
    let key = bind_type_2(&pair.b, &window, &bound);
    write_and_expect_arrival(&pair, remote_address_in_window(key, &bound, 0), &buf, 5);
    let (source, target) = (pair.a.alloc_buf(32), pair.b.alloc_buf(32));
    source.memory.fill_with_pattern(3);
    pair.b.post_recv(8, [target.whole_sge()]);
    pair.a.post(send_inv([source.whole_sge()], key).with_id(7));
    pair.a.await_send_completion().expect_sent(7, Verb::Send);
    let wc = pair.b.await_recv_completion();
    wc.expect_received(8, 32);
    assert_eq!(wc.imm(), None);
    assert_eq!(wc.invalidated_rkey(), Some(key));
    target.memory.assert_pattern_at(0, 32, 3);
    write_and_expect_refusal(&pair, remote_address_in_window(key, &bound, 0));
}

fn deallocation_ends_access(env: &TestEnv) {
    for mw_type in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
        record_case(format!("type {mw_type}"));
        let pair = QpSpec::rc().create_connected_pair(env);
        let buf = bindable_buffer(&pair.b);
        let window = MemoryWindow::new(&pair.b.pd, mw_type);
        let bound = middle_part(&buf, WRITE_ACCESS);
        let key = if mw_type == IBV_MW_TYPE_1 {
            window.bind_type_1(&pair.b.qp, 1, &bound).expect("ibv_bind_mw");
            pair.b.await_send_completion().expect_success(1, IBV_WC_BIND_MW);
            window.rkey()
        } else {
            bind_type_2(&pair.b, &window, &bound)
        };
        write_and_expect_arrival(&pair, remote_address_in_window(key, &bound, 0), &buf, 5);
        assert_eq!(pair.b.pd.try_destroy(), libc::EBUSY);
        drop(window);
        write_and_expect_refusal(&pair, remote_address_in_window(key, &bound, 0));
    }
}

/// `ibv_dereg_mr(3)`: deregistering a region "fails if any memory window is still bound to this MR".
fn a_region_with_a_bound_window_is_busy(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
    let key = bind_type_2(&pair.b, &window, &middle_part(&buf, WRITE_ACCESS));
    assert_eq!(buf.mr.try_destroy(), libc::EBUSY);
    pair.b.post(local_inv(key).with_id(4));
    pair.b.await_send_completion().expect_success(4, IBV_WC_LOCAL_INV);
    assert_eq!(buf.mr.try_destroy(), 0);
}

fn binds_that_break_a_rule_fail(env: &TestEnv) {
    type Broken = fn(&QpSide, &MemoryWindow) -> (Buf, i32, u32, u64);
    let broken: [(&str, Broken); 6] = [
        ("the region does not allow it", |s, w| {
            (s.alloc_buf_with_access(BUFFER_BYTES, ALL_ACCESS), WRITE_ACCESS, inc_rkey(w.rkey()), 128)
        }),
        ("the region has no local write", |s, w| {
            (s.alloc_buf_with_access(BUFFER_BYTES, IBV_ACCESS_MW_BIND), WRITE_ACCESS, inc_rkey(w.rkey()), 128)
        }),
        ("beyond the region", |s, w| (bindable_buffer(s), WRITE_ACCESS, inc_rkey(w.rkey()), BUFFER_BYTES as u64)),
        ("no length", |s, w| (bindable_buffer(s), WRITE_ACCESS, inc_rkey(w.rkey()), 0)),
        ("a key of its own choice", |s, w| (bindable_buffer(s), WRITE_ACCESS, w.rkey() ^ 0x1_0000, 128)),
        ("another protection domain", |s, w| {
            (s.ctx.alloc_pd().alloc_buf_of_kind(MemKind::Private, BUFFER_BYTES, BINDABLE_ACCESS), WRITE_ACCESS, inc_rkey(w.rkey()), 128)
        }),
    ];
    for (what, make) in broken {
        record_case(what.to_owned());
        let pair = QpSpec::rc().create_connected_pair(env);
        let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
        let (buf, access, key, len) = make(&pair.b, &window);
        let part = BufferPart { len, ..middle_part(&buf, access) };
        pair.b.post(window.bind_wr(key, &part).with_id(6));
        pair.b.await_send_completion().expect_failed(6, &[IBV_WC_MW_BIND_ERR]);
        pair.b.qp.await_state(IBV_QPS_ERR);
    }
    record_case("bound already".to_owned());
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
    let key = bind_type_2(&pair.b, &window, &middle_part(&buf, WRITE_ACCESS));
    pair.b.post(window.bind_wr(inc_rkey(key), &middle_part(&buf, WRITE_ACCESS)).with_id(6));
    pair.b.await_send_completion().expect_failed(6, &[IBV_WC_MW_BIND_ERR]);
}

fn a_key_that_cannot_be_invalidated_fails_the_work_request(env: &TestEnv) {
    for what in ["nobody's", "a region's", "a window's of type 1", "another queue pair's"] {
        record_case(what.to_owned());
        let pair = QpSpec::rc().create_connected_pair(env);
        let buf = bindable_buffer(&pair.b);
        let one = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_1);
        one.bind_type_1(&pair.b.qp, 1, &middle_part(&buf, WRITE_ACCESS)).expect("ibv_bind_mw");
        pair.b.await_send_completion().expect_success(1, IBV_WC_BIND_MW);
        let two = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
        let bound = middle_part(&buf, WRITE_ACCESS);
        let key = bind_type_2(&pair.b, &two, &bound);
        let mut other = QpPair { a: pair.a.create_side_on_same_pd_and_cqs(), b: pair.b.create_side_on_same_pd_and_cqs() };
        other.connect();
        let victim = match what {
            "nobody's" => inc_rkey(key),
            "a region's" => buf.mr.rkey(),
            "a window's of type 1" => one.rkey(),
            _ => key,
        };
        other.b.post(local_inv(victim).with_id(4));
        other.b.await_send_completion().expect_failed(4, &[IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR]);
        // All other keys are still valid.
        write_and_expect_arrival(&pair, remote_address_in_window(key, &bound, 0), &buf, 5);
        write_and_expect_arrival(&pair, remote_address_in_window(one.rkey(), &bound, 0), &buf, 6);
        write_and_expect_arrival(&pair, buf.remote_address().plus(8), &buf, 7);
    }
}

fn a_remote_invalidation_of_a_foreign_key_fails_both_sides(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.b);
    let (source, target) = (pair.a.alloc_buf(8), pair.b.alloc_buf(8));
    pair.b.post_recv(8, [target.whole_sge()]);
    pair.a.post(send_inv([source.whole_sge()], buf.mr.rkey()).with_id(7));
    pair.b.await_recv_completion().expect_failed(8, &[IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR]);
    pair.a.await_send_completion().expect_failed(
        7,
        &[IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR],
    );
    pair.b.qp.await_state(IBV_QPS_ERR);
}

fn a_window_is_no_l_key(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = bindable_buffer(&pair.a);
    let window = MemoryWindow::new(&pair.a.pd, IBV_MW_TYPE_1);
    let bound = middle_part(&buf, WRITE_ACCESS | IBV_ACCESS_REMOTE_READ);
    window.bind_type_1(&pair.a.qp, 1, &bound).expect("ibv_bind_mw");
    pair.a.await_send_completion().expect_success(1, IBV_WC_BIND_MW);
    let mut sge = buf.sge(64, 8);
    sge.lkey = window.rkey();
    pair.a.post(send([sge]).with_id(2));
    pair.a.await_send_completion().expect_failed(2, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
}

fn atomics_go_through_windows(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let buf = bindable_buffer(&pair.b);
        buf.memory.store(64, 40);
        let window = MemoryWindow::new(&pair.b.pd, IBV_MW_TYPE_2);
        let bound = middle_part(&buf, IBV_ACCESS_REMOTE_ATOMIC);
        let key = bind_type_2(&pair.b, &window, &bound);
        let result = pair.a.alloc_buf(8);
        pair.a.post(fetch_add(result.whole_sge(), remote_address_in_window(key, &bound, 0), 2).with_id(1));
        pair.a.await_send_completion().expect_sent(1, Verb::AtomicFetchAndAdd);
        assert_eq!((result.memory.load(0), buf.memory.load(64)), (40, 42));
    }
}
