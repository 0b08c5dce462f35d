//! Keeps several servers equally loaded: reads their loads, and starts the moves that the control law demands.

use super::error::ClientError;
use super::pipeline::PipelinedClient;
use super::request::Answer;
use crate::balance::{Balancer, ControlLawParameters, RangeMove, ServerLoad};
use crate::key_or_value::KeyOrValue;
use crate::wire::{HandoverStep, Operation};

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
    /// progress. Afterwards it asks the giver whether the range has moved, and restores the split if it has not.
    ///
    /// # Errors
    /// If a server cannot be reached.
    pub fn rebalance_once(&mut self) -> Result<Option<RangeMove<T>>, ClientError> {
        let tree = self.tree;
        let mut loads = Vec::new();
        for server in &mut self.servers {
            let load = send_request_and_wait(server, tree, &Operation::ReadServerLoad, |answer| {
                match answer {
                    Answer::Entries { entries, .. } => ServerLoad::decode(entries),
                    _ => None,
                }
            })?;
            loads.push(load.ok_or(ClientError::NoAnswerInTime)?);
        }
        if let Some(planned) = self.balancer.unconfirmed_move()
            && loads.iter().all(|load| load.unfinished_takes == 0)
        {
            let kept_from = self.first_key_kept_by_giver(&planned)?;
            self.balancer.confirm_move(kept_from);
        }
        let Some(plan) = self.balancer.observe_and_plan_move(&loads) else {
            return Ok(None);
        };
        let take = Operation::Handover {
            step: HandoverStep::Take { giver: plan.giver },
            from: plan.first_key,
            end: plan.end_key,
        };
        if let Some(taker) = self.servers.get_mut(usize::from(plan.taker)) {
            send_request_and_wait(taker, tree, &take, |_| ())?;
        }
        Ok(Some(plan))
    }

    /// Returns the first key of a range that the giver still owns, if there is one.
    fn first_key_kept_by_giver(
        &mut self,
        planned: &RangeMove<T>,
    ) -> Result<Option<T>, ClientError> {
        let Some(giver) = self.servers.get_mut(usize::from(planned.giver)) else {
            return Ok(None);
        };
        let mut key = planned.first_key;
        for _ in 0..MAX_LEAVES_ASKED_FOR {
            let moved =
                send_request_and_wait(giver, self.tree, &Operation::Get { key }, |answer| {
                    match answer {
                        Answer::Value(_) => Ok(None),
                        Answer::Moved(moved) => Ok(Some(moved)),
                        _ => Err(ClientError::NoAnswerInTime),
                    }
                })??;
            let Some(moved) = moved else {
                return Ok(Some(key));
            };
            // The leaf ends above the key. A server that says otherwise is not asked again.
            match moved.end_key.filter(|end| *end > key) {
                Some(next) if planned.end_key.is_none_or(|end| next < end) => key = next,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

/// Largest number of leaves of a moved range that the giver is asked for. A chunk of the range is one leaf there.
const MAX_LEAVES_ASKED_FOR: u32 = 10_000;

/// Sends a request and waits for its answer.
///
/// # Errors
/// If the server cannot be reached.
pub(crate) fn send_request_and_wait<R, T: KeyOrValue>(
    server: &mut PipelinedClient<T>,
    tree: u8,
    op: &Operation<T>,
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
