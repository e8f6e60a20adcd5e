//! A socket that a supervisor such as systemd opened for this process: `LISTEN_FDS` and `LISTEN_PID`.

/// Takes the listening socket that was handed over; `None` if there is none. It can be taken once, and before other
/// threads run: the variables that name it are removed, so that no child process uses them.
///
/// # Errors
/// If there are several, or it is not a listening TCP socket.
#[cfg(unix)]
pub fn inherited() -> anyhow::Result<Option<std::net::TcpListener>> {
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

/// No socket is inherited here.
#[cfg(not(unix))]
pub fn inherited() -> anyhow::Result<Option<std::net::TcpListener>> {
    Ok(None)
}
