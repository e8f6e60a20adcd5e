//! Windows, compiled but never run: files are as private as their directory, and the free space is not reported, so
//! that the disk tier has the size that its flag allows.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::windows::fs::FileExt;
use std::path::Path;

pub(in super::super) fn make_private_directories(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

pub(in super::super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// Whether there is a file at `path`: an open file cannot be replaced on this system.
pub(in super::super) fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

pub(in super::super) fn allocated_bytes(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |found| found.len())
}

pub(in super::super) fn free_bytes(_: &Path) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Does nothing: the caller overwrites the bytes, which stay allocated.
pub(in super::super) fn punch_hole(_: &File, _: u64, _: u64) -> io::Result<bool> {
    Ok(false)
}

pub(in super::super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(bytes, offset)
}

pub(in super::super) fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => (bytes, offset) = (&mut bytes[read..], offset + read as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(in super::super) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => (bytes, offset) = (&bytes[written..], offset + written as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
