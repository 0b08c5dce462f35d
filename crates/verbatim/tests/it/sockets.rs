//! `verbatim sockets` as programs see it: what TCP brings, RDMA brings, by shared memory and by packets. The programs are in
//! Python, and know nothing of it.

use std::net::UdpSocket;
use std::process::Command;

use crate::common;
use crate::common::machine::Machine;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sockets.py");

/// Runs a scenario of two processes on both paths.
#[track_caller]
fn brings(scenario: &str) {
    brings_by(scenario, "auto", None);
    brings_by(scenario, "packets", None);
}

/// Runs a scenario of two processes in a fabric of its own, by a path and with a fault plan.
#[track_caller]
fn brings_by(scenario: &str, path: &str, fault: Option<&str>) {
    common::build_libraries();
    let verbatim = env!("CARGO_BIN_EXE_verbatim");
    let fabric = format!("sockets_{scenario}_{path}_{}", std::process::id());
    let mut command = Command::new("timeout");
    command.env("VERBATIM_PATH", path);
    // By packets, each of the two ends has a page.
    command.env("LINES", if path == "packets" { "4" } else { "2" });
    let port = free_port();
    command.env("VERBATIM_SOCKETS_PORT", port.to_string());
    // Fabrics cannot share the port of an address, and tests run side by side.
    let address = format!("127.{}.{}.9", port >> 8, port & 255);
    command.env("VERBATIM_ADDRESS", address);
    if let Some(plan) = fault {
        command.env("VERBATIM_FAULT", plan);
    }
    command.args(["100", verbatim, "sockets", "--fabric", &fabric, "--"]);
    command.args(["/usr/bin/python3", PROGRAM, scenario]);
    command.env(
        "STAT",
        format!("{verbatim} sockets --stat --fabric {fabric}"),
    );
    let out = command.output().expect("timeout(1) starts");
    let err = String::from_utf8_lossy(&out.stderr);
    let what = format!("{scenario} by {path}");
    assert!(out.status.success(), "{what}: {}\n{err}", out.status);
    assert_eq!(out.stdout, b"as TCP\n", "{err}");
}

/// Returns a UDP port that nobody uses now.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"));
    let address = socket.and_then(|socket| socket.local_addr());
    address.expect("a port").port()
}

#[test]
fn both_directions_at_once_bring_every_byte() {
    brings("stream");
}

#[test]
fn an_event_driven_program_gets_its_edges() {
    brings("events");
}

#[test]
fn a_crowd_of_idle_connections_still_gets_its_events() {
    brings_by("crowd", "auto", None);
}

#[test]
fn threads_share_a_crowd_of_idle_connections() {
    brings_by("crowd_of_threads", "auto", None);
}

#[test]
fn poll_select_timeouts_and_half_close() {
    brings("polled");
}

#[test]
fn a_connection_is_added_while_a_thread_sleeps_in_epoll_wait() {
    brings("added");
}

#[test]
fn an_epoll_instance_in_another_one_wakes_a_thread() {
    brings("nested");
}

#[test]
fn a_thread_in_epoll_wait_learns_that_a_full_connection_has_room() {
    brings("full");
}

#[test]
fn threads_that_sleep_on_one_connection_do_not_miss_data() {
    brings("sleepers");
}

#[test]
fn threads_share_an_epoll_instance() {
    brings("pool");
}

#[test]
fn an_exit_after_a_read_is_an_end_and_no_reset() {
    brings("left");
}

#[test]
fn a_reset_stays_a_reset_after_poll() {
    brings("reset");
}

#[test]
fn an_error_is_shown_by_events_and_so_error() {
    brings("failed");
}

#[test]
fn urgent_data_arrive_by_tcp() {
    brings("urgent");
    brings("inlined");
}

#[test]
fn a_connection_that_closes_with_unread_bytes_frees_its_ring() {
    brings("unread");
}

#[test]
fn discarded_bytes_and_control_messages() {
    brings("messages");
}

#[test]
fn bytes_are_spliced_to_and_from_pipes() {
    brings("spliced");
}

#[test]
fn a_killed_sender_leaves_a_prefix_and_an_end() {
    brings("killed");
}

#[test]
fn a_killed_receiver_fails_its_sender() {
    brings("deaf");
}

#[test]
fn a_killed_receiver_fails_a_sender_that_waits_for_room_only() {
    brings("unheard_poll");
    brings("unheard_epoll");
}

#[test]
fn a_server_that_changes_its_user_loses_no_byte() {
    let id = Command::new("id").arg("-u").output().expect("id(1) starts");
    if id.stdout == b"0\n" {
        brings("dropped");
    }
}

#[test]
fn threads_with_small_stacks_use_connections() {
    brings("narrow");
}

#[test]
fn the_first_send_after_a_killed_client_that_has_read_everything_succeeds() {
    brings("served");
}

#[test]
fn a_forked_child_takes_over() {
    brings("forked");
}

#[test]
fn a_forked_child_takes_over_while_bytes_arrive() {
    for _ in 0..5 {
        brings("handed");
    }
}

#[test]
fn a_daemon_continues_when_the_process_that_forked_it_has_ended() {
    brings("abandoned");
}

#[test]
fn a_process_forks_while_a_thread_of_it_sends() {
    brings("interrupted");
}

#[test]
fn unread_bytes_go_with_a_descriptor_after_its_process_has_ended() {
    brings_by("passed", "auto", None);
    // By packets the memory of a process ends with it.
    brings_by("ended", "packets", None);
}

#[test]
fn a_parent_and_its_child_both_send() {
    brings("shared");
}

#[test]
fn memory_that_a_child_reads_is_not_used_again() {
    brings("recycled");
}

#[test]
fn a_descriptor_goes_to_another_process() {
    brings("rights");
}

#[test]
fn unread_bytes_go_with_a_descriptor_after_both_ends_have_closed() {
    brings("inherited");
}

#[test]
fn a_send_that_blocks_sends_everything() {
    brings("whole");
}

#[test]
fn a_descriptor_that_fclose_closed_is_forgotten() {
    brings("wrapped");
}

#[test]
fn a_descriptor_that_a_system_call_closed_is_forgotten() {
    brings("numbered");
}

#[test]
fn descriptors_that_were_closed_past_the_library_do_not_stop_the_nic() {
    brings_by("bypassed", "auto", None);
}

#[test]
fn a_send_continues_after_a_signal_whose_handler_restarts_calls() {
    brings("signalled");
}

#[test]
fn a_send_after_a_reset_says_so() {
    brings("refused");
}

#[test]
fn a_connection_changes_while_a_thread_sleeps_in_poll() {
    brings("watched");
}

#[test]
fn a_program_goes_on_after_exec() {
    brings("executed");
}

#[test]
fn an_exit_right_after_a_write_loses_no_byte() {
    brings("written");
}

#[test]
fn much_comes_after_a_half_close() {
    brings("halved");
}

#[test]
fn a_process_that_stops_for_a_while_loses_no_byte() {
    brings("stopped");
}

#[test]
fn children_accept_connections_of_their_parents_listener() {
    brings("prefork");
}

#[test]
fn a_peer_that_is_late_is_waited_for() {
    brings("overtaken");
}

#[test]
fn listeners_at_one_port_accept_carried_connections() {
    brings("reuseport");
}

#[test]
fn io_uring_is_refused() {
    brings("uring");
}

#[test]
fn processes_without_descriptors_lose_no_byte() {
    brings("exhausted");
}

#[test]
fn a_client_without_the_library_stays_on_tcp() {
    brings("unaided");
}

#[test]
fn a_host_that_packets_do_not_reach_stays_on_tcp() {
    brings_by("unreachable", "packets", Some("drop"));
}

#[test]
fn lost_packets_lose_no_byte() {
    for scenario in ["stream", "pool"] {
        brings_by(scenario, "packets", Some("drop,p=0.01"));
    }
}

#[test]
fn a_network_that_fails_loses_and_repeats_no_byte() {
    for scenario in ["stream", "events"] {
        brings_by(scenario, "packets", Some("drop,after=400"));
        // The receiver has bytes of which the sender does not know that they have arrived.
        brings_by(scenario, "packets", Some("drop,opcode=ACK,after=300"));
    }
}

#[test]
fn two_hosts_find_each_other() {
    let script = r#"
two_hosts left right
# on HOST ROLE SCENARIO
on() {
    ip netns exec "$1" env VERBATIM_FABRIC_DIR=/dev/shm/"$1" LINES=2 STAT="verbatim sockets --stat" \
        verbatim sockets -- /usr/bin/python3 PROGRAM "$2" "$3" 192.0.2.7 7000
}
for scenario in stream polled; do
    on left serve $scenario >out.server 2>&1 &
    server=$!
    until ip netns exec left grep -q ':1B58 .* 0A ' /proc/net/tcp; do sleep 0.02; done
    on right connect $scenario
    wait $server
    cat out.server
done
"#;
    let script = script.replace("PROGRAM", PROGRAM);
    assert_eq!(
        Machine::new().succeed(&script),
        "as TCP\nas TCP\nas TCP\nas TCP\n"
    );
}

#[test]
fn the_commands_of_the_guide_run() {
    common::build_libraries();
    let folder = tempfile::tempdir().expect("a folder");
    assert!(common::run_the_guide("sockets.md", folder.path()) >= 6);
}
