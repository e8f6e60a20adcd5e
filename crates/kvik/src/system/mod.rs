//! What kvik asks of the operating system beyond the standard library: signals, limits, priorities, and who may read a file.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
use other as system;
#[cfg(unix)]
use unix as system;

pub(crate) use system::{
    Hangups, fail_writes_beyond_limit, give_priority_up, is_open_to_others, open_files, stop_signal,
};
