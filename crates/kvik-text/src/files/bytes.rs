//! Bytes of a model file: mapped, embedded in the binary, or owned.
//!
//! The only place in this crate with `unsafe`. Nothing here assumes any alignment.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;

use super::stamp::Stamp;

/// Bytes per request for read-ahead.
#[cfg(unix)]
const READ_AHEAD_BYTES: usize = 4 << 20;

/// Read-only bytes that live as long as the value.
#[derive(Debug)]
pub enum FileBytes {
    /// A file mapped into memory; pages are read on first access.
    Mapped(MappedFile),
    /// Bytes embedded in the binary, such as the built-in model.
    Static(&'static [u8]),
    /// Bytes on the heap.
    Owned(Vec<u8>),
}

/// A mapped file, or a part of one.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
    /// The stamp of the file, if it is mapped as a whole.
    stamp: Option<Stamp>,
}

/// A byte range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePart {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes; `None` for up to the end of the file.
    pub bytes: Option<u64>,
}

impl FilePart {
    /// A whole file.
    pub const ALL: FilePart = FilePart { offset: 0, bytes: None };

    /// Checks that a file of `file_bytes` bytes contains this part.
    fn check(&self, file_bytes: u64) -> std::io::Result<()> {
        let end = self.offset.checked_add(self.bytes.unwrap_or(0)).filter(|&end| end <= file_bytes);
        end.map(drop).ok_or_else(|| {
            let FilePart { offset, bytes } = self;
            let part = bytes.map_or("the rest".to_owned(), |bytes| format!("{bytes} bytes"));
            let message =
                format!("{part} from byte {offset} on are asked for of a file of {file_bytes} bytes");
            std::io::Error::new(std::io::ErrorKind::UnexpectedEof, message)
        })
    }
}

impl FileBytes {
    /// Maps a file read-only.
    pub fn map(path: &Path) -> std::io::Result<FileBytes> {
        FileBytes::map_part(&File::open(path)?, FilePart::ALL)
    }

    /// Maps a part of an open file read-only, such as a model in an archive of assets on a phone.
    ///
    /// # Errors
    /// If the file cannot be mapped, or ends before the part does: an access past its end would end the process.
    pub fn map_part(file: &File, part: FilePart) -> std::io::Result<FileBytes> {
        part.check(file.metadata()?.len())?;
        let mut options = memmap2::MmapOptions::new();
        options.offset(part.offset);
        if let Some(bytes) = part.bytes {
            options.len(usize::try_from(bytes).map_err(|_| std::io::ErrorKind::OutOfMemory)?);
        }
        // SAFETY: the map is read-only and private. A process that truncates or rewrites the file
        // while it is mapped can change what is read (values only; nothing here trusts an earlier
        // read twice) or end this process with SIGBUS. Model files are immutable by convention,
        // and downloads are renamed into place when complete, so the risk is accepted.
        let map = unsafe { options.map(file)? };
        let stamp = if part == FilePart::ALL { Stamp::of(file) } else { None };
        Ok(FileBytes::Mapped(MappedFile { map, stamp }))
    }

    /// The identity of the file, if the system provides one.
    pub(crate) fn stamp(&self) -> Option<&Stamp> {
        match self {
            FileBytes::Mapped(file) => file.stamp.as_ref(),
            FileBytes::Static(_) | FileBytes::Owned(_) => None,
        }
    }

    /// Requests that the system reads the file in order, ahead of threads that use several places of it at a
    /// time. Returns once everything is requested, which takes as long as the disk; costs next to nothing if the
    /// file is in memory.
    pub(crate) fn read_ahead(&self) {
        #[cfg(unix)]
        if let FileBytes::Mapped(MappedFile { map, .. }) = self {
            for start in (0..map.len()).step_by(READ_AHEAD_BYTES) {
                let bytes = READ_AHEAD_BYTES.min(map.len() - start);
                let _ = map.advise_range(memmap2::Advice::WillNeed, start, bytes);
            }
        }
    }

    /// Drops the resident pages of `range`; a later access reads them from the file again.
    ///
    /// Weights are packed into separate memory, and their pages of the file would otherwise stay
    /// resident too. Best effort: does nothing for bytes that are not mapped.
    #[cfg_attr(not(unix), expect(unused_variables, reason = "other systems take no such advice"))]
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let FileBytes::Mapped(MappedFile { map, .. }) = self {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the mapping is read-only and backed by the file, so dropping its pages loses
            // nothing: the next read finds the same bytes, under the assumptions of `map`.
            let _ = unsafe { map.unchecked_advise_range(advice, range.start, range.len()) };
        }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(file) => &file.map,
            FileBytes::Static(bytes) => bytes,
            FileBytes::Owned(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_part_is_mapped_that_the_file_has_and_no_other() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        for (offset, bytes, expect) in [
            (0, None, Some(10_000)),
            (0, Some(10_000), Some(10_000)),
            (9_000, Some(1_000), Some(1_000)),
            (9_000, None, Some(1_000)),
            (0, Some(10_001), None),
            (9_000, Some(1_001), None),
            (10_001, None, None),
            (u64::MAX, Some(1), None),
            (1, Some(u64::MAX), None),
        ] {
            let mapped = FileBytes::map_part(&file, FilePart { offset, bytes });
            let sum = mapped.ok().map(|mapped| mapped.iter().map(|&byte| usize::from(byte / 7)).sum());
            assert_eq!(sum, expect, "{offset} and {bytes:?}");
        }
    }
}
