//! Placing a payload in the buffers of a receive WR.

use nic_core::rights::{Access, OwningPdOrQp, PermittedRange, QpMemoryRights, authorize};

use super::*;
use crate::send::{
    TargetQp, WRITE_RECORD_PREFIX_BYTES, authorize_remote_region,
    read_to_unmapped_or_tell_if_local_failed,
};
use shm::mem::{BOUNCE_BUFFER_BYTES, MemoryFault, copy, is_readable, probe_writable};

pub(super) enum PlaceError {
    /// The message is longer than the receive WR.
    TooLong,
    /// The receive WR's memory cannot be written.
    ReceiveMemoryUnwritable,
    /// The sender's memory, by its own L_Keys, cannot be read.
    SenderMemoryUnreadable,
    /// The sender has ended.
    SenderGone,
}

impl From<SgeError> for PlaceError {
    fn from(_: SgeError) -> Self {
        Self::ReceiveMemoryUnwritable
    }
}

/// Returns the bytes of a scatter list.
#[inline(always)]
pub(super) fn scatter_list_bytes(sges: &[ibv_sge]) -> u64 {
    match sges {
        // The most frequent case by far, without the set-up of a loop.
        [sge] => u64::from(sge.length),
        _ => sges.iter().map(|s| u64::from(s.length)).sum(),
    }
}

/// Returns the first `len` bytes of an SGE, which is at least as long. Only bytes that are written are checked, not the
/// whole room of a receive WR.
#[inline(always)]
fn sge_prefix(sge: &ibv_sge, len: usize) -> ibv_sge {
    #[allow(clippy::cast_possible_truncation)] // at most the SGE's length
    let length = len as u32;
    ibv_sge { length, ..*sge }
}

#[cold]
fn note_short_buffer_cause(len: usize, sges: &[ibv_sge]) {
    why::note_cause(if is_made_to_fail(sges) {
        FailureCause::InjectedFault
    } else {
        FailureCause::ShortReceive {
            len: len as u64,
            room: scatter_list_bytes(sges),
        }
    });
}

/// Scatters a UD message and its GRH over the SGEs of a receive WR.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // the parts of three borrowed structures
pub(super) fn place_ud_message(
    qp: &Qp,
    pd: u32,
    sges: &[ibv_sge],
    record: &RingRecord<'_>,
    grh: Option<&[u8; GRH_BYTES]>,
    window: &mut LastRegion<true>,
    local: &mut RegionCache,
) -> Result<(), PlaceError> {
    let len = record.header.len_or_value as usize;
    if (len + GRH_BYTES) as u64 > scatter_list_bytes(sges) {
        note_short_buffer_cause(len + GRH_BYTES, sges);
        return Err(PlaceError::TooLong);
    }
    if len > record.payload.len() {
        return Err(PlaceError::SenderMemoryUnreadable);
    }
    let payload = record.payload.as_mut_ptr();
    if let [sge] = sges {
        // Both parts go into one buffer, which is looked up once.
        let written = sge_prefix(sge, GRH_BYTES + len);
        match window.buffer_address(qp.nic, pd, local, &written) {
            Ok(dst) => {
                // SAFETY: `written` lies in the pinned region (just checked) and is as long as both; the ring has
                // `len` bytes behind the header.
                let placed = unsafe {
                    grh.map_or(Ok(()), |grh| copy(dst, grh.as_ptr(), GRH_BYTES))
                        .and_then(|()| copy(dst.wrapping_add(GRH_BYTES), payload, len))
                };
                return placed.map_err(|MemoryFault| PlaceError::ReceiveMemoryUnwritable);
            }
            // Handled below as a list of SGEs.
            Err(SgeError::Unmapped) => {}
            Err(SgeError::Protection) => return Err(PlaceError::ReceiveMemoryUnwritable),
        }
    }
    window.release_region();
    let mut to = ScatterPosition {
        nic: qp.nic,
        pd_number: pd,
        remaining_sges: sges,
        offset_in_sge: 0,
        region_cache: local,
    };
    match grh {
        // SAFETY: the array is 40 bytes long.
        Some(grh) => unsafe { to.write_bytes(grh.as_ptr(), GRH_BYTES)? },
        None => to.skip(GRH_BYTES),
    }
    // SAFETY: the ring has `len` bytes behind the header (checked).
    unsafe { to.write_bytes(payload, len) }
}

/// Scatters a message of a connected transport over the SGEs of a receive WR.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // the parts of three borrowed structures
pub(super) fn place_connected_message(
    qp: &Qp,
    pd: u32,
    sges: &[ibv_sge],
    record: &RingRecord<'_>,
    peer: &Arc<Peer>,
    window: &mut LastRegion<true>,
    local: &mut RegionCache,
    remote: &mut RegionCache,
    src_qpn: u32,
) -> Result<(), PlaceError> {
    let header = record.header;
    let len = header.len_or_value as usize;
    if len as u64 > scatter_list_bytes(sges) {
        note_short_buffer_cause(len, sges);
        return Err(PlaceError::TooLong);
    }
    if header.flags & FLAG_BY_REFERENCE == 0 {
        if len > record.payload.len() {
            return Err(PlaceError::SenderMemoryUnreadable);
        }
        let payload = record.payload.as_mut_ptr();
        if let [sge] = sges {
            match window.buffer_address(qp.nic, pd, local, &sge_prefix(sge, len)) {
                Ok(dst) => {
                    // SAFETY: `dst` has `len` bytes in the pinned region (just checked). `payload` has `len` bytes in
                    // the ring, behind the header.
                    let placed = unsafe { copy(dst, payload, len) };
                    return placed.map_err(|MemoryFault| PlaceError::ReceiveMemoryUnwritable);
                }
                // Handled below as a list of SGEs.
                Err(SgeError::Unmapped) => {}
                Err(SgeError::Protection) => return Err(PlaceError::ReceiveMemoryUnwritable),
            }
        }
    }
    window.release_region();
    let mut to = ScatterPosition {
        nic: qp.nic,
        pd_number: pd,
        remaining_sges: sges,
        offset_in_sge: 0,
        region_cache: local,
    };
    if header.flags & FLAG_BY_REFERENCE == 0 {
        // SAFETY: the ring has `len` bytes behind the header (checked).
        unsafe { to.write_bytes(record.payload.as_mut_ptr(), len) }
    } else {
        copy_referenced_payload(qp, record, (peer, src_qpn), remote, 0, &mut to)
    }
}

/// Copies a message that was sent by reference, except for its first `skip` bytes. The record's payload is the sender's
/// list of SGEs.
#[cold]
pub(super) fn copy_referenced_payload(
    qp: &Qp,
    record: &RingRecord<'_>,
    sender: (&Arc<Peer>, u32),
    remote: &mut RegionCache,
    mut skip: u64,
    to: &mut ScatterPosition<'_>,
) -> Result<(), PlaceError> {
    for_each_referenced_piece(qp, record, sender, remote, |region, at| {
        let (skipped, at) = at.split_at(skip);
        skip -= skipped.len();
        match region.mapped_address(at) {
            _ if at.is_empty() => Ok(()),
            // SAFETY: `src` lies in the pinned region.
            Some(src) => unsafe { to.write_bytes(src, at.len() as usize) },
            None => to
                .write_bytes_of_unmapped_region(region, at)
                .map_err(|e| match e {
                    PlaceError::SenderMemoryUnreadable => unreadable_sender_error(sender.0),
                    other => other,
                }),
        }
    })
}

/// Calls `f` for each contiguous piece of a message that was sent by reference. The piece's region is pinned. The
/// sender has checked its SGEs; they are checked again, since a record is untrusted input.
pub(super) fn for_each_referenced_piece(
    qp: &Qp,
    record: &RingRecord<'_>,
    (peer, src_qpn): (&Arc<Peer>, u32),
    remote: &mut RegionCache,
    mut f: impl FnMut(&shm::mem::AccessibleRegion, PermittedRange) -> Result<(), PlaceError>,
) -> Result<(), PlaceError> {
    let sender = peer.segment.find_qp(src_qpn as usize % MAX_QPS);
    let domain = sender.map_or(OwningPdOrQp::NO_DOMAIN, |qp| qp.pd.load(Ordering::Relaxed));
    let mut left = u64::from(record.header.len_or_value);
    let count = record.payload.len() / size_of::<ibv_sge>();
    for i in 0..count {
        if left == 0 {
            break;
        }
        // SAFETY: `count` SGEs fit in the record; any bytes are a valid `ibv_sge`, read once.
        let sge = unsafe {
            record
                .payload
                .as_mut_ptr()
                .cast::<ibv_sge>()
                .add(i)
                .read_volatile()
        };
        let len = u64::from(sge.length).min(left);
        left -= len;
        if len == 0 {
            continue;
        }
        let (region, _pin) = match remote.get_pinned(qp.nic, peer, sge.lkey, || domain) {
            Ok(found) => found,
            Err(KeyError::Unknown | KeyError::MemoryUnreachable) => {
                return Err(unreadable_sender_error(peer));
            }
        };
        let by_sender = QpMemoryRights::for_local_access(domain);
        let at = authorize(
            &region.rights,
            (sge.addr, len),
            Access::LocalRead,
            &by_sender,
        )
        .map_err(|_| unreadable_sender_error(peer))?;
        f(region, at)?;
    }
    if left > 0 {
        return Err(PlaceError::SenderMemoryUnreadable);
    }
    Ok(())
}

/// Returns the reason why a sender's memory cannot be read.
fn unreadable_sender_error(peer: &Peer) -> PlaceError {
    if peer.kernel_says_ended() {
        PlaceError::SenderGone
    } else {
        PlaceError::SenderMemoryUnreadable
    }
}

/// The position in the SGEs of a receive WR at which the next bytes are written.
pub(super) struct ScatterPosition<'a> {
    pub(super) nic: &'static Nic,
    pub(super) pd_number: u32,
    pub(super) remaining_sges: &'a [ibv_sge],
    pub(super) offset_in_sge: u32,
    pub(super) region_cache: &'a mut RegionCache,
}

impl ScatterPosition<'_> {
    /// Skips `len` bytes without writing them.
    pub(super) fn skip(&mut self, mut len: usize) {
        while len > 0 {
            let Some(sge) = self.remaining_sges.first() else {
                return;
            };
            let n = ((sge.length - self.offset_in_sge) as usize).min(len);
            self.advance_in_sges(n);
            len -= n;
        }
    }

    #[inline]
    pub(super) fn advance_in_sges(&mut self, n: usize) {
        #[allow(clippy::cast_possible_truncation)] // at most the length of an SGE
        let n = n as u32;
        self.offset_in_sge += n;
        if self
            .remaining_sges
            .first()
            .is_some_and(|s| s.length == self.offset_in_sge)
        {
            self.remaining_sges = &self.remaining_sges[1..];
            self.offset_in_sge = 0;
        }
    }

    /// Writes `len` bytes at `src`.
    ///
    /// # Safety
    /// No mutable reference to the `len` bytes at `src` exists.
    #[inline(never)]
    pub(super) unsafe fn write_bytes(
        &mut self,
        mut src: *const u8,
        mut len: usize,
    ) -> Result<(), PlaceError> {
        while len > 0 {
            let part = self.next_sge_part(len)?;
            let n = part.length as usize;
            if n > 0 {
                let (region, at, _pin) =
                    check_and_pin_sge(self.nic, self.region_cache, self.pd_number, &part, true)?;
                // SAFETY: `src` by contract; `at` is of the region, which is pinned, and `n` bytes long.
                unsafe { region.write(at, src) }.map_err(|MemoryFault| {
                    if is_readable(src, n) {
                        PlaceError::ReceiveMemoryUnwritable
                    } else {
                        PlaceError::SenderMemoryUnreadable
                    }
                })?;
                src = src.wrapping_add(n);
            }
            self.advance_in_sges(n);
            len -= n;
        }
        Ok(())
    }

    /// Writes bytes of a region that is reached by system call.
    pub(super) fn write_bytes_of_unmapped_region(
        &mut self,
        from: &shm::mem::AccessibleRegion,
        mut left: PermittedRange,
    ) -> Result<(), PlaceError> {
        while !left.is_empty() {
            let part = self.next_sge_part(left.len() as usize)?;
            let n = part.length as usize;
            if n > 0 {
                let (region, mut to, _pin) =
                    check_and_pin_sge(self.nic, self.region_cache, self.pd_number, &part, true)?;
                let (mut at, rest) = left.split_at(n as u64);
                left = rest;
                if let Some(dst) = region.mapped_address(to) {
                    // SAFETY: `dst` has `n` bytes in the pinned local region; the caller has pinned `from`.
                    unsafe { from.read(at, dst) }.map_err(|MemoryFault| {
                        if probe_writable(dst, n) {
                            PlaceError::SenderMemoryUnreadable
                        } else {
                            PlaceError::ReceiveMemoryUnwritable
                        }
                    })?;
                } else if !region.is_null() {
                    let mut buffer = [0; BOUNCE_BUFFER_BYTES];
                    while !at.is_empty() {
                        let (source, sources) = at.split_at(BOUNCE_BUFFER_BYTES as u64);
                        let (target, targets) = to.split_at(BOUNCE_BUFFER_BYTES as u64);
                        // SAFETY: the buffer has `BOUNCE_BUFFER_BYTES` bytes, and no piece is longer; both pieces lie
                        // in pinned regions.
                        unsafe {
                            from.read(source, buffer.as_mut_ptr())
                                .map_err(|_| PlaceError::SenderMemoryUnreadable)?;
                            region
                                .write(target, buffer.as_ptr())
                                .map_err(|_| PlaceError::ReceiveMemoryUnwritable)?;
                        }
                        (at, to) = (sources, targets);
                    }
                }
            }
            self.advance_in_sges(n);
        }
        Ok(())
    }

    /// Returns the part of the current SGE that takes the next of `len` bytes.
    #[inline]
    fn next_sge_part(&self, len: usize) -> Result<ibv_sge, PlaceError> {
        let sge = *self.remaining_sges.first().ok_or(PlaceError::TooLong)?;
        let addr = sge.addr.wrapping_add(self.offset_in_sge.into());
        let n = ((sge.length - self.offset_in_sge) as usize).min(len);
        Ok(ibv_sge {
            addr,
            ..sge_prefix(&sge, n)
        })
    }
}

/// Largest number of SGEs of a WRITE.
const MAX_WRITE_SGES: usize = crate::device::MAX_SGE as usize;

/// Executes a WRITE that its requester left to the responder, with the checks that a responder makes. In the ring, the
/// WRITE stands behind SENDs and in front of others.
#[cold]
#[inline(never)]
pub(super) fn execute_ordered_write(
    qp: &Qp,
    record: &RingRecord<'_>,
    from: &mut RecordOrigin<'_>,
    to: &mut RecordDestination<'_, '_>,
) -> RecordResult {
    // The window holds a pin of the cache that is used below.
    to.last_recv_region.release_region();
    let header = record.header;
    let Some(bytes) = record.payload.len().checked_sub(WRITE_RECORD_PREFIX_BYTES) else {
        return RecordResult::QueuePairFailed(IBV_WC_REM_INV_REQ_ERR);
    };
    let first = record.payload.as_mut_ptr();
    // SAFETY: the record has at least `WRITE_RECORD_PREFIX_BYTES` bytes; any bytes are a number, read once.
    let addr = unsafe { first.cast::<u64>().read_unaligned() };
    let me = TargetQp {
        peer: qp.nic.this_process(),
        qp_index: qp.index,
        srqn: 0,
    };
    let len = u64::from(header.len_or_value);
    let access = Access::RemoteWrite;
    let found = authorize_remote_region(
        qp.nic,
        &me,
        to.local_regions,
        (addr, header.imm),
        len,
        access,
    );
    let Ok((region, mut left, _pin)) = found else {
        return refuse_access(qp);
    };
    if header.flags & FLAG_BY_REFERENCE == 0 {
        if len > bytes as u64 {
            return RecordResult::QueuePairFailed(IBV_WC_REM_INV_REQ_ERR);
        }
        // SAFETY: `left` lies in this region, which is pinned, and the record has as many bytes behind the prefix.
        let written = unsafe { region.write(left, first.add(WRITE_RECORD_PREFIX_BYTES)) };
        return written.map_or_else(|MemoryFault| refuse_access(qp), |()| RecordResult::Done);
    }
    let mut list = [0u8; MAX_WRITE_SGES * size_of::<ibv_sge>()];
    let Some(list) = list.get_mut(..bytes) else {
        return RecordResult::QueuePairFailed(IBV_WC_REM_INV_REQ_ERR);
    };
    // SAFETY: the record has `bytes` bytes behind the prefix; the array is this function's.
    unsafe {
        std::ptr::copy_nonoverlapping(
            first.add(WRITE_RECORD_PREFIX_BYTES),
            list.as_mut_ptr(),
            bytes,
        );
    }
    let listed = RingRecord::from_header_and_bytes(header, list);
    let sender = (from.peer, from.src_qpn);
    let copied = for_each_referenced_piece(
        qp,
        &listed,
        sender,
        from.sender_payload_regions,
        |source, at| {
            let (into, rest) = left.split_at(at.len());
            left = rest;
            let copied = if let Some(src) = source.mapped_address(at) {
                // SAFETY: both lie in pinned regions and are equally long.
                unsafe { region.write(into, src) }
                    .map_err(|MemoryFault| !is_readable(src, at.len() as usize))
            } else if let Some(dst) = region.mapped_address(into) {
                // SAFETY: as above.
                unsafe { source.read(at, dst) }
                    .map_err(|MemoryFault| probe_writable(dst, at.len() as usize))
            } else {
                read_to_unmapped_or_tell_if_local_failed((source, at), (region, into))
                    .map_err(|of_target| !of_target)
            };
            copied.map_err(|of_sender| match of_sender {
                true if from.peer.kernel_says_ended() => PlaceError::SenderGone,
                true => PlaceError::SenderMemoryUnreadable,
                false => PlaceError::ReceiveMemoryUnwritable,
            })
        },
    );
    match copied {
        Ok(()) if has_withdrawn_records(from.peer, from.ring_offset) => {
            RecordResult::SenderEndedOrWithdrew
        }
        Ok(()) => RecordResult::Done,
        Err(PlaceError::SenderGone) => RecordResult::SenderEndedOrWithdrew,
        Err(PlaceError::SenderMemoryUnreadable) => RecordResult::SenderMemoryUnreadable,
        Err(PlaceError::ReceiveMemoryUnwritable | PlaceError::TooLong) => refuse_access(qp),
    }
}

/// Refuses a request that has no right to the memory, or whose memory is not mapped. On RC both sides fail; on UC the
/// request is dropped (IBTA vol. 1, 9.9.3).
fn refuse_access(qp: &Qp) -> RecordResult {
    if qp.qp_type != QpType::Rc {
        return RecordResult::Done;
    }
    qp.raise_event(IBV_EVENT_QP_ACCESS_ERR);
    RecordResult::QueuePairFailed(IBV_WC_REM_ACCESS_ERR)
}
