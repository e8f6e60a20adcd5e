//! Small files: settings, keys, lists. Reads are bounded, even of devices and pipes.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Maximum bytes of a settings file.
pub const SETTINGS_BYTES_MAX: u64 = 16 << 20;

/// Reads a file at a path given by a user, which may be a pipe.
///
/// # Errors
/// If it cannot be read, or has more than `bytes_max` bytes, as some devices never end.
pub fn read_small(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_whole(File::open(path)?, bytes_max)
}

/// [`read_small`] for text.
///
/// # Errors
/// As [`read_small`], and if the text is not UTF-8.
pub fn read_small_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let bytes = read_small(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Reads a file of this program's own, perhaps through a link. A pipe in its place would block forever.
///
/// # Errors
/// As [`read_small`], and if it is not a regular file.
pub fn read_own(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true);
    // Opening a pipe would wait for its writer otherwise.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path)?;
    // The open file is asked, since another one may have taken its path.
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    read_whole(file, bytes_max)
}

fn read_whole(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let message = format!("it has more than the {bytes_max} bytes that it may have");
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_within_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_small_text(&path, 4).unwrap(), "four");
        assert_eq!(read_small(&path, 3).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_own(&path, 4).unwrap(), b"four");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_small_text(&path, 4).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    /// Kubernetes mounts secrets as links, and the hub's cache has a checkpoint's files as links.
    #[cfg(unix)]
    #[test]
    fn a_file_of_the_program_may_be_a_link_and_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("secret"), folder.path().join("link"));
        std::fs::write(&path, "four").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_own(&link, 4).unwrap(), b"four");
        assert_eq!(read_own(folder.path(), 4).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[cfg(unix)]
    #[test]
    fn devices_that_never_end_are_refused() {
        let endless = Path::new("/dev/zero");
        assert_eq!(read_small(endless, 1 << 10).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_own(endless, 1 << 10).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    /// The FIFO has no writer, so opening it would block forever.
    #[cfg(unix)]
    #[test]
    fn a_fifo_in_the_place_of_a_file_of_the_program_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("secret");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        assert_eq!(read_own(&fifo, 1 << 10).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
