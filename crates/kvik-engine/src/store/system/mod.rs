//! Operating system functions of the disk tier beyond the standard library's files: private directories and files,
//! positioned reads and writes, the allocated size of a file, and the free space of a disk.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
use other as system;
#[cfg(unix)]
use unix as system;

pub(super) use system::{
    allocated_bytes, free_bytes, is_at, make_private_directories, private, punch_hole, read_at,
    read_exact_at, write_all_at,
};
