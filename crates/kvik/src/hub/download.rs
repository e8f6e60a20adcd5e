//! Downloads one file: resumes a broken download, checks the file, then renames it into place.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use ureq::http::{Response, StatusCode, header};

use super::{Hub, HubError, HubSpec, RemoteFile, safe_path};
use crate::{hex, settings::logging::say};

/// Connections for one file at most; a connection that brings no bytes is the last.
const ATTEMPTS_MAX: usize = 8;

impl Hub {
    /// Downloads the file into `directory`, unless it is there.
    pub(super) fn download(
        &self,
        spec: &HubSpec,
        file: &RemoteFile,
        directory: &Path,
    ) -> Result<(), HubError> {
        let target = directory.join(safe_path(&file.path).expect("a listing holds safe paths only"));
        if target.exists() {
            return Ok(());
        }
        let url = format!("{}/{spec}/resolve/main/{}", self.endpoint, file.path);
        let mut part = PartFile::open(&target, file)?;
        // Another process may have finished it while this one waited for the lock.
        if target.exists() {
            return Ok(());
        }
        for _ in 0..ATTEMPTS_MAX {
            let before = part.have;
            let complete = self.receive(&url, &mut part)?;
            if complete {
                return part.finish(&target);
            }
            if part.have == before {
                break;
            }
        }
        Err(HubError::BrokeOff { file: part.name, have: part.have, size: part.size.unwrap_or(0) })
    }

    /// Receives the bytes of one connection; returns whether the file is complete.
    fn receive(&self, url: &str, part: &mut PartFile) -> Result<bool, HubError> {
        // Without a checksum, two halves of different versions would pass as one file.
        if part.checksum.is_none() {
            part.restart()?;
        }
        let from = (part.have > 0).then_some(part.have);
        let (mut response, checksum) = self.get(url, &part.name, from)?;
        part.checksum = part.checksum.take().or(checksum);
        let goes_on = response.status() == StatusCode::PARTIAL_CONTENT && range_start(&response) == from;
        if !goes_on {
            part.restart()?;
        }
        if response.status() != StatusCode::OK && !goes_on {
            // The server refuses this range: the part file does not match its file.
            response = self.get(url, &part.name, None)?.0;
        }
        let rest = content_length(&response);
        part.size = part.size.or_else(|| rest.map(|rest| part.have + rest));
        part.take(response.into_body().into_reader())
    }
}

/// First byte of a partial answer: `Content-Range: bytes 100-199/200`.
fn range_start(response: &Response<ureq::Body>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

fn content_length(response: &Response<ureq::Body>) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A file that is being downloaded: `NAME.part`, locked against other processes.
struct PartFile {
    name: String,
    path: PathBuf,
    file: File,
    /// Bytes in the file.
    have: u64,
    /// Expected bytes, once known.
    size: Option<u64>,
    /// Expected SHA-256, once known.
    checksum: Option<String>,
    /// SHA-256 of the bytes in the file so far.
    digest: Sha256,
    progress: ProgressBar,
}

impl PartFile {
    fn open(target: &Path, remote: &RemoteFile) -> Result<PartFile, HubError> {
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let failed = |source| HubError::Io { path: path.clone(), source };
        fs::create_dir_all(target.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        if file.try_lock().is_err() {
            say(&format!("another kvik is downloading {}; waiting for it", remote.path));
            file.lock().map_err(failed)?;
        }
        let size = remote.lfs.as_ref().and_then(|lfs| lfs.size).or(remote.size);
        let (have, digest) = digest_of(&mut file).map_err(failed)?;
        let checksum = remote.lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref()).map(str::to_ascii_lowercase);
        let progress = bar(&remote.path, size);
        Ok(PartFile { name: remote.path.clone(), path, file, have, size, checksum, digest, progress })
    }

    /// Empties the file.
    fn restart(&mut self) -> Result<(), HubError> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.map_err(|source| HubError::Io { path: self.path.clone(), source })?;
        self.have = 0;
        self.digest = Sha256::new();
        Ok(())
    }

    /// Appends the bytes of the connection; returns whether the file is complete. A broken connection is
    /// no error here: the next one continues.
    fn take(&mut self, mut body: impl Read) -> Result<bool, HubError> {
        let mut buffer = vec![0; 256 << 10];
        self.progress.set_position(self.have);
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(self.size.is_none_or(|size| self.have == size)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Ok(false),
            };
            self.have += count as u64;
            if self.size.is_some_and(|size| self.have > size) {
                // Longer than announced: this is not the listed file.
                self.restart()?;
                return Ok(false);
            }
            let written = self.file.write_all(&buffer[..count]);
            written.map_err(|source| HubError::Io { path: self.path.clone(), source })?;
            self.digest.update(&buffer[..count]);
            self.progress.set_position(self.have);
        }
    }

    /// Checks the whole file and renames it.
    fn finish(self, target: &Path) -> Result<(), HubError> {
        self.progress.finish_and_clear();
        let found = hex::written(self.digest.finalize());
        let failed = |source| HubError::Io { path: self.path.clone(), source };
        if let Some(expected) = self.checksum.filter(|expected| *expected != found) {
            fs::remove_file(&self.path).map_err(failed)?;
            return Err(HubError::Checksum { file: self.name, expected, found });
        }
        self.file.sync_all().map_err(failed)?;
        fs::rename(&self.path, target).map_err(failed)
    }
}

/// Length and digest of a file's contents; leaves the cursor at its end.
fn digest_of(file: &mut File) -> io::Result<(u64, Sha256)> {
    let (mut digest, mut length) = (Sha256::new(), 0);
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((length, digest)),
            count => {
                digest.update(&buffer[..count]);
                length += count as u64;
            }
        }
    }
}

/// A progress bar; indicatif hides it where standard error is not a terminal.
fn bar(name: &str, size: Option<u64>) -> ProgressBar {
    let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let bar = size.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(name.to_owned())
}
