//! Unix: permissions, links that are not followed, `pread` and `pwrite`, `statvfs`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Creates missing directories, accessible to this user only.
pub(in super::super) fn make_private_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Options for a file that is accessible to this user only. A link at its path is not followed.
pub(in super::super) fn private() -> OpenOptions {
    // Without NONBLOCK, opening a pipe or a device at this path could block for ever.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(flags.bits() as i32);
    options
}

/// Whether `path` refers to this file.
pub(in super::super) fn is_at(file: &File, path: &Path) -> bool {
    let name = |found: fs::Metadata| (found.dev(), found.ino());
    let held = file.metadata().map(name);
    held.is_ok_and(|held| fs::symlink_metadata(path).is_ok_and(|found| name(found) == held))
}

/// Bytes of disk allocated for a file; fewer than its length if it has holes. 0 if there is no file.
pub(in super::super) fn allocated_bytes(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |found| found.blocks() * 512)
}

/// Bytes that this user may still write on the disk of `path`.
pub(in super::super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(path)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Deallocates a range of a file, which then reads as zeros; returns whether the file system supports that.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(in super::super) fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<bool> {
    use rustix::fs::FallocateFlags;
    use rustix::io::Errno;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, length) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Does nothing: the caller overwrites the bytes, which stay allocated.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(in super::super) fn punch_hole(_: &File, _: u64, _: u64) -> io::Result<bool> {
    Ok(false)
}

pub(in super::super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(bytes, offset)
}

pub(in super::super) fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(bytes, offset)
}

pub(in super::super) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}
