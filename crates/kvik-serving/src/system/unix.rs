//! Unix.

use std::{
    fs::{self, File},
    io::{self, IsTerminal},
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl};
use rustix::process::{Pid, Resource, Rlimit, Signal as Number, getrlimit, kill_process, setrlimit};
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Hangup;

/// Interval between the probes of a peer that answers none.
const PROBED_EVERY: Duration = Duration::from_secs(10);
/// The terminal of whoever opens it.
const TERMINAL: &str = "/dev/tty";

/// Makes a write beyond the limit on the size of files (`ulimit -f`) return an error, as on a full disk, instead of
/// ending the process with SIGXFSZ.
pub fn fail_writes_beyond_limit() -> io::Result<()> {
    let exceeded = SignalKind::from_raw(Number::XFSZ.as_raw());
    // Catching the signal is enough; the handler outlives this runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async { signal(exceeded).map(drop) })
}

/// Lowers the scheduling priority of this thread for its lifetime. Systems other than Linux have only priorities of
/// processes.
pub fn give_priority_up() {
    /// In competition with a thread of normal priority this one gets about a tenth of a processor.
    const NICENESS: i32 = 10;
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!("a thread keeps its priority: {error}");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = NICENESS;
}

/// Raises the limit on open files to `wanted` as far as the system permits, and returns the resulting limit.
pub fn open_files(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let more = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        // If this fails, the limit is unchanged.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: more, maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Has the system probe the peer of a connection after so much silence, so that one whose machine has ended without a
/// word does not count as connected for ever.
pub(crate) fn probe_peer(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, silence)?;
    Ok(set_tcp_keepintvl(stream, PROBED_EVERY)?)
}

/// Requests to stop: SIGTERM and SIGINT. They are taken from when this is made, not from when one is waited for.
pub struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    /// Fails if the system refuses to report them.
    pub fn new() -> io::Result<Stops> {
        Ok(Stops { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one, and returns the status that a shell reports for a process which it ends.
    pub async fn next(&mut self) -> i32 {
        let signal = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        };
        128 + signal.as_raw_value()
    }
}

/// Sends SIGTERM to a process.
pub fn terminate(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, Number::TERM)?)
}

/// SIGHUP: requests to read settings again, or the end of the terminal. They are taken from when this is made.
pub struct Hangups {
    signal: Signal,
    /// Whether this process was started in a terminal. One that `nohup` or systemd starts was not.
    had_terminal: bool,
}

impl Hangups {
    /// `None` if the system refuses to report them.
    pub fn new() -> Option<Hangups> {
        let signal = signal(SignalKind::hangup()).ok()?;
        let is_seen = io::stdin().is_terminal() || io::stderr().is_terminal();
        Some(Hangups { signal, had_terminal: is_seen && has_terminal() })
    }

    /// Waits for the next one; `None` if there will be none.
    pub async fn next(&mut self) -> Option<Hangup> {
        self.signal.recv().await?;
        let is_closed = self.had_terminal && !has_terminal();
        Some(if is_closed { Hangup::TerminalClosed } else { Hangup::Reread })
    }
}

/// Whether this process has a terminal that can be opened.
fn has_terminal() -> bool {
    File::open(TERMINAL).is_ok()
}

/// Whether users other than the owner may read or write a file.
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    /// A task that only waits for signals begins at some later time, and until then they would end the process.
    #[tokio::test]
    async fn signals_are_taken_before_anybody_waits() {
        let (mut stops, mut hangups) = (Stops::new().unwrap(), Hangups::new().unwrap());
        for (signal, status) in [(Number::TERM, 143), (Number::INT, 130)] {
            kill_process(getpid(), signal).unwrap();
            assert_eq!(stops.next().await, status);
        }
        kill_process(getpid(), Number::HUP).unwrap();
        assert!(hangups.next().await.is_some());
    }

    /// Whether the second process here has a terminal, as it says of itself, depends on who runs the test.
    #[tokio::test]
    async fn a_hangup_is_a_request_unless_the_terminal_is_closed() {
        let mut hangups = Hangups::new().unwrap();
        for had_terminal in [false, true] {
            hangups.had_terminal = had_terminal;
            kill_process(getpid(), Number::HUP).unwrap();
            let closed = had_terminal && !has_terminal();
            let expect = if closed { Hangup::TerminalClosed } else { Hangup::Reread };
            assert_eq!(hangups.next().await, Some(expect), "{had_terminal}");
        }
    }
}
