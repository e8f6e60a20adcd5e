//! Files that only their owner can read, and that stand where they seem to. On systems other than Unix they are as
//! private as their folder.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// Creates a file readable by its owner only. A link at its path is refused: whoever put it there would choose which
/// file is written.
pub fn readable_by_owner_only(options: &mut OpenOptions) {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        // Without NONBLOCK, opening a pipe at this path could block for ever.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits() as i32);
    }
    #[cfg(not(unix))]
    let _ = options;
}

/// Creates a folder and its missing parents, accessible by their owner only.
///
/// # Errors
/// If a folder cannot be created.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes an existing file readable by its owner only.
pub fn close_to_others(file: &File) {
    // On failure the folder's permissions still protect the file.
    #[cfg(unix)]
    let _ = file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600));
    #[cfg(not(unix))]
    let _ = file;
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_link_in_the_place_of_a_private_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (foreign, link) = (dir.path().join("foreign"), dir.path().join("link"));
        std::os::unix::fs::symlink(&foreign, &link).unwrap();
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        readable_by_owner_only(&mut options);
        assert!(options.open(&link).is_err() && !foreign.exists(), "nothing is created through it");
        fs::write(&foreign, "as it was").unwrap();
        assert!(options.open(&link).is_err());
        assert!(options.open(&foreign).is_ok());
    }
}
