//! Ethernet frames between the two workers of a pair, and flows that a worker creates and destroys meanwhile.

use std::process;

use verbs_abi::*;

use super::message::{check_message, message};
use crate::env::{NicCapability, TestEnv};
use crate::objects::{Buf, Context};
use crate::raw::{FlowAttr, InstalledFlow, RawPacketQp};
use crate::rng::Rng;
use crate::wr::{Verb, send};

/// Maximum number of outstanding frames, and number of posted receives.
const FRAMES: u64 = 8;
/// Number of bytes of the buffer for one frame.
const ROOM: usize = 2048;
/// Number of bytes of a frame's header: destination, source and type.
const HEADER: usize = 14;
/// EtherType of local experimental protocols (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// One worker's side of the frame exchange. The fields are dropped in the order of declaration.
pub(super) struct FrameExchange {
    /// A flow that is created and destroyed at random, and matches no frame.
    passing: Option<InstalledFlow>,
    outgoing: Buf,
    incoming: Buf,
    raw: RawPacketQp,
    env: TestEnv,
    own: Mac,
    under_way: u64,
    next: u64,
    last: Option<u64>,
}

impl FrameExchange {
    /// Creates a side that receives frames for an address of this process; `None` if the port supports no raw
    /// packets.
    pub(super) fn new(env: &TestEnv, ctx: &Context) -> Option<Self> {
        if !env.has(NicCapability::RawPackets) {
            return None;
        }
        let [a, b, c, d] = process::id().to_be_bytes();
        let own = [2, a, b, c, d, 1];
        let mut raw = RawPacketQp::of(ctx);
        raw.add_flow(&FlowAttr::to(env, own));
        let room = usize::try_from(FRAMES).expect("small") * ROOM;
        let (outgoing, incoming) = (raw.pd.buf(room), raw.pd.buf(room));
        for i in 0..FRAMES {
            raw.qp.recv(i, [incoming.sge(i * ROOM as u64, ROOM)]);
        }
        Some(Self {
            passing: None,
            outgoing,
            incoming,
            raw,
            env: env.clone(),
            own,
            under_way: 0,
            next: 0,
            last: None,
        })
    }

    /// Returns the address to which the peer sends frames.
    pub(super) fn address(&self) -> Mac {
        self.own
    }

    /// Sends the next frame to the peer, if fewer than [`FRAMES`] frames are outstanding. Before that, the
    /// function creates or destroys a flow at random.
    pub(super) fn post(&mut self, peer: Mac, rng: &mut Rng) {
        if rng.one_in(8) {
            self.passing = match self.passing.take() {
                Some(_) => None,
                None => {
                    let nobody = [2, 0, 0, 0, 0, u8::try_from(rng.below(256)).expect("a byte")];
                    let rule = FlowAttr::to(&self.env, nobody);
                    Some(
                        InstalledFlow::new(&self.raw.ctx, &self.raw.qp, &rule)
                            .expect("ibv_create_flow"),
                    )
                }
            };
        }
        if self.under_way == FRAMES {
            return;
        }
        let number = self.next;
        let slot = number % FRAMES;
        let payload = 64 + usize::try_from(rng.below(1000)).expect("small");
        let mut frame = peer.to_vec();
        frame.extend(self.own);
        frame.extend(ETHERTYPE);
        frame.extend(message(number, payload));
        let at = usize::try_from(slot).expect("small") * ROOM;
        self.outgoing.memory.write(at, &frame);
        let sge = self.outgoing.sge(at as u64, frame.len());
        self.raw.qp.post(send([sge]).id(number));
        self.next += 1;
        self.under_way += 1;
    }

    /// Polls completions, and returns the number of received frames, which are verified. Frames that found no
    /// receive WR are lost.
    pub(super) fn poll_received_frames(&mut self) -> u64 {
        let mut received = 0;
        for wc in self.raw.cq.poll(16) {
            if wc.raw().opcode & IBV_WC_RECV == 0 {
                wc.expect_sent(self.next - self.under_way, Verb::Send);
                self.under_way -= 1;
                continue;
            }
            let len = wc.raw().byte_len as usize;
            wc.expect_received(wc.id(), len);
            let at = usize::try_from(wc.id()).expect("small") * ROOM;
            let frame = self.incoming.memory.read(at, len);
            assert_eq!(frame[..6], self.own, "another's frame");
            let number = check_message(&frame[HEADER..]);
            assert!(self.last < Some(number), "{number} after {:?}", self.last);
            self.last = Some(number);
            let sge = self.incoming.sge(at as u64, ROOM);
            self.raw.qp.recv(wc.id(), [sge]);
            received += 1;
        }
        received
    }
}
