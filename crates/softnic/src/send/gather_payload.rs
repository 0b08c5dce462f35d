//! Access to the payload of a work request, in the order of its SGEs.

use nic_core::rights::PermittedRange;

use super::*;

/// Copies the payload of a WR into the next record of a ring.
#[inline]
pub(super) fn gather_into_record(
    qp: &Qp,
    local: &mut RegionCache,
    view: &WrView<'_>,
    producer: &mut Producer,
    total: usize,
) -> Result<(), ibv_wc_status> {
    let place = producer.place_for_payload(total);
    if total == 0 {
        return Ok(());
    }
    let mut dst = place.as_mut_ptr();
    for_each_payload_part(qp, local, view, |src, len| {
        // SAFETY: the parts add up to `total` bytes, which the place has.
        unsafe { shm::mem::copy(dst, src, len) }.map_err(|MemoryFault| IBV_WC_LOC_PROT_ERR)?;
        dst = dst.wrapping_add(len);
        Ok(())
    })
}

/// Calls `f` for each contiguous piece of the payload of a WR. The piece stays registered during the call.
#[inline]
pub(super) fn for_each_payload_part(
    qp: &Qp,
    local: &mut RegionCache,
    view: &WrView<'_>,
    mut f: impl FnMut(*const u8, usize) -> Result<(), ibv_wc_status>,
) -> Result<(), ibv_wc_status> {
    if let Some(bytes) = view.gathered_payload {
        return f(bytes.as_ptr(), bytes.len());
    }
    if view.wr.send_flags & IBV_SEND_INLINE != 0 {
        // Inline data needs no registration (`ibv_post_send(3)`).
        for sge in view.sges.iter().filter(|s| s.length != 0) {
            f(
                std::ptr::with_exposed_provenance(sge.addr as usize),
                sge.length as usize,
            )?;
        }
        return Ok(());
    }
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let (region, at, _pin) = check_and_pin_sge(qp.nic, local, qp.pd_number, sge, false)
            .map_err(|_| IBV_WC_LOC_PROT_ERR)?;
        match region.mapped_address(at) {
            Some(src) => f(src, sge.length as usize)?,
            None if region.is_null() => for_each_zero_chunk(sge.length as usize, &mut f)?,
            None => for_each_fetched_chunk(region, at, &mut f)?,
        }
    }
    Ok(())
}

/// Calls `f` for the bytes of a checked SGE, [`BOUNCE_BUFFER_BYTES`] at a time. The region belongs to another process
/// and is not mapped.
#[cold]
fn for_each_fetched_chunk(
    region: &shm::mem::AccessibleRegion,
    mut left: PermittedRange,
    f: &mut impl FnMut(*const u8, usize) -> Result<(), ibv_wc_status>,
) -> Result<(), ibv_wc_status> {
    let mut buffer = [0; BOUNCE_BUFFER_BYTES];
    while !left.is_empty() {
        let (piece, rest) = left.split_at(BOUNCE_BUFFER_BYTES as u64);
        // SAFETY: the piece has at most `BOUNCE_BUFFER_BYTES` bytes, which the buffer has, and lies in the region,
        // which is pinned.
        unsafe { region.read(piece, buffer.as_mut_ptr()) }.map_err(|_| IBV_WC_LOC_PROT_ERR)?;
        f(buffer.as_ptr(), piece.len() as usize)?;
        left = rest;
    }
    Ok(())
}

/// Calls `f` for `len` zero bytes, at most 4096 at a time.
#[cold]
fn for_each_zero_chunk(
    mut len: usize,
    f: &mut impl FnMut(*const u8, usize) -> Result<(), ibv_wc_status>,
) -> Result<(), ibv_wc_status> {
    static ZEROS: [u8; 4096] = [0; 4096];
    while len > 0 {
        let n = len.min(ZEROS.len());
        f(ZEROS.as_ptr(), n)?;
        len -= n;
    }
    Ok(())
}
