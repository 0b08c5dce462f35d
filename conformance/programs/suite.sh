#!/bin/sh
# Runs the suite of verbs semantics between two devices at the ends of a cable, in the virtual machine of `cargo xtask rxe`. The
# requester of most tests is the software NIC in one run, and Soft-RoCE in the other.
#
# suite.sh VERBS_CONFORMANCE [NETEM...]: what netem does is done in both directions.
set -u
suite=$1
shift
sh "$(dirname "$0")/wire.sh" soft 4200 "$@" || exit

# What one of the devices lacks.
lacking=implicit-odp,moderation,multicast,null-mr
# What unreliable queue pairs lose is not sent again.
[ $# -eq 0 ] || lacking=$lacking,uc,ud

# Both libraries are in one process, and Soft-RoCE pins the pages of memory that the software NIC would replace by shared ones.
export VERBATIM_KEEP_PRIVATE=1

# run TITLE OPTION...: the modules with tests of two queue pairs. One of the skipped tests waits 4,000 times for a receive, which
# takes an emulated machine minutes. The other one sends 200 datagrams at once, for which the buffer of a socket may be too small.
run() {
    echo "     Running the suite, $1"
    shift
    ip netns exec soft "$suite" "$@" --jobs 4 --second-runs 4 --without $lacking \
        --filter access:: --filter atomics:: --filter cq:: --filter data:: --filter events:: --filter flags:: --filter flush:: \
        --filter order:: --filter queues:: --filter rnr:: --filter srq:: --filter state:: --filter threads:: --filter ud:: --filter windows:: \
        --skip queues::a_full_send_queue_waits_for_receives --skip ud::hundreds_of_sources
}

# Whether Soft-RoCE says that it has drained before or after the refusal of its request comes, and whether it sends the request again,
# depends on the speed of the machine. So only the software NIC is the requester of that case.
status=0
run 'the software NIC to Soft-RoCE' \
    --gid-index 1 --peer system --peer-device wire0 --peer-gid-index 1 || status=1
run 'Soft-RoCE to the software NIC' \
    --provider system --device wire0 --gid-index 1 --peer softnic --peer-gid-index 1 \
    --skip events::draining_ends_when_the_last_request_is_acknowledged || status=1
exit $status
