//! Tests of memory regions: registration and keys.

use verbs_abi::*;

use crate::TestEnv;
use crate::harness::record_case;
use crate::memory::{MemKind, ZeroedMemory, PAGE};
use crate::objects::{ALL_ACCESS, Context, Mr, Pd};
use crate::pair::QpSpec;
use crate::wr::{RemoteAddress, Verb, read, send, write};

tests! { "mr";
    fields_say_what_was_registered [],
    every_legal_access_is_accepted [],
    remote_write_needs_local_write [],
    unknown_access_is_refused_and_optional_access_is_not [],
    bad_addresses_are_refused [],
    a_hole_in_the_range_is_refused [],
    read_only_memory_registers_only_for_reading [],
    a_range_that_wraps_is_refused [],
    registering_zero_bytes_does_not_crash [],
    any_alignment_and_length [],
    a_registered_block_that_grows_keeps_its_bytes [],
    registered_pages_that_move_keep_their_bytes [],
    pages_that_become_read_only_keep_their_bytes [],
    overlapping_regions_are_separate [],
    keys_differ_and_cannot_be_guessed [RandomKeys],
    keys_are_not_reused_at_once [RandomKeys],
    many_regions_at_once [],
    max_mr_regions_can_be_registered [],
    an_odp_region_covers_the_whole_address_space [ImplicitOdp],
    an_unmapped_address_in_an_odp_region_is_refused [ImplicitOdp],
    a_null_mr_drops_writes_and_reads_as_zeros [NullMr],
}

fn fields_say_what_was_registered(env: &TestEnv) {
    for kind in MemKind::distinct_on_provider(env) {
        record_case(format!("{kind:?}"));
        let pd = Context::open(env).alloc_pd();
        let buf = pd.alloc_buf_of_kind(kind, 1000, ALL_ACCESS);
        let fields = buf.mr.copy_ibv_mr();
        assert_eq!(fields.addr, buf.memory.as_ptr());
        assert_eq!(fields.length, 1000);
        assert_eq!(fields.pd, pd.raw());
        assert_eq!(fields.context, pd.ctx().raw());
    }
}

fn every_legal_access_is_accepted(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::alloc_heap(64);
    for remote in 0..8 {
        let access = remote << 1 | IBV_ACCESS_LOCAL_WRITE;
        record_case(format!("access {access:#x}"));
        drop(pd.reg(&memory, access));
    }
    drop(pd.reg(&memory, 0));
    drop(pd.reg(&memory, IBV_ACCESS_REMOTE_READ));
}

/// `ibv_reg_mr(3)`: "If IBV_ACCESS_REMOTE_WRITE or IBV_ACCESS_REMOTE_ATOMIC is set, then
/// IBV_ACCESS_LOCAL_WRITE must be set too."
fn remote_write_needs_local_write(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::alloc_heap(64);
    for access in [
        IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_REMOTE_ATOMIC,
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    ] {
        let refused = pd.try_reg(memory.as_ptr(), 64, access);
        assert_eq!(refused.err(), Some(libc::EINVAL), "access {access:#x}");
    }
}

fn unknown_access_is_refused_and_optional_access_is_not(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::alloc_heap(64);
    let unknown = pd.try_reg(memory.as_ptr(), 64, IBV_ACCESS_LOCAL_WRITE | 1 << 19);
    assert!(
        matches!(unknown.as_ref().err(), Some(&(libc::EINVAL | libc::EOPNOTSUPP))),
        "{:?}",
        unknown.err()
    );
    // A provider may ignore the access bits in `IBV_ACCESS_OPTIONAL_RANGE`.
    drop(pd.reg(&memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING));
}

fn bad_addresses_are_refused(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    for addr in [0usize, 8, 0x1000, 0xffff_8000_0000_0000] {
        let refused = pd.try_reg(std::ptr::without_provenance_mut(addr), 4096, ALL_ACCESS);
        assert_eq!(refused.err(), Some(libc::EFAULT), "address {addr:#x}");
    }
}

fn a_hole_in_the_range_is_refused(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::map_pages(3);
    drop(pd.reg(&memory, ALL_ACCESS));
    memory.protect_page(1, false);
    let refused = pd.try_reg(memory.as_ptr(), 3 * PAGE, ALL_ACCESS);
    assert_eq!(refused.err(), Some(libc::EFAULT));
    drop(pd.try_reg(memory.as_ptr(), PAGE, ALL_ACCESS).expect("the page in front of the hole"));
}

fn read_only_memory_registers_only_for_reading(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::map_pages(1);
    memory.protect_page(0, true);
    let refused = pd.try_reg(memory.as_ptr(), PAGE, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(refused.err(), Some(libc::EFAULT));
    drop(pd.try_reg(memory.as_ptr(), PAGE, IBV_ACCESS_REMOTE_READ).expect("for reading"));
}

fn a_range_that_wraps_is_refused(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::alloc_heap(64);
    for len in [usize::MAX, usize::MAX - memory.as_ptr().addr(), 1 << 62] {
        let refused = pd.try_reg(memory.as_ptr(), len, ALL_ACCESS);
        let errno = refused.err().expect("refused");
        let allowed = [libc::EFAULT, libc::EINVAL, libc::ENOMEM];
        assert!(allowed.contains(&errno), "length {len:#x}: errno {errno}");
    }
}

/// A program that makes its buffer longer registers it anew, before or after it deregisters the old one. `realloc` of
/// the GNU C library moves the pages of such a block (`mremap`).
fn a_registered_block_that_grows_keeps_its_bytes(env: &TestEnv) {
    const BYTES: usize = 200_000;
    let pd = Context::open(env).alloc_pd();
    for grows in 0..2 {
        record_case(format!("block {grows} grows"));
        // Such blocks are neighbours in memory.
        let mut blocks = [vec![1_u8; BYTES], vec![2; BYTES]];
        let register = |block: &mut Vec<u8>| {
            pd.try_reg(block.as_mut_ptr().cast(), block.len(), ALL_ACCESS).expect("ibv_reg_mr")
        };
        let old = blocks.each_mut().map(register);
        blocks[grows].resize(20 * BYTES, 3);
        let other = 1 - grows;
        let expect_own_bytes = |blocks: &[Vec<u8>; 2]| {
            let (kept, new) = blocks[grows].split_at(BYTES);
            assert!(kept.iter().all(|&byte| usize::from(byte) == grows + 1));
            assert!(new.iter().all(|&byte| byte == 3));
            assert!(blocks[other].iter().all(|&byte| usize::from(byte) == other + 1));
        };
        expect_own_bytes(&blocks);
        let new = register(&mut blocks[grows]);
        expect_own_bytes(&blocks);
        drop(old);
        expect_own_bytes(&blocks);
        drop(new);
        expect_own_bytes(&blocks);
    }
}

fn registered_pages_that_move_keep_their_bytes(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let mut memory = ZeroedMemory::map_pages(49);
    let mr = pd.reg(&memory, ALL_ACCESS);
    memory.fill_with_pattern(1);
    let Some(others) = memory.move_pages() else {
        return;
    };
    memory.assert_whole_pattern(1);
    others.fill_with_pattern(2);
    let mr_of_others = pd.reg(&others, ALL_ACCESS);
    memory.assert_whole_pattern(1);
    memory.fill_with_pattern(3);
    others.assert_whole_pattern(2);
    drop(mr);
    memory.assert_whole_pattern(3);
    others.assert_whole_pattern(2);
    drop(mr_of_others);
    memory.assert_whole_pattern(3);
    others.assert_whole_pattern(2);
}

fn pages_that_become_read_only_keep_their_bytes(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::map_pages(2);
    let mr = pd.reg(&memory, ALL_ACCESS);
    memory.fill_with_pattern(1);
    memory.protect_page(0, true);
    drop(mr);
    memory.assert_whole_pattern(1);
}

/// Linux refuses to register 0 bytes, and some devices accept a length of 0; no NIC may crash.
fn registering_zero_bytes_does_not_crash(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::alloc_heap(64);
    for addr in [memory.as_ptr(), std::ptr::null_mut()] {
        if let Err(errno) = pd.try_reg(addr, 0, ALL_ACCESS) {
            assert!([libc::EINVAL, libc::EFAULT].contains(&errno), "errno {errno}");
        }
    }
}

fn any_alignment_and_length(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let memory = ZeroedMemory::alloc_heap(3 * PAGE);
    let source = pair.a.alloc_buf(64);
    source.memory.fill_with_pattern(9);
    for (offset, len) in [(0, 1), (1, 1), (63, 2), (PAGE - 1, 2), (7, 2 * PAGE + 1)] {
        record_case(format!("{len} bytes at offset {offset}"));
        let addr = memory.as_ptr().wrapping_byte_add(offset);
        let mr = pair.b.pd.try_reg(addr, len, ALL_ACCESS).expect("ibv_reg_mr");
        // The last byte is inside the region.
        let last = RemoteAddress {
            addr: memory.addr() + (offset + len - 1) as u64,
            rkey: mr.rkey(),
        };
        memory.write(offset + len - 1, &[0]);
        pair.a.post(write([source.sge(0, 1)], last).with_id(1));
        pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
        assert_eq!(memory.read(offset + len - 1, 1), source.memory.read(0, 1));
    }
}

fn overlapping_regions_are_separate(env: &TestEnv) {
    for kind in MemKind::distinct_on_provider(env) {
        record_case(format!("{kind:?}"));
        let pair = QpSpec::rc().with_memory_kind(kind).create_connected_pair(env);
        let target = pair.b.alloc_buf(128);
        let again = pair.b.pd.reg(&target.memory, ALL_ACCESS);
        assert_ne!(again.rkey(), target.mr.rkey());
        assert_eq!(target.mr.try_destroy(), 0);
        let source = pair.a.alloc_buf(128);
        source.memory.fill_with_pattern(4);
        let remote = RemoteAddress {
            addr: target.memory.addr(),
            rkey: again.rkey(),
        };
        pair.a.post(write([source.whole_sge()], remote).with_id(1));
        pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
        target.memory.assert_whole_pattern(4);
    }
}

/// A key protects memory from peers only if it cannot be guessed. Keys must not be small numbers, must not
/// have a constant step, and must differ in many bits.
fn keys_differ_and_cannot_be_guessed(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::alloc_heap(64);
    let mrs: Vec<_> = (0..256).map(|_| pd.reg(&memory, ALL_ACCESS)).collect();
    let keys: Vec<u32> = mrs.iter().map(|mr| mr.rkey()).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), keys.len(), "a key twice");
    assert!(!keys.contains(&0), "0 is a key");
    for bit in 0..32 {
        let ones = keys.iter().filter(|key| *key >> bit & 1 == 1).count();
        assert!((64..=192).contains(&ones), "bit {bit} is set in {ones} of 256 keys");
    }
    let mut steps: Vec<u32> = keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert!(steps.len() > 240, "only {} different steps between keys", steps.len());
}

fn keys_are_not_reused_at_once(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let memory = ZeroedMemory::alloc_heap(64);
    let mut keys: Vec<u32> = (0..500).map(|_| pd.reg(&memory, ALL_ACCESS).rkey()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert!(keys.len() > 495, "{} different keys in 500 registrations", keys.len());
}

fn many_regions_at_once(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let targets: Vec<_> = (0..1000).map(|_| pair.b.alloc_buf(64)).collect();
    let source = pair.a.alloc_buf(8);
    for (i, target) in targets.iter().enumerate().step_by(37) {
        source.memory.store(0, i as u64);
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(i as u64));
        pair.a.await_send_completion().expect_sent(i as u64, Verb::RdmaWrite);
        assert_eq!(target.memory.load(0), i as u64);
    }
}

/// Registers `max_mr` regions if that number is feasible; another registration must return an error and
/// must not crash.
fn max_mr_regions_can_be_registered(env: &TestEnv) {
    let ctx = Context::open(env);
    let pd = ctx.alloc_pd();
    let most = ctx.device_attr().max_mr;
    if most > 100_000 {
        return;
    }
    let memory = ZeroedMemory::alloc_heap(64);
    let mut mrs = Vec::new();
    let errno = loop {
        match pd.try_reg(memory.as_ptr(), 64, ALL_ACCESS) {
            Ok(mr) => mrs.push(mr),
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, libc::ENOMEM);
    assert!(mrs.len() * 10 > usize::try_from(most).expect("positive") * 9, "only {}", mrs.len());
    drop(mrs.pop());
    drop(pd.reg(&memory, ALL_ACCESS));
}

/// Registers the whole address space.
///
/// `ibv_reg_mr(3)`: "To create an implicit ODP MR, IBV_ACCESS_ON_DEMAND should be set, addr should be 0 and
/// length should be SIZE_MAX".
fn register_whole_address_space(pd: &Pd) -> Mr {
    let access = ALL_ACCESS | IBV_ACCESS_ON_DEMAND;
    pd.try_reg(std::ptr::null_mut(), usize::MAX, access).expect("an implicit ODP MR")
}

/// `ibv_alloc_null_mr(3)`: a null memory region drops writes and returns zeros.
fn a_null_mr_drops_writes_and_reads_as_zeros(env: &TestEnv) {
    for spec in [QpSpec::rc(), QpSpec::ud()] {
        let is_ud = spec.qp_type == IBV_QPT_UD;
        let pair = spec.create_connected_pair(env);
        let (a, b) = (pair.a.pd.alloc_null_mr(), pair.b.pd.alloc_null_mr());
        // The lengths cover payloads sent in the ring, and (RC only) payloads sent by reference to the
        // sender's memory.
        for len in [1u32, 64, 3000, 50_000].into_iter().filter(|len| !is_ud || *len < 4000) {
            record_case(format!("UD {is_ud}, {len} bytes"));
            let nothing = |mr: &Mr, addr, length| ibv_sge { addr, length, lkey: mr.lkey() };
            let room = pair.b.grh_len() + len as usize + 1;
            let target = pair.b.alloc_buf(room);
            target.memory.fill_with_pattern(7);
            // A payload of zeros, followed by another byte.
            let source = pair.a.alloc_buf(1);
            source.memory.write(0, &[9]);
            pair.b.post_recv(1, [target.whole_sge()]);
            let sges = [nothing(&a, 0x1234_5678, len), source.whole_sge()];
            pair.a.post(send(sges).with_id(2));
            pair.a.await_send_completion().expect_sent(2, Verb::Send);
            pair.b.await_recv_completion().expect_received(1, room);
            target.memory.assert_filled_with(pair.b.grh_len(), len as usize, 0);
            target.memory.assert_filled_with(room - 1, 1, 9);
            // The received bytes go to no memory.
            let all = nothing(&b, u64::MAX - 100_000, u32::try_from(room).expect("short"));
            pair.b.post_recv(3, [all]);
            let bytes = pair.a.alloc_buf(len as usize + 1);
            pair.a.post(send([bytes.whole_sge()]).with_id(4));
            pair.a.await_send_completion().expect_sent(4, Verb::Send);
            pair.b.await_recv_completion().expect_received(3, room);
            if is_ud {
                continue;
            }
            // One-sided verbs use the null region on the local side only.
            let remote = pair.b.alloc_buf_with_access(len as usize, ALL_ACCESS);
            remote.memory.fill_with_pattern(5);
            let to = RemoteAddress { addr: remote.memory.addr(), rkey: remote.mr.rkey() };
            pair.a.post(read([nothing(&a, 8, len)], to).with_id(5));
            pair.a.await_send_completion().expect_sent(5, Verb::RdmaRead);
            pair.a.post(write([nothing(&a, 8, len)], to).with_id(6));
            pair.a.await_send_completion().expect_sent(6, Verb::RdmaWrite);
            remote.memory.assert_filled_with(0, len as usize, 0);
        }
        assert_eq!(a.rereg_access(ALL_ACCESS), IBV_REREG_MR_ERR_INPUT);
        if !is_ud {
            pair.a.post(write([], RemoteAddress { addr: 0, rkey: b.rkey() }).with_id(7));
            pair.a.await_send_completion().expect_sent(7, Verb::RdmaWrite);
        }
    }
    // Peers can use neither of its keys.
    for key in [Mr::rkey, Mr::lkey] {
        let pair = QpSpec::rc().create_connected_pair(env);
        let region = pair.b.pd.alloc_null_mr();
        assert_eq!(region.rkey(), 0);
        let byte = pair.a.alloc_buf(1);
        let to = RemoteAddress { addr: 0, rkey: key(&region) };
        pair.a.post(write([byte.whole_sge()], to).with_id(8));
        pair.a.await_send_completion().expect_failed(8, &[IBV_WC_REM_ACCESS_ERR]);
    }
}

fn an_odp_region_covers_the_whole_address_space(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let (local, remote) = (register_whole_address_space(&pair.a.pd), register_whole_address_space(&pair.b.pd));
    for len in [8, 5000] {
        let (source, target) = (ZeroedMemory::alloc_heap(len), ZeroedMemory::alloc_heap(len));
        source.fill_with_pattern(7);
        let sge = |memory: &ZeroedMemory, lkey| ibv_sge {
            addr: memory.addr(),
            length: u32::try_from(len).expect("short"),
            lkey,
        };
        pair.b.post_recv(1, [sge(&target, remote.lkey())]);
        pair.a.post(send([sge(&source, local.lkey())]).with_id(2));
        pair.a.await_send_completion().expect_sent(2, Verb::Send);
        pair.b.await_recv_completion().expect_received(1, len);
        target.assert_pattern_at(0, len, 7);
        source.fill_with_pattern(9);
        let to = RemoteAddress { addr: target.addr(), rkey: remote.rkey() };
        pair.a.post(write([sge(&source, local.lkey())], to).with_id(3));
        pair.a.await_send_completion().expect_sent(3, Verb::RdmaWrite);
        target.assert_pattern_at(0, len, 9);
    }
}

fn an_unmapped_address_in_an_odp_region_is_refused(env: &TestEnv) {
    let unmapped = ZeroedMemory::map_pages(2);
    unmapped.protect_page(1, false);
    unmapped.protect_page(0, false);
    let hole = ibv_sge { addr: unmapped.addr(), length: 8, lkey: 0 };
    record_case("the source of a SEND".to_owned());
    let pair = QpSpec::rc().create_connected_pair(env);
    let mr = register_whole_address_space(&pair.a.pd);
    pair.a.post(send([ibv_sge { lkey: mr.lkey(), ..hole }]).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_LOC_PROT_ERR]);
    record_case("the buffer of a RECV".to_owned());
    let pair = QpSpec::rc().create_connected_pair(env);
    let mr = register_whole_address_space(&pair.b.pd);
    let source = pair.a.alloc_buf(8);
    pair.b.post_recv(2, [ibv_sge { lkey: mr.lkey(), ..hole }]);
    pair.a.post(send([source.whole_sge()]).with_id(3));
    pair.b.await_recv_completion().expect_failed(2, &[IBV_WC_LOC_PROT_ERR]);
    pair.a.await_send_completion().expect_failed(3, &[IBV_WC_REM_OP_ERR]);
    for verb in [Verb::RdmaWrite, Verb::RdmaRead] {
        record_case(format!("the remote end of {verb:?}"));
        let pair = QpSpec::rc().create_connected_pair(env);
        let (mr, local) = (register_whole_address_space(&pair.b.pd), pair.a.alloc_buf(8));
        let to = RemoteAddress { addr: hole.addr, rkey: mr.rkey() };
        let wr = match verb {
            Verb::RdmaRead => read([local.whole_sge()], to),
            _ => write([local.whole_sge()], to),
        };
        pair.a.post(wr.with_id(4));
        pair.a.await_send_completion().expect_failed(4, &[IBV_WC_REM_ACCESS_ERR]);
    }
}
