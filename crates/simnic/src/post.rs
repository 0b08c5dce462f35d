//! The core's side of the data path: posting and polling, and their costs.

use nicmodel::{Transport, Verb};
use verbs_abi as abi;

use crate::costs::{PcieCost, ShapeKey};
use crate::cq::Cqe;
use crate::event::SimulationEvent;
use crate::memory::Payload;
use crate::message::{InFlightMessage, NO_READ_FIELDS, ReadFields, SUCCESS};
use crate::prefetch::prefetch;
use crate::qp::{PostedWqes, WorkRequestKind};
use crate::recvs::RecvList;
use crate::world::Simulation;

/// A send work request in plain values, as read by the ABI layer.
pub(crate) struct SendRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// Immediate, big-endian as in the work request.
    pub(crate) imm: u32,
    pub(crate) dest_qpn: u32,
    /// Q_Key of a datagram, or R_Key.
    pub(crate) key: u32,
    pub(crate) remote_addr: u64,
    /// Operands of an atomic.
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) sges: &'a [abi::ibv_sge],
}

/// A work request for a datagram without payload.
pub(crate) struct EmptyDatagram {
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) wr_id: u64,
    pub(crate) imm: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) key: u32,
}

/// Largest number of scatter/gather elements in a work request.
pub(crate) const MAX_SGE: usize = 4;

/// A list of WQEs that are posted together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Postlist {
    len: u32,
    /// Number of further WQEs that fit into the send queue.
    pub(crate) room: u32,
    /// Shape of the first WQE.
    shape: u16,
    /// PCIe transfers for payload that is not inline.
    fetch: PcieCost,
    /// Last message of the list, if it is a datagram without payload; `flags`: its flags.
    last: Option<u32>,
    flags: u32,
}

impl Simulation {
    /// Returns an empty list for a queue pair in RTS or in error; otherwise an errno.
    #[inline(always)]
    pub(crate) fn postlist(&self, index: u32) -> Result<Postlist, i32> {
        let Some(Some(qp)) = self.qps.get(index as usize) else {
            return Err(libc::EINVAL);
        };
        match qp.state {
            abi::IBV_QPS_RTS | abi::IBV_QPS_ERR => Ok(Postlist {
                room: qp.cap.max_send_wr.saturating_sub(qp.outstanding),
                ..Postlist::default()
            }),
            _ => Err(libc::EINVAL),
        }
    }

    /// Appends a datagram without payload to the list, and returns true, if the queue pair has posted one with the same
    /// opcode and flags before. A datagram equal to the one in front of it shares its message.
    #[inline(always)]
    pub(crate) fn repeat_datagram(
        &mut self,
        index: u32,
        list: &mut Postlist,
        datagram: &EmptyDatagram,
    ) -> bool {
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return false;
        };
        let shape = match qp.last_empty {
            Some((opcode, flags, shape))
                if opcode == datagram.opcode && flags == datagram.flags =>
            {
                shape
            }
            _ => return false,
        };
        let (wr_id, imm) = (datagram.wr_id, datagram.imm);
        let (dest, key) = (datagram.dest_qpn, datagram.key);
        if let Some(last) = list.last
            && let before = &mut self.messages[last]
            && before.wr_id == wr_id
            && before.imm == imm
            && before.dest == dest
            && before.key == key
            && before.shape == shape
            && list.flags == datagram.flags
            && let Some((_, times)) = qp.wqes.back_mut()
        {
            *times += 1;
            before.count += 1;
        } else {
            let message = self.messages.put(InFlightMessage {
                qp: index,
                dest,
                requester_machine: qp.machine,
                imm,
                key,
                remote_addr: 0,
                wr_id,
                payload: Payload::EMPTY,
                shape,
                status: SUCCESS,
                signaled: datagram.flags & abi::IBV_SEND_SIGNALED != 0,
                read_fields: NO_READ_FIELDS,
                count: 1,
            });
            qp.wqes.push((message, 1));
            if list.len == 0 {
                list.shape = shape;
            }
            list.last = Some(message);
            list.flags = datagram.flags;
        }
        list.len += 1;
        list.room -= 1;
        true
    }

    /// Appends the message of a send work request to the list, or returns the errno of its refusal.
    #[inline(always)]
    pub(crate) fn build(
        &mut self,
        index: u32,
        list: &mut Postlist,
        request: &SendRequest<'_>,
        inlined: impl FnOnce(usize) -> Option<Payload>,
    ) -> Result<(), i32> {
        let length = match request.sges {
            [sge] => u64::from(sge.length),
            sges => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        };
        let kind = WorkRequestKind {
            opcode: request.opcode,
            inline: request.flags & abi::IBV_SEND_INLINE != 0,
            num_sge: request.sges.len(),
            length,
        };
        let Some(Some(qp)) = self.qps.get(index as usize) else {
            return Err(libc::EINVAL);
        };
        let home = qp.machine;
        // Fetches the destination's cache line, which is needed when the message leaves.
        let dest = match qp.transport {
            Transport::Ud => request.dest_qpn,
            _ => qp.peer,
        };
        if let Some(Some(target)) = self.qps.get(dest as usize) {
            prefetch(&raw const **target);
        }
        let id = match qp.last_posted {
            Some((last, shape)) if last == kind => shape,
            _ => self.shape_of(index, kind)?,
        };
        let shape = self.shapes.get(id);
        let payload = if kind.length == 0 {
            Payload::EMPTY
        } else if kind.inline {
            usize::try_from(kind.length)
                .ok()
                .and_then(inlined)
                .ok_or(libc::EINVAL)?
        } else if shape.fetches_payload {
            self.gather(home, request.sges, kind.length)?
        } else {
            Payload::EMPTY
        };
        let answer = if shape.answers && !kind.inline {
            self.put_read_fields(id, (index, home), request)?
        } else {
            NO_READ_FIELDS
        };
        let shape = self.shapes.get(id);
        if shape.fetches_payload {
            let fetch = &shape.at(self.machines[home as usize].place).payload_fetch;
            list.fetch.to_device += fetch.to_device;
            list.fetch.to_host += fetch.to_host;
            list.fetch.read_bytes += fetch.read_bytes;
        }
        if list.len == 0 {
            list.shape = id;
        }
        let empty_datagram = shape.datagram && kind.num_sge == 0;
        let message = self.messages.put(InFlightMessage {
            qp: index,
            dest: request.dest_qpn,
            requester_machine: home,
            imm: request.imm,
            key: request.key,
            remote_addr: request.remote_addr,
            wr_id: request.wr_id,
            payload,
            shape: id,
            status: SUCCESS,
            signaled: request.flags & abi::IBV_SEND_SIGNALED != 0,
            read_fields: answer,
            count: 1,
        });
        if let Some(Some(qp)) = self.qps.get_mut(index as usize) {
            qp.wqes.push((message, 1));
            if empty_datagram {
                qp.last_empty = Some((request.opcode, request.flags, id));
            }
        }
        (list.last, list.flags) = (empty_datagram.then_some(message), request.flags);
        list.len += 1;
        list.room -= 1;
        Ok(())
    }

    /// Stores the fields of a READ or atomic that its response needs; returns their index.
    fn put_read_fields(
        &mut self,
        shape: u16,
        (index, home): (u32, u32),
        request: &SendRequest<'_>,
    ) -> Result<u32, i32> {
        let verb = self.shapes.get(shape).operation.verb;
        if verb.is_atomic() && !request.remote_addr.is_multiple_of(8) {
            return Err(libc::EINVAL);
        }
        let local = request.sges.first();
        let nic = self.machines[home as usize].nic;
        let reading = &mut self.nics[nic as usize].reading;
        let cache_slot = match &mut self.qps[index as usize] {
            Some(qp) if verb == Verb::RdmaRead => Some(qp.reads.record_read(reading)),
            _ => None,
        };
        let answer = ReadFields {
            compare_add: request.compare_add,
            swap: request.swap,
            local_addr: local.map_or(0, |sge| sge.addr),
            local_lkey: local.map_or(0, |sge| sge.lkey),
            cache_slot,
        };
        Ok(self.messages.put_read_fields(answer))
    }

    /// Returns the shape of work requests of this kind, or the errno of their refusal.
    #[cold]
    #[inline(never)]
    fn shape_of(&mut self, index: u32, kind: WorkRequestKind) -> Result<u16, i32> {
        let qp = self.qp(index).ok_or(libc::EINVAL)?;
        let (transport, cap) = (qp.transport, qp.cap);
        let (verb, imm) = verb(kind.opcode).ok_or(libc::EINVAL)?;
        let length = u32::try_from(kind.length).map_err(|_| libc::EINVAL)?;
        let num_sge = u32::try_from(kind.num_sge).map_err(|_| libc::EINVAL)?;
        if kind.inline && length > cap.max_inline_data {
            return Err(libc::ENOMEM);
        }
        if num_sge > cap.max_send_sge && !kind.inline {
            return Err(libc::EINVAL);
        }
        if verb.is_atomic() && (length != 8 || !self.costs.has_atomics) {
            return Err(libc::EINVAL);
        }
        let key = ShapeKey {
            verb,
            transport,
            payload: length,
            // An empty payload counts as not inline: the NIC has nothing to fetch.
            inline: kind.inline && length > 0,
            imm,
            num_sge: num_sge.max(1),
        };
        let shape = self.shapes.find(key, kind.opcode).ok_or(libc::EINVAL)?;
        if let Some(qp) = self.qp(index) {
            qp.last_posted = Some((kind, shape));
        }
        Ok(shape)
    }

    /// Reads the payload of a work request that is not inline. Reading it at once is correct, since programs must not
    /// change the buffer before the completion.
    fn gather(&self, machine: u32, sges: &[abi::ibv_sge], length: u64) -> Result<Payload, i32> {
        let fill = |into: &mut [u8]| {
            let mut rest = into;
            for sge in sges {
                let (part, after) = rest.split_at_mut(sge.length as usize);
                let mr = self.mr(machine, sge.lkey);
                if !mr.is_some_and(|mr| mr.region.read(sge.addr, part)) {
                    return false;
                }
                rest = after;
            }
            true
        };
        let length = usize::try_from(length).map_err(|_| libc::EINVAL)?;
        Payload::with(length, fill).ok_or(libc::EINVAL)
    }

    /// Posts a list of WQEs to the NIC.
    #[inline(always)]
    pub(crate) fn post(&mut self, index: u32, list: Postlist) {
        let Postlist {
            len, shape, fetch, ..
        } = list;
        if len == 0 {
            return;
        }
        let rung = len > 1;
        let Some(qp) = self.qp(index) else { return };
        qp.outstanding += len;
        // The NIC needs this part of the queue pair when the list arrives.
        prefetch(&raw const qp.last_completion);
        let machine = qp.machine;
        qp.lists.push(PostedWqes {
            len,
            by_doorbell: rung,
            shape,
        });
        if qp.state == abi::IBV_QPS_ERR {
            self.flush(index);
            return;
        }
        self.spend(self.home_costs().post_wqe * u64::from(len));
        let place = self.machines[machine as usize].place;
        let (writes, link) = if rung {
            (1, self.shapes.doorbell(place))
        } else {
            let shape = self.shapes.get(shape);
            (shape.lines, shape.at(place).by_mmio)
        };
        let (now, clock) = (self.now, self.clock());
        let from = &mut self.machines[machine as usize];
        let nic = &mut self.nics[from.nic as usize];
        let pcie = from.costs.pcie;
        // The MMIO write stalls the core while earlier writes are in flight. Completions of DMA reads share the link:
        // they delay the write by their time, but a burst of them does not block it. Payload is fetched over the link,
        // too.
        let left = from.mmio.reserve_time(now, clock, link.to_device);
        let (wait, arrived) = (left - link.to_device - clock, left + pcie);
        from.to_device.use_between(clock, link.to_device);
        from.to_host
            .use_between(clock, link.to_host + fetch.to_host);
        from.to_device.use_between(clock, fetch.to_device);
        nic.counters.read_bytes += fetch.read_bytes;
        if rung {
            nic.counters.doorbells += 1;
        } else {
            nic.counters.wqes_by_mmio += 1;
        }
        self.spend(self.home_costs().mmio_write * writes + wait);
        self.events
            .push(arrived, SimulationEvent::DoorbellArrived { qp: index });
        self.catch_up();
    }

    /// Posts RECVs until one is refused; returns the errno of the refusal.
    #[inline(always)]
    pub(crate) fn post_recvs(&mut self, index: u32, recvs: impl RecvList<i32>) -> Result<(), i32> {
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return Err(libc::EINVAL);
        };
        if qp.state == abi::IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        let (most, before) = (qp.cap.max_recv_wr as usize, qp.recvs.len());
        let result = qp.recvs.extend(recvs, most, libc::ENOMEM);
        let posted = (qp.recvs.len() - before) as u64;
        let in_error = qp.state == abi::IBV_QPS_ERR;
        self.spend(self.home_costs().post_recv * posted);
        if in_error {
            self.flush(index);
        }
        self.catch_up();
        result
    }

    /// Polls the completions that are visible to the calling thread; `None` if the CQ has overrun.
    #[inline(always)]
    pub(crate) fn poll(
        &mut self,
        cq: u32,
        most: usize,
        mut each: impl FnMut(&Cqe),
    ) -> Option<usize> {
        let clock = self.clock();
        let queue = self.cqs.get_mut(cq as usize)?.as_mut()?;
        if queue.stamp != self.stamp
            && let Some(current) = self.current
        {
            queue.polled_by(cq, current, &mut self.threads[current as usize]);
        }
        if queue.overrun {
            return None;
        }
        let mut taken = 0;
        for cqe in queue.cqes.as_slice().iter().take(most) {
            if cqe.at > clock {
                break;
            }
            each(cqe);
            taken += 1;
        }
        queue.cqes.drop_front(taken);
        // An unsuccessful poll takes time, too; otherwise a loop that only polls would never end.
        let cost = self.home_costs().poll_cqe.max(1000);
        self.spend(cost * (taken.max(1) as u64));
        self.catch_up();
        Some(taken)
    }
}

/// Returns the verb of an opcode, and true if it has an immediate.
fn verb(opcode: u32) -> Option<(Verb, bool)> {
    Some(match opcode {
        abi::IBV_WR_SEND => (Verb::Send, false),
        abi::IBV_WR_SEND_WITH_IMM => (Verb::Send, true),
        abi::IBV_WR_RDMA_WRITE => (Verb::RdmaWrite, false),
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => (Verb::RdmaWrite, true),
        abi::IBV_WR_RDMA_READ => (Verb::RdmaRead, false),
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => (Verb::AtomicCmpAndSwp, false),
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => (Verb::AtomicFetchAndAdd, false),
        _ => return None,
    })
}

/// Returns the transport of a queue pair type.
pub(crate) fn transport(qp_type: u32) -> Option<Transport> {
    Some(match qp_type {
        abi::IBV_QPT_RC => Transport::Rc,
        abi::IBV_QPT_UC => Transport::Uc,
        abi::IBV_QPT_UD => Transport::Ud,
        _ => return None,
    })
}
