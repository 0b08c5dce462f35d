//! Devices that lack a capability: a design that needs it is refused before anything starts. All designs run on a
//! device without inline data.

#[path = "../../../verbs/tests/limited/mod.rs"]
mod providers;

use std::net::Ipv6Addr;
use std::path::Path;

use sequencer::{
    Client, ClientConfig, ClientError, ConnectError, Design, NicConfig, NumberChecker, RunLimit,
    Server, ServerConfig, ServerError,
};
use verbs::{Context, Provider};

fn open(provider: Provider) -> Context {
    provider
        .device(None)
        .expect("a device")
        .open()
        .expect("the software NIC opens")
}

fn server_config(design: Design) -> ServerConfig {
    ServerConfig {
        design,
        ..ServerConfig::default()
    }
}

fn client_config(server: &Server) -> ClientConfig {
    ClientConfig {
        server: server.address().to_string(),
        answer_timeout_ms: 60_000,
        ..ClientConfig::default()
    }
}

/// Runs a design with server and client on the given devices, and checks every number.
fn run(server_side: &Context, client_side: &Context, design: Design) {
    let server = Server::start_on(server_side, server_config(design)).expect("starts");
    let mut client = Client::connect_on(client_side, client_config(&server)).expect("connects");
    // Enough requests to wrap around all rings several times.
    let report = client.run(RunLimit::Count(20_000));
    drop(client);
    let stats = server.stop();
    assert_eq!(
        report.received_number_count, 20_000,
        "{design}: {:?}",
        report.failures
    );
    let mut checker = NumberChecker::new(stats.first_number);
    checker.add_report("client", &report);
    let verdict = checker.verdict(Some(stats.next_number));
    assert!(verdict.ok, "{design}: {verdict}");
}

#[test]
fn a_design_that_needs_what_the_device_lacks_does_not_start() {
    let context = open(providers::without_uc());
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    for design in [Design::Rpc, Design::RpcBatch, Design::RpcBatchMq] {
        let config = ServerConfig {
            state_path: Some(state.clone()),
            // No server can listen at this address: the device is checked first.
            listen: "192.0.2.1:1".to_owned(),
            ..server_config(design)
        };
        let error = Server::start_on(&context, config).expect_err("no UC");
        assert!(matches!(error, ServerError::Unsupported(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            format!(
                "design {design} needs UC, which softnic0 (without-uc) does not have (ibv_create_qp failed: \
                 Operation not supported (os error 95)); designs that run there: atomics, spec-s0"
            )
        );
        assert!(!Path::new(&state).exists(), "nothing was begun");
    }
    let softnic = open(Provider::softnic());
    for design in [Design::Atomics, Design::SpecS0] {
        run(&context, &softnic, design);
    }
}

#[test]
fn what_is_lacking_is_named_with_its_reason_one_by_one() {
    let context = open(providers::only_datagrams());
    let capabilities = context.capabilities().expect("found out");
    assert_eq!(Design::runnable(capabilities), []);
    let refusal = Design::Atomics.check(capabilities).expect_err("no RC");
    assert_eq!(
        refusal.to_string(),
        "design atomics needs RC and RDMA READ and atomics, which softnic0 (only-datagrams) does not have (RC: \
         ibv_create_qp failed: Operation not supported (os error 95); RDMA READ: there is no RC; atomics: there \
         is no RC); designs that run there: none"
    );
    let lacks = Design::SpecS0
        .check(capabilities)
        .expect_err("no events")
        .lacks;
    assert_eq!(lacks.len(), 1);
    let context = open(providers::without_atomics());
    let capabilities = context.capabilities().expect("found out");
    assert_eq!(Design::runnable(capabilities), Design::ALL[1..]);
}

#[test]
fn a_client_says_so_too() {
    let server = Server::start(server_config(Design::Rpc)).expect("starts");
    let context = open(providers::without_uc());
    let error = Client::connect_on(&context, client_config(&server)).expect_err("no UC");
    assert!(
        matches!(error, ClientError::Connect(ConnectError::Unsupported(_))),
        "{error:?}"
    );
    assert_eq!(server.stop().clients_total, 0);
}

#[test]
fn every_design_runs_without_inline_payload() {
    let softnic = open(Provider::softnic());
    for provider in [providers::without_inline(), providers::grants_8_inline()] {
        let context = open(provider);
        for design in Design::ALL {
            run(&context, &context, design);
        }
        run(&context, &softnic, Design::RpcBatchMq);
        run(&softnic, &context, Design::Rpc);
    }
}

#[test]
fn ports_and_gids_that_are_not_there_are_refused_by_name() {
    let context = open(Provider::softnic());
    let port = |port_num, gid_index| NicConfig {
        port_num,
        gid_index,
        ..NicConfig::default()
    };
    let chosen = port(1, None).port_and_gid(&context, None).expect("port 1");
    assert_eq!(chosen.gid_index, context.default_gid_index(1).expect("one"));
    for index in 0..context.query_port(1).expect("port 1").gid_tbl_len {
        let gid = context.gid(1, index).expect("an entry");
        let address = Ipv6Addr::from(gid.0).to_canonical();
        let chosen = port(1, None).port_and_gid(&context, Some(address));
        let chosen = chosen.expect("port 1").gid_index;
        assert_eq!(context.gid(1, chosen.into()).expect("an entry"), gid);
    }
    let elsewhere = port(1, None).port_and_gid(&context, Some([192, 0, 2, 1].into()));
    assert_eq!(elsewhere.expect("port 1"), chosen);
    assert_eq!(
        port(1, Some(0))
            .port_and_gid(&context, None)
            .expect("GID 0")
            .gid_index,
        0
    );
    for (config, text) in [
        (
            port(0, None),
            "softnic0 has no port 0: its ports are 1 to 1",
        ),
        (
            port(2, None),
            "softnic0 has no port 2: its ports are 1 to 1",
        ),
        (
            port(1, Some(250)),
            "GID index 250 of port 1 of softnic0 is empty",
        ),
    ] {
        let error = config
            .port_and_gid(&context, None)
            .expect_err("refused")
            .to_string();
        assert!(error.starts_with(text), "{error}");
    }
}

#[test]
fn every_design_runs_from_a_gid_that_was_chosen() {
    let context = open(Provider::softnic());
    let default = context.default_gid_index(1).expect("one");
    let is_set = |i: &u8| context.gid(1, (*i).into()).is_ok_and(|gid| !gid.is_zero());
    // Without an IP address, the software NIC has only one GID.
    let other = (0..8)
        .filter(is_set)
        .find(|i| *i != default)
        .unwrap_or(default);
    let nic = NicConfig {
        gid_index: Some(other),
        ..NicConfig::default()
    };
    for design in Design::ALL {
        let config = ServerConfig {
            nic: nic.clone(),
            ..server_config(design)
        };
        let server = Server::start_on(&context, config).expect("starts");
        let config = ClientConfig {
            nic: nic.clone(),
            ..client_config(&server)
        };
        let mut client = Client::connect_on(&context, config).expect("connects");
        let report = client.run(RunLimit::Count(1000));
        assert_eq!(
            report.received_number_count, 1000,
            "{design}: {:?}",
            report.failures
        );
    }
}
