//! The choice of the agent that answers a request.

use crate::mad::{MadFields, class};
use crate::topology::{MadArrivalNode, Subnet};
use crate::{performance, records, smp};

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
    pub fn is_about_groups(request: &[u8]) -> bool {
        let mad = MadFields(request);
        match mad.class() {
            class::SA => records::is_about_groups(mad.attribute()),
            class::SMP_LID | class::SMP_DIRECTED => smp::is_about_groups(mad.attribute()),
            _ => false,
        }
    }

    /// Answers `request`, which a program sends by the port with `own_lid` to `destination`. A directed route starts at
    /// the own port whatever the destination.
    pub fn answer(&self, request: &[u8], own_lid: u16, destination: u16) -> SubnetAnswer {
        let mad = MadFields(request);
        let node = match mad.class() {
            class::SMP_DIRECTED => self.follow_directed_route(request, own_lid),
            _ => self.node_of(destination),
        };
        let Some(node) = node else {
            return SubnetAnswer::NoAgent;
        };
        let response = match (mad.class(), node) {
            (class::SMP_LID | class::SMP_DIRECTED, node) => smp::answer(self, request, node),
            (class::PERFORMANCE, node) => performance::answer(self, request, node),
            (class::SA, MadArrivalNode::Adapter(_, port)) if port.lid == self.manager_lid() => {
                records::answer(self, request)
            }
            (class::SA, _) => return SubnetAnswer::NoAgent,
            _ => return SubnetAnswer::ForRegisteredProgram,
        };
        SubnetAnswer::Response(response)
    }
}
