//! Memory on Windows, compiled but never run: zeroed memory of the allocator, which takes large pieces from
//! the system.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

use super::Use;

/// Page size of all processors that Windows runs on.
const PAGE_BYTES: usize = 4096;

/// Page-aligned zeroed memory.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a mapping is an address and a length, which never change.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates `len` bytes. Windows commits all of them, however few are used.
    pub(super) fn new(len: usize, _: Use) -> io::Result<Mapping> {
        let refused = || io::Error::from(io::ErrorKind::OutOfMemory);
        let layout = Layout::from_size_align(len, PAGE_BYTES).map_err(|_| refused())?;
        assert!(len > 0, "memory of no bytes has no mapping");
        // SAFETY: the layout has a size, as was just checked.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Mapping { start, layout })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and every memory in it keeps it alive.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

pub(super) fn page_bytes() -> usize {
    PAGE_BYTES
}

/// Returns whether whole pages were returned to the system: never here, so the caller zeroes them. All of them are
/// committed anyway.
pub(super) fn release_pages(_: &mut [u8]) -> bool {
    false
}
