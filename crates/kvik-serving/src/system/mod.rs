//! Functions of the operating system beyond the standard library: signals, limits, priorities, and file permissions,
//! power.

mod battery;
#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
use other as system;
#[cfg(unix)]
use unix as system;

pub use battery::is_on_battery;
use system::is_open_to_others;
pub(crate) use system::probe_peer;
pub use system::{Hangups, Stops, fail_writes_beyond_limit, give_priority_up, open_files, terminate};

/// What SIGHUP means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// Somebody asks for settings to be read again.
    Reread,
    /// The terminal that this process was started in is closed.
    TerminalClosed,
}

/// Warns about a file that others can read: a key, the secret that yields every salt, the tenants file with all names.
pub fn warn_if_readable_by_others(path: &std::path::Path, what: &str) {
    if is_open_to_others(path) {
        tracing::warn!("{what} {} is open to other users; chmod 600 closes it", path.display());
    }
}
