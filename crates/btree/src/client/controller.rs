//! Keeps several servers equally loaded: asks what they are doing, and has them move what the control law says.

use super::error::ClientError;
use super::pipeline::Pipeline;
use super::request::Answer;
use crate::balance::{Balancer, Law, Move, PartLoad};
use crate::wire::{Op, Step};

/// Connected to all servers, in the order of their numbers. Runs where one likes: beside a server, or at a client.
#[derive(Debug)]
pub struct Controller {
    parts: Vec<Pipeline>,
    tree: u8,
    balancer: Balancer,
}

impl Controller {
    /// For a tree whose ranges begin at these splits, but for the first. What the servers are thought to serve is as with
    /// [`Balancer::new`].
    pub fn new(
        parts: Vec<Pipeline>,
        tree: u8,
        (law, splits): (Law, Vec<u64>),
        capacities: &[f64],
    ) -> Self {
        Self {
            parts,
            tree,
            balancer: Balancer::new(law, splits, capacities),
        }
    }

    /// What it knows.
    pub fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    /// Looks once, and has a range moved if that helps: the move has begun then, and the next looks wait for it.
    ///
    /// # Errors
    /// When a server cannot be reached.
    pub fn step(&mut self) -> Result<Option<Move>, ClientError> {
        let tree = self.tree;
        let mut loads = Vec::new();
        for part in &mut self.parts {
            let load = ask(part, tree, &Op::Load, |answer| match answer {
                Answer::Entries { entries, .. } => PartLoad::of(entries),
                _ => None,
            })?;
            loads.push(load.ok_or(ClientError::Lost)?);
        }
        let Some(plan) = self.balancer.observe(&loads) else {
            return Ok(None);
        };
        let take = Op::Handover {
            step: Step::Take { giver: plan.giver },
            from: plan.from,
            end: plan.end,
        };
        if let Some(taker) = self.parts.get_mut(usize::from(plan.taker)) {
            ask(taker, tree, &take, |_| ())?;
        }
        Ok(Some(plan))
    }
}

/// Asks, and waits for the answer.
///
/// # Errors
/// When the server cannot be reached.
pub(crate) fn ask<R>(
    part: &mut Pipeline,
    tree: u8,
    op: &Op,
    answered: impl Fn(Answer<'_>) -> R,
) -> Result<R, ClientError> {
    part.refresh();
    while !part.submit(tree, op, 0)? {
        part.poll(|_| {})?;
    }
    let mut result = None;
    while result.is_none() {
        part.poll(|done| result = Some(answered(done.answer)))?;
    }
    result.ok_or(ClientError::Lost)
}
