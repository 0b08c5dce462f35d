//! The collective that a rank has called, as the tag of its sends and receives: ranks that disagree notice.

use std::fmt;

use super::element::{DataType, Reduction};
use crate::comm::Sender;
use crate::error::Error;

/// A collective, with what all ranks must have in common besides sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CollectiveCall {
    /// Elements and how they are reduced.
    AllReduce(DataType, Reduction),
    /// The same.
    ReduceScatter(DataType, Reduction),
    Broadcast,
    AllGather,
    AllToAll,
    Barrier,
    SendToNext,
}

/// Calls without a parameter, by the first byte of their tag. Both reductions come after these.
const PLAIN_CALLS: [CollectiveCall; 5] = [
    CollectiveCall::Broadcast,
    CollectiveCall::AllGather,
    CollectiveCall::AllToAll,
    CollectiveCall::Barrier,
    CollectiveCall::SendToNext,
];
const ALL_REDUCE: u8 = 5;
const REDUCE_SCATTER: u8 = 6;

impl CollectiveCall {
    /// Returns the tag: the collective, the element type and the reduction, a byte each.
    pub(crate) fn tag(self) -> u32 {
        let with = |collective, data, op| {
            let data = index_of(&DataType::ALL_WITH_NAMES, data);
            let op = index_of(&Reduction::ALL_WITH_NAMES, op);
            u32::from_le_bytes([collective, data, op, 0])
        };
        match self {
            Self::AllReduce(data, op) => with(ALL_REDUCE, data, op),
            Self::ReduceScatter(data, op) => with(REDUCE_SCATTER, data, op),
            plain => {
                let index = PLAIN_CALLS.iter().position(|call| *call == plain);
                index.and_then(|i| u32::try_from(i).ok()).unwrap_or(0)
            }
        }
    }

    /// Returns the call with this tag.
    fn from_tag(tag: u32) -> Option<Self> {
        let [collective, data, op, 0] = tag.to_le_bytes() else {
            return None;
        };
        let (_, data_type) = *DataType::ALL_WITH_NAMES.get(usize::from(data))?;
        let (_, reduction) = *Reduction::ALL_WITH_NAMES.get(usize::from(op))?;
        match collective {
            ALL_REDUCE => Some(Self::AllReduce(data_type, reduction)),
            REDUCE_SCATTER => Some(Self::ReduceScatter(data_type, reduction)),
            plain if (data, op) == (0, 0) => PLAIN_CALLS.get(usize::from(plain)).copied(),
            _ => None,
        }
    }

    /// Refuses a receive of the peer that is one of another call. Call it after a send that has to be tried again.
    ///
    /// # Errors
    /// [`Error::CallsDiffer`]: the send would wait for ever.
    pub(crate) fn check_next_receive(self, sender: &Sender) -> Result<(), Error> {
        match sender.next_receive_tag() {
            Some(tag) if tag != self.tag() => Err(Error::CallsDiffer {
                ours: self.to_string(),
                theirs: Self::from_tag(tag).map_or_else(
                    || "something that this version does not know".to_owned(),
                    |call| call.to_string(),
                ),
            }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for CollectiveCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reduction = |collective, data, op| {
            let data = name_of(&DataType::ALL_WITH_NAMES, data);
            let op = name_of(&Reduction::ALL_WITH_NAMES, op);
            write!(f, "{collective} of {data} by {op}")
        };
        match self {
            Self::AllReduce(data, op) => reduction("all-reduce", *data, *op),
            Self::ReduceScatter(data, op) => reduction("reduce-scatter", *data, *op),
            Self::Broadcast => f.write_str("broadcast"),
            Self::AllGather => f.write_str("all-gather"),
            Self::AllToAll => f.write_str("all-to-all"),
            Self::Barrier => f.write_str("barrier"),
            Self::SendToNext => f.write_str("send to the next rank"),
        }
    }
}

fn index_of<T: PartialEq>(all: &[(&str, T)], value: T) -> u8 {
    let index = all.iter().position(|(_, known)| *known == value);
    index.and_then(|i| u8::try_from(i).ok()).unwrap_or(u8::MAX)
}

fn name_of<T: PartialEq>(all: &[(&'static str, T)], value: T) -> &'static str {
    let found = all.iter().find(|(_, known)| *known == value);
    found.map_or("?", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_tag_of_its_own() {
        let mut calls = PLAIN_CALLS.to_vec();
        for (_, data) in DataType::ALL_WITH_NAMES {
            for (_, op) in Reduction::ALL_WITH_NAMES {
                calls.push(CollectiveCall::AllReduce(data, op));
                calls.push(CollectiveCall::ReduceScatter(data, op));
            }
        }
        let mut texts: Vec<String> = calls.iter().map(ToString::to_string).collect();
        for call in &calls {
            assert_eq!(CollectiveCall::from_tag(call.tag()), Some(*call));
        }
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), calls.len());
        for unknown in [7, 0x0000_0100, 0x0100_0000, u32::MAX] {
            assert_eq!(CollectiveCall::from_tag(unknown), None);
        }
    }
}
