//! The socket that a supervisor opened for this process, as systemd says it: `LISTEN_FDS` and `LISTEN_PID`.

/// The listening socket that was handed over; `None` where none was. It can be taken once, and must be before other
/// threads run: the variables that name it are removed, so that no child takes them for its own.
///
/// # Errors
/// When there are several, or it is no socket that TCP listens on.
#[cfg(unix)]
pub(crate) fn inherited() -> anyhow::Result<Option<std::net::TcpListener>> {
    use anyhow::{Context, ensure};
    let mut sockets = listenfd::ListenFd::from_env();
    let count = sockets.len();
    ensure!(
        count <= 1,
        "the supervisor opened {count} sockets and kvik listens on one; keep one ListenStream="
    );
    let listener = sockets.take_tcp_listener(0);
    let listener = listener.context("kvik cannot listen on the socket that the supervisor opened")?;
    listener.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
    Ok(listener)
}

#[cfg(not(unix))]
pub(crate) fn inherited() -> anyhow::Result<Option<std::net::TcpListener>> {
    Ok(None)
}
