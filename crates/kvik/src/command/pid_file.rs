//! The records of this user's running servers, a file for each port in the runtime directory: process, address, model, and
//! whether the server ends.
//!
//! A server holds the lock of `serve-PORT.lock` as long as it runs, so that a record that a killed one has left behind
//! names nobody: the system may have given its number to another process. The lock is beside the record because nobody
//! else can read a locked file on Windows.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
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
/// The fourth line of a server that ends.
const LEAVING: &str = "leaving";

/// A running server, as it has written itself down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningServer {
    pid: u32,
    /// Where it is reached from this machine; empty while the server writes it.
    pub(super) url: String,
    /// The path of the only model that it serves, or the word for the embedded one; `None` while it is loaded, and for
    /// several.
    pub(super) model: Option<String>,
    /// Whether it was told to end and lets its running answers finish; another may listen on its port by now.
    pub(super) is_leaving: bool,
}

impl RunningServer {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The model that answers at its address; none is known while it leaves, for another server may have another.
    pub(super) fn model_at_url(self) -> Option<String> {
        self.model.filter(|_| !self.is_leaving)
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
        let is_leaving = lines.next() == Some(LEAVING);
        Some(RunningServer { pid, url, model, is_leaving })
    }
}

/// The record of this process, until the last owner drops it.
#[derive(Debug, Clone)]
pub(super) struct OwnRecord(Arc<Mutex<RecordLines>>);

/// What a server writes down behind its process and its address.
#[derive(Debug, Default)]
struct RecordLines {
    model: Option<String>,
    is_leaving: bool,
    /// Absent while the server before this one on the port has its record.
    files: Option<HeldFiles>,
}

#[derive(Debug)]
struct HeldFiles {
    record: File,
    /// Held as long as the server runs.
    _lock: File,
}

impl OwnRecord {
    /// Adds the only model that this server has.
    pub(super) fn add_model(&self, model: &str) -> io::Result<()> {
        // A line of the record is a line of the file; such a path is found by its name alone.
        if model.contains(['\n', '\r']) {
            return Ok(());
        }
        let mut entry = self.lock();
        entry.model = Some(model.to_owned());
        entry.files.as_mut().map_or(Ok(()), |files| files.add_model(model))
    }

    /// Adds that this server was told to end.
    pub(super) fn leave(&self) {
        let mut entry = self.lock();
        entry.is_leaving = true;
        let has_model = entry.model.is_some();
        if let Some(Err(error)) = entry.files.as_mut().map(|files| files.leave(has_model)) {
            tracing::debug!("`kvik stop` will not see that this server ends: {error}");
        }
    }

    /// Takes the files that the server before this one had, and writes down what there is to say by now.
    fn take(&self, mut files: HeldFiles) -> io::Result<()> {
        let mut entry = self.lock();
        if let Some(model) = &entry.model {
            files.add_model(model)?;
        }
        if entry.is_leaving {
            files.leave(entry.model.is_some())?;
        }
        entry.files = Some(files);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, RecordLines> {
        // Every change is a single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldFiles {
    /// Writes the record of a server whose lock is held.
    fn write(directory: &Path, port: u16, url: &str, lock: File) -> io::Result<HeldFiles> {
        let mut record = open(&file_of(directory, port))?;
        record.set_len(0)?;
        record.write_all(format!("{}\n{url}\n", std::process::id()).as_bytes())?;
        Ok(HeldFiles { record, _lock: lock })
    }

    fn add_model(&mut self, model: &str) -> io::Result<()> {
        self.record.write_all(format!("{model}\n").as_bytes())
    }

    fn leave(&mut self, has_model: bool) -> io::Result<()> {
        let no_model = if has_model { "" } else { "\n" };
        self.record.write_all(format!("{no_model}{LEAVING}\n").as_bytes())
    }
}

/// Writes this process down as the server of a port, reached at this address. While the server before it on this port
/// lets its answers finish, it has the record; this one is written down when that has ended.
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
    let lock = open(&lock_of(directory, port))?;
    let own = OwnRecord(Arc::default());
    match wait_for(&lock) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let (waiting, directory, url) = (Arc::downgrade(&own.0), directory.to_owned(), url.to_owned());
            let thread = thread::Builder::new().name("kvik-record".to_owned());
            thread.spawn(move || hold_late(&waiting, lock, &directory, (port, &url)))?;
        }
        waited => {
            waited?;
            own.take(HeldFiles::write(directory, port, url, lock)?)?;
        }
    }
    Ok(own)
}

/// Writes a server down once the one before it has ended, unless it has ended itself by then.
fn hold_late(waiting: &Weak<Mutex<RecordLines>>, lock: File, directory: &Path, (port, url): (u16, &str)) {
    let locked = lock.lock();
    let Some(entry) = waiting.upgrade() else { return };
    let files = locked.and_then(|()| HeldFiles::write(directory, port, url, lock));
    if let Err(error) = files.and_then(|files| OwnRecord(entry).take(files)) {
        tracing::debug!("commands will not find this server by themselves: {error}");
    }
}

/// Opens a file that the owner alone may read, and makes it if there is none.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    readable_by_owner_only(&mut options);
    options.open(path)
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
    use std::time::Instant;

    use super::*;

    const URL: &str = "http://127.0.0.1:8080";

    #[test]
    fn a_server_is_found_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("kvik");
        assert_eq!(find_in(&dir, 8080).unwrap(), None);
        let held = hold_in(&dir, 8080, URL).unwrap();
        let (pid, url) = (std::process::id(), URL.to_owned());
        let mut own = RunningServer { pid, url, model: None, is_leaving: false };
        assert_eq!(find_in(&dir, 8080).unwrap(), Some(own.clone()));
        held.add_model("/models/a b.gguf").unwrap();
        own.model = Some("/models/a b.gguf".to_owned());
        assert_eq!(find_in(&dir, 8080).unwrap(), Some(own.clone()));
        assert_eq!(find_in(&dir, 8081).unwrap(), None, "another port");
        held.leave();
        own.is_leaving = true;
        assert_eq!(find_in(&dir, 8080).unwrap(), Some(own));
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

    /// The port is free while the server before still lets its answers finish.
    #[test]
    fn a_server_is_found_once_the_one_before_it_has_ended() {
        for model in [None, Some("/models/a.gguf")] {
            let dir = tempfile::tempdir().unwrap();
            let before = hold_in(dir.path(), 8080, "http://before:8080").unwrap();
            before.leave();
            let gone = hold_in(dir.path(), 8080, "http://gone:8080").unwrap();
            drop(gone);
            let next = hold_in(dir.path(), 8080, URL).unwrap();
            model.iter().for_each(|model| next.add_model(model).unwrap());
            let found = find_in(dir.path(), 8080).unwrap().unwrap();
            assert_eq!((found.url.as_str(), found.is_leaving), ("http://before:8080", true));
            drop(before);
            let of_port = || find_in(dir.path(), 8080).unwrap().unwrap().model_at_url();
            until_found(dir.path(), (URL, model, false));
            assert_eq!(of_port().as_deref(), model);
            next.leave();
            until_found(dir.path(), (URL, model, true));
            assert_eq!(of_port(), None);
        }
    }

    /// Waits until a server is written down with this address, this model, and whether it ends.
    fn until_found(directory: &Path, expect: (&str, Option<&str>, bool)) {
        let begun = Instant::now();
        let is_it = |server: RunningServer| {
            (server.url.as_str(), server.model.as_deref(), server.is_leaving) == expect
        };
        while !find_in(directory, 8080).unwrap().is_some_and(is_it) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{expect:?} is never written down");
            thread::sleep(PAUSE);
        }
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
