//! `verbatim sockets` as programs see it: what TCP brings, RDMA brings. The programs are in Python, and know nothing of it.

use std::process::Command;

use crate::common;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sockets.py");

/// Runs a scenario of two processes in a fabric of its own.
#[track_caller]
fn brings(scenario: &str) {
    common::build_libraries();
    let verbatim = env!("CARGO_BIN_EXE_verbatim");
    let fabric = format!("sockets_{scenario}_{}", std::process::id());
    let mut command = Command::new("timeout");
    command.args(["100", verbatim, "sockets", "--fabric", &fabric, "--"]);
    command.args(["/usr/bin/python3", PROGRAM, scenario]);
    command.env(
        "STAT",
        format!("{verbatim} sockets --stat --fabric {fabric}"),
    );
    let out = command.output().expect("timeout(1) starts");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{scenario}: {}\n{err}", out.status);
    assert_eq!(out.stdout, b"as TCP\n", "{err}");
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
fn poll_select_timeouts_and_half_close() {
    brings("polled");
}

#[test]
fn a_connection_is_added_while_a_thread_sleeps_in_epoll_wait() {
    brings("added");
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
fn a_connection_that_closes_with_unread_bytes_frees_its_ring() {
    brings("unread");
}

#[test]
fn discarded_bytes_and_control_messages() {
    brings("messages");
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
fn a_forked_child_takes_over() {
    brings("forked");
}

#[test]
fn a_descriptor_goes_to_another_process() {
    brings("rights");
}

#[test]
fn a_program_goes_on_after_exec() {
    brings("executed");
}

#[test]
fn the_commands_of_the_guide_run() {
    common::build_libraries();
    let folder = tempfile::tempdir().expect("a folder");
    assert!(common::run_the_guide("sockets.md", folder.path()) >= 4);
}
