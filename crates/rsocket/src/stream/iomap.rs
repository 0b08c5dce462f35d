//! `riomap`, `riounmap` and `riowrite` of a stream.

use verbs_abi::*;

use super::{MAX_WRITE_BYTES, PeerWritableBuffer, RemoteAddress, Stream};
use crate::protocol::{IOMAP_ENTRY_SIZE, Immediate, RemoteBuffer};
use rdmacm::device_port::last_errno;
use rdmacm::errno::{Errno, INVALID, Result};

impl Stream {
    /// Lets the peer write to `len` bytes at `addr`, under the offset `offset` (`None`: any free one). Returns the
    /// offset.
    ///
    /// # Safety
    /// The memory stays valid until it is unmapped or the stream is dropped.
    ///
    /// # Errors
    /// `ENOMEM` if the peer has no free iomap entry; `EAGAIN` if no control message can be sent now.
    pub(crate) unsafe fn iomap(
        &mut self,
        addr: *mut u8,
        len: usize,
        writable: bool,
        offset: Option<u64>,
    ) -> Result<u64> {
        let len32 = u32::try_from(len).map_err(|_| INVALID)?;
        if self.free_control_wrs == 0 {
            return Err(Errno(libc::EAGAIN));
        }
        let index = *self
            .free_peer_iomap_indexes
            .front()
            .ok_or(Errno(libc::ENOMEM))?;
        let access = if writable {
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
        } else {
            IBV_ACCESS_LOCAL_WRITE
        };
        // SAFETY: the protection domain of the queue pair, and the contract of this function.
        let mr = unsafe { (self.device.verbs.ibv_reg_mr)((*self.qp).pd, addr.cast(), len, access) };
        if mr.is_null() {
            return Err(last_errno());
        }
        let name = offset.unwrap_or(u64::from(index) << 32);
        let target = RemoteBuffer {
            addr: addr.expose_provenance() as u64,
            // SAFETY: the region was just registered.
            rkey: unsafe { (*mr).rkey },
            len: len32,
        };
        self.write_mapping_to_peer(index, name, target)?;
        self.free_peer_iomap_indexes.pop_front();
        self.peer_writable_buffers.push(PeerWritableBuffer {
            mr,
            addr: addr.addr(),
            peer_iomap_index: index,
        });
        Ok(name)
    }

    fn write_mapping_to_peer(&mut self, index: u16, name: u64, target: RemoteBuffer) -> Result {
        let mut bytes = [0; IOMAP_ENTRY_SIZE];
        bytes[..8].copy_from_slice(&name.to_ne_bytes());
        bytes[8..].copy_from_slice(&target.to_memory());
        let sgl_bytes = self.remote_target_sgl.len as usize * RemoteBuffer::ENCODED_BYTES;
        let entry = sgl_bytes + usize::from(index) * IOMAP_ENTRY_SIZE;
        let to = self.remote_target_sgl.addr + entry as u64;
        self.post_control(&mut bytes, to, Immediate::Iomap)
    }

    /// Undoes [`Stream::iomap`].
    ///
    /// # Errors
    /// `EINVAL` if nothing is mapped at `addr`.
    pub(crate) fn iounmap(&mut self, addr: *mut u8) -> Result {
        let at = self
            .peer_writable_buffers
            .iter()
            .position(|m| m.addr == addr.addr());
        let mapped = self.peer_writable_buffers.swap_remove(at.ok_or(INVALID)?);
        // SAFETY: registered by `iomap` and deregistered once. A later WRITE of the peer fails.
        unsafe { (self.device.verbs.ibv_dereg_mr)(mapped.mr) };
        self.free_peer_iomap_indexes
            .push_back(mapped.peer_iomap_index);
        Ok(())
    }

    /// Writes to a buffer that the peer has mapped, from `offset` on. Returns the number of bytes for which the queue
    /// had room.
    ///
    /// # Errors
    /// `EINVAL` if the peer has not mapped the whole range.
    pub(crate) fn write_to_peer_mapping(&mut self, bytes: &[u8], offset: u64) -> Result<usize> {
        let (addr, rkey) = self
            .peer_mapping_addr_and_rkey(offset, bytes.len())
            .ok_or(INVALID)?;
        let mut done = 0;
        while done < bytes.len() && self.free_data_wrs > 0 && self.free_send_buffer_bytes > 0 {
            let rest = bytes.get(done..).unwrap_or_default();
            let len = rest
                .len()
                .min(MAX_WRITE_BYTES)
                .min(self.free_send_buffer_bytes);
            let chunk = rest.get(..len).unwrap_or_default();
            let addr = addr + done as u64;
            self.post_data(chunk, RemoteAddress { addr, rkey }, None)?;
            done += len;
        }
        Ok(done)
    }

    /// Returns address and R_Key of the peer's buffer for a range of offsets.
    fn peer_mapping_addr_and_rkey(&self, offset: u64, len: usize) -> Option<(u64, u32)> {
        (0..self.queue_and_buffer_sizes.iomap_entry_count).find_map(|index| {
            let at = Self::iomap_entry_offset(index);
            let name = self.peer_written_memory.read_word(at);
            let target = RemoteBuffer::from_words(
                self.peer_written_memory.read_word(at + 8),
                self.peer_written_memory.read_word(at + 16),
            );
            let inside = offset.checked_sub(name)?;
            let room = u64::from(target.len).checked_sub(inside)?;
            (len as u64 <= room && target.len > 0)
                .then(|| (target.addr.wrapping_add(inside), target.rkey))
        })
    }
}
