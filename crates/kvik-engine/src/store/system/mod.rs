//! What the disk tier asks of the operating system beyond the standard library's files: private directories and files,
//! reading and writing in place, what a file takes of the disk, and how much of that is free.

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
