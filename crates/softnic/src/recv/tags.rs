//! Tag matching: receives that wait for messages with a tag (`ibv_post_srq_ops(3)`).
//!
//! A message to a shared receive queue of this kind begins with a tag matching header. What matches an entry of the list
//! goes there, without the header; what matches none is unexpected and goes, with it, into the oldest receive WR. A
//! rendezvous message only says where the payload is: it is READ, and a message of the kind FIN tells the sender. If the entry
//! has no room for it the program goes on with the rendezvous itself (`Documentation/tag_matching.md` of rdma-core, "TM
//! completion processing").

use super::*;

/// A tag matching header (`struct ibv_tmh` of `infiniband/tm_types.h`): the operation, 3 bytes that are reserved, 4 of the
/// application's, and the tag, in network byte order.
const TMH_BYTES: usize = 16;

/// A rendezvous header, behind it (`struct ibv_rvh`): address, R_Key and length of the payload, in network byte order.
const RVH_BYTES: usize = 16;

/// The longest header that a sender adds.
const MAX_HEADER_BYTES: usize = TMH_BYTES + RVH_BYTES;
const _: () = assert!(MAX_HEADER_BYTES == crate::device::MAX_RNDV_HEADER as usize);

/// Operations of a tag matching header (`enum ibv_tmh_op`); all others are for programs.
const TMH_RNDV: u8 = 1;
const TMH_FIN: u8 = 2;
const TMH_EAGER: u8 = 3;

/// The list of a shared receive queue.
#[derive(Default)]
pub(crate) struct TagList {
    /// In the order in which they were added, which is that of matching.
    entries: Vec<Entry>,
    max_entries: usize,
    last_handle: u32,
    /// Unexpected messages, and how many of them the program has said to have handled. Where they differ the program may
    /// not know yet of a message that an entry is for, so that entries which come now match nothing until they agree.
    unexpected: u32,
    handled: u32,
}

struct Entry {
    handle: u32,
    wr_id: u64,
    tag: u64,
    mask: u64,
    sges: Box<[ibv_sge]>,
    active: bool,
}

/// A rendezvous whose message has been taken, and whose payload is to come: of a queue pair, and what is behind it there
/// waits.
pub(super) struct Rendezvous {
    wr_id: u64,
    /// Where the payload goes, in a protection domain.
    sges: Box<[ibv_sge]>,
    pd: u32,
    payload: RemotePayload,
    /// The header of the message.
    header: [u8; TMH_BYTES],
    /// The payload is here.
    is_read: bool,
}

/// What a rendezvous header says of the payload.
#[derive(Clone, Copy)]
pub(crate) struct RemotePayload {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u32,
}

impl TagList {
    /// Entries that it holds at most.
    pub(crate) fn max_entries(&self) -> usize {
        self.max_entries
    }

    pub(crate) fn new(max_entries: u32) -> Self {
        Self {
            max_entries: max_entries as usize,
            ..Self::default()
        }
    }

    /// `IBV_WR_TAG_ADD`: adds an entry, and returns its handle.
    ///
    /// # Errors
    /// `ENOMEM`: the list is full.
    pub(crate) fn add(&mut self, add: &ibv_ops_wr_tm_add, sges: &[ibv_sge]) -> Result<u32, i32> {
        if self.entries.len() >= self.max_entries {
            return Err(libc::ENOMEM);
        }
        self.last_handle = self.last_handle.wrapping_add(1);
        self.entries.push(Entry {
            handle: self.last_handle,
            wr_id: add.recv_wr_id,
            tag: add.tag,
            mask: add.mask,
            sges: sges.into(),
            active: self.agrees(),
        });
        Ok(self.last_handle)
    }

    /// `IBV_WR_TAG_DEL`: false if the entry is not there (any more).
    pub(crate) fn remove(&mut self, handle: u32) -> bool {
        let at = self.entries.iter().position(|e| e.handle == handle);
        at.map(|at| self.entries.remove(at)).is_some()
    }

    /// `IBV_OPS_TM_SYNC`: the program has handled so many unexpected messages.
    pub(crate) fn synchronise(&mut self, handled: u32) {
        self.handled = handled;
        if self.agrees() {
            for entry in &mut self.entries {
                entry.active = true;
            }
        }
    }

    /// Does the program know of all unexpected messages?
    pub(crate) fn agrees(&self) -> bool {
        self.handled == self.unexpected
    }

    /// An unexpected message went into a receive WR.
    #[cold]
    pub(super) fn note_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    fn matching(&self, tag: u64) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|e| e.active && tag & e.mask == e.tag)
    }
}

/// Where a record comes from, and by which regions its payload is reached.
pub(super) struct Source<'a> {
    pub(super) peer: &'a Arc<Peer>,
    pub(super) ring_at: usize,
    pub(super) src_qpn: u32,
    pub(super) local: &'a mut RegionCache,
    pub(super) remote: &'a mut RegionCache,
}

/// What became of a message to a queue with a list.
pub(super) enum Tagged {
    /// It matched.
    Handled(Handled),
    /// It goes into a receive WR, whose completion has this operation.
    Unmatched(ibv_wc_opcode),
}

/// Gives a message to the entry that it matches. There is room for a completion.
#[cold]
pub(super) fn receive(
    qp: &Qp,
    rq: &mut RecvQueue,
    record: &Record<'_>,
    mut source: Source<'_>,
    flags: u32,
    sink: &mut WcSink<'_>,
) -> Tagged {
    let pd = rq.pd;
    let Some(list) = rq.tags.as_deref_mut() else {
        return Tagged::Unmatched(IBV_WC_RECV);
    };
    let mut head = [0; MAX_HEADER_BYTES];
    let Ok(head_len) = peek(qp, record, &mut source, &mut head) else {
        // What is wrong with it shows when it is placed.
        return Tagged::Unmatched(IBV_WC_TM_NO_TAG);
    };
    let (header, rest) = head.split_at(TMH_BYTES);
    let needed = match header[0] {
        TMH_EAGER => TMH_BYTES,
        TMH_RNDV => MAX_HEADER_BYTES,
        _ => usize::MAX,
    };
    if head_len < needed {
        return Tagged::Unmatched(IBV_WC_TM_NO_TAG);
    }
    let tag = word(&header[8..]);
    let Some(at) = list.matching(tag) else {
        return Tagged::Unmatched(IBV_WC_TM_RECV);
    };
    let mut wc = ibv_wc {
        wr_id: list.entries[at].wr_id,
        opcode: IBV_WC_TM_RECV,
        byte_len: record.header.len,
        imm: ibv_wc_imm {
            imm_data: record.header.imm,
        },
        qp_num: qp.qpn,
        wc_flags: flags | IBV_WC_TM_MATCH,
        ..ibv_wc::zeroed()
    };
    TagInfo {
        tag,
        app: half(&header[4..]),
    }
    .store(&mut wc);
    if header[0] == TMH_RNDV {
        let entry = list.entries.remove(at);
        let payload = RemotePayload {
            addr: word(rest),
            rkey: half(&rest[8..]),
            len: half(&rest[12..]),
        };
        if u64::from(payload.len) > room(&entry.sges) {
            return Tagged::Handled(hand_over(qp, pd, &entry, &head, &mut source, (wc, sink)));
        }
        let mut own = [0; TMH_BYTES];
        own.copy_from_slice(header);
        wc.byte_len = payload.len;
        sink.push(wc);
        return Tagged::Handled(Handled::Rendezvous(Box::new(Rendezvous {
            wr_id: entry.wr_id,
            sges: entry.sges,
            pd,
            payload,
            header: own,
            is_read: false,
        })));
    }
    #[allow(clippy::cast_possible_truncation)] // 16
    let len = record.header.len - TMH_BYTES as u32;
    let placed = place_eager(qp, pd, &list.entries[at].sges, record, &mut source);
    let handled = match placed {
        Ok(()) => {
            wc.byte_len = len;
            wc.wc_flags |= IBV_WC_TM_DATA_VALID;
            sink.solicited |= record.header.flags & FLAG_SOLICITED != 0;
            sink.push(wc);
            Handled::Done
        }
        Err(PlaceError::SenderGone) => return Tagged::Handled(Handled::Lost),
        Err(PlaceError::Sender) => return Tagged::Handled(Handled::Unsendable),
        Err(PlaceError::TooLong) => {
            sink.push(failed(qp, wc.wr_id, IBV_WC_LOC_LEN_ERR));
            Handled::Failed(IBV_WC_REM_INV_REQ_ERR)
        }
        Err(PlaceError::Local) => {
            sink.push(failed(qp, wc.wr_id, IBV_WC_LOC_PROT_ERR));
            Handled::Failed(IBV_WC_REM_OP_ERR)
        }
    };
    list.entries.remove(at);
    Tagged::Handled(handled)
}

/// Gives the headers of a rendezvous to an entry that has no room for its payload: "the HW completes the buffer with an
/// IBV_WC_TM_RNDV_INCOMPLETE status. In this case, the TMH and RVH headers are scattered into the tagged buffer".
fn hand_over(
    qp: &Qp,
    pd: u32,
    entry: &Entry,
    head: &[u8; MAX_HEADER_BYTES],
    source: &mut Source<'_>,
    (wc, sink): (ibv_wc, &mut WcSink<'_>),
) -> Handled {
    let mut to = Scatter {
        nic: qp.nic,
        pd,
        sges: &entry.sges,
        offset: 0,
        cache: source.local,
    };
    let placed = if head.len() as u64 > room(&entry.sges) {
        Err(PlaceError::TooLong)
    } else {
        // SAFETY: all of the array.
        unsafe { to.put(head.as_ptr(), head.len()) }
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
            Handled::Done
        }
        Err(PlaceError::TooLong) => {
            sink.push(failed(qp, wc.wr_id, IBV_WC_LOC_LEN_ERR));
            Handled::Failed(IBV_WC_REM_INV_REQ_ERR)
        }
        Err(_) => {
            sink.push(failed(qp, wc.wr_id, IBV_WC_LOC_PROT_ERR));
            Handled::Failed(IBV_WC_REM_OP_ERR)
        }
    }
}

/// Places what stands behind the header of an eager message.
fn place_eager(
    qp: &Qp,
    pd: u32,
    sges: &[ibv_sge],
    record: &Record<'_>,
    source: &mut Source<'_>,
) -> Result<(), PlaceError> {
    let len = record.header.len as usize - TMH_BYTES;
    if len as u64 > room(sges) {
        return Err(PlaceError::TooLong);
    }
    let mut to = Scatter {
        nic: qp.nic,
        pd,
        sges,
        offset: 0,
        cache: source.local,
    };
    if record.header.flags & FLAG_BY_REFERENCE == 0 {
        let payload = record.payload.as_mut_ptr().wrapping_add(TMH_BYTES);
        // SAFETY: the ring has the whole message behind the header (`peek` has checked).
        return unsafe { to.put(payload, len) };
    }
    let sender = (source.peer, source.src_qpn);
    gather_by_reference(qp, record, sender, source.remote, TMH_BYTES as u64, &mut to)?;
    if withdrawn(source.peer, source.ring_at) {
        return Err(PlaceError::SenderGone);
    }
    Ok(())
}

/// Reads the beginning of a message, as much as there is and `head` holds.
fn peek(
    qp: &Qp,
    record: &Record<'_>,
    source: &mut Source<'_>,
    head: &mut [u8; MAX_HEADER_BYTES],
) -> Result<usize, PlaceError> {
    let len = (record.header.len as usize).min(head.len());
    if record.header.flags & FLAG_BY_REFERENCE == 0 {
        if record.header.len as usize > record.payload.len() {
            return Err(PlaceError::Sender);
        }
        // SAFETY: the ring has `len` bytes behind the header (just checked), which its sender may change.
        unsafe { copy(head.as_mut_ptr(), record.payload.as_mut_ptr(), len) }
            .map_err(|_: Fault| PlaceError::Sender)?;
        return Ok(len);
    }
    let mut done = 0;
    let sender = (source.peer, source.src_qpn);
    for_each_referenced(qp, record, sender, source.remote, |region, at| {
        let (at, _) = at.split_at((len - done) as u64);
        // SAFETY: `head` has room for as many bytes; `at` is of the region, which is pinned.
        unsafe { region.read(at, head[done..].as_mut_ptr()) }
            .map_err(|_: Fault| PlaceError::Sender)?;
        done += at.len() as usize;
        Ok(())
    })?;
    Ok(len)
}

impl Rendezvous {
    /// READs the payload and tells the sender, once the sender can have heard that its message was taken: what it hears
    /// first, it has first. False if that cannot be yet. There is room for a completion.
    #[cold]
    pub(super) fn go_on(&mut self, qp: &Qp, sink: &mut WcSink<'_>) -> bool {
        let mut fin = self.header;
        fin[0] = TMH_FIN;
        let to = (self.pd, &self.sges[..]);
        match send::rendezvous(qp, to, self.payload, &mut self.is_read, &fin) {
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
                sink.push(failed(qp, self.wr_id, status));
                qp.fail();
            }
        }
        true
    }

    /// The queue pair has failed.
    #[cold]
    pub(super) fn flush(&self, qp: &Qp, sink: &mut WcSink<'_>) {
        sink.push(failed(qp, self.wr_id, IBV_WC_WR_FLUSH_ERR));
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes[..8].iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

fn half(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |n, &b| n << 8 | u32::from(b))
}

/// What a completion says of a tag. An `ibv_wc` has no field for it: it travels in those that no completion of a
/// reliable connection that succeeded has a value for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagInfo {
    pub(crate) tag: u64,
    /// What the sending application has put into the header.
    pub(crate) app: u32,
}

#[allow(clippy::cast_possible_truncation)] // halves
impl TagInfo {
    fn store(self, wc: &mut ibv_wc) {
        (wc.src_qp, wc.vendor_err) = (self.tag as u32, (self.tag >> 32) as u32);
        (wc.pkey_index, wc.slid) = (self.app as u16, (self.app >> 16) as u16);
    }

    /// Takes it out of a completion, whose fields are then those of every other one.
    pub(crate) fn take(wc: &mut ibv_wc) -> Self {
        if wc.opcode != IBV_WC_TM_RECV || wc.wc_flags & IBV_WC_TM_MATCH == 0 {
            return Self::default();
        }
        let tag = u64::from(wc.vendor_err) << 32 | u64::from(wc.src_qp);
        let app = u32::from(wc.slid) << 16 | u32::from(wc.pkey_index);
        Self::default().store(wc);
        Self { tag, app }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u64, mask: u64) -> ibv_ops_wr_tm_add {
        ibv_ops_wr_tm_add {
            recv_wr_id: tag,
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            tag,
            mask,
        }
    }

    #[test]
    fn the_first_that_was_added_matches() {
        let mut list = TagList::new(3);
        let one = list.add(&entry(0x34, 0xff), &[]).unwrap();
        list.add(&entry(0x1234, 0xffff), &[]).unwrap();
        assert_eq!(list.matching(0x1234), Some(0));
        assert_eq!(list.matching(0x1235), None);
        assert!(list.remove(one));
        assert!(!list.remove(one));
        assert_eq!(list.matching(0xabcd_1234), Some(0));
        list.add(&entry(1, 1), &[]).unwrap();
        list.add(&entry(2, 2), &[]).unwrap();
        assert_eq!(list.add(&entry(4, 4), &[]), Err(libc::ENOMEM));
    }

    #[test]
    fn what_comes_behind_an_unexpected_message_waits_for_the_program_to_know_of_it() {
        let mut list = TagList::new(8);
        list.add(&entry(1, u64::MAX), &[]).unwrap();
        list.note_unexpected();
        list.add(&entry(2, u64::MAX), &[]).unwrap();
        assert_eq!((list.matching(1), list.matching(2)), (Some(0), None));
        assert!(!list.agrees());
        list.synchronise(1);
        assert_eq!(list.matching(2), Some(1));
    }

    #[test]
    fn a_tag_travels_in_a_completion() {
        let info = TagInfo {
            tag: 0x0123_4567_89ab_cdef,
            app: 0xfedc_ba98,
        };
        let mut wc = ibv_wc {
            opcode: IBV_WC_TM_RECV,
            wc_flags: IBV_WC_TM_MATCH,
            ..ibv_wc::zeroed()
        };
        info.store(&mut wc);
        assert_eq!(TagInfo::take(&mut wc), info);
        assert_eq!(
            (wc.src_qp, wc.vendor_err, wc.slid, wc.pkey_index),
            (0, 0, 0, 0)
        );
        // An unexpected message has none.
        let mut other = ibv_wc {
            opcode: IBV_WC_TM_RECV,
            src_qp: 7,
            ..ibv_wc::zeroed()
        };
        assert_eq!(TagInfo::take(&mut other), TagInfo::default());
        assert_eq!(other.src_qp, 7);
    }
}
