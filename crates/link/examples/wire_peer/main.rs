//! A peer of `conformance/programs/wire_verbs.c`, made of the state machines of reliable connections; the other program
//! runs on any device. Usage: `wire_peer OWN_ADDRESS SERVER [MTU [TCP_PORT [BURSTS [SIZE,...]]]]`, with the options of
//! the server.
//!
//! Both sides are the requester in turn, and all data is checked. The program uses no NIC and no verbs, only a socket,
//! a requester, a responder and memory.

// Lengths are at most those of the areas, and the number of steps is small.
#![allow(clippy::cast_possible_truncation)]

mod memory;
mod verbs;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use link::{Config, Endpoint, PacketFlow, ReceiveBuffers};
use roce::icrc::{self, IpAddressPair};
use roce::opcode::LastPacketField;
use roce::packet::Packet;
use roce::psn::Psn;
use roce::rc::requester::{
    DEFAULT_MIN_PROBE_WAIT_NS, DEFAULT_WINDOW_BYTES, DEFAULT_WINDOW_PACKETS, Request,
    RequestOperation, Requester, RequesterConfig,
};
use roce::rc::responder::{AllowedOperations, Responder, ResponderConfig};

use memory::{AREA, BASE, Local, RKEY, Receive, Remote, word_at};
use verbs::Verb::{
    self, CompareSwap, FetchAdd, Read as ReadVerb, Send, SendImm, SendInv, Write as WriteVerb,
    WriteImm,
};
use verbs::{VERBS, Work, pattern, seed_of};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

// The values of wire_verbs.c.
const BURST: usize = 64;
const SLOT: usize = 8192;
const BEHIND: usize = (BURST + 1) * SLOT;
const FIRST_PSN: u32 = 0x00ff_fff0;
const RNR_TIME: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(60);

const QPN: u32 = 0x4011;

/// A queue pair over a socket, with a TCP connection to the peer's program.
struct Peer {
    begin: Instant,
    endpoint: Endpoint,
    inbox: ReceiveBuffers,
    flow: PacketFlow,
    requester: Requester,
    responder: Responder,
    local: Local,
    remote: Remote,
    tcp: TcpStream,
    addr: u64,
    rkey: u32,
    steps: u64,
    bytes: u64,
    bad_icrc: u64,
}

impl Peer {
    /// Receives all waiting packets and sends as many as possible.
    fn pump(&mut self) -> Outcome {
        let mut came = Vec::new();
        let bad = &mut self.bad_icrc;
        self.endpoint.receive(&mut self.inbox, |packet| {
            let split = icrc::split_off_icrc(packet.bytes);
            match split.filter(|(bytes, icrc)| {
                icrc::recover_identification_if_icrc_valid(&packet.icrc_fields, bytes, *icrc)
                    .is_some()
            }) {
                Some((bytes, _)) => came.push(bytes.to_vec()),
                None => *bad += 1,
            }
        });
        let now = u64::try_from(self.begin.elapsed().as_nanos())?;
        for bytes in &came {
            let packet = Packet::parse(bytes)?;
            if packet.bth.dest_qpn != QPN {
                continue;
            }
            if packet.bth.operation.goes_to_requester() {
                self.requester
                    .process_received_packet(now, &packet, &mut self.local);
            } else {
                self.responder
                    .process_received_packet(now, &packet, false, &mut self.remote);
            }
        }
        self.responder.queue_gap_nak_if_due(now);
        if self
            .requester
            .next_call_time_ns()
            .is_some_and(|deadline| deadline <= now)
        {
            self.requester.apply_expired_timers(now, now);
        }
        let mut batch = self.endpoint.new_batch();
        while batch.unsent_packet_count() < 32 {
            let answered = batch.push_some(&self.flow, |out| {
                self.responder
                    .append_next_packet(now, &mut self.remote, out)
            });
            let asked = batch.push_some(&self.flow, |out| {
                self.requester.append_next_packet(now, &mut self.local, out)
            });
            if !answered && !asked {
                break;
            }
        }
        self.endpoint.send(&mut batch);
        match (self.requester.failure(), self.responder.failure()) {
            (None, None) => Ok(()),
            failures => Err(format!("the queue pair has failed: {failures:?}").into()),
        }
    }

    fn pump_until(&mut self, what: &str, mut done: impl FnMut(&Peer) -> bool) -> Outcome {
        let begin = Instant::now();
        while !done(self) {
            self.pump()?;
            if begin.elapsed() > PATIENCE {
                return Err(format!("no {what} within {PATIENCE:?}").into());
            }
        }
        Ok(())
    }

    fn hear<const N: usize>(&mut self) -> Outcome<[u8; N]> {
        let (mut bytes, mut have) = ([0; N], 0);
        while have < N {
            self.pump()?;
            match self.tcp.read(&mut bytes[have..]) {
                Ok(0) => return Err("the peer is gone".into()),
                Ok(count) => have += count,
                Err(err) if err.kind() == ErrorKind::WouldBlock => {}
                Err(err) => return Err(err.into()),
            }
        }
        Ok(bytes)
    }

    fn meet(&mut self) -> Outcome {
        self.tcp.write_all(b"m")?;
        self.hear::<1>().map(drop)
    }

    fn post(&mut self, work: &Work) {
        let sends = !work.verb.is_atomic() && work.verb != ReadVerb;
        let payload = if sends {
            pattern(work.length, work.seed)
        } else {
            vec![0xee; work.length]
        };
        self.local.area[work.local..work.local + work.length].copy_from_slice(&payload);
        self.local.places.push(work.local);
        let len = work.length as u32;
        let imm = (work.id as u32).to_be_bytes();
        let (addr, rkey) = (self.addr + work.remote as u64, self.rkey);
        let operation = match work.verb {
            Send => RequestOperation::Send {
                len,
                tail: LastPacketField::None,
            },
            SendImm => RequestOperation::Send {
                len,
                tail: LastPacketField::Imm(imm),
            },
            SendInv => RequestOperation::Send {
                len,
                tail: LastPacketField::Invalidate(work.key),
            },
            WriteVerb => RequestOperation::Write {
                addr,
                rkey,
                len,
                imm: None,
            },
            WriteImm => RequestOperation::Write {
                addr,
                rkey,
                len,
                imm: Some(imm),
            },
            ReadVerb => RequestOperation::Read { addr, rkey, len },
            FetchAdd => RequestOperation::FetchAdd { addr, rkey, add: 3 },
            CompareSwap => RequestOperation::CompareSwap {
                addr,
                rkey,
                compare: work.seed,
                swap: !work.seed,
            },
        };
        self.requester.post(Request {
            operation,
            solicited: false,
            fence: false,
        });
    }

    fn complete_all(&mut self) -> Outcome {
        self.pump_until("completion", |peer| {
            peer.requester.unfinished_request_count() == 0
        })
    }

    fn check(
        &mut self,
        what: &str,
        place: usize,
        length: usize,
        seed: u64,
        is_local: bool,
    ) -> Outcome {
        let area = if is_local {
            &self.local.area
        } else {
            &self.remote.area
        };
        self.bytes += length as u64;
        if area[place..place + length] == pattern(length, seed) {
            Ok(())
        } else {
            Err(format!("{what} of {length} bytes is not as sent").into())
        }
    }

    fn check_recv(&mut self, id: u64, work: &Work) -> Outcome {
        self.pump_until("receive", |peer| !peer.remote.completions.is_empty())?;
        let done = self.remote.completions.pop_front().ok_or("no receive")?;
        let tail = match work.verb {
            SendImm | WriteImm => LastPacketField::Imm((work.id as u32).to_be_bytes()),
            SendInv => LastPacketField::Invalidate(work.key),
            _ => LastPacketField::None,
        };
        let expected = (id, work.length, work.verb == WriteImm, tail);
        if (done.id, done.length, done.by_write, done.tail) == expected {
            Ok(())
        } else {
            let came = (done.id, done.length, done.by_write, done.tail);
            Err(format!("the receive is {came:?} instead of {expected:?}").into())
        }
    }

    fn ask(&mut self, mut work: Work) -> Outcome {
        work.key = u32::from_le_bytes(self.hear()?);
        self.post(&work);
        self.complete_all()?;
        if work.verb == ReadVerb {
            self.check(
                "what was read",
                0,
                work.length,
                seed_of(self.steps, true),
                true,
            )?;
        }
        if work.verb.is_atomic() && word_at(&self.local.area, 0) != work.seed {
            return Err("the original of an atomic is not as it was".into());
        }
        Ok(self.tcp.write_all(b"d")?)
    }

    fn respond(&mut self, mut work: Work) -> Outcome {
        self.remote.area[..work.length + 8].fill(0x77);
        match work.verb {
            ReadVerb => self.remote.area[..work.length]
                .copy_from_slice(&pattern(work.length, seed_of(self.steps, true))),
            verb if verb.is_atomic() => {
                self.remote.area[..8].copy_from_slice(&work.seed.to_le_bytes())
            }
            _ => {}
        }
        let receive = Receive {
            id: self.steps,
            place: 0,
            length: 0,
        };
        if work.verb.needs_recv() && work.verb != SendImm {
            self.remote.posted.push_back(receive);
        }
        work.key = 0x0077_0000 + self.steps as u32;
        self.tcp.write_all(&work.key.to_le_bytes())?;
        if work.verb == SendImm {
            let begin = Instant::now();
            self.pump_until("time", |_| begin.elapsed() > RNR_TIME)?;
            self.remote.posted.push_back(receive);
        }
        self.hear::<1>()?;
        if work.verb.needs_recv() {
            self.check_recv(self.steps, &work)?;
        }
        if !work.verb.is_atomic() && work.verb != ReadVerb {
            self.check("the data", 0, work.length, work.seed, false)?;
            if self.remote.area[work.length] != 0x77 {
                return Err("the byte behind the data has changed".into());
            }
        }
        let expected = if work.verb == FetchAdd {
            work.seed.wrapping_add(3)
        } else {
            !work.seed
        };
        if work.verb.is_atomic() && word_at(&self.remote.area, 0) != expected {
            return Err("the word of an atomic is not as it should be".into());
        }
        Ok(())
    }

    fn each_verb(&mut self, size: usize, asking: bool) -> Outcome {
        for verb in VERBS {
            if verb.is_atomic() && size != 256 {
                continue;
            }
            self.steps += 1;
            let work = Work {
                verb,
                id: self.steps,
                seed: seed_of(self.steps, false),
                local: 0,
                remote: 0,
                length: if verb.is_atomic() { 8 } else { size },
                key: 0,
            };
            let done = if asking {
                self.ask(work)
            } else {
                self.respond(work)
            };
            done.map_err(|err| {
                format!(
                    "step {}, {verb:?} of {} bytes, asking: {asking}: {err}",
                    self.steps, work.length
                )
            })?;
            self.meet()?;
        }
        Ok(())
    }

    fn of_burst(&self, i: usize) -> Work {
        const MIXED: [Verb; 8] = [
            Send, WriteVerb, ReadVerb, FetchAdd, SendImm, WriteImm, ReadVerb, WriteVerb,
        ];
        let seed = seed_of(self.steps * 1000 + i as u64, false);
        let verb = MIXED[(seed % 8) as usize];
        let slot = (i + 1) * SLOT;
        Work {
            verb,
            id: i as u64,
            seed,
            local: slot,
            remote: if verb == FetchAdd { 0 } else { slot },
            length: if verb == FetchAdd {
                8
            } else {
                ((seed >> 8) % SLOT as u64) as usize
            },
            key: 0,
        }
    }

    fn burst_ask(&mut self) -> Outcome {
        self.hear::<1>()?;
        let works: Vec<Work> = (0..BURST).map(|i| self.of_burst(i)).collect();
        works.iter().for_each(|work| self.post(work));
        self.complete_all()?;
        let mut sum = 0;
        for work in &works {
            if work.verb == ReadVerb {
                self.check(
                    "what was read",
                    work.local,
                    work.length,
                    seed_of(work.seed, true),
                    true,
                )?;
            }
            if work.verb == FetchAdd {
                if word_at(&self.local.area, work.local) != sum {
                    return Err(format!("the original of {} is not {sum}", work.id).into());
                }
                sum += 3;
            }
        }
        Ok(self.tcp.write_all(b"d")?)
    }

    fn burst_respond(&mut self) -> Outcome {
        self.remote.area[..8].fill(0);
        let works: Vec<Work> = (0..BURST).map(|i| self.of_burst(i)).collect();
        for work in &works {
            if work.verb == ReadVerb {
                let bytes = pattern(work.length, seed_of(work.seed, true));
                self.remote.area[work.remote..work.remote + work.length].copy_from_slice(&bytes);
            }
            if work.verb.needs_recv() {
                let place = BEHIND + work.remote;
                self.remote.posted.push_back(Receive {
                    id: work.id,
                    place,
                    length: 0,
                });
            }
        }
        self.tcp.write_all(b"g")?;
        self.hear::<1>()?;
        for work in &works {
            if work.verb.needs_recv() {
                self.check_recv(work.id, work)?;
            }
            match work.verb {
                Send | SendImm => self.check(
                    "the message",
                    BEHIND + work.remote,
                    work.length,
                    work.seed,
                    false,
                )?,
                WriteVerb | WriteImm => self.check(
                    "what was written",
                    work.remote,
                    work.length,
                    work.seed,
                    false,
                )?,
                _ => {}
            }
        }
        let adds = works.iter().filter(|work| work.verb == FetchAdd).count() as u64;
        if word_at(&self.remote.area, 0) != 3 * adds {
            return Err("fetch-and-adds were lost or executed twice".into());
        }
        Ok(())
    }
}

/// Appends a packet only if a closure has produced one.
trait PushSome {
    fn push_some(&mut self, flow: &PacketFlow, write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool;
}

impl PushSome for link::PacketBatch {
    fn push_some(&mut self, flow: &PacketFlow, write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let mut packet = Vec::new();
        let some = write(&mut packet);
        if some {
            self.push(flow, &packet);
        }
        some
    }
}

/// Exchanges the connection data of both sides: `struct side` of wire_verbs.c.
fn exchange(tcp: &mut TcpStream, own: Ipv4Addr) -> Outcome<(u64, u32, u32, u32)> {
    let mut mine = Vec::new();
    mine.extend(BASE.to_le_bytes());
    for word in [RKEY, QPN, FIRST_PSN] {
        mine.extend(word.to_le_bytes());
    }
    // A GID is aligned to 8 bytes.
    mine.extend([0; 4]);
    mine.extend(own.to_ipv6_mapped().octets());
    tcp.write_all(&mine)?;
    let mut theirs = [0; 40];
    tcp.read_exact(&mut theirs)?;
    let word = |at: usize| {
        theirs[at..]
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    Ok((word_at(&theirs, 0), word(8), word(12), word(16)))
}

fn connect(own: Ipv4Addr, server: Ipv4Addr, mtu_bytes: u32, port: u16) -> Outcome<Peer> {
    let endpoint = Endpoint::open(&Config::new(vec![IpAddr::from(own).into()]))?;
    let mut tcp = TcpStream::connect((server, port))?;
    tcp.set_nodelay(true)?;
    let (addr, rkey, dest_qpn, psn) = exchange(&mut tcp, own)?;
    tcp.set_nonblocking(true)?;
    let requester = Requester::new(RequesterConfig {
        dest_qpn,
        mtu_bytes,
        first_psn: Psn::new(FIRST_PSN),
        timeout_ns: Some(67_000_000),
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        pkey: 0xffff,
        window_packets: DEFAULT_WINDOW_PACKETS,
        window_bytes: DEFAULT_WINDOW_BYTES,
        min_probe_wait_ns: Some(DEFAULT_MIN_PROBE_WAIT_NS),
        congestion: None,
    });
    let responder = Responder::new(ResponderConfig {
        dest_qpn,
        mtu_bytes,
        first_psn: Psn::new(psn),
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        allowed_operations: AllowedOperations {
            write: true,
            read: true,
            atomic: true,
            flush: false,
        },
        pkey: 0xffff,
        congestion: None,
    });
    Ok(Peer {
        begin: Instant::now(),
        endpoint,
        inbox: ReceiveBuffers::default(),
        flow: PacketFlow {
            addresses: IpAddressPair::V4 {
                src: own,
                dst: server,
            },
            traffic_class: 0,
            hop_limit: 64,
        },
        requester,
        responder,
        local: Local {
            area: vec![0; AREA],
            places: Vec::new(),
        },
        remote: Remote {
            area: vec![0; AREA],
            posted: VecDeque::new(),
            current: None,
            completions: VecDeque::new(),
        },
        tcp,
        addr,
        rkey,
        steps: 0,
        bytes: 0,
        bad_icrc: 0,
    })
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize, or: &str| {
        arguments
            .get(place)
            .map_or_else(|| or.to_owned(), String::clone)
    };
    let (own, server) = (argument(0, "").parse()?, argument(1, "").parse()?);
    let mut peer = connect(
        own,
        server,
        argument(2, "1024").parse()?,
        argument(3, "18600").parse()?,
    )?;
    let bursts: usize = argument(4, "0").parse()?;
    let sizes = argument(5, "0,1,3,255,256,257,1023,1024,1025,4096,65536,1048576");
    peer.meet()?;
    for asking in [true, false] {
        for size in sizes.split(',') {
            peer.each_verb(size.parse()?, asking)?;
        }
        for burst in 0..bursts {
            peer.steps += 1;
            let done = if asking {
                peer.burst_ask()
            } else {
                peer.burst_respond()
            };
            done.map_err(|err| format!("burst {burst}, asking: {asking}: {err}"))?;
            peer.meet()?;
        }
    }
    // The peer may not have received the last acknowledgement.
    let end = Instant::now();
    peer.pump_until("end", |_| end.elapsed() > Duration::from_millis(300))?;
    println!(
        "wire_peer: {} steps, {} bytes checked, {} packets with a wrong ICRC",
        peer.steps, peer.bytes, peer.bad_icrc
    );
    Ok(())
}
