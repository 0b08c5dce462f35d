//! Tests of protection domains, and of destroying objects in use.

use crate::TestEnv;
use crate::memory::MemKind;
use crate::objects::{ALL_ACCESS, Context, QpInitAttr};
use crate::pair::QpSpec;
use verbs_abi::{IBV_QPT_RC, IBV_QPT_UD};

tests! { "pd";
    many_exist_at_once [],
    busy_with_a_memory_region [],
    busy_with_a_queue_pair [],
    busy_with_an_srq [Srq],
    busy_with_an_address_handle [Ud],
    cq_is_busy_with_a_queue_pair [],
    srq_is_busy_with_a_queue_pair [Srq],
    channel_is_busy_with_a_cq [],
}

fn many_exist_at_once(env: &TestEnv) {
    let ctx = Context::open(env);
    let pds: Vec<_> = (0..50).map(|_| ctx.alloc_pd()).collect();
    let mut raws: Vec<_> = pds.iter().map(|pd| pd.raw()).collect();
    raws.sort();
    raws.dedup();
    assert_eq!(raws.len(), pds.len());
}

/// `ibv_dealloc_pd(3)`: "may fail if any other resource is still associated with the PD being freed".
fn busy_with_a_memory_region(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let buf = pd.alloc_buf_of_kind(MemKind::Private, 64, ALL_ACCESS);
    assert_eq!(pd.try_destroy(), libc::EBUSY);
    drop(buf);
    assert_eq!(pd.try_destroy(), 0);
}

fn busy_with_a_queue_pair(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(8));
    let qp = pd.create_qp(&mut QpInitAttr::new(IBV_QPT_RC, &cq, &cq));
    assert_eq!(pd.try_destroy(), libc::EBUSY);
    drop(qp);
    assert_eq!(pd.try_destroy(), 0);
}

fn busy_with_an_srq(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let srq = pd.create_srq();
    assert_eq!(pd.try_destroy(), libc::EBUSY);
    drop(srq);
    assert_eq!(pd.try_destroy(), 0);
}

fn busy_with_an_address_handle(env: &TestEnv) {
    let side = QpSpec::ud().create_qp_side(env);
    let pd = side.ctx.alloc_pd();
    let ah = pd.create_ah(&side.ah_attr_to_peer(&side.address()));
    assert_eq!(pd.try_destroy(), libc::EBUSY);
    drop(ah);
    assert_eq!(pd.try_destroy(), 0);
}

fn cq_is_busy_with_a_queue_pair(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, send, recv) = (ctx.alloc_pd(), ctx.create_cq(8), ctx.create_cq(8));
    let qp = pd.create_qp(&mut QpInitAttr::new(IBV_QPT_UD, &send, &recv));
    assert_eq!(send.try_destroy(), libc::EBUSY);
    assert_eq!(recv.try_destroy(), libc::EBUSY);
    assert_eq!(qp.try_destroy(), 0);
    assert_eq!(send.try_destroy(), 0);
    assert_eq!(recv.try_destroy(), 0);
}

fn srq_is_busy_with_a_queue_pair(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(8));
    let srq = pd.create_srq();
    let mut init = QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
    init.srq = Some(srq.clone());
    let qp = pd.create_qp(&mut init);
    assert_eq!(srq.try_destroy(), libc::EBUSY);
    assert_eq!(qp.try_destroy(), 0);
    assert_eq!(srq.try_destroy(), 0);
}

/// `ibv_destroy_comp_channel(3)`: "fails if any CQs are still associated with the completion event channel".
fn channel_is_busy_with_a_cq(env: &TestEnv) {
    let ctx = Context::open(env);
    let channel = ctx.create_channel();
    let cq = ctx.create_cq_on_channel(8, &channel);
    assert_eq!(channel.try_destroy(), libc::EBUSY);
    assert_eq!(cq.try_destroy(), 0);
    assert_eq!(channel.try_destroy(), 0);
}
