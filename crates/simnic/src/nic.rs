//! The NIC at work: WQEs through units to the network, messages from the network to memory.
//!
//! A message is an event when it leaves its requester and one when the responder's NIC has handled
//! it; READs, atomics and reliable messages are two more, when the answer leaves and when it is back.
//! Links, processing and PCIe serve one after the other in the order of these events.
//!
//! Nothing that a NIC does is visible to a core or to another NIC before one way over PCIe. What follows an event of
//! the same queue pair or of the same NIC within half of that therefore happens with it, at its own time.

use std::sync::atomic::Ordering;

use nicmodel::{Transport, Verb};
use verbs_abi as abi;

use crate::line::Line;
use crate::memory::Payload;
use crate::prefetch::prefetch;
use crate::queue::Ps;
use crate::world::{Cqe, Event, Fifo, List, Qp, SUCCESS, World, code};

/// Bytes in front of the payload of a datagram (IBTA vol. 1, 11.4.1.2).
const GRH_BYTES: u32 = 40;

/// The place of a READ's WQE among those of its queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheSlot(u64);

/// A queue pair's READs: new ones push out the WQEs of the oldest that the NIC has kept for their answers. Queue pairs that
/// READ share its cache alike.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    sent: u64,
    outstanding: u64,
}

impl Reads {
    /// One more, of a NIC on which so many queue pairs have READs outstanding.
    #[inline]
    pub(crate) fn begin(&mut self, reading: &mut usize) -> CacheSlot {
        *reading += usize::from(self.outstanding == 0);
        self.outstanding += 1;
        self.sent += 1;
        CacheSlot(self.sent)
    }

    /// The answer of one has come: whether its WQE is still in a cache of so many.
    fn end(&mut self, slot: CacheSlot, reading: &mut usize, capacity: usize) -> bool {
        let share = capacity / (*reading).max(1);
        if self.outstanding > 0 {
            self.outstanding -= 1;
            *reading -= usize::from(self.outstanding == 0);
        }
        self.sent.saturating_sub(slot.0) < share.max(1) as u64
    }

    /// Nothing that is outstanding will have an answer.
    pub(crate) fn forget(&mut self, reading: &mut usize) {
        if self.outstanding > 0 {
            self.outstanding = 0;
            *reading -= 1;
        }
    }
}

impl World {
    /// A list of WQEs, or the doorbell for it, has arrived at the NIC.
    pub(crate) fn announced(&mut self, index: u32, at: Ps) {
        let Some(qp) = self.qp(index) else { return };
        qp.arrived += 1;
        if !qp.in_service {
            qp.in_service = true;
            let machine = qp.machine;
            self.want_unit(index, machine, at);
        }
    }

    fn want_unit(&mut self, index: u32, machine: u32, at: Ps) {
        let units = self.costs.units;
        let machine = self.machine(machine);
        if machine.busy_units < units {
            machine.busy_units += 1;
            self.serve(index, at);
        } else {
            machine.waiting.push(index);
        }
    }

    /// A unit begins with the next list of a queue pair.
    fn serve(&mut self, index: u32, now: Ps) {
        let wait = self.costs.fetch_wait;
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return;
        };
        let machine = qp.machine;
        // What is seldom needed lies apart.
        let begins = if self.machines[machine as usize].reading > 0 {
            qp.held_up = 0;
            now.max(qp.refetches_until)
        } else {
            now
        };
        let (Some(&List { len, rung, shape }), Some(&(first, _))) =
            (qp.lists.front(), qp.wqes.front())
        else {
            return;
        };
        let ready = if rung {
            let fetch = self.shapes.fetch(shape, len);
            let machine = self.machine(machine);
            machine.counters.read_bytes += fetch.read_bytes;
            machine.to_host.slip_in(now, fetch.to_host);
            let fetched = machine.to_device.take(now, fetch.to_device).max(now + wait);
            fetched.max(begins)
        } else {
            begins
        };
        let at = ready + self.shapes.get(self.messages[first].shape).unit;
        self.events.push(at, Event::Emit { qp: index });
    }

    /// What happens until then happens with the present event.
    fn horizon(&self) -> Ps {
        self.now + self.costs.pcie / 2
    }

    /// A WQE leaves for the network, and those that follow soon.
    #[inline(never)]
    pub(crate) fn emit(&mut self, index: u32, at: Ps) {
        let horizon = self.horizon();
        if let Some(Some(qp)) = self.qps.get_mut(index as usize)
            && self.machines[qp.machine as usize].reading > 0
            && qp.held_up > 0
        {
            let at = at + std::mem::take(&mut qp.held_up);
            return self.events.push(at, Event::Emit { qp: index });
        }
        let mut next = Some(at);
        while let Some(at) = next {
            if at > horizon {
                return self.events.push(at, Event::Emit { qp: index });
            }
            // At the end of a list more happens.
            let several = |qp: &mut Qp| qp.lists.front().is_some_and(|list| list.len > 1);
            let run = if self.qp(index).is_some_and(several) {
                self.emit_run(index, at, horizon)
            } else {
                None
            };
            next = match run {
                None => self.emit_one(index, at),
                next => next,
            };
        }
    }

    /// A WQE leaves; returns when the next one of its list does.
    fn emit_one(&mut self, index: u32, at: Ps) -> Option<Ps> {
        let qp = self.qp(index)?;
        let ((message, times), list) = (qp.wqes.front_mut()?, qp.lists.front_mut()?);
        let message = *message;
        *times -= 1;
        list.len -= 1;
        let done = list.len == 0;
        if *times == 0 {
            qp.wqes.pop();
        }
        let next = qp.wqes.front().map(|&(next, _)| next);
        if done {
            qp.lists.pop();
            qp.arrived -= 1;
            let (more, machine) = (qp.arrived > 0, qp.machine);
            qp.in_service = more;
            self.release_unit(index, machine, more, at);
        }
        self.transmit(index, message, at);
        let next = next.filter(|_| !done)?;
        Some(at + self.shapes.get(self.messages[next].shape).unit)
    }

    /// What most WQEs are leaves: unsignaled and unreliable messages for queue pairs that are there, up to the last but
    /// one of the list, with whose end more happens. Returns when the next WQE of the list leaves; nothing if none of
    /// these was the first. What `emit_one` and `transmit` do, with what is the same for all done once, and in variables
    /// that stay in registers.
    fn emit_run(&mut self, index: u32, at: Ps, horizon: Ps) -> Option<Ps> {
        let Self {
            qps,
            cqs,
            machines,
            messages,
            shapes,
            events,
            costs,
            ..
        } = self;
        // Taken out, so that others can be looked at; one that sends to itself is none of these.
        let mut qp = qps.get_mut(index as usize)?.take()?;
        let mut left = qp.lists.front().map_or(0, |list| list.len - 1);
        let mut link_out = machines[qp.machine as usize].link_out;
        // Where a connected queue pair sends to.
        let peer = (qp.transport != Transport::Ud).then_some(qp.peer);
        let (mut sent, mut next) = (0, at);
        while left > 0
            && next <= horizon
            && let second = qp.wqes.second().copied()
            && let Some((id, times)) = qp.wqes.front_mut()
        {
            if let Some((second, _)) = second {
                prefetch(&messages[second]);
            }
            let id = *id;
            let message = &mut messages[id];
            let shape = shapes.get(message.shape);
            let dest = peer.unwrap_or(message.dest);
            let target = match qps.get(dest as usize) {
                Some(Some(target)) if target.transport == qp.transport && target.receives => {
                    target.fetch_for_arrival(cqs);
                    target.machine
                }
                _ => break,
            };
            if shape.reliable || message.signaled || qp.signal_all {
                break;
            }
            message.dest = dest;
            let to = &mut machines[target as usize];
            let (wire, inbound) = (shape.out_wire, shape.inbound);
            let fetch = if shape.fetched { 2 * costs.pcie } else { 0 };
            // All that this message stands for; behind the last one it is the next message that takes its time.
            loop {
                let leaves = next + fetch;
                qp.last_completion = qp.last_completion.max(leaves);
                let out = link_out.take(leaves, wire);
                let came = to.link_in.take(out, wire) + costs.network;
                let handled = to.inbound.take(came, inbound).max(qp.last_handled);
                qp.last_handled = handled;
                to.arriving.insert_by((handled, id), |(at, _)| *at);
                if to.handles_at.is_none_or(|next| handled < next) {
                    to.handles_at = Some(handled);
                    events.push(handled, Event::Handle { machine: target });
                }
                sent += 1;
                left -= 1;
                *times -= 1;
                if *times == 0 {
                    break;
                }
                next += shape.unit;
                if left == 0 || next > horizon {
                    break;
                }
            }
            if *times == 0 {
                qp.wqes.pop();
                let following = qp.wqes.front().map(|&(id, _)| messages[id].shape);
                next += following.map_or(0, |shape| shapes.get(shape).unit);
            }
        }
        if sent > 0 {
            qp.outstanding = qp.outstanding.saturating_sub(sent);
            if let Some(list) = qp.lists.front_mut() {
                list.len -= sent;
            }
            let from = &mut machines[qp.machine as usize];
            from.link_out = link_out;
            from.counters.sent += u64::from(sent);
        }
        qps[index as usize] = Some(qp);
        (sent > 0).then_some(next)
    }

    /// The unit has done a list of a queue pair, which may have more.
    fn release_unit(&mut self, index: u32, machine: u32, more: bool, at: Ps) {
        if more {
            self.machine(machine).waiting.push(index);
        }
        self.free_unit(machine, at);
    }

    /// A unit takes the queue pair that waits longest, or rests.
    pub(crate) fn free_unit(&mut self, machine: u32, at: Ps) {
        match self.machine(machine).waiting.pop() {
            Some(next) => self.serve(next, at),
            None => self.machine(machine).busy_units -= 1,
        }
    }

    /// A message passes the network and waits for the responder's NIC.
    #[inline]
    fn transmit(&mut self, index: u32, id: u32, at: Ps) {
        let Self {
            qps,
            cqs,
            machines,
            messages,
            shapes,
            costs,
            ..
        } = self;
        let Some(Some(qp)) = qps.get(index as usize) else {
            return;
        };
        let (transport, peer) = (qp.transport, qp.peer);
        let message = &mut messages[id];
        let shape = shapes.get(message.shape);
        if transport != Transport::Ud {
            message.dest = peer;
        }
        let (dest, reliable, signaled) = (message.dest, shape.reliable, message.signaled);
        let target = match qps.get(dest as usize) {
            Some(Some(target)) if target.transport == transport && target.receives => {
                target.fetch_for_arrival(cqs);
                Some(target.machine)
            }
            _ => None,
        };
        let Some(Some(qp)) = qps.get_mut(index as usize) else {
            return;
        };
        let left = if shape.fetched {
            at + 2 * costs.pcie
        } else {
            at
        };
        let sent = &mut machines[qp.machine as usize];
        sent.counters.sent += 1;
        let out = sent.link_out.take(left, shape.out_wire);
        // That it has left is all that the requester of an unreliable message waits for.
        let told = !reliable && !complete_silently(qp, signaled, left);
        if let Some(target) = target {
            let nic = &mut machines[target as usize];
            let came = nic.link_in.take(out, shape.out_wire) + costs.network;
            let handled = nic.inbound.take(came, shape.inbound).max(qp.last_handled);
            qp.last_handled = handled;
            nic.arriving.insert_by((handled, id), |(at, _)| *at);
            let first = nic.handles_at.is_none_or(|next| handled < next);
            if first {
                nic.handles_at = Some(handled);
            }
            if told {
                self.finish(id, SUCCESS, at, left);
            }
            if first {
                self.events.push(handled, Event::Handle { machine: target });
            }
            return;
        }
        let back = out + 2 * costs.network;
        if told {
            self.finish(id, SUCCESS, at, left);
        }
        if reliable {
            self.messages[id].status = code(abi::IBV_WC_RETRY_EXC_ERR);
            self.events.push(back, Event::Return { message: id });
        } else {
            self.messages.free(id);
        }
    }

    /// A NIC has handled the message that came first, and those that follow soon.
    #[inline(never)]
    pub(crate) fn handle(&mut self, machine: u32) {
        let (now, horizon) = (self.now, self.horizon());
        let nic = &mut self.machines[machine as usize];
        if nic.handles_at != Some(now) {
            // One that came before it had an event of its own.
            return;
        }
        loop {
            self.receive_run(machine, horizon);
            let arriving = &mut self.machines[machine as usize].arriving;
            let Some((at, id)) = arriving.pop_if(|(at, _)| *at <= horizon) else {
                break;
            };
            self.handled(machine, id, at);
        }
        let nic = &mut self.machines[machine as usize];
        nic.handles_at = nic.arriving.front().map(|&(at, _)| at);
        if let Some(next) = nic.handles_at {
            self.events.push(next, Event::Handle { machine });
        }
    }

    /// What `handled` does, for what most messages are: those that come first and are SENDs of datagrams, or unreliable
    /// WRITEs.
    fn receive_run(&mut self, machine: u32, horizon: Ps) {
        let now = self.now;
        let Self {
            qps,
            cqs,
            mrs,
            machines,
            messages,
            shapes,
            threads,
            events,
            costs,
            ..
        } = self;
        let nic = &mut machines[machine as usize];
        while let Some(&(at, id)) = nic.arriving.front()
            && at <= horizon
        {
            // Those behind it: of the next one the queue pair, of the one after that the message, to find it by.
            let following = nic.arriving.as_slice();
            if let Some(&(_, next)) = following.get(1)
                && let Some(Some(target)) = qps.get(messages[next].dest as usize)
            {
                prefetch(&raw const **target);
                if let Some(Some(queue)) = cqs.get(target.recv_cq as usize) {
                    prefetch(queue.cqes.next_place());
                    if let Some(thread) = queue.watcher {
                        prefetch(threads.as_ptr().wrapping_add(thread as usize));
                    }
                }
            }
            if let Some(&(_, later)) = following.get(2) {
                prefetch(&messages[later]);
            }
            let message = &messages[id];
            let shape = shapes.get(message.shape);
            let is_write = shape.write && !shape.with_imm && !shape.reliable;
            let target = match qps.get_mut(message.dest as usize) {
                Some(Some(target))
                    if is_write || shape.datagram && target.transport == Transport::Ud =>
                {
                    target
                }
                _ => return,
            };
            nic.arriving.drop_front(1);
            let dma = &shape.responder;
            nic.counters.read_bytes += dma.read_bytes;
            let written = nic.to_host.take(at, dma.to_host);
            nic.to_device.slip_in(at, dma.to_device);
            nic.mmio.take(now, at, dma.to_device);
            let visible = (written + costs.pcie).max(target.last_delivery);
            target.last_delivery = visible;
            if is_write {
                let (key, addr) = (message.key, message.remote_addr);
                let payload = std::mem::replace(&mut messages[id].payload, Payload::EMPTY);
                let length = payload.bytes().len();
                let access = target.guard.cast_signed() & abi::IBV_ACCESS_REMOTE_WRITE;
                let region = mrs.get_mut(key as usize).and_then(Option::as_mut);
                let region = region.filter(|mr| {
                    mr.machine == machine
                        && access & mr.access != 0
                        && mr.region.contains(addr, length)
                });
                if length == 0 {
                    nic.counters.received += 1;
                } else if let Some(mr) = region {
                    nic.counters.received += 1;
                    mr.write_later(key, nic, visible, addr, payload, threads, events);
                } else {
                    nic.counters.dropped += 1;
                }
                messages.free(id);
                continue;
            }
            let recv = if target.guard == message.key {
                target.recvs.pop()
            } else {
                None
            };
            let Some(recv) = recv else {
                nic.counters.dropped += 1;
                messages.free(id);
                continue;
            };
            nic.counters.received += 1;
            let length = shape.operation.payload_bytes;
            let placed = length.saturating_add(GRH_BYTES);
            let mut status = SUCCESS;
            if placed > recv.len {
                status = code(abi::IBV_WC_LOC_LEN_ERR);
            } else if length > 0 {
                let region = mrs.get(recv.lkey as usize).and_then(Option::as_ref);
                let region = region.filter(|mr| mr.machine == machine);
                let (addr, bytes) = (recv.addr + u64::from(GRH_BYTES), message.payload.bytes());
                if !region.is_some_and(|mr| mr.region.write(addr, bytes)) {
                    status = code(abi::IBV_WC_LOC_PROT_ERR);
                }
            }
            if let Some(Some(queue)) = cqs.get_mut(target.recv_cq as usize) {
                let cqe = Cqe {
                    at: visible,
                    wr_id: recv.wr_id,
                    byte_len: placed,
                    imm: if shape.with_imm { message.imm } else { 0 },
                    qpn: message.dest,
                    src_qp: message.qp,
                    slid: lid(message.home),
                    with_imm: shape.with_imm,
                    status,
                    opcode: const { code(abi::IBV_WC_RECV) },
                };
                queue.put(cqe, threads, events);
            }
            messages.free(id);
        }
    }

    /// A NIC has handled a message: now its DMAs.
    #[inline(never)]
    fn handled(&mut self, machine: u32, id: u32, at: Ps) {
        let now = self.now;
        let nic = &mut self.machines[machine as usize];
        let shape = self.shapes.get(self.messages[id].shape);
        let (dma, reliable) = (&shape.responder, shape.reliable);
        nic.counters.read_bytes += dma.read_bytes;
        let written = nic.to_host.take(at, dma.to_host);
        if shape.answers {
            nic.counters.received += 1;
            let read = nic.to_device.take(at, dma.to_device);
            self.answer(id, machine, at, read.max(written));
            return;
        }
        // WQEs of RECVs, which the NIC fetches ahead, and link-layer packets: what cores write loses their time too.
        nic.to_device.slip_in(at, dma.to_device);
        nic.mmio.take(now, at, dma.to_device);
        let status = self.deliver(id, machine, written + self.costs.pcie);
        if reliable {
            self.messages[id].status = code(status);
            self.events.push(at, Event::Respond { message: id });
        } else {
            self.messages.free(id);
        }
    }

    /// A SEND or WRITE takes effect at the responder; a status other than success for its requester.
    #[inline(always)]
    fn deliver(&mut self, id: u32, machine: u32, visible: Ps) -> u32 {
        let message = &self.messages[id];
        let shape = self.shapes.get(message.shape);
        let (write, with_imm) = (shape.write, shape.with_imm);
        let length = message.payload.bytes().len();
        let Some(Some(target)) = self.qps.get_mut(message.dest as usize) else {
            return abi::IBV_WC_RETRY_EXC_ERR;
        };
        // What comes to a queue pair keeps its order.
        let visible = visible.max(target.last_delivery);
        target.last_delivery = visible;
        let counters = &mut self.machines[machine as usize].counters;
        let datagram = target.transport == Transport::Ud;
        if datagram && target.guard != message.key {
            counters.dropped += 1;
            return abi::IBV_WC_SUCCESS;
        }
        // Of a WRITE, what it writes.
        let mut written = None;
        if write && length > 0 {
            let (addr, key, access) =
                (message.remote_addr, message.key, target.guard.cast_signed());
            let region = self.mrs.get_mut(key as usize).and_then(Option::as_mut);
            let region = region.filter(|mr| {
                let wanted = access & mr.access & abi::IBV_ACCESS_REMOTE_WRITE;
                mr.machine == machine && wanted != 0 && mr.region.contains(addr, length)
            });
            if region.is_none() {
                counters.dropped += 1;
                return abi::IBV_WC_REM_ACCESS_ERR;
            }
            written = Some((key, addr, message.payload.clone()));
        }
        let takes_recv = !write || with_imm;
        let recv = if takes_recv { target.recvs.pop() } else { None };
        let recv_cq = target.recv_cq;
        if takes_recv && recv.is_none() {
            counters.dropped += 1;
        } else {
            counters.received += 1;
        }
        if let Some((key, addr, payload)) = written {
            self.write_later(key, visible, addr, payload);
        }
        let Some(recv) = recv else {
            return if takes_recv {
                abi::IBV_WC_RNR_RETRY_EXC_ERR
            } else {
                abi::IBV_WC_SUCCESS
            };
        };
        let message = &self.messages[id];
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let grh = if datagram { GRH_BYTES } else { 0 };
        let placed = if write { 0 } else { length.saturating_add(grh) };
        let mut status = abi::IBV_WC_SUCCESS;
        if placed > recv.len {
            status = abi::IBV_WC_LOC_LEN_ERR;
        } else if placed > grh {
            let region = self.mr(machine, recv.lkey);
            let addr = recv.addr + u64::from(grh);
            if !region.is_some_and(|mr| mr.region.write(addr, message.payload.bytes())) {
                status = abi::IBV_WC_LOC_PROT_ERR;
            }
        }
        let cqe = Cqe {
            at: visible,
            wr_id: recv.wr_id,
            byte_len: if write { length } else { placed },
            imm: if with_imm { message.imm } else { 0 },
            qpn: message.dest,
            src_qp: message.qp,
            slid: lid(message.home),
            with_imm,
            status: code(status),
            opcode: code(if write {
                abi::IBV_WC_RECV_RDMA_WITH_IMM
            } else {
                abi::IBV_WC_RECV
            }),
        };
        self.complete(recv_cq, cqe);
        match status {
            abi::IBV_WC_SUCCESS => status,
            abi::IBV_WC_LOC_LEN_ERR => abi::IBV_WC_REM_INV_REQ_ERR,
            _ => abi::IBV_WC_REM_OP_ERR,
        }
    }

    /// The machine of a queue pair.
    fn home(&self, qp: u32) -> Option<u32> {
        let qp = self.qps.get(qp as usize)?.as_ref()?;
        Some(qp.machine)
    }

    /// The answer of a READ or atomic leaves when its data are there.
    fn answer(&mut self, id: u32, machine: u32, now: Ps, moved: Ps) {
        let (lock_bits, hold, pcie) = (self.costs.lock_bits, self.costs.lock_hold, self.costs.pcie);
        let message = &self.messages[id];
        let (dest, addr) = (message.dest, message.remote_addr);
        let shape = self.shapes.get(message.shape);
        let mut leaves = if shape.operation.verb == Verb::RdmaRead {
            moved.max(now + 2 * pcie)
        } else {
            let locks = &mut self.machine(machine).locks;
            if locks.is_empty() {
                locks.resize(1 << lock_bits, Fifo::default());
            }
            // The lock is held for the DMA read and the DMA write.
            let slot = usize::try_from(addr & ((1 << lock_bits) - 1)).unwrap_or(0);
            locks[slot].take(now, hold).max(moved)
        };
        if let Some(target) = self.qp(dest) {
            leaves = leaves.max(target.last_answer);
            target.last_answer = leaves;
        }
        self.events.push(leaves, Event::Respond { message: id });
    }

    /// An answer or acknowledgement leaves the responder.
    pub(crate) fn respond(&mut self, id: u32) {
        let message = &self.messages[id];
        let homes = self.home(message.qp).zip(self.home(message.dest));
        let Some((home, machine)) = homes else {
            self.messages.free(id);
            return;
        };
        let now = self.now;
        let shape = self.shapes.get(message.shape);
        let (wire, answers) = (shape.back_wire, !shape.operation.verb.sends_payload());
        if answers {
            match self.execute(id, machine) {
                Ok(answer) => self.messages[id].payload = answer,
                Err(status) => self.messages[id].status = code(status),
            }
        }
        let out = self.machine(machine).link_out.take(now, wire);
        let came = self.machine(home).link_in.take(out, wire) + self.costs.network;
        self.events.push(came, Event::Return { message: id });
    }

    /// Reads or changes the responder's memory; the old contents, or the status of the failure.
    fn execute(&mut self, id: u32, machine: u32) -> Result<Payload, u32> {
        // What WRITEs before it have written is there.
        self.settle(machine, self.now);
        let operands = self.messages.answer(id).copied().unwrap_or_default();
        let message = &self.messages[id];
        let refused = abi::IBV_WC_REM_ACCESS_ERR;
        let target = self.qps.get(message.dest as usize).and_then(Option::as_ref);
        let qp_access = target.map_or(0, |target| target.guard.cast_signed());
        let shape = self.shapes.get(message.shape);
        let (verb, length) = (shape.operation.verb, shape.operation.payload_bytes as usize);
        let wanted = if verb == Verb::RdmaRead {
            abi::IBV_ACCESS_REMOTE_READ
        } else {
            abi::IBV_ACCESS_REMOTE_ATOMIC
        };
        if length == 0 {
            return Ok(Payload::EMPTY);
        }
        let addr = message.remote_addr;
        let mr = self.mr(machine, message.key).ok_or(refused)?;
        if mr.access & qp_access & wanted == 0 || !mr.region.contains(addr, length) {
            return Err(refused);
        }
        if verb == Verb::RdmaRead {
            return Payload::with(length, |into| mr.region.read(addr, into)).ok_or(refused);
        }
        let invalid = abi::IBV_WC_REM_INV_REQ_ERR;
        let word = mr.region.word(addr).ok_or(invalid)?;
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let (operand, swap) = (operands.compare_add, operands.swap);
        let old = if verb == Verb::AtomicFetchAndAdd {
            word.fetch_add(operand, order)
        } else {
            let swapped = word.compare_exchange(operand, swap, order, failed);
            swapped.unwrap_or_else(|old| old)
        };
        Payload::with(8, |into| {
            into.copy_from_slice(&old.to_ne_bytes());
            true
        })
        .ok_or(invalid)
    }

    /// An answer or acknowledgement has come back to the requester.
    pub(crate) fn returned(&mut self, id: u32) {
        let answer = self.messages.answer(id).copied().unwrap_or_default();
        let (lkey, addr, cache_slot) = (answer.local_lkey, answer.local_addr, answer.cache_slot);
        let message = &self.messages[id];
        let index = message.qp;
        let Some(home) = self.home(index) else {
            self.messages.free(id);
            return;
        };
        let (now, wait, pcie) = (self.now, self.costs.refetch_wait, self.costs.pcie);
        let capacity = self.costs.wqe_cache;
        let shape = self.shapes.get(message.shape);
        let (answer, refetch) = (shape.answer, shape.refetch);
        let answers = !shape.operation.verb.sends_payload();
        let nic = &mut self.machines[home as usize];
        let mut done = now;
        let kept = match (&mut self.qps[index as usize], cache_slot, capacity) {
            (Some(qp), Some(slot), Some(capacity)) => {
                qp.reads.end(slot, &mut nic.reading, capacity)
            }
            _ => true,
        };
        if !kept {
            nic.counters.wqe_cache_misses += 1;
            nic.counters.read_bytes += refetch.read_bytes;
            nic.to_host.slip_in(now, refetch.to_host);
            let fetched = nic.to_device.take(now, refetch.to_device);
            // The unit of the queue pair fetches one after the other, and sends nothing meanwhile.
            if let Some(qp) = self.qp(index) {
                done = fetched.max(now.max(qp.refetches_until) + wait);
                qp.refetches_until = done;
                qp.held_up += wait;
            }
        }
        let message = &self.messages[id];
        let nic = &mut self.machines[home as usize];
        if answers && message.status == SUCCESS && !message.payload.bytes().is_empty() {
            done = done.max(nic.to_host.take(now, answer.to_host)) + pcie;
            let region = self.mr(home, lkey);
            if !region.is_some_and(|mr| mr.region.write(addr, message.payload.bytes())) {
                self.messages[id].status = code(abi::IBV_WC_LOC_PROT_ERR);
            }
        }
        let failed = self.messages[id].status != SUCCESS;
        let status = self.messages[id].status;
        self.finish(id, status, now, done);
        self.messages.free(id);
        if failed && let Some(qp) = self.qp(index) {
            qp.state = abi::IBV_QPS_ERR;
            qp.changed();
            self.flush(index);
        }
    }

    /// A WR is done: makes its completion if it is signaled or failed.
    fn finish(&mut self, id: u32, status: u8, now: Ps, at: Ps) {
        let (cqe_cost, pcie) = (self.shapes.cqe(), self.costs.pcie);
        let message = &self.messages[id];
        let (index, wr_id) = (message.qp, message.wr_id);
        let (signaled, shape) = (message.signaled, message.shape);
        let Some(qp) = self.qp(index) else { return };
        qp.outstanding = qp.outstanding.saturating_sub(1);
        let (machine, cq, signal_all) = (qp.machine, qp.send_cq, qp.signal_all);
        let at = at.max(qp.last_completion);
        qp.last_completion = at;
        if !signaled && !signal_all && status == SUCCESS {
            return;
        }
        let to_host = &mut self.machine(machine).to_host;
        let written = to_host.take(now, cqe_cost.to_host).max(at);
        let shape = self.shapes.get(shape);
        let (opcode, byte_len) = (shape.opcode, shape.operation.payload_bytes);
        let cqe = Cqe {
            at: written + pcie,
            wr_id,
            byte_len,
            imm: 0,
            qpn: index,
            src_qp: 0,
            slid: 0,
            with_imm: false,
            status,
            opcode: code(completed(opcode.into())),
        };
        self.complete(cq, cqe);
    }

    /// Completes with a flush error what a queue pair in error has left.
    pub(crate) fn flush(&mut self, index: u32) {
        let now = self.now;
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return;
        };
        qp.reads
            .forget(&mut self.machines[qp.machine as usize].reading);
        // The list that a unit works on ends as events expect it: one WQE at a time.
        let keep = match qp.lists.front() {
            Some(list) if qp.in_service => list.len,
            _ => 0,
        };
        let rest = behind(&mut qp.wqes, keep);
        let (mut recvs, recv_cq) = (std::mem::take(&mut qp.recvs), qp.recv_cq);
        qp.lists.split_off(usize::from(keep > 0));
        qp.arrived = qp.arrived.min(qp.lists.len());
        for (id, times) in rest {
            for _ in 0..times {
                self.finish(id, code(abi::IBV_WC_WR_FLUSH_ERR), now, now);
                self.messages.free(id);
            }
        }
        while let Some(recv) = recvs.pop() {
            let cqe = Cqe {
                at: now,
                wr_id: recv.wr_id,
                byte_len: 0,
                imm: 0,
                qpn: index,
                src_qp: 0,
                slid: 0,
                with_imm: false,
                status: code(abi::IBV_WC_WR_FLUSH_ERR),
                opcode: code(abi::IBV_WC_RECV),
            };
            self.complete(recv_cq, cqe);
        }
    }
}

/// Takes out the WQEs behind the first `keep`: messages, and how often each.
fn behind(wqes: &mut Line<(u32, u32)>, mut keep: u32) -> Vec<(u32, u32)> {
    let mut whole = 0;
    for &(_, times) in wqes.as_slice() {
        if times > keep {
            break;
        }
        keep -= times;
        whole += 1;
    }
    let mut rest = wqes.split_off(whole);
    // One of which some are kept and some are not.
    if keep > 0
        && let Some((id, times)) = rest.first_mut()
    {
        *times -= keep;
        wqes.push((*id, keep));
    }
    rest
}

/// That a message has left completes its request, if nobody is told: then this is all.
#[inline(always)]
fn complete_silently(qp: &mut Qp, signaled: bool, at: Ps) -> bool {
    if signaled || qp.signal_all {
        return false;
    }
    qp.outstanding = qp.outstanding.saturating_sub(1);
    qp.last_completion = qp.last_completion.max(at);
    true
}

/// The LID of a machine.
pub(crate) fn lid(machine: u32) -> u16 {
    u16::try_from(machine + 1).unwrap_or(0)
}

/// The completion opcode of a request.
fn completed(opcode: u32) -> u32 {
    match opcode {
        abi::IBV_WR_RDMA_WRITE | abi::IBV_WR_RDMA_WRITE_WITH_IMM => abi::IBV_WC_RDMA_WRITE,
        abi::IBV_WR_RDMA_READ => abi::IBV_WC_RDMA_READ,
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => abi::IBV_WC_COMP_SWAP,
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => abi::IBV_WC_FETCH_ADD,
        _ => abi::IBV_WC_SEND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_reads_push_out_older_ones_of_their_queue_pair_in_its_share_of_the_cache() {
        let (mut one, mut other, mut reading) = (Reads::default(), Reads::default(), 0);
        let [a, b, c] = [(); 3].map(|()| one.begin(&mut reading));
        assert!(!one.end(a, &mut reading, 2) && one.end(b, &mut reading, 2));
        // With another one that READs, one place is left to each.
        let d = other.begin(&mut reading);
        let e = one.begin(&mut reading);
        assert_eq!(reading, 2);
        assert!(!one.end(c, &mut reading, 2) && one.end(e, &mut reading, 2));
        assert_eq!(reading, 1);
        other.forget(&mut reading);
        assert_eq!(reading, 0);
        assert!(other.end(d, &mut reading, 2));
        assert_eq!(reading, 0);
    }

    #[test]
    fn what_is_behind_is_taken_out_of_the_middle_of_a_message_too() {
        let messages = [(7, 2), (8, 3), (9, 1)];
        let each = |messages: &[(u32, u32)]| {
            let times = messages.iter();
            let ids = times.flat_map(|&(id, times)| std::iter::repeat_n(id, times as usize));
            ids.collect::<Vec<_>>()
        };
        for keep in 0..8 {
            let mut wqes = Line::default();
            messages.iter().for_each(|&message| wqes.push(message));
            let rest = behind(&mut wqes, keep);
            let (kept, taken) = (each(wqes.as_slice()), each(&rest));
            assert_eq!(kept.len(), 6.min(keep as usize));
            assert_eq!([kept, taken].concat(), each(&messages));
        }
    }
}
