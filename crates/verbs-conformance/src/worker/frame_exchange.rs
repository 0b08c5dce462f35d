//! Ethernet frames between the two workers of a pair, and flows that a worker creates and destroys meanwhile.

use std::process;

use verbs_abi::*;

use super::numbered_message::{numbered_message, verified_message_number};
use crate::objects::{Buf, Context};
use crate::raw_packet::{FlowAttr, InstalledFlow, RawPacketQp};
use crate::rng::Rng;
use crate::test_env::{NicCapability, TestEnv};
use crate::wr::{Verb, send};

/// Maximum number of outstanding frames, and number of posted receives.
const MAX_OUTSTANDING_FRAMES: u64 = 8;
/// Number of bytes of the buffer for one frame.
const FRAME_BUFFER_BYTES: usize = 2048;
/// Number of bytes of a frame's header: destination, source and type.
const ETHERNET_HEADER_BYTES: usize = 14;
/// EtherType of local experimental protocols (IEEE 802).
const EXPERIMENTAL_ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// One worker's side of the frame exchange. The fields are dropped in the order of declaration.
pub(super) struct FrameExchange {
    /// A flow that is created and destroyed at random, and matches no frame.
    temporary_unmatched_flow: Option<InstalledFlow>,
    outgoing_buf: Buf,
    incoming_buf: Buf,
    raw_qp: RawPacketQp,
    env: TestEnv,
    own_mac: Mac,
    outstanding_send_count: u64,
    next_sent_number: u64,
    last_received_number: Option<u64>,
}

impl FrameExchange {
    /// Creates a side that receives frames for an address of this process; `None` if the port supports no raw
    /// packets.
    pub(super) fn new(env: &TestEnv, ctx: &Context) -> Option<Self> {
        if !env.expects_capability(NicCapability::RawPackets) {
            return None;
        }
        let [a, b, c, d] = process::id().to_be_bytes();
        let own = [2, a, b, c, d, 1];
        let mut raw = RawPacketQp::create_in_rts_on_context(ctx);
        raw.add_flow(&FlowAttr::matching_ethernet_destination(env, own));
        let room = usize::try_from(MAX_OUTSTANDING_FRAMES).expect("small") * FRAME_BUFFER_BYTES;
        let (outgoing, incoming) = (raw.pd.alloc_buf(room), raw.pd.alloc_buf(room));
        for i in 0..MAX_OUTSTANDING_FRAMES {
            raw.qp.post_recv(
                i,
                [incoming.sge(i * FRAME_BUFFER_BYTES as u64, FRAME_BUFFER_BYTES)],
            );
        }
        Some(Self {
            temporary_unmatched_flow: None,
            outgoing_buf: outgoing,
            incoming_buf: incoming,
            raw_qp: raw,
            env: env.clone(),
            own_mac: own,
            outstanding_send_count: 0,
            next_sent_number: 0,
            last_received_number: None,
        })
    }

    /// Returns the address to which the peer sends frames.
    pub(super) fn receive_mac(&self) -> Mac {
        self.own_mac
    }

    /// Sends the next frame to the peer, if fewer than [`MAX_OUTSTANDING_FRAMES`] frames are outstanding. Before that, the
    /// function creates or destroys a flow at random.
    pub(super) fn post_next_frame(&mut self, peer: Mac, rng: &mut Rng) {
        if rng.one_in(8) {
            self.temporary_unmatched_flow = match self.temporary_unmatched_flow.take() {
                Some(_) => None,
                None => {
                    let nobody = [2, 0, 0, 0, 0, u8::try_from(rng.below(256)).expect("a byte")];
                    let rule = FlowAttr::matching_ethernet_destination(&self.env, nobody);
                    Some(
                        InstalledFlow::new(&self.raw_qp.ctx, &self.raw_qp.qp, &rule)
                            .expect("ibv_create_flow"),
                    )
                }
            };
        }
        if self.outstanding_send_count == MAX_OUTSTANDING_FRAMES {
            return;
        }
        let number = self.next_sent_number;
        let slot = number % MAX_OUTSTANDING_FRAMES;
        let payload = 64 + usize::try_from(rng.below(1000)).expect("small");
        let mut frame = peer.to_vec();
        frame.extend(self.own_mac);
        frame.extend(EXPERIMENTAL_ETHERTYPE);
        frame.extend(numbered_message(number, payload));
        let at = usize::try_from(slot).expect("small") * FRAME_BUFFER_BYTES;
        self.outgoing_buf.memory.write(at, &frame);
        let sge = self.outgoing_buf.sge(at as u64, frame.len());
        self.raw_qp.qp.post(send([sge]).with_id(number));
        self.next_sent_number += 1;
        self.outstanding_send_count += 1;
    }

    /// Polls completions, and returns the number of received frames, which are verified. Frames that found no
    /// receive WR are lost.
    pub(super) fn poll_received_frames(&mut self) -> u64 {
        let mut received = 0;
        for wc in self.raw_qp.cq.poll(16) {
            if wc.raw().opcode & IBV_WC_RECV == 0 {
                wc.expect_sent(
                    self.next_sent_number - self.outstanding_send_count,
                    Verb::Send,
                );
                self.outstanding_send_count -= 1;
                continue;
            }
            let len = wc.raw().byte_len as usize;
            wc.expect_received(wc.id(), len);
            let at = usize::try_from(wc.id()).expect("small") * FRAME_BUFFER_BYTES;
            let frame = self.incoming_buf.memory.read(at, len);
            assert_eq!(frame[..6], self.own_mac, "another's frame");
            let number = verified_message_number(&frame[ETHERNET_HEADER_BYTES..]);
            assert!(
                self.last_received_number < Some(number),
                "{number} after {:?}",
                self.last_received_number
            );
            self.last_received_number = Some(number);
            let sge = self.incoming_buf.sge(at as u64, FRAME_BUFFER_BYTES);
            self.raw_qp.qp.post_recv(wc.id(), [sge]);
            received += 1;
        }
        received
    }
}
