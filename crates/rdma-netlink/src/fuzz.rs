//! The fuzz target of this crate, and the replay of its corpus.

use crate::{
    AnswerSource, CompletionQueue, Device, MAX_DATAGRAM_BYTES, MemoryRegion, OpenContext, Port,
    PortSubnetAttributes, ProcessObjects, ProtectionDomain, QueuePair, SharedReceiveQueue,
    build_answers,
};

/// Two devices, one of each kind, with more regions than fit into a datagram.
pub(crate) struct ExampleAnswerSource;

impl AnswerSource for ExampleAnswerSource {
    fn devices(&self) -> Vec<Device> {
        let roce = Port {
            state: Some(4),
            physical_state: Some(5),
            interface_name_and_index: Some(("eth0".to_owned(), 7)),
            counters: (0..300).map(|i| (format!("counter_{i}"), i)).collect(),
            ..Port::default()
        };
        let infiniband = Port {
            subnet_attributes: Some(PortSubnetAttributes {
                gid_prefix: Some(0xfe80 << 48),
                lid: Some(1),
                ..PortSubnetAttributes::default()
            }),
            ..Port::default()
        };
        [("a0", roce), ("b0", infiniband)]
            .map(|(name, port)| Device {
                name: name.to_owned(),
                firmware: Some("1.0".to_owned()),
                node_type: Some(1),
                node_guid: Some(7),
                ports: vec![port],
                ..Device::default()
            })
            .to_vec()
    }

    fn processes_of_device(&self, device: usize) -> Option<Vec<ProcessObjects>> {
        let regions = (1..=200).map(|key| MemoryRegion {
            lkey_and_rkey: key,
            iova: 4096,
            len_bytes: 64,
            pd_number: 1,
        });
        let process = ProcessObjects {
            pid: 17,
            // A connected one, a datagram one and one without a port.
            queue_pairs: [(Some(1), 2), (Some(1), 4), (None, 2)]
                .into_iter()
                .zip(5..)
                .map(|((port_num, qp_type), qpn)| QueuePair {
                    port_num,
                    qp_type,
                    qpn,
                    dest_qpn: 9,
                    ..QueuePair::default()
                })
                .collect(),
            completion_queues: (1..=200)
                .map(|cqn| CompletionQueue {
                    cqn,
                    cqe: 16,
                    use_count: 2,
                })
                .collect(),
            protection_domains: vec![ProtectionDomain {
                number: 1,
                use_count: 4,
            }],
            memory_regions: regions.collect(),
            contexts: vec![OpenContext { number: 3 }],
            shared_receive_queues: vec![SharedReceiveQueue {
                srqn: 4,
                srq_type: 1,
                pd_number: 1,
                cqn: Some(7),
                qpns: vec![5, 6, 7, 9],
            }],
        };
        (device == 0).then(|| vec![process])
    }
}

/// Any datagram of a client.
///
/// # Panics
/// If an answer is larger than a client can take, or its length is not what its header says.
pub fn check_answers_to_any_datagram(bytes: &[u8]) {
    for answer in build_answers(bytes, 42, &ExampleAnswerSource) {
        assert!(answer.len() <= MAX_DATAGRAM_BYTES);
        let len = u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]);
        assert_eq!(usize::try_from(len).ok(), Some(answer.len()));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_requests_is_replayed() {
        corpus::replay("rdma_netlink", super::check_answers_to_any_datagram);
    }
}
