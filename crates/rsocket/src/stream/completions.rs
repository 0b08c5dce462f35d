//! Processing of a stream's completions: received messages, and completed sends.

use verbs_abi::*;

use super::{SendPurpose, Stream};
use crate::cq::ZEROED_COMPLETIONS;
use crate::protocol::Immediate;

impl Stream {
    /// Polls the completion queue and processes all completions; returns true if a completion was found.
    pub(crate) fn process_completions_if_any(&mut self) -> bool {
        let mut any = false;
        let mut wcs = ZEROED_COMPLETIONS;
        loop {
            let n = self.cq.poll(&mut wcs);
            if n == 0 {
                break;
            }
            any = true;
            for wc in wcs.iter().take(n) {
                self.handle_completion(wc);
            }
        }
        if any {
            self.return_credits_and_buffers_if_due();
        }
        any
    }

    fn handle_completion(&mut self, wc: &ibv_wc) {
        if wc.status != IBV_WC_SUCCESS {
            // Flushed work requests are a consequence of the disconnect; any other error has ended the connection.
            let errno = match wc.status {
                IBV_WC_WR_FLUSH_ERR => 0,
                _ => libc::ECONNRESET,
            };
            self.final_errno.get_or_insert(errno);
            return;
        }
        if wc.opcode & IBV_WC_RECV == 0 {
            match SendPurpose::from_wr_id(wc.wr_id) {
                SendPurpose::Data(len) => {
                    self.free_data_wrs += 1;
                    self.free_send_buffer_bytes += len as usize;
                }
                SendPurpose::Control => self.free_control_wrs += 1,
            }
            return;
        }
        // SAFETY: the immediate of a WRITE_WITH_IMM, which is the only kind of message; every bit pattern is valid.
        let imm = u32::from_be(unsafe { wc.imm.imm_data });
        match Immediate::decode(imm) {
            Some(Immediate::Data(len)) if len as usize <= self.peer_writable_bytes => {
                self.peer_writable_bytes -= len as usize;
                self.readable_bytes += len as usize;
                self.received_messages = self.received_messages.wrapping_add(1);
            }
            Some(Immediate::CreditLimit(upto)) => self.first_forbidden_message_number = upto,
            Some(Immediate::Iomap | Immediate::KeepAlive) => {}
            Some(Immediate::Shutdown) => self.peer_has_shut_down = true,
            Some(Immediate::Disconnect) => {
                self.peer_has_shut_down = true;
                self.final_errno.get_or_insert(0);
            }
            Some(Immediate::Data(_)) | None => {
                self.final_errno.get_or_insert(libc::EPROTO);
            }
        }
        if self.post_recv().is_err() {
            self.final_errno.get_or_insert(libc::ECONNRESET);
        }
    }
}
