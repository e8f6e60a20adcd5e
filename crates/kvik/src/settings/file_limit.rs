//! The limit on the size of files (`ulimit -f`): a write beyond it fails, as on a full disk, instead
//! of ending the process with SIGXFSZ.

/// Makes a write beyond the limit return an error, which its caller handles.
#[cfg(unix)]
pub(crate) fn fail_writes_beyond_it() {
    use tokio::signal::unix::{SignalKind, signal};
    let exceeded = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // Catching the signal is enough; the handler outlives this runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let caught = runtime.and_then(|runtime| runtime.block_on(async { signal(exceeded).map(drop) }));
    if let Err(error) = caught {
        super::logging::say(&format!("warning: a limit on the size of files will end this process: {error}"));
    }
}

#[cfg(not(unix))]
pub(crate) fn fail_writes_beyond_it() {}
