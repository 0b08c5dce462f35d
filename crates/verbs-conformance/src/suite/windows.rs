//! Tests of memory windows of both types: bind, access through a window, and all ways to end this access.

use verbs_abi::*;

use crate::TestEnv;
use crate::harness::case;
use crate::memory::MemKind;
use crate::objects::{ALL_ACCESS, Buf};
use crate::pair::{QpPair, QpSide, QpSpec};
use crate::window::{BufferPart, Window, inc_rkey, local_inv, send_inv, through};
use crate::wr::{RemoteAddress, Verb, fetch_add, read, send, write};

tests! { "windows";
    a_window_of_type_1_gives_access_until_it_is_rebound [Windows],
    a_window_of_type_1_without_a_length_is_unbound [Windows],
    a_window_of_type_2_is_for_the_queue_pair_that_bound_it [Windows],
    a_window_gives_only_what_was_bound [Windows],
    a_zero_based_window_counts_from_its_start [Windows],
    local_invalidation_ends_access [Windows],
    remote_invalidation_ends_access_and_says_so [Windows],
    deallocation_ends_access [Windows],
    a_region_with_a_bound_window_is_busy [Windows],
    binds_that_break_a_rule_fail [Windows],
    a_key_that_cannot_be_invalidated_fails_the_work_request [Windows],
    a_remote_invalidation_of_a_foreign_key_fails_both_sides [Windows],
    a_window_is_no_l_key [Windows],
    atomics_go_through_windows [Windows, Atomics],
}

const LEN: usize = 4096;
const BINDABLE: i32 = ALL_ACCESS | IBV_ACCESS_MW_BIND;
const WRITE: i32 = IBV_ACCESS_REMOTE_WRITE;

fn bindable(side: &QpSide) -> Buf {
    side.buf_with(LEN, BINDABLE)
}

fn part(buf: &Buf, access: i32) -> BufferPart<'_> {
    BufferPart { buf, offset: 64, len: 128, access }
}

/// Binds a window of type 2 on `side`, and returns its key.
fn bind_2(side: &QpSide, window: &Window, part: &BufferPart<'_>) -> u32 {
    let rkey = inc_rkey(window.rkey());
    side.post(window.bind_wr(rkey, part).id(90));
    side.send_completion().expect_success(90, IBV_WC_BIND_MW);
    rkey
}

/// Checks that `a` can write 8 bytes through a window of `b`.
#[track_caller]
fn reaches(pair: &QpPair, to: RemoteAddress, buf: &Buf, value: u64) {
    let source = pair.a.buf(8);
    source.memory.store(0, value);
    pair.a.post(write([source.all()], to).id(value));
    pair.a.send_completion().expect_sent(value, Verb::RdmaWrite);
    let at = usize::try_from(to.addr - buf.memory.addr()).expect("an offset");
    assert_eq!(buf.memory.load(at), value);
}

/// Checks that a WRITE of `a` to `to` is refused; the refusal ends the connection of the pair.
#[track_caller]
fn is_refused(pair: &QpPair, to: RemoteAddress) {
    let source = pair.a.buf(8);
    pair.a.post(write([source.all()], to).id(77));
    pair.a.send_completion().expect_failed(77, &[IBV_WC_REM_ACCESS_ERR]);
}

fn a_window_of_type_1_gives_access_until_it_is_rebound(env: &TestEnv) {
    for memory in MemKind::ALL {
        case(format!("{memory:?}"));
        let pair = QpSpec::rc().memory(memory).pair(env);
        let (buf, other) = (bindable(&pair.b), bindable(&pair.b));
        let window = Window::new(&pair.b.pd, IBV_MW_TYPE_1);
        let first = part(&buf, WRITE);
        window.bind(&pair.b.qp, 1, &first).expect("ibv_bind_mw");
        pair.b.send_completion().expect_success(1, IBV_WC_BIND_MW);
        let old = window.rkey();
        reaches(&pair, through(old, &first, 8), &buf, 5);
        let second = part(&other, WRITE);
        window.bind(&pair.b.qp, 2, &second).expect("ibv_bind_mw");
        pair.b.send_completion().expect_success(2, IBV_WC_BIND_MW);
        assert_ne!(window.rkey(), old);
        reaches(&pair, through(window.rkey(), &second, 8), &other, 6);
        is_refused(&pair, through(old, &first, 8));
        assert_eq!(buf.memory.load(72), 5);
    }
}

fn a_window_of_type_1_without_a_length_is_unbound(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let window = Window::new(&pair.b.pd, IBV_MW_TYPE_1);
    let bound = part(&buf, WRITE);
    window.bind(&pair.b.qp, 1, &bound).expect("ibv_bind_mw");
    pair.b.send_completion().expect_success(1, IBV_WC_BIND_MW);
    reaches(&pair, through(window.rkey(), &bound, 0), &buf, 5);
    let key = window.rkey();
    window.bind(&pair.b.qp, 2, &BufferPart { len: 0, ..bound }).expect("ibv_bind_mw");
    pair.b.send_completion().expect_success(2, IBV_WC_BIND_MW);
    is_refused(&pair, through(key, &bound, 0));
}

fn a_window_of_type_2_is_for_the_queue_pair_that_bound_it(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = part(&buf, WRITE);
    let key = bind_2(&pair.b, &window, &bound);
    reaches(&pair, through(key, &bound, 0), &buf, 5);
    // `other` is another connection to the same protection domain.
    let mut other = QpPair { a: pair.a.sibling(), b: pair.b.sibling() };
    other.connect();
    is_refused(&other, through(key, &bound, 0));
    assert_eq!(buf.memory.load(64), 5);
    reaches(&pair, through(key, &bound, 0), &buf, 6);
}

fn a_window_gives_only_what_was_bound(env: &TestEnv) {
    for (what, access, offset, len, verb) in [
        ("before", WRITE, -8, 8, Verb::RdmaWrite),
        ("behind", WRITE, 128, 8, Verb::RdmaWrite),
        ("across the end", WRITE, 124, 8, Verb::RdmaWrite),
        ("read", WRITE, 0, 8, Verb::RdmaRead),
        ("write", IBV_ACCESS_REMOTE_READ, 0, 8, Verb::RdmaWrite),
    ] {
        case(what.to_owned());
        let pair = QpSpec::rc().pair(env);
        let buf = bindable(&pair.b);
        let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
        let bound = part(&buf, access);
        let key = bind_2(&pair.b, &window, &bound);
        let local = pair.a.buf(len);
        let start = through(key, &bound, 0);
        let to = RemoteAddress {
            addr: start.addr.wrapping_add_signed(offset),
            ..start
        };
        let wr = if verb == Verb::RdmaRead {
            read([local.all()], to)
        } else {
            write([local.all()], to)
        };
        pair.a.post(wr.id(3));
        pair.a.send_completion().expect_failed(3, &[IBV_WC_REM_ACCESS_ERR]);
    }
}

fn a_zero_based_window_counts_from_its_start(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = part(&buf, WRITE | IBV_ACCESS_ZERO_BASED);
    let rkey = bind_2(&pair.b, &window, &bound);
    let source = pair.a.buf(8);
    source.memory.store(0, 9);
    pair.a.post(write([source.all()], RemoteAddress { addr: 16, rkey }).id(1));
    pair.a.send_completion().expect_sent(1, Verb::RdmaWrite);
    assert_eq!(buf.memory.load(64 + 16), 9);
}

fn local_invalidation_ends_access(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = part(&buf, WRITE);
    let key = bind_2(&pair.b, &window, &bound);
    reaches(&pair, through(key, &bound, 0), &buf, 5);
    pair.b.post(local_inv(key).id(4));
    pair.b.send_completion().expect_success(4, IBV_WC_LOCAL_INV);
    // The window can be bound again, under the next key.
    let next = inc_rkey(key);
    pair.b.post(window.bind_wr(next, &bound).id(5));
    pair.b.send_completion().expect_success(5, IBV_WC_BIND_MW);
    reaches(&pair, through(next, &bound, 0), &buf, 6);
    is_refused(&pair, through(key, &bound, 0));
}

fn remote_invalidation_ends_access_and_says_so(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
    let bound = part(&buf, WRITE);
    let key = bind_2(&pair.b, &window, &bound);
    reaches(&pair, through(key, &bound, 0), &buf, 5);
    let (source, target) = (pair.a.buf(32), pair.b.buf(32));
    source.memory.fill_with_pattern(3);
    pair.b.recv(8, [target.all()]);
    pair.a.post(send_inv([source.all()], key).id(7));
    pair.a.send_completion().expect_sent(7, Verb::Send);
    let wc = pair.b.recv_completion();
    wc.expect_received(8, 32);
    assert_eq!(wc.imm(), None);
    assert_eq!(wc.invalidated_rkey(), Some(key));
    target.memory.check_at(0, 32, 3);
    is_refused(&pair, through(key, &bound, 0));
}

fn deallocation_ends_access(env: &TestEnv) {
    for mw_type in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
        case(format!("type {mw_type}"));
        let pair = QpSpec::rc().pair(env);
        let buf = bindable(&pair.b);
        let window = Window::new(&pair.b.pd, mw_type);
        let bound = part(&buf, WRITE);
        let key = if mw_type == IBV_MW_TYPE_1 {
            window.bind(&pair.b.qp, 1, &bound).expect("ibv_bind_mw");
            pair.b.send_completion().expect_success(1, IBV_WC_BIND_MW);
            window.rkey()
        } else {
            bind_2(&pair.b, &window, &bound)
        };
        reaches(&pair, through(key, &bound, 0), &buf, 5);
        assert_eq!(pair.b.pd.try_destroy(), libc::EBUSY);
        drop(window);
        is_refused(&pair, through(key, &bound, 0));
    }
}

/// `ibv_dereg_mr(3)`: deregistering a region "fails if any memory window is still bound to this MR".
fn a_region_with_a_bound_window_is_busy(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
    let key = bind_2(&pair.b, &window, &part(&buf, WRITE));
    assert_eq!(buf.mr.try_destroy(), libc::EBUSY);
    pair.b.post(local_inv(key).id(4));
    pair.b.send_completion().expect_success(4, IBV_WC_LOCAL_INV);
    assert_eq!(buf.mr.try_destroy(), 0);
}

fn binds_that_break_a_rule_fail(env: &TestEnv) {
    type Broken = fn(&QpSide, &Window) -> (Buf, i32, u32, u64);
    let broken: [(&str, Broken); 6] = [
        ("the region does not allow it", |s, w| {
            (s.buf_with(LEN, ALL_ACCESS), WRITE, inc_rkey(w.rkey()), 128)
        }),
        ("the region has no local write", |s, w| {
            (s.buf_with(LEN, IBV_ACCESS_MW_BIND), WRITE, inc_rkey(w.rkey()), 128)
        }),
        ("beyond the region", |s, w| (bindable(s), WRITE, inc_rkey(w.rkey()), LEN as u64)),
        ("no length", |s, w| (bindable(s), WRITE, inc_rkey(w.rkey()), 0)),
        ("a key of its own choice", |s, w| (bindable(s), WRITE, w.rkey() ^ 0x1_0000, 128)),
        ("another protection domain", |s, w| {
            (s.ctx.pd().buf_with(MemKind::Private, LEN, BINDABLE), WRITE, inc_rkey(w.rkey()), 128)
        }),
    ];
    for (what, make) in broken {
        case(what.to_owned());
        let pair = QpSpec::rc().pair(env);
        let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
        let (buf, access, key, len) = make(&pair.b, &window);
        let part = BufferPart { len, ..part(&buf, access) };
        pair.b.post(window.bind_wr(key, &part).id(6));
        pair.b.send_completion().expect_failed(6, &[IBV_WC_MW_BIND_ERR]);
        pair.b.qp.await_state(IBV_QPS_ERR);
    }
    case("bound already".to_owned());
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
    let key = bind_2(&pair.b, &window, &part(&buf, WRITE));
    pair.b.post(window.bind_wr(inc_rkey(key), &part(&buf, WRITE)).id(6));
    pair.b.send_completion().expect_failed(6, &[IBV_WC_MW_BIND_ERR]);
}

fn a_key_that_cannot_be_invalidated_fails_the_work_request(env: &TestEnv) {
    for what in ["nobody's", "a region's", "a window's of type 1", "another queue pair's"] {
        case(what.to_owned());
        let pair = QpSpec::rc().pair(env);
        let buf = bindable(&pair.b);
        let one = Window::new(&pair.b.pd, IBV_MW_TYPE_1);
        one.bind(&pair.b.qp, 1, &part(&buf, WRITE)).expect("ibv_bind_mw");
        pair.b.send_completion().expect_success(1, IBV_WC_BIND_MW);
        let two = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
        let bound = part(&buf, WRITE);
        let key = bind_2(&pair.b, &two, &bound);
        let mut other = QpPair { a: pair.a.sibling(), b: pair.b.sibling() };
        other.connect();
        let victim = match what {
            "nobody's" => inc_rkey(key),
            "a region's" => buf.mr.rkey(),
            "a window's of type 1" => one.rkey(),
            _ => key,
        };
        other.b.post(local_inv(victim).id(4));
        other.b.send_completion().expect_failed(4, &[IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR]);
        // All other keys are still valid.
        reaches(&pair, through(key, &bound, 0), &buf, 5);
        reaches(&pair, through(one.rkey(), &bound, 0), &buf, 6);
        reaches(&pair, buf.remote().plus(8), &buf, 7);
    }
}

fn a_remote_invalidation_of_a_foreign_key_fails_both_sides(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.b);
    let (source, target) = (pair.a.buf(8), pair.b.buf(8));
    pair.b.recv(8, [target.all()]);
    pair.a.post(send_inv([source.all()], buf.mr.rkey()).id(7));
    pair.b.recv_completion().expect_failed(8, &[IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_QP_OP_ERR]);
    pair.a.send_completion().expect_failed(
        7,
        &[IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR],
    );
    pair.b.qp.await_state(IBV_QPS_ERR);
}

fn a_window_is_no_l_key(env: &TestEnv) {
    let pair = QpSpec::rc().pair(env);
    let buf = bindable(&pair.a);
    let window = Window::new(&pair.a.pd, IBV_MW_TYPE_1);
    let bound = part(&buf, WRITE | IBV_ACCESS_REMOTE_READ);
    window.bind(&pair.a.qp, 1, &bound).expect("ibv_bind_mw");
    pair.a.send_completion().expect_success(1, IBV_WC_BIND_MW);
    let mut sge = buf.sge(64, 8);
    sge.lkey = window.rkey();
    pair.a.post(send([sge]).id(2));
    pair.a.send_completion().expect_failed(2, &env.failure(IBV_WC_LOC_PROT_ERR));
}

fn atomics_go_through_windows(env: &TestEnv) {
    for memory in MemKind::ALL {
        case(format!("{memory:?}"));
        let pair = QpSpec::rc().memory(memory).pair(env);
        let buf = bindable(&pair.b);
        buf.memory.store(64, 40);
        let window = Window::new(&pair.b.pd, IBV_MW_TYPE_2);
        let bound = part(&buf, IBV_ACCESS_REMOTE_ATOMIC);
        let key = bind_2(&pair.b, &window, &bound);
        let result = pair.a.buf(8);
        pair.a.post(fetch_add(result.all(), through(key, &bound, 0), 2).id(1));
        pair.a.send_completion().expect_sent(1, Verb::AtomicFetchAndAdd);
        assert_eq!((result.memory.load(0), buf.memory.load(64)), (40, 42));
    }
}
