//! A compact set of numbers, for the output of a sequencer: long runs, or a fraction of every run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod chunk;

use chunk::{BITMAP_WORDS, DuplicateNumbers, NUMBERS_PER_CHUNK as CHUNK, NumberChunk};

/// A set of `u64`. Full chunks of 65,536 numbers are stored as runs. Other chunks are stored as runs or as bitmaps,
/// whichever is smaller.
///
/// ```
/// let mut set = sequencer::NumberSet::new();
/// [7, 8, 7].map(|n| set.insert(n));
/// assert_eq!((set.len(), set.duplicate_count()), (2, 1));
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "SerializedSet", into = "SerializedSet")]
#[repr(C)]
pub struct NumberSet {
    /// The run `start..end`, within one chunk, that is being extended and is not in the maps yet.
    #[serde(rename = "start")]
    current_run_start: u64,
    #[serde(rename = "end")]
    current_run_end: u64,
    /// Number of earlier runs in `pending_runs`, which are not in the maps yet. Runs are merged into the maps together,
    /// because with hundreds of clients the maps are not in any cache.
    pending_count: usize,
    pending_runs: [(u64, u64); MAX_PENDING_RUNS + 1],
    #[serde(rename = "duplicates")]
    duplicate_count: u64,
    len: u64,
    /// The first chunk of each run of full chunks, mapped to the chunk after the run.
    #[serde(rename = "full")]
    full_chunk_runs: BTreeMap<u64, u64>,
    #[serde(rename = "partial")]
    partial_chunks: BTreeMap<u64, NumberChunk>,
}

/// Largest number of runs in `pending_runs`.
const MAX_PENDING_RUNS: usize = 15;

impl NumberSet {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a number. A number that follows the previous one costs only an addition.
    #[inline]
    pub fn insert(&mut self, n: u64) {
        if n == self.current_run_end && !n.is_multiple_of(CHUNK) {
            self.current_run_end += 1;
            return;
        }
        if self.current_run_start != self.current_run_end {
            if self.pending_count == MAX_PENDING_RUNS {
                self.merge_pending_runs();
            } else {
                self.pending_runs[self.pending_count] =
                    (self.current_run_start, self.current_run_end);
                self.pending_count += 1;
            }
        }
        if n == u64::MAX {
            self.merge_pending_runs();
            // `u64::MAX` has no successor that could end a run.
            self.duplicate_count += self.insert_run(n, 1).count;
        } else {
            (self.current_run_start, self.current_run_end) = (n, n + 1);
        }
    }

    /// Returns how many added numbers were already in the set.
    pub fn duplicate_count(&mut self) -> u64 {
        self.merge_pending_runs();
        self.duplicate_count
    }

    /// Moves all pending runs into the maps, in order: adjacent runs are joined, and all runs of a chunk are added
    /// together.
    fn merge_pending_runs(&mut self) {
        let mut count = std::mem::take(&mut self.pending_count);
        let mut runs = self.pending_runs;
        if self.current_run_start != self.current_run_end {
            runs[count] = (self.current_run_start, self.current_run_end);
            count += 1;
        }
        (self.current_run_start, self.current_run_end) = (0, 0);
        let runs = &mut runs[..count];
        runs.sort_unstable();
        let mut rest = join_runs(runs);
        while let Some(&(first, _)) = rest.first() {
            let chunk = first / CHUNK;
            let end = rest.iter().position(|run| run.0 / CHUNK != chunk);
            let (chunk_runs, rest_runs) = rest.split_at(end.unwrap_or(rest.len()));
            rest = rest_runs;
            let numbers: u64 = chunk_runs.iter().map(|(start, end)| end - start).sum();
            // Usually the runs extend the last chunk without filling it.
            if let Some(mut last) = self.partial_chunks.last_entry()
                && *last.key() == chunk
                && last.get().len() + numbers < CHUNK
            {
                let chunk_set = last.get_mut();
                let duplicates = chunk_runs
                    .iter()
                    .map(|&(start, end)| add_run_to_chunk(chunk_set, start, end - start).count);
                let duplicates: u64 = duplicates.sum();
                self.len += numbers - duplicates;
                self.duplicate_count += duplicates;
            } else {
                for &(start, end) in chunk_runs {
                    self.duplicate_count += self.insert_run(start, end - start).count;
                }
            }
        }
    }

    /// Adds `count` numbers from `start` on, all of one chunk. Returns those that were already in the set.
    fn insert_run(&mut self, start: u64, count: u64) -> DuplicateNumbers {
        let chunk = start / CHUNK;
        // Usually the run extends the last chunk, which has room: full chunks are not in `partial`.
        if let Some(mut last) = self.partial_chunks.last_entry()
            && *last.key() == chunk
        {
            let duplicates = add_run_to_chunk(last.get_mut(), start, count);
            self.len += count - duplicates.count;
            if last.get().len() == CHUNK {
                last.remove();
                self.add_full_chunks(chunk, chunk + 1);
            }
            return duplicates;
        }
        if self.is_chunk_full(chunk) {
            let first = Some(start);
            return DuplicateNumbers { count, first };
        }
        if count == CHUNK && !self.partial_chunks.contains_key(&chunk) {
            self.len += CHUNK;
            self.add_full_chunks(chunk, chunk + 1);
            return DuplicateNumbers::default();
        }
        let entry = self.partial_chunks.entry(chunk);
        let chunk_set = entry.or_insert_with(NumberChunk::new);
        let duplicates = add_run_to_chunk(chunk_set, start, count);
        self.len += count - duplicates.count;
        if chunk_set.len() == CHUNK {
            self.partial_chunks.remove(&chunk);
            self.add_full_chunks(chunk, chunk + 1);
        }
        duplicates
    }

    fn is_chunk_full(&self, chunk: u64) -> bool {
        self.full_chunk_runs
            .range(..=chunk)
            .next_back()
            .is_some_and(|(_, &end)| chunk < end)
    }

    /// Marks the chunks `start..end` as full, and joins them with neighbouring runs.
    fn add_full_chunks(&mut self, mut start: u64, mut end: u64) {
        if let Some((&s, _)) = self
            .full_chunk_runs
            .range(..start)
            .next_back()
            .filter(|&(_, &e)| e == start)
        {
            start = s;
        }
        if let Some(e) = self.full_chunk_runs.remove(&end) {
            end = e;
        }
        self.full_chunk_runs.insert(start, end);
    }

    /// Returns true if the set contains a number.
    pub fn contains(&self, n: u64) -> bool {
        let chunk = self.partial_chunks.get(&(n / CHUNK));
        let pending_runs = &self.pending_runs[..self.pending_count];
        (self.current_run_start..self.current_run_end).contains(&n)
            || pending_runs
                .iter()
                .any(|&(start, end)| (start..end).contains(&n))
            || self.is_chunk_full(n / CHUNK)
            || chunk.is_some_and(|chunk| chunk.contains(index_in_chunk(n)))
    }

    /// Returns how many numbers the set contains.
    pub fn len(&self) -> u64 {
        self.with_pending_runs_merged().len
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && !self.has_pending_runs()
    }

    /// Returns the smallest and the largest number.
    pub fn min_and_max(&self) -> Option<(u64, u64)> {
        let runs = self.runs();
        Some((runs.first()?.0, runs.last()?.1))
    }

    /// Returns the numbers as runs `first..=last`, in order.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let set = self.with_pending_runs_merged();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut add = |first: u64, last: u64| match runs.last_mut() {
            Some(r) if r.1.checked_add(1) == Some(first) => r.1 = last,
            _ => runs.push((first, last)),
        };
        let mut full = set.full_chunk_runs.iter().peekable();
        let mut partial = set.partial_chunks.iter().peekable();
        loop {
            match (full.peek(), partial.peek()) {
                (Some(&(&f, &end)), p) if p.is_none_or(|&(&c, _)| f < c) => {
                    add(f * CHUNK, (end - 1) * CHUNK + (CHUNK - 1));
                    full.next();
                }
                (_, Some(&(&chunk, chunk_set))) => {
                    let base = chunk * CHUNK;
                    chunk_set.for_each_run(|first, last| add(base + first, base + last));
                    partial.next();
                }
                _ => return runs,
            }
        }
    }

    /// Adds all numbers of `other`. Returns how many were in both, and one of them.
    pub fn merge_and_count_duplicates(&mut self, other: &Self) -> (u64, Option<u64>) {
        self.merge_pending_runs();
        let mut all = DuplicateNumbers::default();
        for (first, last) in other.runs() {
            let mut at = first;
            loop {
                let stop = (at / CHUNK * CHUNK).saturating_add(CHUNK - 1).min(last);
                let duplicates = self.insert_run(at, stop - at + 1);
                all.count += duplicates.count;
                all.first = all.first.or(duplicates.first);
                if stop == last {
                    break;
                }
                at = stop + 1;
            }
        }
        (all.count, all.first)
    }

    /// Returns true if some runs are not in the maps yet.
    fn has_pending_runs(&self) -> bool {
        self.current_run_start != self.current_run_end || self.pending_count > 0
    }

    /// Returns the set with all runs in the maps.
    fn with_pending_runs_merged(&self) -> Cow<'_, Self> {
        let mut set = Cow::Borrowed(self);
        if self.has_pending_runs() {
            set.to_mut().merge_pending_runs();
        }
        set
    }
}

/// Joins adjacent runs of the same chunk; the runs must be sorted.
fn join_runs(runs: &mut [(u64, u64)]) -> &[(u64, u64)] {
    let mut joined = 0;
    for next in 1..runs.len() {
        let (start, end) = runs[next];
        if runs[joined].1 == start && !start.is_multiple_of(CHUNK) {
            runs[joined].1 = end;
        } else {
            joined += 1;
            runs[joined] = (start, end);
        }
    }
    &runs[..runs.len().min(joined + 1)]
}

/// Adds `count` numbers from `start` on to their chunk. Returns those that were already in the chunk.
#[inline]
fn add_run_to_chunk(chunk: &mut NumberChunk, start: u64, count: u64) -> DuplicateNumbers {
    let duplicates = chunk.add_range(index_in_chunk(start), index_in_chunk(start + (count - 1)));
    let first = duplicates.first.map(|index| start / CHUNK * CHUNK + index);
    DuplicateNumbers {
        first,
        ..duplicates
    }
}

/// Returns the index of a number in its chunk.
#[expect(
    clippy::cast_possible_truncation,
    reason = "below the numbers of a chunk"
)]
fn index_in_chunk(n: u64) -> u16 {
    (n % CHUNK) as u16
}

impl FromIterator<u64> for NumberSet {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut set = Self::new();
        for n in numbers {
            set.insert(n);
        }
        set.merge_pending_runs();
        set
    }
}

impl PartialEq for NumberSet {
    fn eq(&self, other: &Self) -> bool {
        self.runs() == other.runs()
    }
}

/// The JSON form of a set: runs of full chunks; every other chunk as runs or as a bitmap in hexadecimal words,
/// whichever is shorter.
#[derive(Serialize, Deserialize)]
struct SerializedSet {
    #[serde(rename = "chunk_numbers")]
    numbers_per_chunk: u64,
    #[serde(rename = "full")]
    full_chunk_runs: Vec<(u64, u64)>,
    runs: Vec<(u64, u64)>,
    bitmaps: Vec<(u64, String)>,
}

impl From<NumberSet> for SerializedSet {
    fn from(mut set: NumberSet) -> Self {
        use std::fmt::Write;
        set.merge_pending_runs();
        let mut packed = Self {
            numbers_per_chunk: CHUNK,
            full_chunk_runs: set.full_chunk_runs.clone().into_iter().collect(),
            runs: vec![],
            bitmaps: vec![],
        };
        for (chunk, chunk_set) in std::mem::take(&mut set.partial_chunks) {
            let only = NumberSet {
                partial_chunks: BTreeMap::from([(chunk, chunk_set.clone())]),
                ..NumberSet::default()
            };
            let runs = only.runs();
            // A run takes about 20 characters, and a bitmap 16 for each of its words.
            if runs.len() < BITMAP_WORDS / 2 {
                packed.runs.extend(runs);
            } else {
                let mut text = String::with_capacity(BITMAP_WORDS * 16);
                for word in chunk_set.bitmap_words() {
                    // Writing to a String cannot fail.
                    let _ = write!(text, "{word:016x}");
                }
                packed.bitmaps.push((chunk, text));
            }
        }
        packed
    }
}

impl TryFrom<SerializedSet> for NumberSet {
    type Error = String;
    fn try_from(packed: SerializedSet) -> Result<Self, String> {
        if packed.numbers_per_chunk != CHUNK {
            return Err(format!(
                "chunks of {} numbers, {CHUNK} expected",
                packed.numbers_per_chunk
            ));
        }
        let mut set = Self::new();
        let last_chunk = u64::MAX / CHUNK;
        for (start, end) in packed.full_chunk_runs {
            if start >= end || end - 1 > last_chunk {
                return Err(format!("a run of chunks from {start} to {end}"));
            }
            set.add_full_chunks(start, end);
            set.len += (end - start).saturating_mul(CHUNK);
        }
        let overlap = |n: u64| {
            if n == 0 {
                Ok(())
            } else {
                Err("parts of the set overlap".to_owned())
            }
        };
        for (first, last) in packed.runs {
            if first > last || first / CHUNK != last / CHUNK && last - first > 1 << 32 {
                return Err(format!("a run from {first} to {last}"));
            }
            let mut at = first;
            loop {
                let stop = (at / CHUNK * CHUNK).saturating_add(CHUNK - 1).min(last);
                overlap(set.insert_run(at, stop - at + 1).count)?;
                if stop == last {
                    break;
                }
                at = stop + 1;
            }
        }
        for (chunk, text) in packed.bitmaps {
            if text.len() != BITMAP_WORDS * 16 || !text.is_ascii() || chunk > last_chunk {
                return Err(format!("the bitmap of chunk {chunk} is broken"));
            }
            for i in 0..BITMAP_WORDS {
                let word = u64::from_str_radix(&text[i * 16..(i + 1) * 16], 16)
                    .map_err(|e| e.to_string())?;
                for bit in (0..64).filter(|b| word >> b & 1 == 1) {
                    overlap(set.insert_run(chunk * CHUNK + i as u64 * 64 + bit, 1).count)?;
                }
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn runs_of(model: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &n in model {
            match runs.last_mut() {
                Some(r) if r.1 + 1 == n => r.1 = n,
                _ => runs.push((n, n)),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn agrees_with_a_tree_set(base in prop_oneof![Just(0u64), Just(CHUNK - 20), Just((1 << 32) - 30), Just(u64::MAX - 400)],
                                  steps in prop::collection::vec((0u64..120, 1u64..40), 1..60)) {
            let (mut set, mut model) = (NumberSet::new(), BTreeSet::new());
            let mut duplicates = 0u64;
            for (offset, run) in steps {
                for n in base + offset..base + offset + run {
                    duplicates += u64::from(!model.insert(n));
                    set.insert(n);
                }
            }
            prop_assert_eq!(set.len(), model.len() as u64);
            for n in base..base + 160 {
                prop_assert_eq!(set.contains(n), model.contains(&n));
            }
            prop_assert_eq!(set.duplicate_count(), duplicates);
            prop_assert_eq!(set.runs(), runs_of(&model));
            let text = serde_json::to_string(&set).expect("serializes");
            let back: NumberSet = serde_json::from_str(&text).expect("parses");
            prop_assert_eq!(back.runs(), set.runs());
            prop_assert_eq!(back.len(), set.len());
        }
    }

    #[test]
    fn a_long_run_stays_small() {
        let set: NumberSet = (5..5 + 40 * CHUNK).collect();
        assert_eq!(
            (
                set.full_chunk_runs.len(),
                set.partial_chunks.len(),
                set.len()
            ),
            (1, 2, 40 * CHUNK)
        );
        assert_eq!(set.runs(), [(5, 4 + 40 * CHUNK)]);
        assert!(serde_json::to_string(&set).expect("serializes").len() < 300);
    }

    #[test]
    fn merging_counts_what_both_have() {
        let mut a: NumberSet = (0..200_000).collect();
        let b: NumberSet = (199_990..300_000).collect();
        assert_eq!(a.merge_and_count_duplicates(&b), (10, Some(199_990)));
        assert_eq!(a.runs(), [(0, 299_999)]);
        let every_other: NumberSet = (300_000..500_000).step_by(2).collect();
        assert_eq!(a.merge_and_count_duplicates(&every_other), (0, None));
        let text = serde_json::to_string(&a).expect("serializes");
        assert_eq!(serde_json::from_str::<NumberSet>(&text).expect("parses"), a);
    }

    #[test]
    fn broken_text_is_refused() {
        for text in [
            r#"{"chunk_numbers":1,"full":[],"runs":[],"bitmaps":[]}"#,
            r#"{"chunk_numbers":65536,"full":[[3,3]],"runs":[],"bitmaps":[]}"#,
            r#"{"chunk_numbers":65536,"full":[],"runs":[[5,4]],"bitmaps":[]}"#,
            r#"{"chunk_numbers":65536,"full":[],"runs":[[5,9],[9,12]],"bitmaps":[]}"#,
            r#"{"chunk_numbers":65536,"full":[],"runs":[],"bitmaps":[[0,"ff"]]}"#,
        ] {
            assert!(serde_json::from_str::<NumberSet>(text).is_err(), "{text}");
        }
    }
}
