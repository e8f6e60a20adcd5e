//! Anonymous private mappings of Unix, in huge pages where Linux has them.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{self, MapFlags, ProtFlags};

use super::Use;

/// An anonymous private mapping, zeroed.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address and a length, which never change.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(len: usize, usage: Use) -> io::Result<Mapping> {
        let flags = match usage {
            Use::Whole => MapFlags::PRIVATE,
            Use::Sparse => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the system's choice overlaps nothing.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping { start, len };
        mapping.advise_huge_pages();
        Ok(mapping)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Requests huge pages, best effort: without them everything works, slower.
    fn advise_huge_pages(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            // SAFETY: the range is this mapping, and the advice does not change its contents.
            let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, mm::Advice::LinuxHugepage) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every memory in it keeps it alive.
        let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Returns whole pages to the system, after which they read as zero; `false` if the system refuses.
pub(super) fn release_pages(bytes: &mut [u8]) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        // SAFETY: the range is a part of a private anonymous mapping and borrowed exclusively; its bytes become zero.
        unsafe { mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), mm::Advice::LinuxDontNeed).is_ok() }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        replace_pages(bytes)
    }
}

/// Returns whole pages to the system by mapping new ones in their place. On other systems than Linux the advice not to
/// need pages leaves their bytes as they are.
#[cfg(any(test, not(any(target_os = "linux", target_os = "android"))))]
pub(super) fn replace_pages(bytes: &mut [u8]) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range is a part of a private anonymous mapping and borrowed exclusively; its bytes become zero, and
    // unmapping the whole mapping unmaps the new pages too.
    unsafe { mm::mmap_anonymous(bytes.as_mut_ptr().cast(), bytes.len(), protection, flags).is_ok() }
}
