//! How the processes of a group find each other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use verbs::{ProtectionDomain, poll_until};

use super::messages::RankMessenger;
use super::transfer::RankLink;
use super::{Group, MAX_RING_SLICE_BYTES};
use crate::comm::{Receiver, Sender};
use crate::config::Config;
use crate::error::Error;
use crate::rendezvous::{ListenHandle, Listener, PendingConnect};
use crate::ring::Ring;

/// Ranks of a group, at most: each has two connections with every other one.
const MAX_RANKS: usize = 64;

/// A rank that listens, and is not connected yet.
#[derive(Debug)]
pub struct PreparedGroup {
    pd: ProtectionDomain,
    config: Config,
    rank: usize,
    /// One for each connection that comes: see [`ListenerLayout`].
    listeners: Vec<Listener>,
}

/// Which listener is for which sender: first the collectives' connections by the sender's rank, with the ring's in the
/// place of the rank's own, then those of messages.
#[derive(Clone, Copy)]
struct ListenerLayout {
    rank_count: usize,
}

impl ListenerLayout {
    fn index_for_collectives(self, from: usize) -> usize {
        from
    }

    fn index_for_messages(self, from: usize, to: usize) -> usize {
        self.rank_count + from - usize::from(from > to)
    }

    fn count(self) -> usize {
        2 * self.rank_count - 1
    }
}

impl PreparedGroup {
    /// Listens at free ports of an address of this host.
    ///
    /// # Errors
    /// The rank is not one of 1 to 64 ranks, or the address cannot be listened at.
    pub fn new(
        pd: &ProtectionDomain,
        config: &Config,
        (rank, ranks): (usize, usize),
        host: IpAddr,
    ) -> Result<Self, Error> {
        if rank >= ranks || ranks > MAX_RANKS {
            return Err(Error::Protocol(format!(
                "rank {rank} of {ranks} is not possible: a group has 1 to {MAX_RANKS} ranks"
            )));
        }
        let listen = |_| Listener::new(pd, config, SocketAddr::new(host, 0));
        Ok(Self {
            pd: pd.clone(),
            config: *config,
            rank,
            listeners: (0..ListenerLayout { rank_count: ranks }.count())
                .map(listen)
                .collect::<Result<_, _>>()?,
        })
    }

    /// The address that all ranks need to [`connect`](Self::connect). Exchange it by any means.
    pub fn listener_handles_as_bytes(&self) -> Vec<u8> {
        let handles = self.listeners.iter();
        handles.flat_map(|l| l.handle().to_bytes()).collect()
    }

    /// Connects with all ranks, whose addresses are given in the order of ranks. `timeout` is for that, and for each
    /// collective afterwards.
    ///
    /// # Errors
    /// An address is not one of this protocol, a rank is gone or does not connect in time, or a verb failed.
    pub fn connect(
        self,
        addresses: &[Vec<u8>],
        timeout: Duration,
    ) -> Result<(Group, RankMessenger), Error> {
        self.connect_while(addresses, timeout, || true)
    }

    /// Does the same as [`connect`](Self::connect), but gives up once `goes_on` returns false. `goes_on` is called all
    /// the time while ranks are awaited, so it must be fast.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect), and [`Error::RendezvousGivenUp`].
    pub fn connect_while(
        mut self,
        addresses: &[Vec<u8>],
        timeout: Duration,
        goes_on: impl FnMut() -> bool,
    ) -> Result<(Group, RankMessenger), Error> {
        let (rank, ranks) = (self.rank, addresses.len());
        let slots = ListenerLayout { rank_count: ranks };
        if slots.count() != self.listeners.len() {
            return Err(Error::Protocol(format!(
                "{ranks} addresses for a group of {} ranks",
                self.listeners.len().div_ceil(2)
            )));
        }
        // In the order of this rank's listeners: the connection to a rank is in the place of that from it.
        let mut connecting = Vec::new();
        for to in 0..ranks {
            let (peer, slot) = if to == rank {
                let next = (rank + 1) % ranks;
                (next, slots.index_for_collectives(next))
            } else {
                (to, slots.index_for_collectives(rank))
            };
            connecting.push(self.start_connecting(&addresses[peer], slot, slots)?);
        }
        for to in (0..ranks).filter(|to| *to != rank) {
            connecting.push(self.start_connecting(
                &addresses[to],
                slots.index_for_messages(rank, to),
                slots,
            )?);
        }
        let (senders, receivers) = self.connect_both_ends(connecting, timeout, goes_on)?;
        let mut ends = senders.into_iter().zip(receivers);
        let mut links = Vec::new();
        let mut ring = None;
        for peer in 0..ranks {
            let Some((sender, receiver)) = ends.next() else {
                break;
            };
            if peer == rank {
                ring = Some((sender, receiver));
                links.push(None);
            } else {
                links.push(Some(RankLink::new(&self.pd, sender, receiver)?));
            }
        }
        let Some(ring) = ring else {
            return Err(Error::Protocol("this rank has no address".to_owned()));
        };
        let ring = Ring::new(&self.pd, (rank, ranks), ring, MAX_RING_SLICE_BYTES)?;
        let messages = ends.map(|(sender, receiver)| RankLink::new(&self.pd, sender, receiver));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let group = Group::new(&self.pd, ring.with_timeout(timeout), links, timeout)?;
        Ok((group, RankMessenger::new(rank, messages)))
    }

    fn start_connecting(
        &self,
        address: &[u8],
        slot: usize,
        slots: ListenerLayout,
    ) -> Result<PendingConnect, Error> {
        let (handles, rest) = address.as_chunks::<{ ListenHandle::BYTES }>();
        let whole = rest.is_empty() && handles.len() == slots.count();
        let handle = handles.get(slot).filter(|_| whole);
        let handle = handle.and_then(ListenHandle::from_bytes).ok_or_else(|| {
            Error::Protocol(format!(
                "{} bytes are not the address of a rank of {}",
                address.len(),
                slots.rank_count
            ))
        })?;
        PendingConnect::new(&self.pd, &self.config, &handle)
    }

    /// Both ends of each connection.
    fn connect_both_ends(
        &mut self,
        mut connecting: Vec<PendingConnect>,
        timeout: Duration,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<(Vec<Sender>, Vec<Receiver>), Error> {
        let mut senders: Vec<Option<Sender>> = connecting.iter().map(|_| None).collect();
        let mut receivers: Vec<Option<Receiver>> = connecting.iter().map(|_| None).collect();
        let met = poll_until(timeout, || {
            if !goes_on() {
                return Some(Err(Error::RendezvousGivenUp));
            }
            let mut step = || -> Result<bool, Error> {
                for (sender, connecting) in senders.iter_mut().zip(&mut connecting) {
                    if sender.is_none() {
                        *sender = connecting.poll()?;
                    }
                }
                for (receiver, listener) in receivers.iter_mut().zip(&mut self.listeners) {
                    if receiver.is_none() {
                        *receiver = listener.poll()?;
                    }
                }
                Ok(senders.iter().all(Option::is_some) && receivers.iter().all(Option::is_some))
            };
            match step() {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(e) => Some(Err(e)),
            }
        });
        met.unwrap_or(Err(Error::Timeout {
            what: "the rendezvous of a group",
            ms: timeout.as_millis(),
        }))?;
        let both = (senders, receivers);
        Ok((
            both.0.into_iter().flatten().collect(),
            both.1.into_iter().flatten().collect(),
        ))
    }
}
