//! Anonymous memory that takes room only where it is written.

use std::io;
use std::ptr::NonNull;

/// A zeroed private mapping; untouched pages take no memory.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory that this value owns.
unsafe impl Send for Mapping {}
// SAFETY: as above; it is written through `&mut` or through raw pointers under contracts of their own.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(len: usize) -> io::Result<Mapping> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        if len == 0 {
            return Ok(Mapping { start: NonNull::dangling(), len });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the system's choice touches no existing memory.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping { start, len };
        mapping.advise_huge_pages();
        Ok(mapping)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Fewer, larger pages: reads of the cache miss the TLB less. Where the system has none, nothing is lost.
    fn advise_huge_pages(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::mm::{Advice, madvise};
            // SAFETY: the advice does not change the contents of the mapping, which is ours.
            let _ = unsafe { madvise(self.start().cast(), self.len, Advice::LinuxHugepage) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is ours, and no borrow outlives it.
            let _ = unsafe { rustix::mm::munmap(self.start().cast(), self.len) };
        }
    }
}
