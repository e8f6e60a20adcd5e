//! The records of this user's running servers, a file for each port in the runtime directory: process, address, model.
//!
//! A server holds the lock of `serve-PORT.lock` as long as it runs, so that a record that a killed one has left behind
//! names nobody: the system may have given its number to another process. The lock is beside the record because nobody
//! else can read a locked file on Windows.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use kvik_memory::records::private::{create_private_folder, readable_by_owner_only};

use kvik_serving::{settings::dirs, system::terminate};

/// Maximum bytes of a record; a path may be long.
const RECORD_BYTES_MAX: u64 = 16 << 10;
/// Maximum number of files that are looked at: records and their locks.
const FILES_MAX: usize = 128;
/// How often and how long a server tries to get the lock, which a reader holds for an instant.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A running server, as it has written itself down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningServer {
    pid: u32,
    /// Where it is reached from this machine; empty while the server writes it.
    pub(super) url: String,
    /// The path of the only model that it serves, or the word for the embedded one; `None` while it is loaded, and for
    /// several.
    pub(super) model: Option<String>,
}

impl RunningServer {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks it to end, as SIGTERM does.
    pub(super) fn terminate(&self) -> io::Result<()> {
        terminate(self.pid)
    }

    fn parse(text: &str) -> Option<RunningServer> {
        let mut lines = text.lines();
        let pid = lines.next()?.trim().parse().ok()?;
        let url = lines.next().filter(|url| url.starts_with("http://")).unwrap_or_default().to_owned();
        let model = lines.next().filter(|model| !model.is_empty()).map(str::to_owned);
        Some(RunningServer { pid, url, model })
    }
}

/// The record of this process, until it is dropped.
#[derive(Debug)]
pub(super) struct OwnRecord {
    file: File,
    /// Held as long as the server runs.
    _lock: File,
}

impl OwnRecord {
    /// Adds the only model that this server has.
    pub(super) fn add_model(&mut self, model: &str) -> io::Result<()> {
        // A line of the record is a line of the file; such a path is found by its name alone.
        if model.contains(['\n', '\r']) {
            return Ok(());
        }
        self.file.write_all(format!("{model}\n").as_bytes())
    }
}

/// Writes this process down as the server of a port, reached at this address.
pub(super) fn hold(port: u16, url: &str) -> io::Result<OwnRecord> {
    hold_in(&directory()?, port, url)
}

/// The running server of a port.
pub(super) fn find(port: u16) -> io::Result<Option<RunningServer>> {
    match directory() {
        Ok(directory) => find_in(&directory, port),
        Err(_) => Ok(None),
    }
}

/// All running servers of this user that say where they are reached, by their ports.
pub(super) fn all() -> Vec<RunningServer> {
    directory().map_or_else(|_| Vec::new(), |directory| all_in(&directory))
}

fn directory() -> io::Result<PathBuf> {
    let none =
        || io::Error::new(io::ErrorKind::NotFound, "there is no directory for files of running programs");
    dirs::runtime().ok_or_else(none)
}

fn file_of(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!("serve-{port}.pid"))
}

fn lock_of(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!("serve-{port}.lock"))
}

/// The port in a file's name.
fn port_of(name: &str) -> Option<u16> {
    name.strip_prefix("serve-")?.strip_suffix(".pid")?.parse().ok()
}

fn hold_in(directory: &Path, port: u16, url: &str) -> io::Result<OwnRecord> {
    create_private_folder(directory)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    readable_by_owner_only(&mut options);
    let lock = options.open(lock_of(directory, port))?;
    wait_for(&lock)?;
    let mut file = options.open(file_of(directory, port))?;
    file.set_len(0)?;
    file.write_all(format!("{}\n{url}\n", std::process::id()).as_bytes())?;
    Ok(OwnRecord { file, _lock: lock })
}

fn wait_for(lock: &File) -> io::Result<()> {
    let mut tries = 0;
    while let Err(error) = lock.try_lock() {
        tries += 1;
        if tries == TRIES {
            return Err(error.into());
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn find_in(directory: &Path, port: u16) -> io::Result<Option<RunningServer>> {
    let file = match File::open(file_of(directory, port)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Nobody holds the lock of a server that has ended. One of an earlier version has locked the record itself.
    let is_held = File::open(lock_of(directory, port)).is_ok_and(|lock| lock.try_lock_shared().is_err());
    if !is_held && file.try_lock_shared().is_ok() {
        return Ok(None);
    }
    let mut text = String::new();
    file.take(RECORD_BYTES_MAX).read_to_string(&mut text)?;
    // Empty while the server writes it.
    Ok(RunningServer::parse(&text))
}

fn all_in(directory: &Path) -> Vec<RunningServer> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(FILES_MAX);
    let mut ports: Vec<u16> = entries.filter_map(|entry| port_of(entry.file_name().to_str()?)).collect();
    ports.sort_unstable();
    let found = ports.into_iter().filter_map(|port| find_in(directory, port).ok().flatten());
    found.filter(|server| !server.url.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://127.0.0.1:8080";

    #[test]
    fn a_server_is_found_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("kvik");
        assert_eq!(find_in(&dir, 8080).unwrap(), None);
        let mut held = hold_in(&dir, 8080, URL).unwrap();
        let mut own = RunningServer { pid: std::process::id(), url: URL.to_owned(), model: None };
        assert_eq!(find_in(&dir, 8080).unwrap(), Some(own.clone()));
        held.add_model("/models/a b.gguf").unwrap();
        own.model = Some("/models/a b.gguf".to_owned());
        assert_eq!(find_in(&dir, 8080).unwrap(), Some(own));
        assert_eq!(find_in(&dir, 8081).unwrap(), None, "another port");
        assert!(hold_in(&dir, 8080, URL).is_err(), "there is one already");
        drop(held);
        assert_eq!(find_in(&dir, 8080).unwrap(), None, "its file names nobody");
        let again = hold_in(&dir, 8080, URL).unwrap();
        assert_eq!(find_in(&dir, 8080).unwrap().unwrap().model, None, "that was another server's");
        for hostile in ["", "x", "-1", "99999999999999999999999999"] {
            fs::write(file_of(&dir, 8080), hostile).unwrap();
            assert_eq!(find_in(&dir, 8080).unwrap(), None, "{hostile}");
        }
        drop(again);
    }

    /// Where locks are mandatory, nobody else could read it.
    #[test]
    fn the_record_of_a_running_server_is_not_the_file_that_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let held = hold_in(dir.path(), 8080, URL).unwrap();
        let record = File::open(file_of(dir.path(), 8080)).unwrap();
        assert!(record.try_lock().is_ok());
        drop(record);
        assert!(File::open(lock_of(dir.path(), 8080)).unwrap().try_lock().is_err());
        drop(held);
    }

    #[cfg(unix)]
    #[test]
    fn a_server_of_an_earlier_version_is_found_by_the_lock_of_its_record() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(file_of(dir.path(), 8080), format!("7\n{URL}\n")).unwrap();
        assert_eq!(find_in(dir.path(), 8080).unwrap(), None);
        let record = File::open(file_of(dir.path(), 8080)).unwrap();
        record.try_lock().unwrap();
        assert_eq!(find_in(dir.path(), 8080).unwrap().unwrap().pid(), 7);
    }

    #[test]
    fn all_running_servers_are_found_by_their_ports() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(all_in(&dir.path().join("none")), []);
        let _held: Vec<OwnRecord> = [9001, 81, 9000]
            .map(|port| hold_in(dir.path(), port, &format!("http://x:{port}")).unwrap())
            .into();
        // Left behind by a killed server; of an older version, which had no address; of another program.
        fs::write(file_of(dir.path(), 82), "1\nhttp://x:82\n").unwrap();
        let old = hold_in(dir.path(), 83, URL).unwrap();
        fs::write(file_of(dir.path(), 83), "1").unwrap();
        fs::write(dir.path().join("serve-x.pid"), "1").unwrap();
        let urls: Vec<String> = all_in(dir.path()).into_iter().map(|server| server.url).collect();
        assert_eq!(urls, ["http://x:81", "http://x:9000", "http://x:9001"]);
        assert_eq!(find_in(dir.path(), 83).unwrap().unwrap().pid(), 1, "`kvik stop` ends it");
        drop(old);
    }
}
