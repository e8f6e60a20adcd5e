//! The last changes of a store, for processes that read it while this one writes: a ring of numbers behind the
//! superblock, in the same page.
//!
//! ```text
//!   number of the change << 24 | erased << 23 | slot      entry `number % ENTRIES`, 8 bytes
//! ```
//!
//! An entry is a hint where to look: what a reader believes of a slot is what its header says. A reader that has missed
//! more changes than the ring holds looks at all headers.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use kvik_cache::tier::SlotId;

use super::SLOTS_MAX;
use super::format::{LOG_OFFSET, SUPERBLOCK_BYTES};
use super::system::{read_exact_at, write_all_at};

/// Bytes of the ring, and of an entry.
const LOG_BYTES: usize = SUPERBLOCK_BYTES - LOG_OFFSET;
const ENTRY_BYTES: usize = size_of::<u64>();
/// Changes that the ring holds.
const ENTRIES: u64 = (LOG_BYTES / ENTRY_BYTES) as u64;
/// A writer that finds a larger number begins again; 17,000 years at a change a second.
const NUMBER_MAX: u64 = 1 << 39;
/// Lowest bit of the number.
const NUMBER_SHIFT: u32 = 24;
/// The bit of a block that was erased.
const ERASED: u64 = 1 << 23;

const _: () = assert!(SLOTS_MAX as u64 <= ERASED);

/// A slot that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) slot: SlotId,
    /// Whether its block was erased; otherwise it was written, replaced or pinned.
    pub(super) is_erased: bool,
}

/// The changes since a reader last looked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// These slots, in order.
    Slots(Vec<Noted>),
    /// More than the ring holds: any slot.
    Any,
}

/// The writer's end of the ring.
#[derive(Debug)]
pub(super) struct ChangeLog {
    next: AtomicU64,
}

impl ChangeLog {
    /// Continues the ring of a file of headers.
    pub(super) fn of(headers: &File) -> ChangeLog {
        ChangeLog { next: AtomicU64::new(last_number(headers) + 1) }
    }

    /// Makes every reader look at all slots: what an earlier writer was doing when it ended need not be in the ring.
    pub(super) fn skip(&self, headers: &File) {
        if self.next.fetch_add(ENTRIES, Ordering::Relaxed) > NUMBER_MAX {
            // Noise in a damaged file: no store has had so many changes.
            let _ = write_all_at(headers, &[0; LOG_BYTES], LOG_OFFSET as u64);
            self.next.store(ENTRIES, Ordering::Relaxed);
        }
        self.note(headers, Noted { slot: SlotId(0), is_erased: false });
    }

    /// Adds a change. If that fails, readers find out when they read the slot.
    pub(super) fn note(&self, headers: &File, noted: Noted) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let erased = if noted.is_erased { ERASED } else { 0 };
        let entry = (number << NUMBER_SHIFT) | erased | u64::from(noted.slot.0);
        let offset = LOG_OFFSET as u64 + number % ENTRIES * ENTRY_BYTES as u64;
        let _ = write_all_at(headers, &entry.to_ne_bytes(), offset);
    }
}

/// The number of the last change; 0 if there is none or it cannot be read.
pub(super) fn last_number(headers: &File) -> u64 {
    entries(headers).into_iter().map(|entry| entry >> NUMBER_SHIFT).max().unwrap_or(0)
}

/// The changes after number `seen`, which becomes that of the last one.
pub(super) fn news(headers: &File, seen: &mut u64) -> News {
    let number = |entry: &u64| entry >> NUMBER_SHIFT;
    let mut news = entries(headers);
    news.sort_unstable();
    let last = news.last().map_or(*seen, number);
    // A smaller number than before is that of a ring that began again.
    let before = std::mem::replace(seen, last);
    news.retain(|entry| number(entry) > before);
    match last.checked_sub(before) == Some(news.len() as u64) {
        true => News::Slots(news.into_iter().map(noted).collect()),
        false => News::Any,
    }
}

fn noted(entry: u64) -> Noted {
    Noted { slot: SlotId((entry & (ERASED - 1)) as u32), is_erased: entry & ERASED != 0 }
}

/// The entries of the ring that are at the place of their number; none if they cannot be read.
fn entries(headers: &File) -> Vec<u64> {
    let mut bytes = [0; LOG_BYTES];
    if read_exact_at(headers, &mut bytes, LOG_OFFSET as u64).is_err() {
        return Vec::new();
    }
    let entries = bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(|&entry| u64::from_ne_bytes(entry));
    // Noise in a damaged file is hardly ever at its place.
    entries
        .zip(0..)
        .filter(|(entry, place)| (entry >> NUMBER_SHIFT) % ENTRIES == *place)
        .map(|(entry, _)| entry)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SUPERBLOCK_BYTES as u64).unwrap();
        file
    }

    fn change(slot: u32) -> Noted {
        Noted { slot: SlotId(slot), is_erased: slot.is_multiple_of(3) }
    }

    #[test]
    fn a_reader_sees_each_change_once_and_in_order() {
        let headers = page();
        let (log, mut seen) = (ChangeLog::of(&headers), 0);
        let mut next = 0;
        for count in [0, 1, 5, ENTRIES as u32, 2, ENTRIES as u32 - 1] {
            let changes: Vec<Noted> = (next..next + count).map(change).collect();
            changes.iter().for_each(|&noted| log.note(&headers, noted));
            assert_eq!(news(&headers, &mut seen), News::Slots(changes), "{count} at {next}");
            next += count;
        }
        assert_eq!(noted(u64::MAX).slot, SlotId(ERASED as u32 - 1), "an entry that is noise names a slot");
    }

    #[test]
    fn a_reader_that_missed_some_looks_at_all_slots_once() {
        let headers = page();
        let (log, mut seen) = (ChangeLog::of(&headers), 0);
        (0..=ENTRIES as u32).for_each(|slot| log.note(&headers, change(slot)));
        assert_eq!(news(&headers, &mut seen), News::Any);
        assert_eq!(news(&headers, &mut seen), News::Slots(Vec::new()));
        // The next writer goes on behind the last one.
        let log = ChangeLog::of(&headers);
        log.note(&headers, change(7));
        assert_eq!(news(&headers, &mut seen), News::Slots(vec![change(7)]));
        log.skip(&headers);
        assert_eq!(news(&headers, &mut seen), News::Any);
        log.note(&headers, change(8));
        assert_eq!(news(&headers, &mut seen), News::Slots(vec![change(8)]));
    }

    #[test]
    fn noise_and_short_files_are_no_news_and_a_ring_may_begin_again() {
        let headers = page();
        write_all_at(&headers, &[0xa5; 64], LOG_OFFSET as u64 + 40).unwrap();
        let mut seen = 0;
        assert_eq!(news(&headers, &mut seen), News::Slots(Vec::new()), "noise");
        let log = ChangeLog { next: AtomicU64::new(NUMBER_MAX + 5) };
        log.note(&headers, change(1));
        assert_eq!(news(&headers, &mut seen), News::Any);
        ChangeLog::of(&headers).skip(&headers);
        assert_eq!(news(&headers, &mut seen), News::Any, "the writer has begun again");
        assert!(seen < NUMBER_MAX);
        assert_eq!(news(&tempfile::tempfile().unwrap(), &mut 0), News::Slots(Vec::new()));
    }
}
