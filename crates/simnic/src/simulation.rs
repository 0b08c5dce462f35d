//! The state of a simulation: machines, their NICs and cores, and the objects of the verbs.

use nicmodel::profile::{CorePlace, Profile};

use crate::completion_channel::{Arming, CompletionChannels};
use crate::costs::{CostTable, HostOrDpuCosts, NicParameters};
use crate::cq::{Cq, Cqe};
use crate::event::SimulationEvent;
use crate::event_queue::{EventQueue, Ps};
use crate::machine::{HostOrDpuState, SimulatedNic};
use crate::memory::Payload;
use crate::message::InFlightMessages;
use crate::mr::Mr;
use crate::network_faults::NetworkFaults;
use crate::port::NicPorts;
use crate::qp::Qp;
use crate::serial_resource::SharedCacheLine;
use crate::srq::Srq;
use crate::thread::SimulatedThread;

/// The state of a simulation.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// Number that distinguishes handles of this simulation from those of another.
    pub(crate) id: u64,
    pub(crate) nic_parameters: NicParameters,
    pub(crate) cost_table: CostTable,
    pub(crate) now: Ps,
    pub(crate) events: EventQueue<SimulationEvent>,
    /// Host `i` is machine `i` and has NIC `i`. DPUs, if the profile has them, follow in the same order.
    pub(crate) machines: Vec<HostOrDpuState>,
    pub(crate) nics: Vec<SimulatedNic>,
    /// Smallest one-way PCIe latency: an effect of a NIC on a core, or of a core on a NIC, is visible no sooner.
    pub(crate) min_pcie_latency: Ps,
    pub(crate) qps: Vec<Option<Box<Qp>>>,
    pub(crate) cqs: Vec<Option<Cq>>,
    pub(crate) srqs: Vec<Option<Srq>>,
    pub(crate) completion_channels: CompletionChannels,
    pub(crate) mrs: Vec<Option<Mr>>,
    pub(crate) messages: InFlightMessages,
    pub(crate) threads: Vec<SimulatedThread>,
    pub(crate) thread_names: Vec<String>,
    /// Running thread; `current_thread_clock`, `current_machine` and `current_wait_period_number`: its clock, machine and
    /// stamp.
    pub(crate) current_thread: Option<u32>,
    pub(crate) current_thread_clock: Ps,
    pub(crate) current_machine: u32,
    pub(crate) current_wait_period_number: u64,
    /// Number of stamps that were given.
    pub(crate) last_wait_period_number: u64,
    /// End of the run.
    pub(crate) run_end: Ps,
    /// Cache lines to which several cores add; there are few.
    pub(crate) shared_cache_lines: Vec<SharedCacheLine>,
    pub(crate) rng_state: u64,
    /// Faults of the network; `None` if it has none.
    pub(crate) network_faults: Option<Box<NetworkFaults>>,
}

impl Simulation {
    pub(crate) fn new(id: u64, profile: &Profile, costs: NicParameters, seed: u64) -> Self {
        Self {
            id,
            cost_table: CostTable::new(profile),
            nic_parameters: costs,
            now: 0,
            events: EventQueue::new(),
            machines: Vec::new(),
            nics: Vec::new(),
            min_pcie_latency: 0,
            qps: vec![None],
            cqs: Vec::new(),
            srqs: Vec::new(),
            completion_channels: CompletionChannels::default(),
            mrs: vec![None],
            messages: InFlightMessages::default(),
            threads: Vec::new(),
            thread_names: Vec::new(),
            current_thread: None,
            current_thread_clock: 0,
            current_machine: 0,
            current_wait_period_number: 0,
            last_wait_period_number: 0,
            run_end: 0,
            shared_cache_lines: Vec::new(),
            rng_state: seed,
            network_faults: None,
        }
    }

    /// Adds machines of a profile: hosts, and as many DPUs if the profile has one.
    pub(crate) fn add_machines(&mut self, profile: &Profile, count: u32) {
        let there = profile.as_seen_from_dpu();
        let speed = profile.dpu.as_ref().map(|dpu| dpu.core_speed.value);
        let dpu = there.as_ref().zip(speed);
        let hosts = HostOrDpuCosts::from_profile(profile, 1.0, 1);
        let sides = [
            Some((CorePlace::Host, hosts)),
            dpu.map(|(profile, speed)| {
                (
                    CorePlace::Dpu,
                    HostOrDpuCosts::from_profile(profile, speed, 1),
                )
            }),
        ];
        for (place, costs) in sides.into_iter().flatten() {
            self.machines.extend((0..count).map(|nic| HostOrDpuState {
                nic_index: nic,
                place,
                costs: costs.clone(),
                ..HostOrDpuState::default()
            }));
        }
        let ports = profile.port.count.value as usize;
        self.nics.resize_with(count as usize, || SimulatedNic {
            ports: NicPorts::new(ports),
            ..SimulatedNic::default()
        });
        let ways = self
            .machines
            .iter()
            .map(|machine| machine.costs.pcie_latency);
        self.min_pcie_latency = ways.min().unwrap_or(0);
    }

    /// Counts another active core of a machine, which may slow its other cores down (`turbo` of the profile).
    pub(crate) fn add_active_core(&mut self, machine: u32) {
        let state = &mut self.machines[machine as usize];
        let before = state.active_cores;
        state.active_cores += 1;
        let profile = self.cost_table.host_profile();
        // The cores of a DPU are not known to slow each other down.
        if state.place == CorePlace::Host
            && profile.slowdown_factor(before) != profile.slowdown_factor(state.active_cores)
        {
            state.costs = HostOrDpuCosts::from_profile(profile, 1.0, state.active_cores);
        }
    }

    /// Returns the next random number (splitmix64, Steele et al., OOPSLA 2014).
    pub(crate) fn next_random(&mut self) -> u64 {
        self.rng_state = self.rng_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng_state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn machine(&mut self, index: u32) -> &mut HostOrDpuState {
        &mut self.machines[index as usize]
    }

    /// Returns the NIC of a machine.
    pub(crate) fn nic(&mut self, machine: u32) -> &mut SimulatedNic {
        &mut self.nics[self.machines[machine as usize].nic_index as usize]
    }

    /// Returns the costs of the running thread's core and memory.
    #[inline(always)]
    pub(crate) fn current_core_and_memory_costs(&self) -> &HostOrDpuCosts {
        &self.machines[self.current_machine as usize].costs
    }

    pub(crate) fn qp(&mut self, index: u32) -> Option<&mut Qp> {
        self.qps.get_mut(index as usize)?.as_deref_mut()
    }

    /// Destroys a queue pair and its messages in flight.
    pub(crate) fn remove_qp(&mut self, index: u32) {
        let Some(mut qp) = self.qps.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        for &(message, count) in qp.unsent_messages.as_slice() {
            self.messages.release_work_requests(message, count);
        }
        if let Some(retransmission) = &mut qp.retransmission {
            for message in retransmission.take_all_messages() {
                self.messages.release_one_work_request(message);
            }
        }
        if let Some(srq) = qp.srq
            && let Some(Some(srq)) = self.srqs.get_mut(srq as usize)
        {
            srq.attached_qp_count -= 1;
        }
        let nic = self.nic(qp.machine);
        qp.outstanding_reads
            .forget_all(&mut nic.qps_with_outstanding_reads);
        let waiting = nic.qps_waiting_for_unit.len();
        nic.qps_waiting_for_unit.retain(|&other| other != index);
        let waited = nic.qps_waiting_for_unit.len() < waiting;
        if qp.has_or_awaits_unit && !waited {
            self.reassign_or_idle_unit(qp.machine, self.now);
        }
    }

    /// Returns the memory region of a key on a machine.
    pub(crate) fn mr(&self, machine: u32, key: u32) -> Option<&Mr> {
        let mr = self.mrs.get(key as usize)?.as_ref()?;
        (mr.machine == machine).then_some(mr)
    }

    /// Runs an event of a NIC.
    pub(crate) fn run_event(&mut self, event: SimulationEvent, at: Ps) {
        match event {
            SimulationEvent::Resume { .. } => {}
            SimulationEvent::PostlistArrived { qp } => self.handle_arrived_postlist(qp, at),
            SimulationEvent::SendNextWqe { qp } => self.send_due_wqes(qp, at),
            SimulationEvent::MessageProcessed { nic } => self.handle_arrivals(nic),
            SimulationEvent::SendResponse { message } => self.send_response(message),
            SimulationEvent::ResponseArrived { message } => self.handle_response(message),
            SimulationEvent::RetransmissionDue { qp } => self.handle_due_retransmission(qp, at),
        }
    }

    /// Adds a completion that becomes visible at its time.
    #[inline(always)]
    pub(crate) fn add_completion(&mut self, cq: u32, cqe: Cqe) {
        let (threads, events) = (&mut self.threads, &mut self.events);
        if let Some(Some(queue)) = self.cqs.get_mut(cq as usize)
            && queue.push_and_wake(cqe, threads, events)
        {
            self.completion_channels
                .raise_event(cq, queue.handle, cqe.visible_at, threads, events);
        }
    }

    /// Arms a completion queue, as `ibv_req_notify_cq(3)` does. The core writes a doorbell for it.
    pub(crate) fn arm_cq(&mut self, cq: u32, armed_for: Arming) -> Result<(), i32> {
        let clock = self.clock();
        let Some(Some(queue)) = self.cqs.get_mut(cq as usize) else {
            return Err(libc::EINVAL);
        };
        if let Some(at) = queue.arm(armed_for, clock) {
            let (threads, events) = (&mut self.threads, &mut self.events);
            self.completion_channels
                .raise_event(cq, queue.handle, at, threads, events);
        }
        self.advance_clock(self.current_core_and_memory_costs().mmio_write);
        Ok(())
    }

    /// Adds a WRITE that becomes visible at `at`.
    pub(crate) fn add_pending_write(&mut self, key: u32, at: Ps, addr: u64, payload: Payload) {
        let Some(Some(mr)) = self.mrs.get_mut(key as usize) else {
            return;
        };
        let machine = &mut self.machines[mr.machine as usize];
        let (threads, events) = (&mut self.threads, &mut self.events);
        mr.add_pending_write(key, machine, at, addr, payload, threads, events);
    }

    /// Places the payload of a message in a region, given by its key, from `addr` on. The payload of several packets
    /// becomes visible at `at`, with its last packet. Returns false if the machine has no such memory.
    pub(crate) fn place_payload(
        &mut self,
        id: u32,
        machine: u32,
        (key, addr): (u32, u64),
        at: Ps,
    ) -> bool {
        let message = &self.messages[id];
        let bytes = message.payload.bytes();
        let Some(mr) = self.mr(machine, key) else {
            return false;
        };
        let shape = self.cost_table.get(message.cost_index);
        if !shape.has_several_packets() {
            return mr.region.write(addr, bytes);
        }
        if !mr.region.contains(addr, bytes.len()) {
            return false;
        }
        let payload = std::mem::replace(&mut self.messages[id].payload, Payload::EMPTY);
        self.add_pending_write(key, at, addr, payload);
        true
    }

    /// Makes WRITEs to the machine's memory visible whose time is up to `up_to`.
    pub(crate) fn make_writes_visible(&mut self, machine: u32, up_to: Ps) {
        let Self { machines, mrs, .. } = self;
        let HostOrDpuState {
            regions_with_pending_writes: unsettled,
            next_write_visible_at: settles_at,
            ..
        } = &mut machines[machine as usize];
        if unsettled.is_empty() || *settles_at > up_to {
            return;
        }
        *settles_at = Ps::MAX;
        unsettled.retain_mut(|(first, key)| {
            if *first <= up_to {
                let Some(Some(mr)) = mrs.get_mut(*key as usize) else {
                    return false;
                };
                while let Some((_, addr, payload)) =
                    mr.pending_writes.pop_front_if(|(at, ..)| *at <= up_to)
                {
                    mr.region.write(addr, payload.bytes());
                }
                let Some((next, ..)) = mr.pending_writes.front() else {
                    return false;
                };
                *first = *next;
            }
            *settles_at = (*settles_at).min(*first);
            true
        });
    }
}
