//! Signals in threads that wait for events.

use crate::program::Program;

/// As read(2), by which rdma-core waits: the action of the signal that came decides, and no other action.
#[test]
fn a_wait_for_events_goes_on_after_a_handler_with_sa_restart() {
    let program = Program::of_the_tests_with("signals", &["-Wl,--no-as-needed", "-lrdmacm"]);
    let ran = program.run(&[], &[]);
    ran.printed(&[
        "ibv_get_cq_event(channel, &cq, &cq_context): Interrupted system call after 6 signals",
        "ibv_get_async_event(context, &event): Interrupted system call after 6 signals",
        "rdma_get_cm_event(cm_channel, &cm_event): Interrupted system call after 6 signals",
    ]);
}
