//! Counts the memory regions that cover each page.

use std::collections::BTreeMap;
use std::ops::Range;

/// Counts overlapping ranges, and finds the parts that no range covers.
#[derive(Debug, Default)]
pub(super) struct RangeCoverage {
    /// Number of ranges that cover each address from a key up to the next key. Neighbouring counts
    /// differ, and the first count is not 0.
    range_counts: BTreeMap<usize, u32>,
}

impl RangeCoverage {
    pub(super) const fn new() -> Self {
        Self {
            range_counts: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, range: &Range<usize>) {
        self.change_counts(range, |count| count + 1);
    }

    /// Removes a range that was added.
    pub(super) fn remove(&mut self, range: &Range<usize>) {
        self.change_counts(range, |count| count.saturating_sub(1));
    }

    /// Returns true if an added range overlaps `range`.
    pub(super) fn touches(&self, range: &Range<usize>) -> bool {
        self.count_at(range.start) > 0
            || self
                .range_counts
                .range(range.clone())
                .any(|(_, &count)| count > 0)
    }

    /// Returns the parts of `range` that no added range covers, in order.
    pub(super) fn uncovered(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut free = Vec::new();
        let mut from = (self.count_at(range.start) == 0).then_some(range.start);
        for (&at, &count) in self.range_counts.range(range.clone()) {
            match (from, count) {
                (Some(start), 1..) => {
                    if start < at {
                        free.push(start..at);
                    }
                    from = None;
                }
                (None, 0) => from = Some(at),
                _ => {}
            }
        }
        if let Some(start) = from.filter(|&start| start < range.end) {
            free.push(start..range.end);
        }
        free
    }

    fn count_at(&self, at: usize) -> u32 {
        self.range_counts
            .range(..=at)
            .next_back()
            .map_or(0, |(_, &count)| count)
    }

    fn change_counts(&mut self, range: &Range<usize>, change: impl Fn(u32) -> u32) {
        if range.is_empty() {
            return;
        }
        for bound in [range.start, range.end] {
            let count = self.count_at(bound);
            self.range_counts.entry(bound).or_insert(count);
        }
        for (_, count) in self.range_counts.range_mut(range.clone()) {
            *count = change(*count);
        }
        for bound in [range.start, range.end] {
            let before = self
                .range_counts
                .range(..bound)
                .next_back()
                .map_or(0, |(_, &count)| count);
            if self.range_counts.get(&bound) == Some(&before) {
                self.range_counts.remove(&bound);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const END: usize = 40;

    fn range() -> impl Strategy<Value = Range<usize>> {
        (0..END, 1..=8usize).prop_map(|(start, len)| start..(start + len).min(END))
    }

    proptest! {
        /// Compares [`RangeCoverage`] with a separate counter for each address.
        #[test]
        fn it_counts(added in prop::collection::vec((range(), any::<bool>()), 0..30), asked in range()) {
            let mut coverage = RangeCoverage::new();
            let mut plain = [0u32; END];
            for (range, _) in &added {
                coverage.add(range);
                plain[range.clone()].iter_mut().for_each(|n| *n += 1);
            }
            for (range, _) in added.iter().filter(|(_, removed)| *removed) {
                coverage.remove(range);
                plain[range.clone()].iter_mut().for_each(|n| *n -= 1);
            }
            prop_assert_eq!(coverage.touches(&asked), plain[asked.clone()].iter().any(|&n| n > 0));
            let free: Vec<usize> = coverage.uncovered(&asked).into_iter().flatten().collect();
            let expected: Vec<usize> = asked.filter(|&at| plain[at] == 0).collect();
            prop_assert_eq!(free, expected);
            for (range, _) in added.iter().filter(|(_, removed)| !*removed) {
                coverage.remove(range);
            }
            prop_assert!(coverage.range_counts.is_empty());
        }
    }
}
