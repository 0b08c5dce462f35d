//! Tests of address handles.

use verbs_abi::*;

use crate::TestEnv;
use crate::harness::record_case;
use crate::pair::QpSpec;

tests! { "ah";
    many_exist_at_once [Ud],
    a_port_that_is_not_there_is_refused [Ud],
    a_gid_index_beyond_the_table_is_refused [Ud],
    roce_needs_a_global_route [Ud],
    an_ah_of_another_pd_is_refused_or_loses_the_message [Ud, ArgumentChecks],
}

fn many_exist_at_once(env: &TestEnv) {
    let side = QpSpec::ud().create_qp_side(env);
    let attr = side.ah_attr_to_peer(&side.address());
    let handles: Vec<_> = (0..500).map(|_| side.pd.create_ah(&attr)).collect();
    let mut raws: Vec<_> = handles.iter().map(|ah| ah.raw()).collect();
    raws.sort();
    raws.dedup();
    assert_eq!(raws.len(), handles.len());
}

fn a_port_that_is_not_there_is_refused(env: &TestEnv) {
    let side = QpSpec::ud().create_qp_side(env);
    for port in [0, side.ctx.device_attr().phys_port_cnt + 1, 255] {
        record_case(format!("port {port}"));
        let mut attr = side.ah_attr_to_peer(&side.address());
        attr.port_num = port;
        assert_eq!(side.pd.try_create_ah(&attr).err(), Some(libc::EINVAL));
    }
}

fn a_gid_index_beyond_the_table_is_refused(env: &TestEnv) {
    let side = QpSpec::ud().with_change(|s| s.uses_grh = true).create_qp_side(env);
    let mut attr = side.ah_attr_to_peer(&side.address());
    let len = side.ctx.port_attr().gid_tbl_len;
    if let Ok(index) = u8::try_from(len) {
        attr.grh.sgid_index = index;
        assert_eq!(side.pd.try_create_ah(&attr).err(), Some(libc::EINVAL));
    }
}

/// Ethernet has no LIDs: `ibv_create_ah(3)`, `IBV_QPF_GRH_REQUIRED`.
fn roce_needs_a_global_route(env: &TestEnv) {
    let side = QpSpec::ud().create_qp_side(env);
    if side.ctx.port_attr().link_layer != IBV_LINK_LAYER_ETHERNET {
        return;
    }
    let mut attr = side.ah_attr_to_peer(&side.address());
    attr.is_global = 0;
    attr.dlid = 1;
    assert_eq!(side.pd.try_create_ah(&attr).err(), Some(libc::EINVAL));
}

/// The address handle and the QP have different PDs, but must have the same PD: IBTA vol. 1,
/// 10.2.3.
fn an_ah_of_another_pd_is_refused_or_loses_the_message(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    let other = pair.a.ctx.alloc_pd();
    let ah = other.create_ah(&pair.a.ah_attr_to_peer(&pair.b.address()));
    pair.b.post_recv(1, [target.whole_sge()]);
    let wr = crate::wr::send([]).with_id(2).with_ud_destination(&ah, pair.b.qp.qpn(), crate::pair::QKEY);
    match pair.a.qp.try_post_sends(vec![wr]) {
        Err(refused) => assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0))),
        Ok(()) => {
            pair.a.await_send_completion().expect_failed(2, &[IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR]);
        }
    }
    pair.b.rcq.expect_empty();
}
