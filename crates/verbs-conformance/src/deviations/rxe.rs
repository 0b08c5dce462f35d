//! Known deviations of the kernel's Soft-RoCE.

use super::deviation::DeviationKind::{Hangs, KernelCrash, MissingFeature, WrongResult};
use super::deviation::{Deviation, DeviationTopic, Deviations};
use crate::test_env::NicCapability;

/// The deviations of Soft-RoCE, by topic.
pub(super) const RXE: Deviations = Deviations {
    device_kind: "rxe",
    kernel_and_library: "Linux 6.1.192 (Debian 6.1.0-56-amd64) with rdma-core 44.0",
    lacked_capabilities: &[
        NicCapability::ArgumentChecks,
        NicCapability::EarlyChecks,
        NicCapability::ErrorEvents,
        NicCapability::ErrorStatuses,
        NicCapability::IgnoreOverrun,
        NicCapability::ImmediateChecks,
        NicCapability::RandomKeys,
        NicCapability::Sqe,
    ],
    topics: &[
        DeviationTopic {
            title: "Posting work requests",
            deviations: POSTING_DEVIATIONS,
        },
        DeviationTopic {
            title: "Queues",
            deviations: QUEUE_DEVIATIONS,
        },
        DeviationTopic {
            title: "Completions and their statuses",
            deviations: COMPLETION_DEVIATIONS,
        },
        DeviationTopic {
            title: "Events",
            deviations: EVENT_DEVIATIONS,
        },
        DeviationTopic {
            title: "States and attributes",
            deviations: STATE_DEVIATIONS,
        },
        DeviationTopic {
            title: "Memory and arguments",
            deviations: MEMORY_DEVIATIONS,
        },
        DeviationTopic {
            title: "Memory windows",
            deviations: WINDOW_DEVIATIONS,
        },
    ],
    with_distant_peer: DeviationTopic {
        title: "With a peer whose answers take time",
        deviations: DISTANT_PEER_DEVIATIONS,
    },
};

const POSTING_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        KernelCrash,
        "refusals::unknown_opcodes_are_refused",
        "an unknown opcode indexes a table of the kernel unchecked: 0x80000000 is an oops that leaves the \
         process unkillable",
        "BUG: unable to handle page fault … RIP: req_next_wqe+0xb9/0x1b0 [rdma_rxe]",
    ),
    Deviation::new(
        WrongResult,
        "refusals::a_verb_that_the_transport_lacks_is_refused_at_once",
        "`ibv_post_send` takes verbs that the transport does not have; the completion is the refusal",
        "UD has no such verb: ()",
    ),
    Deviation::new(
        WrongResult,
        "refusals::a_message_beyond_4_gib_is_refused",
        "the length of the message is summed in 32 bits: four SGEs of 1 GiB are a message of 0 bytes that \
         succeeds",
        "status 0, qp_num",
    ),
    Deviation::new(
        WrongResult,
        "state::sends_before_rts_are_refused",
        "a send that the state does not allow is refused with EINVAL, without `bad_wr`",
        "left: (22, None)",
    ),
    Deviation::new(
        WrongResult,
        "state::receives_in_reset_are_refused",
        "a receive that the state does not allow is refused with EINVAL, without `bad_wr`",
        "left: (22, None)",
    ),
    Deviation::new(
        WrongResult,
        "srq::posting_to_the_queue_pair_is_refused",
        "a receive on a QP with an SRQ is refused without `bad_wr`",
        "left: None",
    )
    .mark_of_second_queue_pair(),
];

const QUEUE_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        WrongResult,
        "queues::a_full_send_queue_of_uc_refuses_with_bad_wr",
        FREES_SEND_SLOT_BEFORE_POLL_BEHAVIOUR,
        "the send queue is full: ()",
    ),
    Deviation::new(
        WrongResult,
        "queues::a_full_send_queue_of_ud_refuses_with_bad_wr",
        FREES_SEND_SLOT_BEFORE_POLL_BEHAVIOUR,
        "the send queue is full: ()",
    ),
    Deviation::new(
        WrongResult,
        "queues::unsignaled_wrs_hold_their_slots",
        FREES_SEND_SLOT_BEFORE_POLL_BEHAVIOUR,
        "nothing has freed a slot: ()",
    ),
    Deviation::new(
        WrongResult,
        "queues::finished_wrs_hold_their_slots_until_they_are_polled",
        FREES_SEND_SLOT_BEFORE_POLL_BEHAVIOUR,
        "not polled yet: ()",
    ),
    Deviation::new(
        WrongResult,
        "queues::polling_makes_room_in_the_send_queue",
        FREES_SEND_SLOT_BEFORE_POLL_BEHAVIOUR,
        "full again: ()",
    ),
    Deviation::new(
        WrongResult,
        "qp::sizes_are_at_least_what_was_asked_for",
        "`ibv_create_qp` returns the sizes that were asked for, `ibv_query_qp` those that there are",
        "in the case 2 WRs of 2 SGEs",
    ),
    Deviation::new(
        WrongResult,
        "srq::creating_tells_the_sizes_that_query_tells",
        "`ibv_create_srq` returns the sizes that were asked for, `ibv_query_srq` those that there are",
        "left: (15, 3)",
    ),
    Deviation::new(
        MissingFeature,
        "overrun::a_queue_pair_fails_when_its_cq_overruns",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        MissingFeature,
        "overrun::two_queue_pairs_overrun_their_shared_cq",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        MissingFeature,
        "overrun::wrs_posted_after_an_overrun_never_complete",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        MissingFeature,
        "overrun::a_qp_reconnected_on_an_overrun_cq_fails_again",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        WrongResult,
        "overrun::a_polled_cq_is_not_overrun",
        LOSES_COMPLETION_AT_ONCE_BEHAVIOUR,
        "wr_id of wc(",
    ),
    Deviation::new(
        WrongResult,
        "overrun::a_cq_resized_in_time_is_not_overrun",
        LOSES_COMPLETION_AT_ONCE_BEHAVIOUR,
        "get_async_event_within(OVERRUN_DETECTION_TIME).is_none()",
    ),
    Deviation::new(
        MissingFeature,
        "overrun::a_cq_may_ignore_overruns",
        "its provider refuses IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN with EOPNOTSUPP",
        "ibv_create_cq_ex: 95",
    ),
    Deviation::new(
        Hangs,
        "threads::two_threads_post_receives",
        "now and then a sender that was told to wait for a receive is never heard of again",
        "completions came: [",
    )
    .mark_flaky(),
];

const OVERRUN_BEHAVIOUR: &str = "a CQ without room loses the completion, raises IBV_EVENT_CQ_ERR, and goes on \
     when it has been polled. The sending QP hears nothing of it; a receiving QP goes to ERR without \
     IBV_EVENT_QP_FATAL";

const LOSES_COMPLETION_AT_ONCE_BEHAVIOUR: &str = "a completion for which there is no room is lost at once, as on any NIC. \
     The software NIC waits a quarter of a second for a poll or a larger CQ";

const FREES_SEND_SLOT_BEFORE_POLL_BEHAVIOUR: &str = "a slot of the send queue is free when its WR is done, not when its \
     completion is polled. A queue that is never full can overrun its CQ";

const RECVS_IN_ERR_BEHAVIOUR: &str =
    "receives that are posted in ERR stay there without a completion";

const COMPLETION_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        WrongResult,
        "access::local_protection_errors_have_their_status",
        "a wrong L_Key and one of another PD are LOC_QP_OP_ERR instead of LOC_PROT_ERR (which a wrong range is)",
        "status 2, qp_num",
    ),
    Deviation::new(
        WrongResult,
        "access::length_errors_have_their_status",
        "a receive that is too small fails as LOC_QP_OP_ERR instead of LOC_LEN_ERR, its SEND as REM_OP_ERR \
         instead of REM_INV_REQ_ERR",
        "status 2, qp_num",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "access::a_refused_write_with_imm_is_a_local_access_error_of_its_receive",
        "the receive fails as REM_ACCESS_ERR, the requester's status",
        "status 10, qp_num",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "access::an_atomic_with_an_invalid_result_sge_changes_nothing",
        "the buffer of the result is looked at when the result is there: the remote word has changed",
        "the remote word",
    ),
    Deviation::new(
        Hangs,
        "flush::a_failed_wr_completes_after_earlier_wrs",
        "a WR behind which another one fails at once is executed by the peer and never completes",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        MissingFeature,
        "flush::receives_posted_in_err_are_flushed",
        RECVS_IN_ERR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        MissingFeature,
        "overrun::a_cq_that_was_idle_is_overrun_by_receives_posted_in_err",
        RECVS_IN_ERR_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        Hangs,
        "atomics::reads_and_atomics_fail_with_rd_atomic_0",
        "a READ or an atomic on a QP with `max_rd_atomic` 0 waits for ever",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        MissingFeature,
        "cq::solicited_only_fires_on_a_failure",
        "a failed completion does not wake a CQ that is armed for solicited ones",
        "no CQ event came",
    ),
    Deviation::new(
        MissingFeature,
        "ud::a_qkey_with_the_high_bit_selects_the_senders_own",
        "a Q_Key with the high-order bit set is sent as it is, and the datagram is dropped",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        MissingFeature,
        "ud::a_receiver_that_does_not_poll_loses_no_datagram",
        "a datagram for which no RECV is posted yet is dropped at once (IBTA vol. 1, 9.8.3.2). The software NIC \
             keeps it while the program does not poll",
        "0 of 1 completions came: []",
    ),
];

const EVENT_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        MissingFeature,
        "events::an_access_error_is_an_event_of_the_responder",
        "no IBV_EVENT_QP_ACCESS_ERR: the responder's QP goes to ERR silently",
        "no async event came",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        MissingFeature,
        "events::an_invalid_request_is_an_event_of_the_responder",
        "no IBV_EVENT_QP_REQ_ERR: the responder's QP goes to ERR silently",
        "no async event came",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        MissingFeature,
        "events::the_last_wqe_of_an_srq_is_an_event",
        "no IBV_EVENT_QP_LAST_WQE_REACHED when a QP with an SRQ goes to ERR by `ibv_modify_qp`",
        "no async event came",
    )
    .mark_of_second_queue_pair(),
];

const STATE_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        MissingFeature,
        "access::local_failure_stops_only_the_send_queue_of_uc",
        "there is no SQE: a failed send takes the whole QP to ERR",
        "left: 6",
    ),
    Deviation::new(
        MissingFeature,
        "access::local_failure_stops_only_the_send_queue_of_ud",
        "there is no SQE: a failed send takes the whole QP to ERR",
        "left: 6",
    ),
    Deviation::new(
        WrongResult,
        "events::draining_ends_when_the_last_request_is_acknowledged",
        "`IBV_EVENT_SQ_DRAINED` comes while a request still waits for a receive WR",
        "get_async_event_within(QUIET_PERIOD).is_none()",
    ),
    Deviation::new(
        Hangs,
        "state::sqd_holds_sends_back_and_rts_resumes",
        "WRs that were posted in SQD are not begun when the QP is back in RTS",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        WrongResult,
        "state::a_wrong_current_state_is_refused",
        "`cur_qp_state` is not compared with the state",
        "left: Ok(())",
    ),
    Deviation::new(
        WrongResult,
        "state::a_pkey_index_beyond_the_table_is_refused",
        "a P_Key index beyond the table is taken",
        "in the case a P_Key index beyond the table",
    ),
    Deviation::new(
        WrongResult,
        "state::rd_atomic_beyond_the_device_limit_is_refused",
        "a `max_dest_rd_atomic` above `max_qp_rd_atom` is taken",
        "in the case more READs than the device serves",
    ),
    Deviation::new(
        WrongResult,
        "state::a_path_mtu_that_there_is_not_is_refused",
        "a path MTU of 0 is taken",
        "in the case path MTU 0",
    ),
];

const MEMORY_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        WrongResult,
        "mr::keys_differ_and_cannot_be_guessed",
        "keys are an index that is counted up and 8 bits that vary",
        "of 256 keys",
    ),
    Deviation::new(
        WrongResult,
        "qp::missing_cqs_are_refused",
        "the library reads through the null pointer",
        "died of signal 11",
    ),
    Deviation::new(
        WrongResult,
        "refusals::unknown_comp_mask_bits_are_not_supported",
        "`ibv_create_cq_ex` takes attributes with fields that it does not know",
        "ibv_create_cq_ex",
    ),
];

const WINDOW_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        WrongResult,
        "windows::a_window_gives_only_what_was_bound",
        "a WRITE in front of a window is taken: only the bounds of its region are checked",
        "in the case before",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "windows::local_invalidation_ends_access",
        "a window of type 2 that was invalidated cannot be bound again under the next key",
        "status 6",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "windows::remote_invalidation_ends_access_and_is_in_the_wc",
        "the completion of a SEND with Invalidate does not name the key",
        "left: None",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "windows::a_region_with_a_bound_window_is_busy",
        "`ibv_dereg_mr` of a region with a bound window is EINVAL",
        "left: 22",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "windows::binds_that_break_a_rule_fail",
        "a bind with a key of another index is taken",
        "in the case a key of its own choice",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "windows::a_key_that_cannot_be_invalidated_fails_the_work_request",
        "a queue pair invalidates the window that another one has bound",
        "in the case another queue pair's",
    )
    .mark_of_second_queue_pair(),
    Deviation::new(
        WrongResult,
        "windows::a_remote_invalidation_of_a_foreign_key_fails_both_sides",
        "the sender of a SEND with Invalidate succeeds although the responder cannot invalidate the key",
        "expected one of [11, 10, 12]",
    )
    .mark_of_second_queue_pair(),
];

const LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR: &str = "a WR that fails at once leaves the WR before it without a completion, if \
     that is not acknowledged yet. Between two Soft-RoCEs with 20 ms of delay it is so, too";

const DISTANT_PEER_DEVIATIONS: &[Deviation] = &[
    Deviation::new(
        Hangs,
        "access::local_wrong_lkey",
        LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Hangs,
        "access::local_lkey_zero",
        LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Hangs,
        "access::local_beyond_the_region",
        LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Hangs,
        "access::local_before_the_region",
        LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Hangs,
        "access::local_range_that_wraps",
        LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Hangs,
        "access::local_deregistered",
        LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Hangs,
        "access::local_other_protection_domain",
        LOSES_UNACKNOWLEDGED_WR_BEHAVIOUR,
        "0 of 1 completions came: []",
    ),
];
