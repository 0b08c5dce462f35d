//! A subset of the numbers of one chunk, in compact form.

/// Number of consecutive numbers that one chunk of a number set covers.
pub(super) const NUMBERS_PER_CHUNK: u64 = 1 << 16;
/// Number of words in a chunk's bitmap.
pub(super) const BITMAP_WORDS: usize = (NUMBERS_PER_CHUNK / 64) as usize;
/// Largest number of runs before a chunk becomes a bitmap. A client that gets every hundredth number has fewer.
const MAX_RUNS_BEFORE_BITMAP: usize = BITMAP_WORDS;
/// Number of last runs among which a new run may be inserted. An index further back turns the chunk into a bitmap.
const MAX_INSERT_DISTANCE_RUNS: usize = 32;

/// Numbers that were already in the set when they were added.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DuplicateNumbers {
    pub(super) count: u64,
    pub(super) first: Option<u64>,
}

/// A set of indices in a chunk.
#[derive(Debug, Clone)]
pub(super) struct NumberChunk {
    contents: ChunkContents,
    len: u64,
}

#[derive(Debug, Clone)]
enum ChunkContents {
    /// The first and last index of each run, in order.
    Runs(Vec<(u16, u16)>),
    /// One bit for each index.
    Bits(Box<[u64; BITMAP_WORDS]>),
}

impl NumberChunk {
    pub(super) fn new() -> Self {
        Self {
            contents: ChunkContents::Runs(Vec::new()),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Adds the indices from `at` to `last`. Returns those that were already in the chunk.
    #[inline]
    pub(super) fn add_range(&mut self, at: u16, last: u16) -> DuplicateNumbers {
        let count = u64::from(last - at) + 1;
        if let ChunkContents::Runs(runs) = &mut self.contents {
            let before = runs.last().map(|run| run.1);
            let follows = before.is_some_and(|before| before.checked_add(1) == Some(at));
            if let Some(run) = runs.last_mut().filter(|_| follows) {
                run.1 = last;
                self.len += count;
                return DuplicateNumbers::default();
            }
            if before.is_none_or(|before| before < at) && runs.len() < MAX_RUNS_BEFORE_BITMAP {
                runs.push((at, last));
                self.len += count;
                return DuplicateNumbers::default();
            }
            if insert_run_if_near_end(runs, at, last) {
                self.len += count;
                return DuplicateNumbers::default();
            }
        }
        let duplicates = set_bits(self.convert_to_bitmap(), at, last);
        self.len += count - duplicates.count;
        duplicates
    }

    /// Turns the chunk into a bitmap. Few chunks need this, because numbers arrive in order.
    fn convert_to_bitmap(&mut self) -> &mut [u64; BITMAP_WORDS] {
        if let ChunkContents::Runs(runs) = &self.contents {
            let mut bits = Box::new([0; BITMAP_WORDS]);
            for &(first, last) in runs {
                set_bits(&mut bits, first, last);
            }
            self.contents = ChunkContents::Bits(bits);
        }
        match &mut self.contents {
            ChunkContents::Bits(bits) => bits,
            ChunkContents::Runs(_) => unreachable!("made a bitmap above"),
        }
    }

    pub(super) fn contains(&self, index: u16) -> bool {
        match &self.contents {
            ChunkContents::Runs(runs) => {
                let next = runs.partition_point(|&(first, _)| first <= index);
                next > 0 && runs[next - 1].1 >= index
            }
            ChunkContents::Bits(bits) => bits[usize::from(index / 64)] >> (index % 64) & 1 == 1,
        }
    }

    /// Calls `each` with the first and last index of each run, in order. In a bitmap, a run also ends at a word
    /// boundary.
    pub(super) fn for_each_run(&self, mut each: impl FnMut(u64, u64)) {
        let bits = match &self.contents {
            ChunkContents::Runs(runs) => {
                for &(first, last) in runs {
                    each(first.into(), last.into());
                }
                return;
            }
            ChunkContents::Bits(bits) => bits,
        };
        for (i, &word) in bits.iter().enumerate() {
            let (mut word, mut at) = (word, i as u64 * 64);
            while word != 0 {
                let skip = word.trailing_zeros();
                word >>= skip;
                at += u64::from(skip);
                let n = word.trailing_ones();
                each(at, at + u64::from(n) - 1);
                word = word.checked_shr(n).unwrap_or(0);
                at += u64::from(n);
            }
        }
    }

    /// Returns the words of the bitmap.
    pub(super) fn bitmap_words(mut self) -> [u64; BITMAP_WORDS] {
        *self.convert_to_bitmap()
    }
}

/// Inserts a run near the end, and joins it with its neighbours. Returns false if the run belongs further back or
/// overlaps another.
fn insert_run_if_near_end(runs: &mut Vec<(u16, u16)>, at: u16, last: u16) -> bool {
    let near = runs.len().saturating_sub(MAX_INSERT_DISTANCE_RUNS);
    let next = match runs[near..].iter().rposition(|run| run.0 <= at) {
        Some(before) => near + before + 1,
        None if near == 0 => 0,
        None => return false,
    };
    let full = runs.len() >= MAX_RUNS_BEFORE_BITMAP;
    let (before, behind) = runs.split_at_mut(next);
    let (before, behind) = (before.last_mut(), behind.first_mut());
    if before.as_ref().is_some_and(|run| run.1 >= at)
        || behind.as_ref().is_some_and(|run| run.0 <= last)
    {
        return false;
    }
    // Neither sum overflows: `before` ends before `at`, and `behind` begins after `last`.
    match (
        before.filter(|run| run.1 + 1 == at),
        behind.filter(|run| run.0 == last + 1),
    ) {
        (Some(before), Some(behind)) => {
            before.1 = behind.1;
            runs.remove(next);
        }
        (Some(before), None) => before.1 = last,
        (None, Some(behind)) => behind.0 = at,
        (None, None) if full => return false,
        (None, None) => runs.insert(next, (at, last)),
    }
    true
}

/// Sets the bits from `at` to `last`. Returns those that were already set.
fn set_bits(bits: &mut [u64; BITMAP_WORDS], at: u16, last: u16) -> DuplicateNumbers {
    let mut duplicates = DuplicateNumbers::default();
    let (mut at, end) = (u64::from(at), u64::from(last) + 1);
    while at < end {
        let n = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - n)) << (at % 64);
        let word = &mut bits[(at / 64) as usize];
        let there = mask & *word;
        if there != 0 {
            let first = at / 64 * 64 + u64::from(there.trailing_zeros());
            duplicates.first.get_or_insert(first);
            duplicates.count += u64::from(there.count_ones());
        }
        *word |= mask;
        at += n;
    }
    duplicates
}
