//! Messages to a shared receive queue with a tag matching list: executes the decisions of `nic_core::tags`.

use nic_core::tag_matching::{
    self, MAX_HEADER_BYTES, MatchedDelivery, RemotePayload, TMH_BYTES, TagDecision, TagEntry,
    TagMatch,
};

use super::*;

const _: () = assert!(MAX_HEADER_BYTES == crate::device::MAX_RNDV_HEADER as usize);

/// The tag matching list of a shared receive queue, whose entries have scatter lists.
pub(crate) type TagList = tag_matching::TagList<Box<[ibv_sge]>>;

/// A rendezvous whose message has been taken and whose payload is to come. Later messages of its queue pair wait for
/// it.
pub(super) struct PendingRendezvous {
    wr_id: u64,
    /// Buffers for the payload, in the protection domain `pd`.
    sges: Box<[ibv_sge]>,
    pd_number: u32,
    payload: RemotePayload,
    /// The tag matching header of the message.
    header: [u8; TMH_BYTES],
    /// True once the payload has been read.
    is_payload_read: bool,
}

/// The origin of a record, and the regions through which its payload is reached.
pub(super) struct RecordSource<'a> {
    pub(super) peer: &'a Arc<Peer>,
    pub(super) ring_offset: usize,
    pub(super) src_qpn: u32,
    pub(super) local_regions: &'a mut RegionCache,
    pub(super) sender_regions: &'a mut RegionCache,
}

/// The result of matching a message against a tag matching list.
pub(super) enum TagMatchResult {
    /// The message matched an entry and was handled.
    Handled(RecordResult),
    /// The message goes into a receive WR, whose completion has this opcode.
    Unmatched(ibv_wc_opcode),
}

/// Delivers a message to the entry that it matches. The sink has room for a completion.
#[cold]
pub(super) fn deliver_to_matching_entry(
    qp: &Qp,
    rq: &mut RecvQueue,
    record: &RingRecord<'_>,
    mut source: RecordSource<'_>,
    flags: u32,
    sink: &mut WcSink<'_>,
) -> TagMatchResult {
    let pd = rq.buffer_pd_number;
    let Some(list) = rq.tag_list.as_deref_mut() else {
        return TagMatchResult::Unmatched(IBV_WC_RECV);
    };
    let mut head = [0; MAX_HEADER_BYTES];
    let Ok(head_len) = read_message_head(qp, record, &mut source, &mut head) else {
        // The fault of the message shows when it is placed.
        return TagMatchResult::Unmatched(IBV_WC_TM_NO_TAG);
    };
    let TagMatch {
        entry_index: at,
        tag,
        app_ctx: app,
        delivery: then,
    } = match list.decide_delivery(&head[..head_len], |sges| scatter_list_bytes(sges)) {
        TagDecision::Untagged => return TagMatchResult::Unmatched(IBV_WC_TM_NO_TAG),
        TagDecision::Unexpected => return TagMatchResult::Unmatched(IBV_WC_TM_RECV),
        TagDecision::Matched(found) => found,
    };
    let mut wc = ibv_wc {
        wr_id: list.entry_at(at).wr_id,
        opcode: IBV_WC_TM_RECV,
        byte_len: record.header.len_or_value,
        imm: ibv_wc_imm {
            imm_data: record.header.imm,
        },
        qp_num: qp.qpn,
        wc_flags: flags | IBV_WC_TM_MATCH,
        ..ibv_wc::zeroed()
    };
    CompletionTag {
        tag,
        app_context: app,
    }
    .store_in_completion(&mut wc);
    match then {
        MatchedDelivery::Eager => {
            let placed =
                place_eager_payload(qp, pd, &list.entry_at(at).buffer, record, &mut source);
            if !matches!(
                placed,
                Err(PlaceError::SenderMemoryUnreadable | PlaceError::SenderGone)
            ) {
                list.remove_entry_at(at);
            }
            sink.has_solicited_or_error |=
                placed.is_ok() && record.header.flags & FLAG_SOLICITED != 0;
            TagMatchResult::Handled(complete_eager_message(qp, placed, wc, sink))
        }
        MatchedDelivery::HeadersOnly => {
            let entry = list.remove_entry_at(at);
            TagMatchResult::Handled(deliver_rendezvous_headers(
                qp,
                pd,
                &entry,
                &head,
                &mut source,
                (wc, sink),
            ))
        }
        MatchedDelivery::Rendezvous(payload) => {
            let entry = list.remove_entry_at(at);
            let mut header = [0; TMH_BYTES];
            header.copy_from_slice(&head[..TMH_BYTES]);
            wc.byte_len = payload.len;
            sink.push(wc);
            TagMatchResult::Handled(RecordResult::Rendezvous(Box::new(PendingRendezvous {
                wr_id: entry.wr_id,
                sges: entry.buffer,
                pd_number: pd,
                payload,
                header,
                is_payload_read: false,
            })))
        }
    }
}

/// Completes an eager message after the attempt to place it in its entry.
fn complete_eager_message(
    qp: &Qp,
    placed: Result<(), PlaceError>,
    mut wc: ibv_wc,
    sink: &mut WcSink<'_>,
) -> RecordResult {
    let (status, handled) = match placed {
        Ok(()) => {
            #[allow(clippy::cast_possible_truncation)] // 16
            let header = TMH_BYTES as u32;
            wc.byte_len -= header;
            wc.wc_flags |= IBV_WC_TM_DATA_VALID;
            sink.push(wc);
            return RecordResult::Done;
        }
        Err(PlaceError::SenderGone) => return RecordResult::SenderEndedOrWithdrew,
        Err(PlaceError::SenderMemoryUnreadable) => return RecordResult::SenderMemoryUnreadable,
        Err(PlaceError::TooLong) => (
            IBV_WC_LOC_LEN_ERR,
            RecordResult::QueuePairFailed(IBV_WC_REM_INV_REQ_ERR),
        ),
        Err(PlaceError::ReceiveMemoryUnwritable) => (
            IBV_WC_LOC_PROT_ERR,
            RecordResult::QueuePairFailed(IBV_WC_REM_OP_ERR),
        ),
    };
    sink.push(report_failed_recv_and_make_wc(qp, wc.wr_id, status));
    handled
}

/// Delivers the headers of a rendezvous to an entry that has no room for its payload: "the HW completes the buffer with
/// an IBV_WC_TM_RNDV_INCOMPLETE status. In this case, the TMH and RVH headers are scattered into the tagged buffer".
fn deliver_rendezvous_headers(
    qp: &Qp,
    pd: u32,
    entry: &TagEntry<Box<[ibv_sge]>>,
    head: &[u8; MAX_HEADER_BYTES],
    source: &mut RecordSource<'_>,
    (wc, sink): (ibv_wc, &mut WcSink<'_>),
) -> RecordResult {
    let mut to = ScatterPosition {
        nic: qp.nic,
        pd_number: pd,
        remaining_sges: &entry.buffer,
        offset_in_sge: 0,
        region_cache: source.local_regions,
    };
    let placed = if head.len() as u64 > scatter_list_bytes(&entry.buffer) {
        Err(PlaceError::TooLong)
    } else {
        // SAFETY: the array has `head.len()` bytes.
        unsafe { to.write_bytes(head.as_ptr(), head.len()) }
    };
    match placed {
        Ok(()) => {
            #[allow(clippy::cast_possible_truncation)] // 32
            let byte_len = head.len() as u32;
            sink.push(ibv_wc {
                status: IBV_WC_TM_RNDV_INCOMPLETE,
                byte_len,
                ..wc
            });
            RecordResult::Done
        }
        Err(PlaceError::TooLong) => {
            sink.push(report_failed_recv_and_make_wc(
                qp,
                wc.wr_id,
                IBV_WC_LOC_LEN_ERR,
            ));
            RecordResult::QueuePairFailed(IBV_WC_REM_INV_REQ_ERR)
        }
        Err(_) => {
            sink.push(report_failed_recv_and_make_wc(
                qp,
                wc.wr_id,
                IBV_WC_LOC_PROT_ERR,
            ));
            RecordResult::QueuePairFailed(IBV_WC_REM_OP_ERR)
        }
    }
}

/// Places the payload behind the header of an eager message.
fn place_eager_payload(
    qp: &Qp,
    pd: u32,
    sges: &[ibv_sge],
    record: &RingRecord<'_>,
    source: &mut RecordSource<'_>,
) -> Result<(), PlaceError> {
    let len = record.header.len_or_value as usize - TMH_BYTES;
    if len as u64 > scatter_list_bytes(sges) {
        return Err(PlaceError::TooLong);
    }
    let mut to = ScatterPosition {
        nic: qp.nic,
        pd_number: pd,
        remaining_sges: sges,
        offset_in_sge: 0,
        region_cache: source.local_regions,
    };
    if record.header.flags & FLAG_BY_REFERENCE == 0 {
        let payload = record.payload.as_mut_ptr().wrapping_add(TMH_BYTES);
        // SAFETY: the ring has the whole message behind the header (`read_message_head` has checked).
        return unsafe { to.write_bytes(payload, len) };
    }
    let sender = (source.peer, source.src_qpn);
    copy_referenced_payload(
        qp,
        record,
        sender,
        source.sender_regions,
        TMH_BYTES as u64,
        &mut to,
    )?;
    if has_withdrawn_records(source.peer, source.ring_offset) {
        return Err(PlaceError::SenderGone);
    }
    Ok(())
}

/// Reads the beginning of a message, as much as there is and `head` holds. Returns the number of bytes.
fn read_message_head(
    qp: &Qp,
    record: &RingRecord<'_>,
    source: &mut RecordSource<'_>,
    head: &mut [u8; MAX_HEADER_BYTES],
) -> Result<usize, PlaceError> {
    let len = (record.header.len_or_value as usize).min(head.len());
    if record.header.flags & FLAG_BY_REFERENCE == 0 {
        if record.header.len_or_value as usize > record.payload.len() {
            return Err(PlaceError::SenderMemoryUnreadable);
        }
        // SAFETY: the ring has `len` bytes behind the header (just checked), which its sender may change.
        unsafe { copy(head.as_mut_ptr(), record.payload.as_mut_ptr(), len) }
            .map_err(|_: MemoryFault| PlaceError::SenderMemoryUnreadable)?;
        return Ok(len);
    }
    let mut done = 0;
    let sender = (source.peer, source.src_qpn);
    for_each_referenced_piece(qp, record, sender, source.sender_regions, |region, at| {
        let (at, _) = at.split_at((len - done) as u64);
        // SAFETY: `head` has room for as many bytes; `at` is of the region, which is pinned.
        unsafe { region.read(at, head[done..].as_mut_ptr()) }
            .map_err(|_: MemoryFault| PlaceError::SenderMemoryUnreadable)?;
        done += at.len() as usize;
        Ok(())
    })?;
    Ok(len)
}

impl PendingRendezvous {
    /// READs the payload and tells the sender, after the sender can have seen that its message was taken. Returns false
    /// if that is not possible yet. The sink has room for a completion.
    #[cold]
    pub(super) fn continue_rendezvous(&mut self, qp: &Qp, sink: &mut WcSink<'_>) -> bool {
        let fin = tag_matching::build_fin_message(self.header);
        let to = (self.pd_number, &self.sges[..]);
        match send::read_rendezvous_payload_and_send_fin(
            qp,
            to,
            self.payload,
            &mut self.is_payload_read,
            &fin,
        ) {
            Ok(false) => return false,
            Ok(true) => sink.push(ibv_wc {
                wr_id: self.wr_id,
                opcode: IBV_WC_TM_RECV,
                byte_len: self.payload.len,
                qp_num: qp.qpn,
                wc_flags: IBV_WC_TM_DATA_VALID,
                ..ibv_wc::zeroed()
            }),
            Err(status) => {
                sink.push(report_failed_recv_and_make_wc(qp, self.wr_id, status));
                qp.flush_and_enter_error();
            }
        }
        true
    }

    /// Flushes the rendezvous after the queue pair has failed.
    #[cold]
    pub(super) fn flush(&self, qp: &Qp, sink: &mut WcSink<'_>) {
        sink.push(report_failed_recv_and_make_wc(
            qp,
            self.wr_id,
            IBV_WC_WR_FLUSH_ERR,
        ));
    }
}

/// The tag of a completion. `ibv_wc` has no field for a tag. It travels in fields that a successful completion of a
/// reliable connection does not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompletionTag {
    pub(crate) tag: u64,
    /// Data that the sending application has put into the header.
    pub(crate) app_context: u32,
}

#[allow(clippy::cast_possible_truncation)] // halves
impl CompletionTag {
    fn store_in_completion(self, wc: &mut ibv_wc) {
        (wc.src_qp, wc.vendor_err) = (self.tag as u32, (self.tag >> 32) as u32);
        (wc.pkey_index, wc.slid) = (self.app_context as u16, (self.app_context >> 16) as u16);
    }

    /// Takes the tag out of a completion, and clears the fields that carried it.
    pub(crate) fn take_from_completion(wc: &mut ibv_wc) -> Self {
        if wc.opcode != IBV_WC_TM_RECV || wc.wc_flags & IBV_WC_TM_MATCH == 0 {
            return Self::default();
        }
        let tag = u64::from(wc.vendor_err) << 32 | u64::from(wc.src_qp);
        let app = u32::from(wc.slid) << 16 | u32::from(wc.pkey_index);
        Self::default().store_in_completion(wc);
        Self {
            tag,
            app_context: app,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_travels_in_a_completion() {
        let info = CompletionTag {
            tag: 0x0123_4567_89ab_cdef,
            app_context: 0xfedc_ba98,
        };
        let mut wc = ibv_wc {
            opcode: IBV_WC_TM_RECV,
            wc_flags: IBV_WC_TM_MATCH,
            ..ibv_wc::zeroed()
        };
        info.store_in_completion(&mut wc);
        assert_eq!(CompletionTag::take_from_completion(&mut wc), info);
        assert_eq!(
            (wc.src_qp, wc.vendor_err, wc.slid, wc.pkey_index),
            (0, 0, 0, 0)
        );
        // An unexpected message carries no tag.
        let mut other = ibv_wc {
            opcode: IBV_WC_TM_RECV,
            src_qp: 7,
            ..ibv_wc::zeroed()
        };
        assert_eq!(
            CompletionTag::take_from_completion(&mut other),
            CompletionTag::default()
        );
        assert_eq!(other.src_qp, 7);
    }
}
