//! Page-aligned zeroed memory of one matrix, in huge pages where the system has them.
//!
//! Decode reads every weight for every token; with 4 KiB pages a fifth of the bandwidth goes to page walks.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{self, MapFlags, ProtFlags};

/// Huge pages are this large on x86-64 and most aarch64 systems.
const HUGE_PAGE: usize = 2 << 20;

/// An anonymous private mapping.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value alone; shared access is read-only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `len` zero bytes (at least one page).
    pub(crate) fn new(len: usize) -> io::Result<Memory> {
        let len = len.max(1);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let start = NonNull::new(start.cast()).expect("a mapping is never at address zero");
        let memory = Memory { start, len };
        memory.advise_huge_pages();
        Ok(memory)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` initialised (zeroed) bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Best effort: without huge pages everything works, slower.
    fn advise_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if self.len >= HUGE_PAGE {
            // SAFETY: the range is this mapping, and the advice does not change its contents.
            let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, mm::Advice::LinuxHugepage) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and no reference to it outlives `self`.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
