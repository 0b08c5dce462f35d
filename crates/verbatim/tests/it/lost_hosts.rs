//! `ib_write_bw` between two hosts, one of which is lost: the other completes with
//! `IBV_WC_RETRY_EXC_ERR` without outside help.
//!
//! A host is a network namespace.

use crate::common::machine::Machine;

const HOSTS: &str = include_str!("../programs/lost_hosts.sh");

#[track_caller]
fn run(script: &str) {
    Machine::new().succeed(&format!("{HOSTS}{script}\n"));
}

#[test]
fn a_client_notices_that_the_server_is_killed() {
    for connect in ["-x 1", "-R"] {
        run(&format!(
            "perftest \"$ENDLESS {connect}\"; kill -9 $server; notices client $client"
        ));
    }
}

#[test]
fn a_server_notices_that_the_client_is_killed() {
    // With -b the server writes, too.
    run("perftest \"$ENDLESS -x 1 -b\"; kill -9 $client; notices server $server");
}

#[test]
fn a_client_notices_that_a_link_goes_down() {
    for host in ["left", "right"] {
        run(&format!(
            "perftest \"$ENDLESS -x 1\"; ip -n {host} link set eth0 down; notices client $client"
        ));
    }
}

#[test]
fn a_client_notices_that_an_address_is_removed() {
    for (host, address) in [("left", "192.0.2.7"), ("right", "192.0.2.8")] {
        run(&format!(
            "perftest \"$ENDLESS -x 1\"; ip -n {host} address del {address}/24 dev eth0; notices client $client"
        ));
    }
}

#[test]
fn a_client_notices_that_the_server_is_stopped_for_longer_than_its_timeouts() {
    run(
        "perftest \"$ENDLESS -x 1\"; kill -STOP $server; notices client $client; kill -CONT $server",
    );
}

#[test]
fn a_link_that_comes_back_in_time_is_not_noticed() {
    // A timeout of 4.3 s: even a slow machine cannot let seven of them pass.
    run("perftest '-D 8 -s 4096 -F -x 1 -u 20'
         ip -n left link set eth0 down; sleep 1; ip -n left link set eth0 up
         payload; wait $client; wait $server");
}
