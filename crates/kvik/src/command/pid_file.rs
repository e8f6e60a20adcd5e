//! The process ids of this user's servers, a file for each port in the runtime directory.
//!
//! A server holds the lock of its file as long as it runs, so that a file that a killed one has left behind names
//! nobody: the system may have given its number to another process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use kvik_memory::records::private::readable_by_owner_only;

use kvik_serving::{settings::dirs, system::terminate};

/// Maximum bytes of a process id.
const PID_BYTES_MAX: u64 = 20;
/// How often and how long a server tries to get the lock, which a reader holds for an instant.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A running server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunningServer {
    pid: u32,
}

impl RunningServer {
    pub(super) fn pid(self) -> u32 {
        self.pid
    }

    /// Asks it to end, as SIGTERM does.
    pub(super) fn terminate(self) -> io::Result<()> {
        terminate(self.pid)
    }
}

/// Writes this process down as the server of a port, until the returned file is dropped.
pub(super) fn hold(port: u16) -> io::Result<File> {
    hold_in(&directory()?, port)
}

/// The running server of a port.
pub(super) fn find(port: u16) -> io::Result<Option<RunningServer>> {
    match directory() {
        Ok(directory) => find_in(&directory, port),
        Err(_) => Ok(None),
    }
}

fn directory() -> io::Result<PathBuf> {
    let none =
        || io::Error::new(io::ErrorKind::NotFound, "there is no directory for files of running programs");
    dirs::runtime().ok_or_else(none)
}

fn file_of(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!("serve-{port}.pid"))
}

fn hold_in(directory: &Path, port: u16) -> io::Result<File> {
    fs::create_dir_all(directory)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    readable_by_owner_only(&mut options);
    let mut file = options.open(file_of(directory, port))?;
    let mut tries = 0;
    while let Err(error) = file.try_lock() {
        tries += 1;
        if tries == TRIES {
            return Err(error.into());
        }
        thread::sleep(PAUSE);
    }
    file.set_len(0)?;
    file.write_all(std::process::id().to_string().as_bytes())?;
    Ok(file)
}

fn find_in(directory: &Path, port: u16) -> io::Result<Option<RunningServer>> {
    let file = match File::open(file_of(directory, port)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Nobody holds the lock of a server that has ended.
    if file.try_lock_shared().is_ok() {
        return Ok(None);
    }
    let mut text = String::new();
    file.take(PID_BYTES_MAX).read_to_string(&mut text)?;
    // Empty while the server writes it.
    Ok(text.trim().parse().ok().map(|pid| RunningServer { pid }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("kvik");
        assert_eq!(find_in(&dir, 8080).unwrap(), None);
        let held = hold_in(&dir, 8080).unwrap();
        let own = RunningServer { pid: std::process::id() };
        assert_eq!(find_in(&dir, 8080).unwrap(), Some(own));
        assert_eq!(find_in(&dir, 8081).unwrap(), None, "another port");
        assert!(hold_in(&dir, 8080).is_err(), "there is one already");
        drop(held);
        assert_eq!(find_in(&dir, 8080).unwrap(), None, "its file names nobody");
        let again = hold_in(&dir, 8080).unwrap();
        for hostile in ["", "x", "-1", "99999999999999999999999999"] {
            fs::write(file_of(&dir, 8080), hostile).unwrap();
            assert_eq!(find_in(&dir, 8080).unwrap(), None, "{hostile}");
        }
        drop(again);
    }
}
