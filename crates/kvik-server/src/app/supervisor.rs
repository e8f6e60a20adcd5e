//! Notifications to the supervisor that started this process, in systemd's protocol: `READY=1`, `STOPPING=1`,
//! `WATCHDOG=1`, each a datagram to the socket named by `NOTIFY_SOCKET`. Sending never blocks; a datagram that does not
//! fit is lost.

use std::time::Duration;

/// The supervisor to notify, if there is one.
#[derive(Default)]
pub struct Supervisor {
    #[cfg(unix)]
    socket: Option<std::os::unix::net::UnixDatagram>,
    /// Timeout of the supervisor's watchdog.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// The supervisor that the environment names.
    pub fn of_process() -> Supervisor {
        Supervisor::new(|name| std::env::var(name).ok(), std::process::id())
    }

    /// Half of the time after which the supervisor considers a silent process dead.
    pub(crate) fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 2)
    }

    /// Reports that requests are answered.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports that the server is shutting down.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    #[cfg(unix)]
    fn new(variable: impl Fn(&str) -> Option<String>, process: u32) -> Supervisor {
        let Some(path) = variable("NOTIFY_SOCKET") else { return Supervisor::default() };
        let socket = connect(&path).inspect_err(|error| {
            tracing::warn!("NOTIFY_SOCKET {path}: {error}; the supervisor is told nothing");
        });
        // The variables may be meant for a parent that passed them on.
        let is_meant = variable("WATCHDOG_PID").is_none_or(|pid| pid == process.to_string());
        let micros = variable("WATCHDOG_USEC").filter(|_| is_meant).and_then(|micros| micros.parse().ok());
        let watchdog = micros.filter(|&micros| micros > 0).map(Duration::from_micros);
        Supervisor { socket: socket.ok(), watchdog }
    }

    #[cfg(not(unix))]
    fn new(_: impl Fn(&str) -> Option<String>, _: u32) -> Supervisor {
        Supervisor::default()
    }

    #[cfg(unix)]
    fn send(&self, words: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(words.as_bytes());
        }
    }

    #[cfg(not(unix))]
    fn send(&self, _: &str) {}
}

/// Connects to a path, or to an abstract name if it begins with `@`.
#[cfg(unix)]
fn connect(path: &str) -> std::io::Result<std::os::unix::net::UnixDatagram> {
    #[cfg(target_os = "linux")]
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match path.strip_prefix('@') {
        #[cfg(target_os = "linux")]
        Some(name) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    };

    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut words = [0; 64];
        let length = socket.recv(&mut words).expect("it has a time out");
        String::from_utf8(words[..length].to_vec()).expect("a word comes")
    }

    #[test]
    fn a_supervisor_hears_through_a_path_and_through_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify").to_str().unwrap().to_owned();
        let name = format!("kvik-test-{}", std::process::id());
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}"),
            ),
        ];
        for (socket, address) in sockets {
            let supervisor = Supervisor::new(|name| (name == "NOTIFY_SOCKET").then(|| address.clone()), 7);
            supervisor.ready();
            supervisor.alive();
            supervisor.stopping();
            let all = [heard(&socket), heard(&socket), heard(&socket)];
            assert_eq!(all, ["READY=1", "WATCHDOG=1", "STOPPING=1"], "{address}");
            assert_eq!(supervisor.watchdog_interval(), None);
        }
    }

    #[test]
    fn the_watchdog_is_fed_at_half_its_time_by_whom_it_is_meant_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify").to_str().unwrap().to_owned();
        let _socket = UnixDatagram::bind(&path).unwrap();
        for (pid, micros, expect) in [
            (None, "3000000", Some(1500)),
            (Some("7"), "3000000", Some(1500)),
            (Some("8"), "3000000", None),
            (None, "0", None),
            (None, "soon", None),
        ] {
            let variable = |name: &str| match name {
                "NOTIFY_SOCKET" => Some(path.clone()),
                "WATCHDOG_PID" => pid.map(str::to_owned),
                "WATCHDOG_USEC" => Some(micros.to_owned()),
                _ => None,
            };
            let interval = Supervisor::new(variable, 7).watchdog_interval();
            assert_eq!(interval, expect.map(Duration::from_millis), "{pid:?} {micros}");
        }
    }

    #[test]
    fn nobody_waits_for_a_supervisor_that_does_not_listen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify").to_str().unwrap().to_owned();
        let _socket = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::new(|name| (name == "NOTIFY_SOCKET").then(|| path.clone()), 7);
        (0..10_000).for_each(|_| supervisor.alive());
        Supervisor::new(|_| Some("/nowhere/at/all".to_owned()), 7).ready();
    }
}
