//! Zeroed pages from the system for large, long-lived data: weights and the cache's blocks.
//!
//! Uses huge pages where the system has them: weights and blocks are read once per token, and with 4 KiB pages
//! page walks cost a fifth of the bandwidth.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
use other::{Mapping, page_bytes, release_pages};
#[cfg(unix)]
use unix::{Mapping, page_bytes, release_pages};

/// Bytes of a mapping that several memories share. A matrix of a small model is smaller than a huge page, so a
/// mapping of its own could never get one.
const CHUNK: usize = 64 << 20;
/// Alignment of every memory: a cache line, and a page, so that no page is written by others while it is read.
const ALIGNMENT: usize = 4096;

/// Zeroed memory, a mapping or a part of one. Pages that are never written take no physical memory.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the bytes mapped; `None` if there are no bytes.
    mapping: Option<Arc<Mapping>>,
}

/// The part of a mapping that will be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// All of it: the system refuses a mapping that it cannot hold.
    Whole,
    /// Possibly little of it, and only that part counts.
    Sparse,
}

/// The mapping that the next small memory is taken from, and the number of its bytes in use.
static CURRENT: Mutex<(Weak<Mapping>, usize)> = Mutex::new((Weak::new(), 0));

// SAFETY: a memory is plain bytes that this value alone refers to.
unsafe impl Send for Memory {}
// SAFETY: as above; it is written through `&mut` or through raw pointers under contracts of their own.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns `len` zero bytes that will all be written.
    pub(crate) fn new(len: usize) -> io::Result<Memory> {
        if len == 0 {
            return Ok(Memory { start: NonNull::dangling(), len, mapping: None });
        }
        if len > CHUNK / 4 {
            return Ok(Memory::whole(Mapping::new(len, Use::Whole)?));
        }
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let (chunk, used) = &mut *current;
        let open = chunk.upgrade().filter(|_| CHUNK - *used >= len);
        let mapping = match open {
            Some(mapping) => mapping,
            None => {
                let mapping = Arc::new(Mapping::new(CHUNK, Use::Sparse)?);
                (*chunk, *used) = (Arc::downgrade(&mapping), 0);
                mapping
            }
        };
        // SAFETY: `used + len` is at most `CHUNK`, so the address is inside the mapping.
        let start = unsafe { mapping.start().add(*used) };
        *used += len.next_multiple_of(ALIGNMENT);
        Ok(Memory { start, len, mapping: Some(mapping) })
    }

    /// Returns `len` zero bytes of which few may be written: only those count against the system's memory.
    pub(crate) fn sparse(len: usize) -> io::Result<Memory> {
        match len {
            0 => Memory::new(0),
            _ => Ok(Memory::whole(Mapping::new(len, Use::Sparse)?)),
        }
    }

    fn whole(mapping: Mapping) -> Memory {
        Memory { start: mapping.start(), len: mapping.len(), mapping: Some(Arc::new(mapping)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` initialised (zeroed) bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    /// Zeroes a range and returns its whole pages to the system until they are written again, if the system
    /// accepts them. Other data on the pages at both ends stays as it is.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub(crate) fn clear(&mut self, range: Range<usize>) {
        self.clear_with(range, release_pages);
    }

    /// [Clears](Memory::clear) a range; `release` returns whole pages to the system, if it can.
    fn clear_with(&mut self, range: Range<usize>, release: fn(&mut [u8]) -> bool) {
        let [before, pages, after] = around_pages(&mut self.bytes_mut()[range]);
        before.fill(0);
        after.fill(0);
        if !release(pages) {
            pages.fill(0);
        }
    }
}

impl Drop for Memory {
    /// Returns the pages of a part of a shared mapping to the system: the part is not reused.
    fn drop(&mut self) {
        let is_shared = self.mapping.as_ref().is_some_and(|mapping| Arc::strong_count(mapping) > 1);
        if is_shared {
            // Include the last, partial page, which is not shared: the system would make a huge page of 2 MiB
            // around it.
            let taken = self.len.next_multiple_of(ALIGNMENT);
            // SAFETY: this many bytes of the mapping were reserved for this memory, which is borrowed exclusively.
            let taken = unsafe { std::slice::from_raw_parts_mut(self.start(), taken) };
            let [_, pages, _] = around_pages(taken);
            release_pages(pages);
        }
    }
}

/// Splits bytes into those before the first whole page, the whole pages, and those after the last. The system
/// would take a part of a page for all of it.
fn around_pages(bytes: &mut [u8]) -> [&mut [u8]; 3] {
    let page = page_bytes();
    let start = bytes.as_ptr() as usize;
    let first = (start.next_multiple_of(page) - start).min(bytes.len());
    let (before, rest) = bytes.split_at_mut(first);
    let (pages, after) = rest.split_at_mut(rest.len() / page * page);
    [before, pages, after]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the pages of cleared ranges are returned: here, and on the Unix systems that are not Linux.
    #[cfg(unix)]
    const RELEASES: [fn(&mut [u8]) -> bool; 2] = [release_pages, unix::replace_pages];
    #[cfg(not(unix))]
    const RELEASES: [fn(&mut [u8]) -> bool; 1] = [release_pages];

    /// Blocks and states need not end at page boundaries; their neighbours keep their contents.
    #[test]
    fn what_shares_a_page_with_a_cleared_range_stays() {
        let page = page_bytes();
        let len = 5 * page + 100;
        for range in [0..page, 1..page, 0..page + 1, 10..20, page / 2..3 * page + 7, 2 * page..len, 0..len] {
            for release in RELEASES {
                let mut memory = Memory::sparse(len).unwrap();
                memory.bytes_mut().fill(7);
                memory.clear_with(range.clone(), release);
                for (index, &byte) in memory.bytes().iter().enumerate() {
                    assert_eq!(byte, if range.contains(&index) { 0 } else { 7 }, "byte {index} of {range:?}");
                }
            }
        }
    }

    /// Under pressure all free blocks of a budget are cleared, most of which were never written.
    #[cfg(target_os = "linux")]
    #[test]
    fn cleared_pages_take_no_memory_whether_they_were_written_or_not() {
        // The system may make a huge page of the bytes at both ends and of those of a neighbour.
        const HUGE: usize = 2 << 20;
        let resident = |memory: &Memory| resident_pages(&memory.bytes()[HUGE..3 * HUGE]);
        for release in RELEASES {
            let mut memory = Memory::sparse(4 * HUGE).unwrap();
            memory.clear_with(0..4 * HUGE, release);
            assert_eq!(resident(&memory), 0);
            memory.bytes_mut().fill(7);
            assert_eq!(resident(&memory), 2 * HUGE / page_bytes());
            memory.clear_with(0..4 * HUGE, release);
            assert_eq!(resident(&memory), 0);
        }
    }

    #[cfg(target_os = "linux")]
    fn resident_pages(bytes: &[u8]) -> usize {
        let mut found = vec![0_u8; bytes.len() / page_bytes()];
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the bytes are whole mapped pages, and `found` has a byte for each.
        let status = unsafe { libc::mincore(start, bytes.len(), found.as_mut_ptr()) };
        assert_eq!(status, 0);
        found.iter().filter(|&&page| page & 1 == 1).count()
    }
}
