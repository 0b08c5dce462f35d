//! Each refused call returns a variant that says what to change, with the errno.

use std::error::Error;
use std::io;

use verbs::{
    Access, Context, CreateError, CreateQpError, DeviceError, ModifyError, ModifySrqError,
    PageSize, ProtectionDomain, Provider, QueryError, Rc, RegisterError, Ud, VerbError,
};

fn open() -> Context {
    let device = Provider::softnic().device(None).expect("a device");
    device.open().expect("opens")
}

fn domain() -> ProtectionDomain {
    open().alloc_pd().expect("a domain")
}

/// Checks that an error keeps the errno, by its method and as the source.
#[track_caller]
fn assert_errno(error: impl Into<VerbError>, verb: &str, errno: i32) {
    let error = error.into();
    assert_eq!((error.verb(), error.errno()), (verb, errno), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("{verb} failed: ")), "{text}");
    let source = error.source().and_then(|e| e.downcast_ref::<io::Error>());
    assert_eq!(source.and_then(io::Error::raw_os_error), Some(errno));
    let kind = error.os_error().kind();
    assert_eq!(io::Error::from(error).kind(), kind);
}

#[test]
fn a_missing_device_is_told_from_a_refusal() {
    let error = Provider::softnic().device(Some("mlx5_0"));
    match error.expect_err("no such device") {
        DeviceError::NoSuchDevice { existing, .. } => {
            assert!(existing.contains(&"softnic0".to_owned()), "{existing:?}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn queries_name_the_ports_and_entries_that_there_are() {
    let context = open();
    let error = context.query_port(9).expect_err("no such port");
    let QueryError::NoSuchPort {
        port_num, ports, ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((port_num, ports), (9, 1));
    assert_errno(error, "ibv_query_port", libc::EINVAL);
    let error = context.gid(1, 1 << 20).expect_err("no such entry");
    let entries = context.query_port(1).expect("port 1").gid_tbl_len;
    assert!(
        matches!(error, QueryError::NoSuchEntry { index, entries: e, .. } if index == 1 << 20 && e == entries),
        "{error}"
    );
    assert!(matches!(
        context.gid(9, 0),
        Err(QueryError::NoSuchPort { .. })
    ));
}

#[test]
fn sizes_beyond_a_limit_are_named_with_the_limit() {
    let context = open();
    let limits = context.query_device().expect("limits");
    for cqe in [0, limits.max_cqe + 1, u32::MAX] {
        let error = context.create_cq(cqe).expect_err("too large");
        assert!(
            matches!(error, CreateError::LimitExceeded { attribute: "cqe", requested, limit, .. }
                if (requested, limit) == (cqe, limits.max_cqe)),
            "{error}"
        );
        assert_errno(error, "ibv_create_cq", libc::EINVAL);
    }
    let pd = context.alloc_pd().expect("a domain");
    let error = pd.create_srq(limits.max_srq_wr + 1, 1).expect_err("large");
    assert!(matches!(
        error,
        CreateError::LimitExceeded {
            attribute: "max_wr",
            ..
        }
    ));
    let srq = pd.create_srq(16, 1).expect("a queue");
    let error = srq.set_limit(srq.max_wr() + 1).expect_err("too large");
    assert!(matches!(error, ModifySrqError::LimitExceeded { .. }));
    assert_errno(error, "ibv_modify_srq", libc::EINVAL);
}

#[test]
fn queue_pairs_name_the_capability_that_the_device_lacks() {
    let context = open();
    let limits = context.query_device().expect("limits");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(16).expect("a queue");
    let too_many = limits.max_qp_wr + 1;
    let error = pd.qp_builder::<Rc>(&cq, &cq).max_send_wr(too_many).build();
    let error = error.expect_err("too many");
    assert!(
        matches!(error, CreateQpError::LimitExceeded { attribute: "max_send_wr", requested, limit, .. }
            if (requested, limit) == (too_many, limits.max_qp_wr)),
        "{error}"
    );
    assert_errno(error, "ibv_create_qp", libc::EINVAL);
    let error = pd
        .qp_builder::<Rc>(&cq, &cq)
        .max_recv_sge(limits.max_sge + 1);
    assert!(matches!(
        error.build(),
        Err(CreateQpError::LimitExceeded {
            attribute: "max_recv_sge",
            ..
        })
    ));
    let foreign = open().create_cq(16).expect("a queue");
    let error = pd.qp_builder::<Ud>(&cq, &foreign).build();
    assert!(matches!(error, Err(CreateQpError::OtherContext { .. })));
}

#[test]
fn a_refused_connection_names_the_attribute_and_both_states() {
    let context = open();
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(16).expect("a queue");
    let peer = pd.qp_builder::<Rc>(&cq, &cq).build().expect("a queue pair");
    let connect = |builder: verbs::QpBuilder<Rc>| {
        let qp = builder.build().expect("a queue pair");
        qp.connect(&peer.endpoint()).expect_err("out of range")
    };
    let builder = || pd.qp_builder::<Rc>(&cq, &cq);
    for (error, name, value, states) in [
        (connect(builder().timeout(40)), "timeout", 40, "RTR to RTS"),
        (
            connect(builder().retry_cnt(9)),
            "retry_cnt",
            9,
            "RTR to RTS",
        ),
        (
            connect(builder().max_rd_atomic(255)),
            "max_dest_rd_atomic",
            255,
            "INIT to RTR",
        ),
    ] {
        assert!(
            matches!(error, ModifyError::OutOfRange { attribute, value: v, .. } if (attribute, v) == (name, value)),
            "{error}"
        );
        assert!(error.to_string().contains(states), "{error}");
        assert_errno(error, "ibv_modify_qp", libc::EINVAL);
    }
}

#[test]
fn memory_that_cannot_be_registered_says_why() {
    let pd = domain();
    let error = pd.register_vec(vec![0; 8], Access::REMOTE_WRITE);
    let error = error.expect_err("no local writes");
    assert!(matches!(error, RegisterError::Access { .. }), "{error}");
    assert_errno(error, "ibv_reg_mr", libc::EINVAL);
    for error in [
        pd.alloc(0, Access::ALL).expect_err("nothing"),
        pd.register_vec(Vec::new(), Access::ALL)
            .expect_err("nothing"),
        pd.alloc(usize::MAX, Access::ALL).expect_err("too long"),
    ] {
        assert!(matches!(error, RegisterError::Length { .. }), "{error}");
    }
    // No machine has a terabyte of reserved huge pages.
    let error = pd.alloc_in_pages(1 << 40, Access::ALL, PageSize::Huge);
    let error = error.expect_err("too few pages");
    assert!(
        matches!(error, RegisterError::NoHugePages { .. }),
        "{error}"
    );
}
