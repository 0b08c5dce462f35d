//! Tests of devices, ports, GIDs, P_Keys and texts.

use std::time::Duration;

use verbs_abi::*;

use crate::objects::{Context, DeviceList, status_event_node_and_port_texts};
use crate::{NicCapability, TestEnv};

tests! { "device";
    list_ends_with_null_and_counts [],
    list_works_without_a_count [],
    names_and_guids_are_there [],
    opens_twice_and_closes [],
    an_open_device_outlives_the_device_list [],
    query_device_is_sane [],
    query_port_is_sane [],
    a_port_that_is_not_there_is_refused [],
    link_layer_is_the_one_asked_for [],
    gid_table_has_an_address_and_an_end [],
    pkey_table_has_the_default_and_an_end [],
    codes_have_texts [],
    comp_vectors_are_there [],
    async_queue_is_empty_and_does_not_block [Events],
}

fn list_ends_with_null_and_counts(env: &TestEnv) {
    let list = DeviceList::new(env.symbols).expect("ibv_get_device_list");
    assert!(list.count > 0, "no devices");
    assert_eq!(list.devices().count(), usize::try_from(list.count).unwrap());
}

fn list_works_without_a_count(env: &TestEnv) {
    let list = DeviceList::new(env.symbols).expect("ibv_get_device_list");
    assert!(list.accepts_null_count());
}

fn names_and_guids_are_there(env: &TestEnv) {
    let list = DeviceList::new(env.symbols).expect("ibv_get_device_list");
    let mut names: Vec<String> = list.devices().map(|d| list.get_device_name(d)).collect();
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains(['/', ' '])), "{names:?}");
    names.dedup();
    assert_eq!(names.len(), list.devices().count(), "two devices of one name");
    assert!(list.devices().all(|d| list.get_device_guid(d) != 0), "a device without GUID");
}

fn opens_twice_and_closes(env: &TestEnv) {
    let first = Context::open(env);
    let second = Context::open(env);
    assert_ne!(first.raw(), second.raw());
    drop(first);
    drop(second.alloc_pd());
    drop(second);
    drop(Context::open(env).alloc_pd());
}

/// `ibv_get_device_list(3)`: a device that was opened before the list is freed stays usable.
fn an_open_device_outlives_the_device_list(env: &TestEnv) {
    let ctx = {
        let list = DeviceList::new(env.symbols).expect("ibv_get_device_list");
        let device = list.devices().next().expect("a device");
        list.open(env, device).expect("ibv_open_device")
    };
    assert!(ctx.device_attr().max_qp > 0);
}

fn query_device_is_sane(env: &TestEnv) {
    let ctx = Context::open(env);
    let attr = ctx.device_attr();
    let list = DeviceList::new(env.symbols).expect("ibv_get_device_list");
    let wanted = env.settings.device.as_deref();
    let device = list.devices().find(|d| wanted.is_none_or(|name| list.get_device_name(*d) == name)).unwrap();
    assert_eq!(attr.node_guid, list.get_device_guid(device));
    assert!(attr.fw_ver.contains(&0), "fw_ver without end");
    assert!(attr.phys_port_cnt >= env.settings.port);
    for (name, value) in [
        ("max_qp", attr.max_qp),
        ("max_qp_wr", attr.max_qp_wr),
        ("max_sge", attr.max_sge),
        ("max_sge_rd", attr.max_sge_rd),
        ("max_cq", attr.max_cq),
        ("max_cqe", attr.max_cqe),
        ("max_mr", attr.max_mr),
        ("max_pd", attr.max_pd),
        ("max_ah", attr.max_ah),
    ] {
        assert!(value > 0, "{name} is {value}");
    }
    assert!(attr.max_mr_size >= 1 << 20);
    assert!(attr.page_size_cap & 4096 != 0, "page_size_cap {:#x}", attr.page_size_cap);
    assert!(attr.max_pkeys >= 1);
    if env.expects_capability(NicCapability::Srq) {
        assert!(attr.max_srq > 0 && attr.max_srq_wr > 0 && attr.max_srq_sge > 0);
    }
    if env.expects_capability(NicCapability::Atomics) {
        assert!([IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB].contains(&attr.atomic_cap));
    }
    if env.expects_capability(NicCapability::Read) {
        assert!(attr.max_qp_rd_atom > 0 && attr.max_qp_init_rd_atom > 0);
    }
}

fn query_port_is_sane(env: &TestEnv) {
    let port = Context::open(env).port_attr();
    assert_eq!(port.state, IBV_PORT_ACTIVE);
    assert!((IBV_MTU_256..=IBV_MTU_4096).contains(&port.active_mtu));
    assert!((port.active_mtu..=IBV_MTU_4096).contains(&port.max_mtu));
    assert!(port.gid_tbl_len >= 1 && port.pkey_tbl_len >= 1);
    assert!(port.max_msg_sz >= 1 << 20, "max_msg_sz {}", port.max_msg_sz);
    // `ibv_query_port(3)`: 5 is LinkUp.
    assert_eq!(port.phys_state, 5);
    assert!(port.active_width != 0 && port.active_speed != 0);
}

fn a_port_that_is_not_there_is_refused(env: &TestEnv) {
    let ctx = Context::open(env);
    let ports = ctx.device_attr().phys_port_cnt;
    for port in [0, ports + 1, 255] {
        let refused = ctx.try_port_attr(port).map(|_| ());
        assert_eq!(refused, Err(libc::EINVAL), "port {port}");
        assert!(ctx.try_gid(port, 0).is_err(), "GID of port {port}");
        assert!(ctx.try_pkey(port, 0).is_err(), "P_Key of port {port}");
    }
}

fn link_layer_is_the_one_asked_for(env: &TestEnv) {
    let port = Context::open(env).port_attr();
    if let Some(link_layer) = env.settings.required_link_layer {
        assert_eq!(port.link_layer, link_layer);
    }
    if port.link_layer == IBV_LINK_LAYER_INFINIBAND {
        assert!((1..0xc000).contains(&port.lid), "{:#x} is no unicast LID", port.lid);
        assert!(port.sm_lid != 0);
    }
}

fn gid_table_has_an_address_and_an_end(env: &TestEnv) {
    let ctx = Context::open(env);
    let (port, index) = (env.settings.port, env.settings.gid_index);
    let gid = ctx.try_gid(port, index.into()).expect("ibv_query_gid");
    assert_ne!(gid, [0; 16]);
    let attr = ctx.port_attr();
    if attr.link_layer == IBV_LINK_LAYER_INFINIBAND {
        // The prefix of the GID is link-local, unless a subnet manager has assigned another prefix; the
        // lower half is a GUID.
        assert!(gid[8..] != [0; 8]);
    }
    // `ibv_query_gid(3)`: "returns 0 on success, and -1 on error".
    assert_eq!(ctx.try_gid(port, attr.gid_tbl_len), Err(-1));
    assert_eq!(ctx.try_gid(port, -1), Err(-1));
}

fn pkey_table_has_the_default_and_an_end(env: &TestEnv) {
    let ctx = Context::open(env);
    let port = env.settings.port;
    // Entry 0 is the P_Key of the default partition: IBTA vol. 1, 10.9.1.2.
    assert_eq!(ctx.try_pkey(port, 0).map(|pkey| pkey & 0x7fff), Ok(0x7fff));
    let len = i32::from(ctx.port_attr().pkey_tbl_len);
    assert_eq!(ctx.try_pkey(port, len), Err(-1));
    assert_eq!(ctx.try_pkey(port, -1), Err(-1));
}

fn codes_have_texts(env: &TestEnv) {
    let texts = status_event_node_and_port_texts(env.symbols, 0..=40);
    assert!(texts.iter().all(|text| !text.is_empty()));
    let of_far_codes = status_event_node_and_port_texts(env.symbols, u32::MAX - 2..=u32::MAX);
    assert!(of_far_codes.iter().all(|text| !text.is_empty()));
}

fn comp_vectors_are_there(env: &TestEnv) {
    assert!(Context::open(env).num_comp_vectors() >= 1);
}

fn async_queue_is_empty_and_does_not_block(env: &TestEnv) {
    let ctx = Context::open(env);
    assert!(ctx.get_async_event_within(Duration::ZERO).is_none());
    assert_eq!(ctx.nonblocking_get_async_event_errno(), libc::EAGAIN);
}
