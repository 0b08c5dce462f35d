//! The kernel's answers (`linux:drivers/infiniband/core/nldev.c`, `netlink.c`).

use crate::message_builder::MessageBuilder;
use crate::numbers::{CLIENT_NLDEV, NLM_F_ACK, NLM_F_DUMP, attribute as attr, command};
use crate::request::{Request, parse_requests};
use crate::resource::ResourceKind;
use crate::{
    AnswerSource, CompletionQueue, Device, MAX_DATAGRAM_BYTES, MemoryRegion, OpenContext, Port,
    ProcessObjects, ProtectionDomain, QueuePair, SharedReceiveQueue,
};

/// `errno(3)` of Linux.
const ENOENT: i32 = 2;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// `RDMA_NODE_RNIC` of `ibv_node_type`: a NIC for iWARP.
const NODE_TYPE_RNIC: u8 = 4;
/// `RDMA_NLDEV_SYS_ATTR_NETNS_MODE`: devices are seen in all network namespaces.
const NETNS_MODE_SHARED: u8 = 1;

/// The kernel's answers to a datagram that a client has sent, in order; `port_id` is the address of the client's
/// socket. Each answer is a datagram of at most [`MAX_DATAGRAM_BYTES`] bytes with one message.
///
/// A dump ends with `NLMSG_DONE`; other requests with an acknowledgement where they ask for one. A malformed request
/// fails with `EINVAL`, an unsupported one with `EOPNOTSUPP`. A datagram without a request has no answer.
#[must_use]
pub fn build_answers(datagram: &[u8], port_id: u32, source: &impl AnswerSource) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    for request in parse_requests(datagram) {
        let is_dump = request.flags & NLM_F_DUMP == NLM_F_DUMP;
        let answers = RequestBeingAnswered {
            request,
            netlink_port_id: port_id,
            is_dump,
        };
        match answers.build_answers_or_errno(source) {
            Ok(messages) => {
                sent.extend(messages.into_iter().map(MessageBuilder::finish));
                if is_dump {
                    sent.push(MessageBuilder::dump_done(&request, port_id).finish());
                } else if request.flags & NLM_F_ACK != 0 {
                    sent.push(MessageBuilder::error_or_ack(&request, port_id, 0).finish());
                }
            }
            Err(errno) => {
                sent.push(MessageBuilder::error_or_ack(&request, port_id, errno).finish())
            }
        }
    }
    sent
}

/// A request that is being answered.
struct RequestBeingAnswered<'a> {
    request: Request<'a>,
    netlink_port_id: u32,
    is_dump: bool,
}

impl RequestBeingAnswered<'_> {
    /// The answers, or the errno of the refusal.
    fn build_answers_or_errno(
        &self,
        source: &impl AnswerSource,
    ) -> Result<Vec<MessageBuilder>, i32> {
        let (client, asked) = (
            self.request.message_type >> 10,
            self.request.message_type & 0x3ff,
        );
        if client != CLIENT_NLDEV {
            return Err(EINVAL);
        }
        match asked {
            command::GET => self.build_device_answers(&source.devices()),
            command::PORT_GET => self.build_port_answers(&source.devices()),
            command::SYS_GET => Ok(vec![self.build_subsystem_answer()]),
            command::RES_GET => self.build_resource_summaries(source),
            command::RES_QP_GET => self.build_resource_answers::<QueuePair>(source),
            command::RES_CQ_GET => self.build_resource_answers::<CompletionQueue>(source),
            command::RES_MR_GET => self.build_resource_answers::<MemoryRegion>(source),
            command::RES_PD_GET => self.build_resource_answers::<ProtectionDomain>(source),
            command::RES_CTX_GET => self.build_resource_answers::<OpenContext>(source),
            command::RES_SRQ_GET => self.build_resource_answers::<SharedReceiveQueue>(source),
            command::STAT_GET => self.build_port_counter_answers(&source.devices()),
            _ => Err(EOPNOTSUPP),
        }
    }

    fn new_answer_message(&self, command: u16) -> MessageBuilder {
        MessageBuilder::start_answer(command, &self.request, self.netlink_port_id, self.is_dump)
    }

    /// The device that the request names.
    fn requested_device<'d>(&self, devices: &'d [Device]) -> Result<(usize, &'d Device), i32> {
        let index = self.request.device_index().ok_or(EINVAL)?;
        devices.get(index).map(|it| (index, it)).ok_or(EINVAL)
    }

    /// The devices that the request names: one, or all for a dump that names none.
    fn requested_devices<'d>(
        &self,
        devices: &'d [Device],
    ) -> Result<Vec<(usize, &'d Device)>, i32> {
        if self.is_dump && self.request.device_index().is_none() {
            return Ok(devices.iter().enumerate().collect());
        }
        Ok(vec![self.requested_device(devices)?])
    }

    /// The port of `device` that the request names, by its number.
    fn requested_port<'d>(&self, device: &'d Device) -> Result<(usize, &'d Port), i32> {
        let number = self.request.port_number().ok_or(EINVAL)?;
        let port = number.checked_sub(1).and_then(|at| device.ports.get(at));
        port.map(|port| (number, port)).ok_or(EINVAL)
    }

    fn build_device_answers(&self, devices: &[Device]) -> Result<Vec<MessageBuilder>, i32> {
        let of = |(index, device): (usize, &Device)| {
            let mut message = self.new_answer_message(command::GET);
            put_device_attributes(&mut message, index, device);
            message
        };
        Ok(self
            .requested_devices(devices)?
            .into_iter()
            .map(of)
            .collect())
    }

    fn build_port_answers(&self, devices: &[Device]) -> Result<Vec<MessageBuilder>, i32> {
        let (index, device) = self.requested_device(devices)?;
        let of = |(number, port): (usize, &Port)| {
            let mut message = self.new_answer_message(command::PORT_GET);
            put_device_index_and_name(&mut message, index, device);
            put_port_attributes(&mut message, number, port);
            message
        };
        if self.is_dump {
            let ports = device.ports.iter().enumerate();
            return Ok(ports.map(|(at, port)| of((at + 1, port))).collect());
        }
        Ok(vec![of(self.requested_port(device)?)])
    }

    /// The subsystem. The kernel copies pages that are registered when a process forks, so that it needs no
    /// `ibv_fork_init(3)`; registered memory of this device needs none either.
    fn build_subsystem_answer(&self) -> MessageBuilder {
        let mut message = self.new_answer_message(command::SYS_GET);
        message.put_u8(attr::SYS_NETNS_MODE, NETNS_MODE_SHARED);
        message.put_u8(attr::SYS_COPY_ON_FORK, 1);
        message
    }

    fn build_resource_summaries(
        &self,
        source: &impl AnswerSource,
    ) -> Result<Vec<MessageBuilder>, i32> {
        let devices = source.devices();
        let of = |(index, device): (usize, &Device)| {
            let mut message = self.new_answer_message(command::RES_GET);
            put_device_index_and_name(&mut message, index, device);
            let processes = source.processes_of_device(index).ok_or(EOPNOTSUPP)?;
            put_resource_summary(&mut message, &processes);
            Ok(message)
        };
        self.requested_devices(&devices)?
            .into_iter()
            .map(of)
            .collect()
    }

    /// Builds the answers to a request for resources of one kind. For a dump, each message has a table of objects.
    /// Otherwise one message has the object of the requested number.
    fn build_resource_answers<T: ResourceKind>(
        &self,
        source: &impl AnswerSource,
    ) -> Result<Vec<MessageBuilder>, i32> {
        let devices = source.devices();
        let (index, device) = self.requested_device(&devices)?;
        let port = match self.request.port_number() {
            Some(_) => Some(to_u32(self.requested_port(device)?.0)),
            None => None,
        };
        let number = match (self.is_dump, T::LOOKUP_ATTRIBUTE) {
            (true, _) => None,
            (false, Some(number)) => Some(self.request.u32_attribute(number).ok_or(EINVAL)?),
            (false, None) => return Err(EOPNOTSUPP),
        };
        let processes = source.processes_of_device(index).ok_or(EOPNOTSUPP)?;
        let mut objects = processes
            .iter()
            .flat_map(|process| {
                T::objects_of_process(process)
                    .iter()
                    .map(|object| (process.pid, object))
            })
            .filter(|(_, object)| object.is_on_port(port))
            .peekable();
        if let Some(number) = number {
            let (pid, object) = objects
                .find(|(_, object)| object.lookup_number() == number)
                .ok_or(ENOENT)?;
            let mut message = self.new_answer_message(T::COMMAND);
            put_device_index_and_name(&mut message, index, device);
            object.put_attributes(&mut message, pid);
            return Ok(vec![message]);
        }
        let mut messages = Vec::new();
        while objects.peek().is_some() {
            let mut message = self.new_answer_message(T::COMMAND);
            put_device_index_and_name(&mut message, index, device);
            let table = message.begin_nested(T::TABLE_ATTRIBUTE);
            while message.len() + T::MAX_ENTRY_BYTES <= MAX_DATAGRAM_BYTES
                && let Some((pid, object)) = objects.next()
            {
                let entry = message.begin_nested(T::ENTRY_ATTRIBUTE);
                object.put_attributes(&mut message, pid);
                message.end_nested(entry);
            }
            message.end_nested(table);
            messages.push(message);
        }
        Ok(messages)
    }

    /// The counters of a port, as `rdma statistic show link` asks for them; those of queue pairs are not counted apart.
    fn build_port_counter_answers(&self, devices: &[Device]) -> Result<Vec<MessageBuilder>, i32> {
        if self.request.asks_resource_counters() || self.is_dump {
            return Err(EOPNOTSUPP);
        }
        let (index, device) = self.requested_device(devices)?;
        let (number, port) = self.requested_port(device)?;
        if port.counters.is_empty() {
            return Err(EOPNOTSUPP);
        }
        let mut message = self.new_answer_message(command::STAT_GET);
        put_device_index_and_name(&mut message, index, device);
        message.put_u32(attr::PORT_INDEX, to_u32(number));
        let table = message.begin_nested(attr::STAT_HWCOUNTERS);
        for (name, value) in &port.counters {
            if message.len() + COUNTER_OVERHEAD_BYTES + name.len() > MAX_DATAGRAM_BYTES {
                break;
            }
            let entry = message.begin_nested(attr::STAT_HWCOUNTER_ENTRY);
            message.put_text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
            message.put_u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, *value);
            message.end_nested(entry);
        }
        message.end_nested(table);
        Ok(vec![message])
    }
}

/// Bytes of a counter in a message without its name: the headers, the zero behind the name and padding, the value.
const COUNTER_OVERHEAD_BYTES: usize = 4 + 4 + 4 + 12;

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The attributes that name a device in each answer.
fn put_device_index_and_name(message: &mut MessageBuilder, index: usize, device: &Device) {
    message.put_u32(attr::DEV_INDEX, to_u32(index));
    message.put_text(attr::DEV_NAME, &device.name);
}

/// As `fill_dev_info`.
fn put_device_attributes(message: &mut MessageBuilder, index: usize, device: &Device) {
    put_device_index_and_name(message, index, device);
    message.put_u32(attr::PORT_INDEX, to_u32(device.ports.len()));
    if let Some(firmware) = &device.firmware {
        message.put_text(attr::FW_VERSION, firmware);
    }
    if let Some(guid) = device.node_guid {
        message.put_u64(attr::NODE_GUID, guid);
    }
    if let Some(guid) = device.sys_image_guid {
        message.put_u64(attr::SYS_IMAGE_GUID, guid);
    }
    if let Some(node_type) = device.node_type {
        message.put_u8(attr::DEV_NODE_TYPE, node_type);
    }
    // The kernel has the protocol of port 1, too.
    if let Some(port) = device.ports.first() {
        let protocol = match (port.subnet_attributes.is_some(), device.node_type) {
            (true, _) => "ib",
            (false, Some(NODE_TYPE_RNIC)) => "iw",
            (false, _) => "roce",
        };
        message.put_text(attr::DEV_PROTOCOL, protocol);
    }
}

/// As `fill_port_info`.
fn put_port_attributes(message: &mut MessageBuilder, number: usize, port: &Port) {
    message.put_u32(attr::PORT_INDEX, to_u32(number));
    if let Some(subnet) = &port.subnet_attributes {
        if let Some(port_cap_flags) = subnet.port_cap_flags {
            message.put_u64(attr::CAP_FLAGS, u64::from(port_cap_flags));
        }
        if let Some(prefix) = subnet.gid_prefix {
            message.put_u64(attr::SUBNET_PREFIX, prefix);
        }
        for (number, lid) in [(attr::LID, subnet.lid), (attr::SM_LID, subnet.sm_lid)] {
            if let Some(lid) = lid {
                message.put_u32(number, u32::from(lid));
            }
        }
        if let Some(count) = subnet.lid_mask_control {
            message.put_u8(attr::LMC, count);
        }
    }
    if let Some(state) = port.state {
        message.put_u8(attr::PORT_STATE, state);
    }
    if let Some(state) = port.physical_state {
        message.put_u8(attr::PORT_PHYS_STATE, state);
    }
    if let Some((name, index)) = &port.interface_name_and_index {
        message.put_u32(attr::NDEV_INDEX, *index);
        message.put_text(attr::NDEV_NAME, name);
    }
}

/// As `fill_res_info`, for those kinds of resources that are known.
fn put_resource_summary(message: &mut MessageBuilder, processes: &[ProcessObjects]) {
    let count = |of: fn(&ProcessObjects) -> usize| processes.iter().map(of).sum::<usize>();
    let table = message.begin_nested(attr::RES_SUMMARY);
    for (name, count) in [
        ("pd", count(|process| process.protection_domains.len())),
        ("cq", count(|process| process.completion_queues.len())),
        ("qp", count(|process| process.queue_pairs.len())),
        ("mr", count(|process| process.memory_regions.len())),
        ("ctx", count(|process| process.contexts.len())),
        ("srq", count(|process| process.shared_receive_queues.len())),
    ] {
        let entry = message.begin_nested(attr::RES_SUMMARY_ENTRY);
        message.put_text(attr::RES_SUMMARY_ENTRY_NAME, name);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        message.put_u64(attr::RES_SUMMARY_ENTRY_CURR, count);
        message.end_nested(entry);
    }
    message.end_nested(table);
}

#[cfg(test)]
mod tests;
