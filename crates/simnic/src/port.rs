//! The ports of a NIC, and the assignment of queue pairs to ports.

use crate::serial_resource::SerialResource;

/// A port: a link to the network, and one from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NicPort {
    pub(crate) outgoing_link: SerialResource,
    pub(crate) incoming_link: SerialResource,
}

/// The ports of a NIC.
///
/// Each queue pair is on one port. The device presents its ports as one, and spreads queue pairs over them, as drivers
/// do for bonded ports. Queue pairs that first send and queue pairs that first receive are spread separately. A program
/// that makes one queue pair to send and one to receive for each thread thus has both kinds on each port.
#[derive(Debug, Default)]
pub(crate) struct NicPorts {
    ports: Vec<NicPort>,
    sending_qps_with_port: usize,
    receiving_qps_with_port: usize,
}

/// The port of a queue pair; none until it has sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpPortIndex(u8);

impl QpPortIndex {
    pub(crate) const UNASSIGNED: Self = Self(u8::MAX);
}

impl NicPorts {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            ports: vec![NicPort::default(); count.clamp(1, usize::from(u8::MAX))],
            ..Self::default()
        }
    }

    /// Returns the port of a queue pair that sends.
    #[inline(always)]
    pub(crate) fn get_or_assign_sending_port(&mut self, own: &mut QpPortIndex) -> &mut NicPort {
        if *own == QpPortIndex::UNASSIGNED {
            *own = assign_port(&mut self.sending_qps_with_port, self.ports.len());
        }
        &mut self.ports[usize::from(own.0)]
    }

    /// Returns the port of a queue pair that receives.
    #[inline(always)]
    pub(crate) fn get_or_assign_receiving_port(&mut self, own: &mut QpPortIndex) -> &mut NicPort {
        if *own == QpPortIndex::UNASSIGNED {
            *own = assign_port(&mut self.receiving_qps_with_port, self.ports.len());
        }
        &mut self.ports[usize::from(own.0)]
    }
}

#[cold]
fn assign_port(turns: &mut usize, ports: usize) -> QpPortIndex {
    let port = *turns % ports;
    *turns += 1;
    QpPortIndex(u8::try_from(port).expect("fewer ports than 255"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_and_receivers_take_turns_and_stay() {
        let mut ports = NicPorts::new(2);
        let mut own = [QpPortIndex::UNASSIGNED; 6];
        for (index, own) in own.iter_mut().enumerate() {
            // As with threads that each have a queue pair to receive and one to send.
            if index % 2 == 0 {
                ports.get_or_assign_receiving_port(own);
            } else {
                ports.get_or_assign_sending_port(own);
            }
        }
        assert_eq!(own.map(|own| own.0), [0, 0, 1, 1, 0, 0]);
        let before = own[2];
        ports.get_or_assign_sending_port(&mut own[2]);
        assert_eq!(own[2], before);
    }
}
