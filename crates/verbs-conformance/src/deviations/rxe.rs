//! Known deviations of the kernel's Soft-RoCE.

use super::kinds::DeviationKind::{Hangs, KernelCrash, Missing, Wrong};
use super::kinds::{Deviation, Deviations, Topic};
use crate::env::NicCapability;

/// The deviations of Soft-RoCE, by topic.
pub(super) const RXE: Deviations = Deviations {
    device: "rxe",
    kernel_and_library: "Linux 6.1.192 (Debian 6.1.0-56-amd64) with rdma-core 44.0",
    lacks: &[
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
        Topic {
            title: "Posting work requests",
            list: POSTING,
        },
        Topic {
            title: "Queues",
            list: QUEUES,
        },
        Topic {
            title: "Completions and their statuses",
            list: COMPLETIONS,
        },
        Topic {
            title: "Events",
            list: EVENTS,
        },
        Topic {
            title: "States and attributes",
            list: STATES,
        },
        Topic {
            title: "Memory and arguments",
            list: MEMORY,
        },
    ],
};

const POSTING: &[Deviation] = &[
    Deviation::new(
        KernelCrash,
        "refusals::unknown_opcodes_are_refused",
        "an unknown opcode indexes a table of the kernel unchecked: 0x80000000 is an oops that leaves the \
         process unkillable",
        "BUG: unable to handle page fault … RIP: req_next_wqe+0xb9/0x1b0 [rdma_rxe]",
    ),
    Deviation::new(
        Wrong,
        "refusals::a_verb_that_the_transport_lacks_is_refused_at_once",
        "`ibv_post_send` takes verbs that the transport does not have; the completion is the refusal",
        "UD has no such verb: ()",
    ),
    Deviation::new(
        Wrong,
        "refusals::a_message_beyond_4_gib_is_refused",
        "the length of the message is summed in 32 bits: four SGEs of 1 GiB are a message of 0 bytes that \
         succeeds",
        "status 0, qp_num",
    ),
    Deviation::new(
        Wrong,
        "state::sends_before_rts_are_refused",
        "a send that the state does not allow is refused with EINVAL, without `bad_wr`",
        "left: (22, None)",
    ),
    Deviation::new(
        Wrong,
        "state::receives_in_reset_are_refused",
        "a receive that the state does not allow is refused with EINVAL, without `bad_wr`",
        "left: (22, None)",
    ),
    Deviation::new(
        Wrong,
        "srq::posting_to_the_queue_pair_is_refused",
        "a receive on a QP with an SRQ is refused without `bad_wr`",
        "left: None",
    ),
];

const QUEUES: &[Deviation] = &[
    Deviation::new(
        Wrong,
        "queues::a_full_send_queue_of_uc_refuses_with_bad_wr",
        FREES_SEND_SLOT_BEFORE_POLL,
        "the send queue is full: ()",
    ),
    Deviation::new(
        Wrong,
        "queues::a_full_send_queue_of_ud_refuses_with_bad_wr",
        FREES_SEND_SLOT_BEFORE_POLL,
        "the send queue is full: ()",
    ),
    Deviation::new(
        Wrong,
        "queues::unsignaled_wrs_hold_their_slots",
        FREES_SEND_SLOT_BEFORE_POLL,
        "nothing has freed a slot: ()",
    ),
    Deviation::new(
        Wrong,
        "queues::finished_wrs_hold_their_slots_until_they_are_polled",
        FREES_SEND_SLOT_BEFORE_POLL,
        "not polled yet: ()",
    ),
    Deviation::new(
        Wrong,
        "queues::polling_makes_room_in_the_send_queue",
        FREES_SEND_SLOT_BEFORE_POLL,
        "full again: ()",
    ),
    Deviation::new(
        Wrong,
        "qp::sizes_are_at_least_what_was_asked_for",
        "`ibv_create_qp` returns the sizes that were asked for, `ibv_query_qp` those that there are",
        "in the case 2 WRs of 2 SGEs",
    ),
    Deviation::new(
        Wrong,
        "srq::creating_tells_the_sizes_that_query_tells",
        "`ibv_create_srq` returns the sizes that were asked for, `ibv_query_srq` those that there are",
        "left: (15, 3)",
    ),
    Deviation::new(
        Missing,
        "overrun::queue_pairs_fail_with_their_queue",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        Missing,
        "overrun::queue_pairs_share_a_queue_that_is_too_small",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        Missing,
        "overrun::what_is_posted_afterwards_completes_nowhere",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        Missing,
        "overrun::a_queue_pair_of_an_overrun_queue_fails_again",
        OVERRUN_BEHAVIOUR,
        "no async event came",
    ),
    Deviation::new(
        Wrong,
        "overrun::a_queue_that_is_polled_is_not_overrun",
        LOSES_COMPLETION_AT_ONCE,
        "wr_id of wc(",
    ),
    Deviation::new(
        Wrong,
        "overrun::a_larger_queue_is_not_overrun",
        LOSES_COMPLETION_AT_ONCE,
        "get_async_event_within(OVERRUN_DETECTION_TIME).is_none()",
    ),
    Deviation::new(
        Missing,
        "overrun::a_queue_may_ignore_overruns",
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

const LOSES_COMPLETION_AT_ONCE: &str = "a completion for which there is no room is lost at once, as on any NIC. \
     The software NIC waits a quarter of a second for a poll or a larger CQ";

const FREES_SEND_SLOT_BEFORE_POLL: &str = "a slot of the send queue is free when its WR is done, not when its \
     completion is polled. A queue that is never full can overrun its CQ";

const COMPLETIONS: &[Deviation] = &[
    Deviation::new(
        Wrong,
        "access::local_protection_errors_have_their_status",
        "a wrong L_Key and one of another PD are LOC_QP_OP_ERR instead of LOC_PROT_ERR (which a wrong range is)",
        "status 2, qp_num",
    ),
    Deviation::new(
        Wrong,
        "access::length_errors_have_their_status",
        "a receive that is too small fails as LOC_QP_OP_ERR instead of LOC_LEN_ERR, its SEND as REM_OP_ERR \
         instead of REM_INV_REQ_ERR",
        "status 2, qp_num",
    ),
    Deviation::new(
        Wrong,
        "access::a_refused_write_with_imm_is_a_local_access_error_of_its_receive",
        "the receive fails as REM_ACCESS_ERR, the requester's status",
        "status 10, qp_num",
    ),
    Deviation::new(
        Wrong,
        "access::an_atomic_without_a_place_for_its_result_is_not_made",
        "the buffer of the result is looked at when the result is there: the remote word has changed",
        "the remote word",
    ),
    Deviation::new(
        Hangs,
        "flush::a_failure_waits_behind_what_is_on_its_way",
        "a WR behind which another one fails at once is executed by the peer and never completes",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Missing,
        "flush::receives_posted_in_err_are_flushed",
        "receives that are posted in ERR stay there without a completion",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Hangs,
        "atomics::reads_and_atomics_fail_with_rd_atomic_0",
        "a READ or an atomic on a QP with `max_rd_atomic` 0 waits for ever",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Missing,
        "cq::solicited_only_fires_on_a_failure",
        "a failed completion does not wake a CQ that is armed for solicited ones",
        "no CQ event came",
    ),
    Deviation::new(
        Missing,
        "ud::a_qkey_with_the_high_bit_means_the_own",
        "a Q_Key with the high-order bit set is sent as it is, and the datagram is dropped",
        "0 of 1 completions came: []",
    ),
    Deviation::new(
        Missing,
        "ud::a_program_that_is_held_up_loses_no_datagram",
        "a datagram for which no RECV is posted yet is dropped at once (IBTA vol. 1, 9.8.3.2). The software NIC \
             keeps it while the program does not poll",
        "0 of 1 completions came: []",
    ),
];

const EVENTS: &[Deviation] = &[
    Deviation::new(
        Missing,
        "events::an_access_error_is_an_event_of_the_responder",
        "no IBV_EVENT_QP_ACCESS_ERR: the responder's QP goes to ERR silently",
        "no async event came",
    ),
    Deviation::new(
        Missing,
        "events::an_invalid_request_is_an_event_of_the_responder",
        "no IBV_EVENT_QP_REQ_ERR: the responder's QP goes to ERR silently",
        "no async event came",
    ),
    Deviation::new(
        Missing,
        "events::the_last_wqe_of_an_srq_is_an_event",
        "no IBV_EVENT_QP_LAST_WQE_REACHED when a QP with an SRQ goes to ERR by `ibv_modify_qp`",
        "no async event came",
    ),
];

const STATES: &[Deviation] = &[
    Deviation::new(
        Missing,
        "access::local_failure_stops_only_the_send_queue_of_uc",
        "there is no SQE: a failed send takes the whole QP to ERR",
        "left: 6",
    ),
    Deviation::new(
        Missing,
        "access::local_failure_stops_only_the_send_queue_of_ud",
        "there is no SQE: a failed send takes the whole QP to ERR",
        "left: 6",
    ),
    Deviation::new(
        Wrong,
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
        Wrong,
        "state::a_wrong_current_state_is_refused",
        "`cur_qp_state` is not compared with the state",
        "left: Ok(())",
    ),
    Deviation::new(
        Wrong,
        "state::a_pkey_index_beyond_the_table_is_refused",
        "a P_Key index beyond the table is taken",
        "in the case a P_Key index beyond the table",
    ),
    Deviation::new(
        Wrong,
        "state::more_reads_than_the_device_has_are_refused",
        "a `max_dest_rd_atomic` above `max_qp_rd_atom` is taken",
        "in the case more READs than the device serves",
    ),
    Deviation::new(
        Wrong,
        "state::a_path_mtu_that_there_is_not_is_refused",
        "a path MTU of 0 is taken",
        "in the case path MTU 0",
    ),
];

const MEMORY: &[Deviation] = &[
    Deviation::new(
        Wrong,
        "mr::keys_differ_and_cannot_be_guessed",
        "keys are an index that is counted up and 8 bits that vary",
        "of 256 keys",
    ),
    Deviation::new(
        Wrong,
        "qp::missing_cqs_are_refused",
        "the library reads through the null pointer",
        "died of signal 11",
    ),
    Deviation::new(
        Wrong,
        "refusals::unknown_fields_of_attributes_are_not_supported",
        "`ibv_create_cq_ex` takes attributes with fields that it does not know",
        "ibv_create_cq_ex",
    ),
];
