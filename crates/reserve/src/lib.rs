//! Memory for a library whose program has used up its own.
//!
//! Rust's collections end the process when an allocation fails. A program that has come to its limit (`RLIMIT_AS`, a
//! control group without overcommitment) expects `ENOMEM` of a verb, and that its queue pairs go on. So the drop-in
//! libraries have an allocator with a reserve of its own, of which it lives where the C library has nothing more:
//!
//! - what verbs allocate in small pieces on their way comes out of the reserve, so that no verb is broken off in the
//!   middle, and what destroys, polls or waits works as ever;
//! - verbs that make something [ask first](is_short), and say `ENOMEM` while memory is short;
//! - queues, whose size the program chooses, are made [such that they may fail](filled).
//!
//! The reserve is static memory that nobody touches before it is needed: it takes addresses and no pages. Nothing is
//! locked, so a child that is forked in the middle of an allocation can allocate.

#![deny(unsafe_code)]

pub mod thread;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What an allocation is rounded up to.
const BLOCK: usize = 256;
/// Blocks that a word of the map stands for.
const PER_WORD: usize = 64;
/// Bytes that a word stands for; what is longer takes whole words.
const WORD_BYTES: usize = BLOCK * PER_WORD;
/// Words of the map.
const WORDS: usize = 1024;
/// Bytes of the reserve.
pub const BYTES: usize = WORDS * WORD_BYTES;
/// Bytes of the longest allocation out of it.
const MOST: usize = BYTES / 2;
/// More than this in use, and verbs that make something are refused in any case.
const KEPT: usize = BYTES / 4;
/// There is memory again if so much of it can be had.
const PROBE: usize = 16 << 10;

#[repr(C, align(16384))]
struct Memory(UnsafeCell<[u8; BYTES]>);

// SAFETY: addresses only are taken of it here; who is given some of it has it alone (see `Map`).
#[allow(unsafe_code)]
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; BYTES]));
static MAP: Map<WORDS> = Map::new();

/// Which blocks are in use.
struct Map<const N: usize> {
    words: [AtomicU64; N],
    /// Bytes in use.
    used: AtomicUsize,
}

/// The bits of a run of blocks within one word.
fn bits(blocks: usize) -> u64 {
    if blocks >= PER_WORD {
        u64::MAX
    } else {
        (1 << blocks) - 1
    }
}

impl<const N: usize> Map<N> {
    const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; N],
            used: AtomicUsize::new(0),
        }
    }

    /// Takes room for `bytes`; where it begins, in bytes. It is aligned to a block, and to whole words' bytes where it is
    /// longer than a word's.
    fn take(&self, bytes: usize) -> Option<usize> {
        if bytes > N * WORD_BYTES {
            return None;
        }
        let blocks = bytes.div_ceil(BLOCK).max(1);
        let found = if blocks <= PER_WORD {
            (0..N).find_map(|word| Some(word * PER_WORD + self.take_within(word, blocks)?))
        } else {
            self.take_words(blocks.div_ceil(PER_WORD))
                .map(|word| word * PER_WORD)
        };
        let at = found? * BLOCK;
        self.used.fetch_add(taken(bytes), Ordering::Relaxed);
        Some(at)
    }

    /// Takes a run of blocks of one word; the first.
    fn take_within(&self, word: usize, blocks: usize) -> Option<usize> {
        let word = self.words.get(word)?;
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let run = |first: &usize| seen & bits(blocks) << first == 0;
            let first = (0..=PER_WORD - blocks).find(run)?;
            // Acquire: what was there was given back by whoever had it.
            match word.compare_exchange_weak(
                seen,
                seen | bits(blocks) << first,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(first),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes so many words in a row; the first.
    fn take_words(&self, count: usize) -> Option<usize> {
        (0..=N.checked_sub(count)?).find(|&first| {
            let words = &self.words[first..first + count];
            let free = |word: &AtomicU64| {
                word.compare_exchange(0, u64::MAX, Ordering::Acquire, Ordering::Relaxed)
            };
            let got = words.iter().take_while(|word| free(word).is_ok()).count();
            if got < count {
                for word in &words[..got] {
                    word.store(0, Ordering::Release);
                }
            }
            got == count
        })
    }

    /// Gives back what [`take`](Self::take) gave for as many bytes.
    fn give_back(&self, at: usize, bytes: usize) {
        let first = at / BLOCK;
        let mut blocks = taken(bytes) / BLOCK;
        let mut word = first / PER_WORD;
        let mut shift = first % PER_WORD;
        while blocks > 0 {
            let here = blocks.min(PER_WORD);
            if let Some(word) = self.words.get(word) {
                word.fetch_and(!(bits(here) << shift), Ordering::Release);
            }
            (blocks, word, shift) = (blocks - here, word + 1, 0);
        }
        self.used.fetch_sub(taken(bytes), Ordering::Relaxed);
    }
}

/// How much room `bytes` take.
const fn taken(bytes: usize) -> usize {
    if bytes > WORD_BYTES {
        bytes.next_multiple_of(WORD_BYTES)
    } else if bytes == 0 {
        BLOCK
    } else {
        bytes.next_multiple_of(BLOCK)
    }
}

/// The C library's allocator, and the reserve where that has no more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

impl Allocator {
    /// Memory of the reserve; NULL where there is none, or too much is asked for.
    #[cold]
    fn reserved(layout: Layout) -> *mut u8 {
        // Beyond a block's, alignment is that of a word's bytes.
        let bytes = if layout.align() > BLOCK {
            layout.size().max(WORD_BYTES)
        } else {
            layout.size()
        };
        if bytes > MOST || layout.align() > WORD_BYTES {
            return std::ptr::null_mut();
        }
        MAP.take(bytes).map_or(std::ptr::null_mut(), |at| {
            MEMORY.0.get().cast::<u8>().wrapping_add(at)
        })
    }

    /// Where in the reserve `memory` lies, if it does.
    #[inline]
    fn place(memory: *mut u8) -> Option<usize> {
        let at = memory.addr().wrapping_sub(MEMORY.0.get().addr());
        (at < BYTES).then_some(at)
    }

    #[cold]
    fn give_back(at: usize, layout: Layout) {
        let bytes = if layout.align() > BLOCK {
            layout.size().max(WORD_BYTES)
        } else {
            layout.size()
        };
        MAP.give_back(at, bytes);
    }
}

// SAFETY: what comes out of the reserve is as long and as aligned as asked for, and nobody else's until it is given back
// (see `Map`); its contents are initialised bytes. All else is the system's allocator. Nothing here unwinds.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: contract of this function.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() {
            return Self::reserved(layout);
        }
        memory
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: contract of this function.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            return memory;
        }
        let memory = Self::reserved(layout);
        if !memory.is_null() {
            // SAFETY: as many bytes, which were just taken.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match Self::place(memory) {
            Some(at) => Self::give_back(at, layout),
            // SAFETY: contract of this function, and the system's.
            None => unsafe { System.dealloc(memory, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Self::place(memory).is_none() {
            // SAFETY: contract of this function, and the system's.
            let moved = unsafe { System.realloc(memory, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the contract of this function has the new size fit a layout of that alignment; both pieces are as long
        // as is copied, and apart.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(memory, layout.size().min(size));
                self.dealloc(memory, layout);
            }
            moved
        }
    }
}

/// Whether memory is short: what makes something should say `ENOMEM` instead.
///
/// False where [`Allocator`] is not the program's or the library's. Costs a load while nothing of the reserve is in use.
#[must_use]
#[inline]
pub fn is_short() -> bool {
    let used = MAP.used.load(Ordering::Relaxed);
    used != 0 && (used > KEPT || !has_system_memory())
}

/// Whether the C library has memory now, whatever of the reserve is in use: to be asked where something allocates past
/// [`Allocator`], as the standard library does for a new thread.
#[must_use]
pub fn has_system_memory() -> bool {
    can_have(PROBE)
}

/// Whether the C library has so much memory.
#[cold]
#[allow(unsafe_code)]
fn can_have(bytes: usize) -> bool {
    let Ok(layout) = Layout::array::<u8>(bytes.max(1)) else {
        return false;
    };
    // SAFETY: not empty; given back at once.
    unsafe {
        // Compilers know malloc(3): they leave it out where what it gives is only given back, and take it for successful.
        let memory = black_box(System.alloc(layout));
        if !memory.is_null() {
            System.dealloc(memory, layout);
        }
        !memory.is_null()
    }
}

/// `len` values that are all `value`, as a queue has them; `None` where there is not so much memory. The reserve is not
/// used for it.
#[must_use]
pub fn filled<T: Clone>(value: T, len: usize) -> Option<Box<[T]>> {
    let bytes = len.checked_mul(size_of::<T>())?;
    if !can_have(bytes.checked_add(PROBE)?) {
        return None;
    }
    let mut all = Vec::new();
    // Another thread may have taken it meanwhile.
    all.try_reserve_exact(len).ok()?;
    all.resize(len, value);
    Some(all.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        let map = Map::<8>::new();
        let mut taken_up: Vec<(usize, usize)> = Vec::new();
        for bytes in [
            1,
            256,
            257,
            5000,
            WORD_BYTES,
            WORD_BYTES + 1,
            0,
            3 * WORD_BYTES,
            100,
        ] {
            let at = map.take(bytes).unwrap();
            assert!(at.is_multiple_of(if bytes > WORD_BYTES {
                WORD_BYTES
            } else {
                BLOCK
            }));
            for &(other, len) in &taken_up {
                assert!(at + bytes <= other || other + len <= at);
            }
            taken_up.push((at, bytes));
        }
        assert_eq!(map.take(8 * WORD_BYTES), None);
        for (at, bytes) in taken_up {
            map.give_back(at, bytes);
        }
        assert_eq!(map.used.load(Ordering::Relaxed), 0);
        assert!(map.words.iter().all(|w| w.load(Ordering::Relaxed) == 0));
        assert_eq!(map.take(8 * WORD_BYTES), Some(0));
        assert_eq!((map.take(1), map.take(usize::MAX)), (None, None));
    }

    #[test]
    fn threads_never_have_the_same_piece() {
        let map = Map::<4>::new();
        let owners: Vec<AtomicUsize> = (0..4 * PER_WORD).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|scope| {
            for me in 1..=4 {
                let (map, owners) = (&map, &owners);
                scope.spawn(move || {
                    for round in 0..5000 {
                        let bytes = [100, 3000, WORD_BYTES + 1][(round + me) % 3];
                        let Some(at) = map.take(bytes) else { continue };
                        let blocks = at / BLOCK..(at + taken(bytes)) / BLOCK;
                        for block in blocks.clone() {
                            assert_eq!(owners[block].swap(me, Ordering::Relaxed), 0);
                        }
                        for block in blocks {
                            assert_eq!(owners[block].swap(0, Ordering::Relaxed), me);
                        }
                        map.give_back(at, bytes);
                    }
                });
            }
        });
        assert_eq!(map.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    #[allow(unsafe_code)]
    fn what_the_reserve_gives_is_grown_and_given_back() {
        for (size, align) in [(10, 1), (300, 8), (300, 4096), (40_000, 16)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let memory = Allocator::reserved(layout);
            assert!(memory.addr().is_multiple_of(align));
            assert!(Allocator::place(memory).is_some());
            // SAFETY: `size` bytes of this layout, that this test alone has; given back once.
            unsafe {
                memory.write_bytes(7, size);
                let grown = Allocator.realloc(memory, layout, 2 * size);
                assert!(Allocator::place(grown).is_none(), "the system has memory");
                assert!((0..size).all(|at| grown.add(at).read() == 7));
                let layout = Layout::from_size_align(2 * size, align).unwrap();
                Allocator.dealloc(grown, layout);
            }
        }
        let layout = Layout::array::<u8>(MOST + 1).unwrap();
        assert!(Allocator::reserved(layout).is_null());
        assert_eq!(MAP.used.load(Ordering::Relaxed), 0);
        assert!(!is_short());
    }

    #[test]
    fn more_than_there_is_is_none() {
        assert_eq!(filled(7u8, 3).as_deref(), Some(&[7; 3][..]));
        assert_eq!(filled(7u8, 0).as_deref(), Some(&[][..]));
        assert!(filled(0u64, usize::MAX / 8).is_none());
        assert!(filled(0u64, usize::MAX).is_none());
    }

    /// In a release build, too.
    #[test]
    fn the_system_is_really_asked() {
        assert!(can_have(1));
        assert!(!can_have(usize::MAX / 4));
    }
}
