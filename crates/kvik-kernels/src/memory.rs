//! Zeroed pages from the system for what is large and long-lived: weights and the cache's blocks.
//!
//! Huge pages where the system has them: both are read once per token, and with 4 KiB pages a fifth of
//! the bandwidth goes to page walks.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{self, MapFlags, ProtFlags};

/// An anonymous private mapping. Pages that nobody writes take no memory.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory that this value owns.
unsafe impl Send for Memory {}
// SAFETY: as above; it is written through `&mut` or through raw pointers under contracts of their own.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` zero bytes that will all be written; fails where the system cannot hold them.
    pub(crate) fn new(len: usize) -> io::Result<Memory> {
        Memory::map(len, MapFlags::PRIVATE)
    }

    /// `len` zero bytes of which perhaps few will be written: only those count against the system's memory.
    pub(crate) fn sparse(len: usize) -> io::Result<Memory> {
        Memory::map(len, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn map(len: usize, flags: MapFlags) -> io::Result<Memory> {
        if len == 0 {
            return Ok(Memory { start: NonNull::dangling(), len });
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the system's choice overlaps nothing.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Memory { start, len };
        memory.advise_huge_pages();
        Ok(memory)
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

    /// Best effort: without huge pages everything works, slower.
    fn advise_huge_pages(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            // SAFETY: the range is this mapping, and the advice does not change its contents.
            let _ = unsafe { mm::madvise(self.start().cast(), self.len, mm::Advice::LinuxHugepage) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is ours, and no borrow outlives it.
            let unmapped = unsafe { mm::munmap(self.start().cast(), self.len) };
            debug_assert!(unmapped.is_ok());
        }
    }
}
