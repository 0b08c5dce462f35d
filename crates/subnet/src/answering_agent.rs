//! The choice of the agent that answers a request.

use crate::mad::{MadFields, class};
use crate::topology::{MadArrivalNode, Subnet};
use crate::{performance_management, smp, subnet_administration};

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubnetAnswer {
    /// The response: one MAD, or a longer one whose segments have been put together.
    Response(Vec<u8>),
    /// No agent is at the destination: the request times out.
    NoAgent,
    /// The request is for a program that has registered for its class at this LID.
    ForRegisteredProgram,
}

impl Subnet {
    /// Returns true if the answer to a request depends on [`Subnet::group_members`].
    pub fn depends_on_multicast_groups(request: &[u8]) -> bool {
        let mad = MadFields(request);
        match mad.class() {
            class::SA => subnet_administration::depends_on_multicast_groups(mad.attribute()),
            class::SMP_LID | class::SMP_DIRECTED => {
                smp::depends_on_multicast_groups(mad.attribute())
            }
            _ => false,
        }
    }

    /// Answers `request`, which a program sends by the port with `own_lid` to `destination`. A directed route starts at
    /// the own port whatever the destination.
    pub fn answer_request(&self, request: &[u8], own_lid: u16, destination: u16) -> SubnetAnswer {
        let mad = MadFields(request);
        let node = match mad.class() {
            class::SMP_DIRECTED => self.follow_directed_route(request, own_lid),
            _ => self.node_of_lid(destination),
        };
        let Some(node) = node else {
            return SubnetAnswer::NoAgent;
        };
        let response = match (mad.class(), node) {
            (class::SMP_LID | class::SMP_DIRECTED, node) => smp::answer_smp(self, request, node),
            (class::PERFORMANCE, node) => {
                performance_management::answer_performance_request(self, request, node)
            }
            (class::SA, MadArrivalNode::Adapter(_, port)) if port.lid == self.manager_lid() => {
                subnet_administration::answer_sa_request(self, request)
            }
            (class::SA, _) => return SubnetAnswer::NoAgent,
            _ => return SubnetAnswer::ForRegisteredProgram,
        };
        SubnetAnswer::Response(response)
    }
}
