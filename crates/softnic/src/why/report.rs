//! Reports of failed work requests: from the check that noted the cause to the text.

use std::cell::Cell;
use std::fmt::Display;
use std::path::Path;

use nic_core::qp_state::QpType;
use verbs_abi::strings::{wc_opcode_name, wc_status_name};
use verbs_abi::*;

use super::cause::FailureCause;
use super::report_detail::{REPORT_DETAIL, ReportDetail, prints_each_failure, write_to_stderr};
use super::{summary, unreachable};

thread_local! {
    static LAST_CAUSE: Cell<Option<FailureCause>> = const { Cell::new(None) };
}

/// Notes the cause for which the current work request fails.
#[cold]
pub(crate) fn note_cause(cause: FailureCause) {
    LAST_CAUSE.set(Some(cause));
}

/// Takes the cause that was noted last.
#[cold]
pub(crate) fn take_last_cause() -> Option<FailureCause> {
    LAST_CAUSE.take()
}

/// Returns the `vendor_err` of a cause; 0 if no cause was noted.
pub(crate) fn vendor_err(cause: Option<FailureCause>) -> u32 {
    cause.map_or(0, |cause| cause.vendor_err().into())
}

/// The queue pair of a work request.
pub(crate) struct QueuePairDescription<'a> {
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    /// `dest_qp_num`, if the queue pair is connected.
    pub(crate) peer_qpn: Option<u32>,
    /// The folder of its fabric.
    pub(crate) fabric_folder: &'a Path,
}

/// The report of a failed work request.
pub(crate) struct FailureReport<'a> {
    pub(crate) qp: QueuePairDescription<'a>,
    pub(crate) wr_id: u64,
    /// The opcode of the completion.
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) status: ibv_wc_status,
    pub(crate) cause: Option<FailureCause>,
}

impl FailureReport<'_> {
    /// Prints or counts the failure, as `VERBATIM_WHY` selects.
    #[cold]
    pub(crate) fn print_or_count(&self) {
        if self.status == IBV_WC_WR_FLUSH_ERR {
            return;
        }
        if let Some(FailureCause::NoPeer { qpn }) = self.cause {
            unreachable::report_peer_not_in_fabric(self.qp.fabric_folder, (self.qp.qpn, qpn));
        }
        match *REPORT_DETAIL {
            ReportDetail::OnlyUnreachablePeers => {}
            ReportDetail::Summary => summary::count_failure(self.format_report()),
            ReportDetail::Each => {
                write_to_stderr(&format!("verbatim: {}\n", self.format_report()));
                summary::count_failure(String::new());
            }
        }
    }

    fn format_report(&self) -> String {
        let qp = &self.qp;
        let to = qp
            .peer_qpn
            .map_or_else(String::new, |peer| format!(" (peer {peer:#x})"));
        let why = self.cause.map_or_else(
            || "no check of the software NIC noted a cause".to_owned(),
            |cause| cause.to_string(),
        );
        format!(
            "{} with wr_id {:#x} of {} queue pair {:#x}{to} failed with {} (vendor_err {:#x}): {why}",
            wc_opcode_name(self.opcode),
            self.wr_id,
            qp_type_name(qp.qp_type),
            qp.qpn,
            wc_status_name(self.status),
            vendor_err(self.cause),
        )
    }
}

fn qp_type_name(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::RawPacket => "raw packet",
        QpType::XrcSend | QpType::XrcRecv => "XRC",
    }
}

/// Reports a peer's request that is refused or dropped here and fails no work request of this process.
#[cold]
pub(crate) fn report_refused_request(qpn: u32, what: &str) {
    let Some(cause) = take_last_cause() else {
        return;
    };
    if prints_each_failure() {
        write_to_stderr(&format!(
            "verbatim: queue pair {qpn:#x} {what} (vendor_err {:#x}): {cause}\n",
            cause.vendor_err()
        ));
    }
}

/// Reports a peer's request that is no valid request, so that this queue pair has failed.
#[cold]
pub(crate) fn report_invalid_request(qpn: u32, request: &dyn Display) {
    if *REPORT_DETAIL != ReportDetail::OnlyUnreachablePeers {
        write_to_stderr(&format!(
            "verbatim: queue pair {qpn:#x} refused a request of its peer as invalid: {request}\n"
        ));
    }
}
