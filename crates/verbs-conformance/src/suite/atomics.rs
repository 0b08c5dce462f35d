//! Tests of compare-and-swap and fetch-and-add.

use verbs_abi::*;

use crate::TestEnv;
use crate::harness::record_case;
use crate::memory::MemKind;
use crate::pair::QpSpec;
use crate::wr::{SendWr, Verb, cmp_swp, fetch_add};

tests! { "atomics";
    fetch_add_adds_and_returns_the_old_value [Atomics],
    fetch_add_wraps_around [Atomics],
    cmp_swp_swaps_only_what_it_expects [Atomics],
    results_go_where_the_sges_say [Atomics],
    misaligned_is_refused [Atomics],
    a_result_buffer_not_of_8_bytes_is_refused [Atomics],
    atomics_leave_neighbouring_bytes_unchanged [Atomics],
    a_chain_of_atomics_is_ordered [Atomics],
    atomics_on_a_qp_connected_to_itself [Atomics],
    reads_and_atomics_fail_with_rd_atomic_0 [Atomics],
}

fn fetch_add_adds_and_returns_the_old_value(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let counter = pair.b.alloc_buf(64);
        let result = pair.a.alloc_buf(8);
        let mut expected = 5u64;
        counter.memory.store(8, expected);
        for add in [1, 0, 7, u64::MAX, 1 << 63, 1 << 32] {
            pair.a.post(fetch_add(result.whole_sge(), counter.remote_address().plus(8), add).with_id(add));
            pair.a.await_send_completion().expect_sent(add, Verb::AtomicFetchAndAdd);
            assert_eq!(result.memory.load(0), expected, "old value");
            expected = expected.wrapping_add(add);
            assert_eq!(counter.memory.load(8), expected, "new value");
        }
    }
}

fn fetch_add_wraps_around(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let counter = pair.b.alloc_buf(8);
    let result = pair.a.alloc_buf(8);
    counter.memory.store(0, u64::MAX - 1);
    for old in [u64::MAX - 1, u64::MAX, 0, 1] {
        pair.a.post(fetch_add(result.whole_sge(), counter.remote_address(), 1));
        pair.a.await_send_completion().expect_sent(0, Verb::AtomicFetchAndAdd);
        assert_eq!(result.memory.load(0), old);
    }
}

fn cmp_swp_swaps_only_what_it_expects(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let word = pair.b.alloc_buf(8);
        let result = pair.a.alloc_buf(8);
        word.memory.store(0, 10);
        for (compare, swap, old, new) in [
            (10, 11, 10, 11),
            (10, 12, 11, 11),
            (11, u64::MAX, 11, u64::MAX),
            (u64::MAX, 0, u64::MAX, 0),
            // A compare-and-swap compares all 64 bits.
            (1 << 32, 5, 0, 0),
            (0, 0, 0, 0),
        ] {
            pair.a.post(cmp_swp(result.whole_sge(), word.remote_address(), compare, swap).with_id(old));
            pair.a.await_send_completion().expect_sent(old, Verb::AtomicCmpAndSwp);
            assert_eq!(result.memory.load(0), old, "old value of {compare:#x} -> {swap:#x}");
            assert_eq!(word.memory.load(0), new, "new value of {compare:#x} -> {swap:#x}");
        }
    }
}

fn results_go_where_the_sges_say(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let counter = pair.b.alloc_buf(8);
    counter.memory.store(0, 0x0102_0304_0506_0708);
    let result = pair.a.alloc_buf(64);
    // Any local alignment is valid: only the remote address must be aligned.
    let wr = SendWr::new(Verb::AtomicFetchAndAdd, [result.sge(3, 8)]).with_atomic_remote_and_operands(counter.remote_address(), 1, 0);
    pair.a.post(wr);
    pair.a.await_send_completion().expect_sent(0, Verb::AtomicFetchAndAdd);
    assert_eq!(result.memory.read(3, 8), 0x0102_0304_0506_0708_u64.to_ne_bytes());
    result.memory.assert_filled_with(0, 3, 0);
    result.memory.assert_filled_with(11, 53, 0);
}

/// IBTA vol. 1, 9.4.5: "the virtual address in the ATOMIC Command Request packet shall be naturally aligned
/// to an 8 byte boundary". The responder answers with NAK-Invalid Request, or refuses the access.
fn misaligned_is_refused(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for offset in [1, 4, 7] {
            for verb in [Verb::AtomicFetchAndAdd, Verb::AtomicCmpAndSwp] {
                record_case(format!("{verb:?} at offset {offset}, {memory:?}"));
                let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
                let word = pair.b.alloc_buf(64);
                let result = pair.a.alloc_buf(8);
                let wr = SendWr::new(verb, [result.whole_sge()]).with_atomic_remote_and_operands(word.remote_address().plus(offset), 0, 9);
                if let Err(refused) = pair.a.qp.try_post_sends(vec![wr.with_id(3)]) {
                    // The library checks the alignment itself.
                    assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0)));
                    pair.a.expect_no_completions();
                    word.memory.assert_filled_with(0, 64, 0);
                    continue;
                }
                pair.a.await_send_completion().expect_failed(3, &[IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR]);
                word.memory.assert_filled_with(0, 64, 0);
                pair.b.qp.await_state(IBV_QPS_ERR);
                assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
            }
        }
    }
}

/// The result of an atomic has 8 bytes: a smaller or larger buffer is a local error.
fn a_result_buffer_not_of_8_bytes_is_refused(env: &TestEnv) {
    for len in [0usize, 4, 7, 9, 16] {
        record_case(format!("{len} bytes"));
        let pair = QpSpec::rc().create_connected_pair(env);
        let word = pair.b.alloc_buf(8);
        let result = pair.a.alloc_buf(64);
        result.memory.write(0, &[0xee; 64]);
        let wr = fetch_add(result.sge(0, len), word.remote_address(), 1).with_id(3);
        match pair.a.qp.try_post_sends(vec![wr]) {
            Err(refused) => assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0))),
            Ok(()) => {
                let wc = pair.a.await_send_completion();
                // A device may accept a buffer larger than 8 bytes.
                if wc.status() != IBV_WC_SUCCESS || len < 8 {
                    wc.expect_failed(3, &[IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR]);
                }
            }
        }
        result.memory.assert_filled_with(len.min(8), 64 - len.min(8), 0xee);
    }
}

fn atomics_leave_neighbouring_bytes_unchanged(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let words = pair.b.alloc_buf(64);
    words.memory.write(0, &[0xff; 64]);
    let result = pair.a.alloc_buf(8);
    pair.a.post(fetch_add(result.whole_sge(), words.remote_address().plus(24), 1));
    pair.a.await_send_completion().expect_sent(0, Verb::AtomicFetchAndAdd);
    words.memory.assert_filled_with(0, 24, 0xff);
    assert_eq!(words.memory.load(24), 0);
    words.memory.assert_filled_with(32, 32, 0xff);
}

fn a_chain_of_atomics_is_ordered(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let word = pair.b.alloc_buf(8);
        let results = pair.a.alloc_buf(16 * 8);
        let wrs = (0..16u64)
            .map(|i| {
                let sge = results.sge(i * 8, 8);
                if i % 2 == 0 {
                    fetch_add(sge, word.remote_address(), 10).with_id(i)
                } else {
                    cmp_swp(sge, word.remote_address(), 10 * i.div_ceil(2), 10 * i.div_ceil(2)).with_id(i)
                }
            })
            .collect();
        pair.a.post_sends(wrs);
        for (i, wc) in pair.a.scq.wait_for_completions(16).iter().enumerate() {
            let verb = if i % 2 == 0 { Verb::AtomicFetchAndAdd } else { Verb::AtomicCmpAndSwp };
            wc.expect_sent(i as u64, verb);
            assert_eq!(results.memory.load(i * 8), 10 * (i as u64).div_ceil(2), "result {i}");
        }
        assert_eq!(word.memory.load(0), 80);
    }
}

fn atomics_on_a_qp_connected_to_itself(env: &TestEnv) {
    let mut side = QpSpec::rc().create_qp_side(env);
    let address = side.address();
    side.connect(&address);
    let word = side.alloc_buf(8);
    let result = side.alloc_buf(8);
    for old in 0..20 {
        side.post(fetch_add(result.whole_sge(), word.remote_address(), 1).with_id(old));
        side.await_send_completion().expect_sent(old, Verb::AtomicFetchAndAdd);
        assert_eq!(result.memory.load(0), old);
    }
}

/// READs and atomics fail on a QP with `max_rd_atomic` 0, or connected to one with `max_dest_rd_atomic` 0.
fn reads_and_atomics_fail_with_rd_atomic_0(env: &TestEnv) {
    for (initiator, responder) in [(0, 1), (1, 0)] {
        for verb in [Verb::AtomicFetchAndAdd, Verb::AtomicCmpAndSwp, Verb::RdmaRead] {
            record_case(format!("{verb:?}, max_rd_atomic {initiator}, max_dest_rd_atomic {responder}"));
            let mut pair = QpSpec::rc()
                .with_short_timeout_and_few_retries()
                .with_change(|s| {
                    s.max_rd_atomic = initiator;
                    s.max_dest_rd_atomic = responder;
                })
                .create_unconnected_pair(env);
            pair.connect();
            let word = pair.b.alloc_buf(8);
            let result = pair.a.alloc_buf(8);
            word.memory.store(0, 1);
            let wr = crate::wr::wr_of_verb_with_default_operands(verb, [result.whole_sge()], word.remote_address()).with_id(3);
            match pair.a.qp.try_post_sends(vec![wr]) {
                Err(refused) => assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno)),
                Ok(()) => {
                    pair.a.await_send_completion().expect_failed(
                        3,
                        &[IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_RETRY_EXC_ERR],
                    );
                }
            }
            assert_eq!(word.memory.load(0), 1);
        }
    }
}
