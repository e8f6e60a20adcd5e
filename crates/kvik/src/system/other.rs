//! Windows, compiled but never run: files are as private as their folder, and Ctrl-C is the only signal.

use std::{io, path::Path};

pub(crate) fn fail_writes_beyond_limit() -> io::Result<()> {
    Ok(())
}

pub(crate) fn give_priority_up() {}

/// There is no limit.
pub(crate) fn open_files(_: u64) -> u64 {
    u64::MAX
}

pub(crate) async fn stop_signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// There are no requests to read settings again.
pub(crate) struct Hangups;

impl Hangups {
    pub(crate) fn new() -> Option<Hangups> {
        None
    }

    pub(crate) async fn next(&mut self) -> Option<()> {
        None
    }
}

pub(crate) fn is_open_to_others(_: &Path) -> bool {
    false
}
