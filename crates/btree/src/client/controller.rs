//! Keeps several servers equally loaded: reads their loads, and starts the moves that the control law demands.

use super::error::ClientError;
use super::pipeline::PipelinedClient;
use super::request::Answer;
use crate::balance::{Balancer, ControlLawParameters, RangeMove, ServerLoad};
use crate::key_or_value::KeyOrValue;
use crate::wire::{HandoverStep, Op};

/// A load balancer with connections to all servers, in the order of their numbers. It can run beside a server or at a
/// client.
#[derive(Debug)]
pub struct LoadBalancer<T: KeyOrValue = u64> {
    servers: Vec<PipelinedClient<T>>,
    tree: u8,
    balancer: Balancer<T>,
}

impl<T: KeyOrValue> LoadBalancer<T> {
    /// Creates a controller for a tree. `splits` are the first keys of all ranges but the first; `law` and `capacities`
    /// are those of [`Balancer::new`].
    pub fn new(
        servers: Vec<PipelinedClient<T>>,
        tree: u8,
        (law, splits): (ControlLawParameters, Vec<T>),
        capacities: &[f64],
    ) -> Self {
        Self {
            servers,
            tree,
            balancer: Balancer::new(law, splits, capacities),
        }
    }

    /// Returns the balancer with its splits and observations.
    pub fn balancer(&self) -> &Balancer<T> {
        &self.balancer
    }

    /// Reads all loads once, and starts a move if one is due. The balancer plans no other move while that one is in
    /// progress.
    ///
    /// # Errors
    /// If a server cannot be reached.
    pub fn rebalance_once(&mut self) -> Result<Option<RangeMove<T>>, ClientError> {
        let tree = self.tree;
        let mut loads = Vec::new();
        for server in &mut self.servers {
            let load = call(server, tree, &Op::ReadServerLoad, |answer| match answer {
                Answer::Entries { entries, .. } => ServerLoad::decode(entries),
                _ => None,
            })?;
            loads.push(load.ok_or(ClientError::NoAnswerInTime)?);
        }
        let Some(plan) = self.balancer.observe_and_plan_move(&loads) else {
            return Ok(None);
        };
        let take = Op::Handover {
            step: HandoverStep::Take { giver: plan.giver },
            from: plan.from,
            end: plan.end,
        };
        if let Some(taker) = self.servers.get_mut(usize::from(plan.taker)) {
            call(taker, tree, &take, |_| ())?;
        }
        Ok(Some(plan))
    }
}

/// Sends a request and waits for its answer.
///
/// # Errors
/// If the server cannot be reached.
pub(crate) fn call<R, T: KeyOrValue>(
    server: &mut PipelinedClient<T>,
    tree: u8,
    op: &Op<T>,
    answered: impl Fn(Answer<'_, T>) -> R,
) -> Result<R, ClientError> {
    server.refresh_clock();
    while !server.submit(tree, op, 0)? {
        server.poll(|_| {})?;
    }
    let mut result = None;
    while result.is_none() {
        server.poll(|done| result = Some(answered(done.answer)))?;
    }
    result.ok_or(ClientError::NoAnswerInTime)
}
