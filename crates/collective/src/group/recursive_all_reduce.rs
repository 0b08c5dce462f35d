//! All-reduces in which ranks exchange bytes with one partner at a time, at distances that double or halve.

use std::ops::Range;

use super::Group;
use crate::error::Error;
use crate::ring::{CollectiveCall, DataType, Reduction, reduce_bytes};

impl Group {
    /// All-reduce by recursive doubling. Ranks beyond the largest power of two leave their elements to a partner, and
    /// get the result from it. Partners reduce the same two operands, so all ranks have the same bytes.
    pub(super) fn all_reduce_by_recursive_doubling(
        &mut self,
        call: CollectiveCall,
        bytes: &mut [u8],
        (data, op): (DataType, Reduction),
    ) -> Result<(), Error> {
        let (rank, ranks) = (self.rank(), self.rank_count());
        let below = 1 << ranks.ilog2();
        if rank >= below {
            self.exchange(call, Some((rank - below, bytes)), None)?;
            return self.exchange(call, None, Some((rank - below, bytes)));
        }
        let mut theirs = vec![0; bytes.len()];
        let extra = Some(rank + below).filter(|extra| *extra < ranks);
        if let Some(extra) = extra {
            self.exchange(call, None, Some((extra, &mut theirs)))?;
            reduce_bytes(bytes, &theirs, data, op);
        }
        let mut distance = 1;
        while distance < below {
            let partner = rank ^ distance;
            self.exchange(call, Some((partner, bytes)), Some((partner, &mut theirs)))?;
            reduce_bytes(bytes, &theirs, data, op);
            distance *= 2;
        }
        match extra {
            Some(extra) => self.exchange(call, Some((extra, bytes)), None),
            None => Ok(()),
        }
    }

    /// All-reduce of a power of two of ranks by recursive halving (Rabenseifner, "Optimization of Collective Reduction
    /// Operations", ICCS 2004). Partners share the bytes that both still reduce: each sends the half that it leaves to
    /// the other. In the end each rank has reduced its own block, and the same exchanges backwards spread the blocks.
    pub(super) fn all_reduce_by_recursive_halving(
        &mut self,
        call: CollectiveCall,
        bytes: &mut [u8],
        (data, op): (DataType, Reduction),
    ) -> Result<(), Error> {
        let rank = self.rank();
        let mut own = 0..bytes.len();
        let mut exchanges = Vec::new();
        let mut theirs = vec![0; bytes.len() / 2 + data.element_bytes()];
        let mut distance = self.rank_count() / 2;
        while distance > 0 {
            let (kept, given) = halves(own, rank & distance != 0, data.element_bytes());
            let partner = rank ^ distance;
            let into = &mut theirs[..kept.len()];
            self.exchange(
                call,
                Some((partner, &bytes[given.clone()])),
                Some((partner, &mut *into)),
            )?;
            reduce_bytes(&mut bytes[kept.clone()], into, data, op);
            exchanges.push((partner, kept.clone(), given));
            own = kept;
            distance /= 2;
        }
        for (partner, kept, given) in exchanges.into_iter().rev() {
            let (lower, upper) = bytes.split_at_mut(kept.start.max(given.start));
            let (reduced, missing) = if kept.start < given.start {
                (&lower[kept], &mut upper[..given.len()])
            } else {
                (&upper[..kept.len()], &mut lower[given])
            };
            self.exchange(call, Some((partner, reduced)), Some((partner, missing)))?;
        }
        Ok(())
    }
}

/// Returns the half of `range` that a rank keeps, the upper one if `keeps_upper`, and the half that it gives to its
/// partner. Both halves are whole elements.
fn halves(
    range: Range<usize>,
    keeps_upper: bool,
    element_bytes: usize,
) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len() / element_bytes / 2 * element_bytes;
    let (lower, upper) = (range.start..middle, middle..range.end);
    if keeps_upper {
        (upper, lower)
    } else {
        (lower, upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_whole_elements_and_all_of_the_range() {
        assert_eq!(halves(8..48, false, 8), (8..24, 24..48));
        assert_eq!(halves(8..48, true, 8), (24..48, 8..24));
        assert_eq!(halves(0..8, false, 8), (0..0, 0..8));
    }
}
