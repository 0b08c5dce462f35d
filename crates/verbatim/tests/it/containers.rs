//! Two containers on one network, as in `docs/run-across-hosts.md`, made by unshare(1) instead of a
//! container engine.

use crate::common::machine::Machine;

const CONTAINERS: &str = include_str!("../programs/containers.sh");

/// Runs a program under `verbatim run` in each of two containers.
#[track_caller]
fn run(user_namespaces: &str, server: &str, client: &str, expected: &str) {
    let machine = Machine::new();
    machine.succeed(&format!(
        "export USER_NAMESPACES={user_namespaces}\n{CONTAINERS}\n\
         containers 'verbatim run -- {server}' 'verbatim run -- {client}'\n"
    ));
    let printed = std::fs::read_to_string(machine.file("out.client")).expect("its output");
    assert!(printed.contains(expected), "{client}: {printed}");
    // The program sees the device's files through a mount or, if mounting is forbidden, through a
    // preloaded library.
    let has_note = printed.contains("a preloaded library shows them");
    assert_eq!(has_note, user_namespaces == "forbidden", "{printed}");
}

#[test]
fn perftest_connects_by_rdma_cm() {
    for user_namespaces in ["forbidden", "allowed"] {
        run(
            user_namespaces,
            "ib_write_bw -R -n 500",
            "ib_write_bw -R -n 500 172.18.0.2",
            " 65536      500  ",
        );
    }
}

#[test]
fn pingpongs_exchange_gids_by_tcp() {
    for program in ["ibv_rc_pingpong", "ibv_ud_pingpong"] {
        run(
            "forbidden",
            &format!("{program} -g 1 -n 100"),
            &format!("{program} -g 1 -n 100 172.18.0.2"),
            "100 iters in ",
        );
    }
}

#[test]
fn rping() {
    run(
        "forbidden",
        "rping -s -a 172.18.0.2 -C 5 -v",
        "rping -c -a 172.18.0.2 -C 5 -v",
        "ping data: rdma-ping-4: ",
    );
}

/// Only the interface distinguishes the first GIDs of two containers, and link-local GIDs of other
/// containers are refused.
#[test]
fn gid_0_is_no_other_containers() {
    let machine = Machine::new();
    machine.succeed(&format!(
        "export USER_NAMESPACES=forbidden\n{CONTAINERS}\n\
         if (containers 'verbatim run -- ibv_rc_pingpong -g 0' 'verbatim run -- ibv_rc_pingpong -g 0 172.18.0.2')\n\
         then fail 'GID 0 is of use'; fi\n"
    ));
    let printed = std::fs::read_to_string(machine.file("out.server")).expect("its output");
    assert!(printed.contains("Failed to modify QP to RTR"), "{printed}");
}
