//! A limit on the size of files (`ulimit -f`): a write beyond it should fail, as on a full disk,
//! where the system's habit is to end the process.

/// Makes such a write an error. Whoever writes knows what to do about one.
#[cfg(unix)]
pub(crate) fn make_it_an_error() {
    use tokio::signal::unix::{SignalKind, signal};
    let exceeded = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // Catching the signal is enough, and it stays caught when its runtime is gone.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let caught = runtime.and_then(|runtime| runtime.block_on(async { signal(exceeded).map(drop) }));
    if let Err(error) = caught {
        eprintln!("warning: a limit on the size of files will end this process: {error}");
    }
}

#[cfg(not(unix))]
pub(crate) fn make_it_an_error() {}
