//! The core's side of the data path: posting and polling, and what they cost it.

use nicmodel::{Transport, Verb};
use verbs_abi as abi;

use crate::costs::ShapeKey;
use crate::memory::Payload;
use crate::world::{Answer, Cqe, Event, List, Message, Recv, SUCCESS, World};

/// A send WR in plain values, as the ABI layer read it.
pub(crate) struct SendRequest {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// Big-endian, as in the WR.
    pub(crate) imm: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) dest_qkey: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Its SGEs: address, length, L_Key. Payload that is inlined is in `inline`.
    pub(crate) sges: Sges,
    pub(crate) inline: Option<Payload>,
}

/// Scatter/gather elements; few have more than one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sges {
    pub(crate) count: u32,
    pub(crate) items: [(u64, u32, u32); MAX_SGE],
}

/// Scatter/gather elements of a WR, at most.
pub(crate) const MAX_SGE: usize = 4;

impl World {
    /// The message that a send WR becomes, or the errno of its refusal.
    #[inline(always)]
    pub(crate) fn build(&mut self, index: u32, request: SendRequest) -> Result<u32, i32> {
        let qp = self
            .qps
            .get(index as usize)
            .and_then(Option::as_deref)
            .ok_or(libc::EINVAL)?;
        let (transport, machine) = (qp.transport, qp.machine);
        let (verb, imm) = verb(request.opcode).ok_or(libc::EINVAL)?;
        let length: u64 = match &request.inline {
            Some(payload) => payload.bytes().len() as u64,
            None => request
                .sges
                .used()
                .map(|&(_, length, _)| u64::from(length))
                .sum(),
        };
        let length = u32::try_from(length).map_err(|_| libc::EINVAL)?;
        if request.inline.is_some() && length > qp.cap.max_inline_data {
            return Err(libc::ENOMEM);
        }
        if request.sges.count > qp.cap.max_send_sge && request.inline.is_none() {
            return Err(libc::EINVAL);
        }
        let atomic = verb.is_atomic();
        if atomic
            && (length != 8 || !self.costs.has_atomics || !request.remote_addr.is_multiple_of(8))
        {
            return Err(libc::EINVAL);
        }
        // Nothing is as good as inlined: there is nothing to fetch.
        let inline = request.inline.is_some() || (verb.sends_payload() && length == 0);
        let key = ShapeKey {
            verb,
            transport,
            payload: length,
            inline: inline && length > 0,
            imm,
            num_sge: request.sges.count.max(1),
        };
        let shape = match &qp.last_shape {
            Some((last, shape)) if *last == key => *shape,
            _ => self.shapes.find(key).ok_or(libc::EINVAL)?,
        };
        let mut answer = None;
        let payload = match request.inline {
            Some(payload) => payload,
            None if verb.sends_payload() => self.gather(machine, &request.sges, length)?,
            None => {
                let (local_addr, _, local_lkey) =
                    request.sges.used().next().copied().unwrap_or_default();
                answer = Some(Answer {
                    compare_add: request.compare_add,
                    swap: request.swap,
                    local_addr,
                    local_lkey,
                    cache_slot: None,
                });
                Payload::EMPTY
            }
        };
        if let Some(qp) = self.qp(index) {
            qp.last_shape = Some((key, shape));
        }
        let datagram = transport == Transport::Ud;
        let message = Message {
            qp: index,
            dest: request.dest_qpn,
            imm: request.imm,
            key: if datagram {
                request.dest_qkey
            } else {
                request.rkey
            },
            remote_addr: request.remote_addr,
            wr_id: request.wr_id,
            payload,
            shape,
            opcode: u8::try_from(request.opcode).map_err(|_| libc::EINVAL)?,
            status: SUCCESS,
            signaled: request.flags & abi::IBV_SEND_SIGNALED != 0,
            answer: 0,
        };
        Ok(self.messages.put(message, answer))
    }

    /// The payload of a WR that is not inlined. A program leaves the buffer alone until the WR is complete,
    /// so when it is read does not matter.
    fn gather(&self, machine: u32, sges: &Sges, length: u32) -> Result<Payload, i32> {
        let fill = |into: &mut [u8]| {
            let mut rest = into;
            for &(addr, len, lkey) in sges.used() {
                let (part, after) = rest.split_at_mut(len as usize);
                let mr = self.mr(machine, lkey);
                if !mr.is_some_and(|mr| mr.region.read(addr, part)) {
                    return false;
                }
                rest = after;
            }
            true
        };
        Payload::with(length as usize, fill).ok_or(libc::EINVAL)
    }

    /// Whether WRs may be posted, and how many fit.
    pub(crate) fn send_room(&self, index: u32) -> Result<u32, i32> {
        let qp = self
            .qps
            .get(index as usize)
            .and_then(Option::as_deref)
            .ok_or(libc::EINVAL)?;
        match qp.state {
            abi::IBV_QPS_RTS | abi::IBV_QPS_ERR => {
                Ok(qp.cap.max_send_wr.saturating_sub(qp.outstanding))
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Hands a list of WQEs to the NIC.
    pub(crate) fn post(&mut self, index: u32, wqes: &[u32]) {
        let Ok(len) = u32::try_from(wqes.len()) else {
            return;
        };
        if len == 0 {
            return;
        }
        let rung = len > 1;
        let shape = self.messages[wqes[0]].shape;
        let Some(qp) = self.qp(index) else { return };
        qp.outstanding += len;
        qp.wqes.extend(wqes);
        let machine = qp.machine;
        qp.lists.push_back(List { len, rung, shape });
        if qp.state == abi::IBV_QPS_ERR {
            self.flush(index);
            return;
        }
        self.spend(self.costs.post_wqe * u64::from(len));
        let (writes, link) = if rung {
            (1, self.shapes.doorbell())
        } else {
            let shape = self.shapes.get(shape);
            (shape.lines, shape.by_mmio)
        };
        // Payload is fetched over the link as well.
        let (mut fetch_in, mut fetch_out, mut read_bytes) = (0, 0, 0);
        for &wqe in wqes {
            let shape = self.shapes.get(self.messages[wqe].shape);
            fetch_in += shape.payload_fetch.to_device;
            fetch_out += shape.payload_fetch.to_host;
            read_bytes += shape.payload_fetch.read_bytes;
            if shape.operation.verb == Verb::RdmaRead
                && let Some(answer) = self.messages.answer(wqe)
            {
                answer.cache_slot = Some(self.machines[machine as usize].cached_wqes.insert());
            }
        }
        let (now, clock, pcie) = (self.now, self.clock(), self.costs.pcie);
        let nic = self.machine(machine);
        // The write holds the core while earlier ones are on their way. Completions of DMA reads take turns with
        // it on the link: they lose its time, but a burst of them does not hold it up.
        let left = nic.mmio.take(now, clock, link.to_device);
        let (wait, arrived) = (left - link.to_device - clock, left + pcie);
        nic.to_device.slip_in(clock, link.to_device);
        nic.to_host.slip_in(clock, link.to_host + fetch_out);
        nic.to_device.slip_in(clock, fetch_in);
        nic.counters.read_bytes += read_bytes;
        if rung {
            nic.counters.doorbells += 1;
        } else {
            nic.counters.wqes_by_mmio += 1;
        }
        self.spend(self.costs.mmio_write * writes + wait);
        self.events.push(arrived, Event::Announce { qp: index });
        self.catch_up();
    }

    /// Posts a RECV.
    pub(crate) fn post_recv(&mut self, index: u32, recv: Recv) -> Result<(), i32> {
        let Some(qp) = self.qp(index) else {
            return Err(libc::EINVAL);
        };
        if qp.state == abi::IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        if qp.recvs.len() >= qp.cap.max_recv_wr as usize {
            return Err(libc::ENOMEM);
        }
        qp.recvs.push(recv);
        let in_error = qp.state == abi::IBV_QPS_ERR;
        self.spend(self.costs.post_recv);
        if in_error {
            self.flush(index);
        }
        Ok(())
    }

    /// Takes completions that are visible to the calling thread; `None` if the CQ has overrun.
    pub(crate) fn poll(
        &mut self,
        cq: u32,
        most: usize,
        mut each: impl FnMut(Cqe),
    ) -> Option<usize> {
        self.watch_cq(cq);
        let clock = self.clock();
        let queue = self.cqs.get_mut(cq as usize)?.as_mut()?;
        if queue.overrun {
            return None;
        }
        let mut taken = 0;
        while taken < most
            && let Some(cqe) = queue.cqes.pop_front_if(|cqe| cqe.at <= clock)
        {
            each(cqe);
            taken += 1;
        }
        // A look at an empty queue takes time too, or a loop that does nothing else would never end.
        let cost = self.costs.poll_cqe.max(1000);
        self.spend(cost * (taken.max(1) as u64));
        self.catch_up();
        Some(taken)
    }
}

impl Sges {
    fn used(&self) -> impl Iterator<Item = &(u64, u32, u32)> {
        self.items.iter().take(self.count as usize)
    }
}

/// The verb of an opcode, and whether it has an immediate.
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

/// The transport of a queue pair type.
pub(crate) fn transport(qp_type: u32) -> Option<Transport> {
    Some(match qp_type {
        abi::IBV_QPT_RC => Transport::Rc,
        abi::IBV_QPT_UC => Transport::Uc,
        abi::IBV_QPT_UD => Transport::Ud,
        _ => return None,
    })
}
