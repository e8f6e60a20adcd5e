//! Windows, compiled but never run: files are as private as their folder, and Ctrl-C is the only signal.

use std::{io, path::Path, time::Duration};

use tokio::net::TcpStream;

use super::Hangup;

/// Writes have no limit here.
pub fn fail_writes_beyond_limit() -> io::Result<()> {
    Ok(())
}

/// Priority stays as it is.
pub fn give_priority_up() {}

/// There is no limit.
pub fn open_files(_: u64) -> u64 {
    u64::MAX
}

/// Peers are not probed.
pub(crate) fn probe_peer(_: &TcpStream, _: Duration) -> io::Result<()> {
    Ok(())
}

/// Ctrl-C.
pub struct Stops(#[cfg(windows)] tokio::signal::windows::CtrlC);

impl Stops {
    /// Fails if the system refuses to report it.
    pub fn new() -> io::Result<Stops> {
        #[cfg(windows)]
        return Ok(Stops(tokio::signal::windows::ctrl_c()?));
        #[cfg(not(windows))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits for the next one, and returns the status of a process that it ends.
    pub async fn next(&mut self) -> i32 {
        #[cfg(windows)]
        self.0.recv().await;
        // As a shell reports it.
        130
    }
}

/// There is no signal that asks a process to end.
pub fn terminate(_: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// There are no requests to read settings again.
pub struct Hangups;

impl Hangups {
    /// None: no such signal exists.
    pub fn new() -> Option<Hangups> {
        None
    }

    /// None, at once.
    pub async fn next(&mut self) -> Option<Hangup> {
        None
    }
}

pub(crate) fn is_open_to_others(_: &Path) -> bool {
    false
}
