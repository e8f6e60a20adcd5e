//! The server's secret, and the salts derived from it.
//!
//! A salt separates the cached prompts of one tenant from those of the others. It depends on the
//! secret, which never leaves the server, and on the tenant's name and sharing mode, never on what a
//! client sends, so no client can address another's prompts.

use std::{
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use kvik_memory::records::private::{create_private_folder, readable_by_owner_only};
use kvik_remote::FleetKey;
use kvik_text::files::small::read_own;

use super::Share;

/// Context of BLAKE3's key derivation; changing it loses every tenant's cache.
const SALT_CONTEXT: &str = "kvik 2026-11-21 tenant salt v1";

/// Context of the key derivation for the secret that a fleet's nodes share.
const FLEET_CONTEXT: &str = "kvik 2026-11-26 secret of the nodes of a fleet v1";

/// Maximum bytes read of a file that may not be a secret.
const BYTES_MAX: u64 = 1 << 10;

/// 32 random bytes known only to this server, or to the nodes of a fleet.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// Reasons why the secret cannot be used.
#[allow(missing_docs, reason = "the error texts name the fields")]
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Reading or writing failed.
    #[error("the server's secret {} cannot be used: {error}; name another file with --secret-file", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The file has another length.
    #[error("{} holds {bytes} bytes and a secret has 32; remove it and a new one is made (the tenants' caches start empty then)", path.display())]
    NotASecret { path: PathBuf, bytes: usize },
}

impl Secret {
    /// Reads the secret in `path`, or creates one that only this user can read.
    pub fn open(path: &Path) -> Result<Secret, SecretError> {
        let failed = |error| SecretError::Io { path: path.to_owned(), error };
        let read = || read_own(path, BYTES_MAX);
        let bytes = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(path).and_then(|()| read()).map_err(failed)?
            }
            read => read.map_err(failed)?,
        };
        kvik_serving::system::warn_if_readable_by_others(path, "the server's secret");
        let not_a_secret = |_| SecretError::NotASecret { path: path.to_owned(), bytes: bytes.len() };
        Ok(Secret(bytes.as_slice().try_into().map_err(not_a_secret)?))
    }

    /// The secret of all nodes that have this fleet key.
    pub fn of_fleet(key: &FleetKey) -> Secret {
        Secret(key.derive(FLEET_CONTEXT))
    }

    /// A secret that lasts as long as the process.
    pub(crate) fn of_this_process() -> Secret {
        let mut bytes = [0; 32];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&kvik_memory::random::random().to_le_bytes());
        }
        // The seed of std's hasher is the fallback if the system provides no better randomness.
        let _ = getrandom::fill(&mut bytes);
        Secret(bytes)
    }

    /// Derives a key of the tenant `name` for one purpose: the `context` of BLAKE3's key derivation.
    pub(crate) fn key(&self, context: &str, name: &str) -> [u8; 32] {
        *blake3::Hasher::new_derive_key(context).update(&self.0).update(name.as_bytes()).finalize().as_bytes()
    }

    /// The salt of the tenant `name`; all tenants that share have the same one.
    pub fn salt(&self, name: &str, share: Share) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_derive_key(SALT_CONTEXT);
        hasher.update(&self.0);
        match share {
            Share::Shared => hasher.update(b"shared"),
            Share::Isolated | Share::PublicPrompts => hasher.update(b"tenant ").update(name.as_bytes()),
        };
        let mut salt = [0; 16];
        hasher.finalize_xof().fill(&mut salt);
        salt
    }
}

/// Writes a new secret next to `path` and links it there: the first process wins, and none reads a partial
/// secret.
fn create(path: &Path) -> io::Result<()> {
    create_with(path, |draft, path| fs::hard_link(draft, path))
}

/// [Creates](create) a secret; `link` gives the draft its second name.
fn create_with(path: &Path, link: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    if let Some(folder) = path.parent() {
        create_private_folder(folder)?;
    }
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    // A process with the same id, as the first one of each container has, may have been killed here.
    let _ = fs::remove_file(&draft);
    let placed = |()| match link(&draft, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => rename_if_missing(&draft, path),
        linked => linked,
    };
    let written = write_private(&draft, &bytes).and_then(placed);
    let _ = fs::remove_file(&draft);
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.exists() => Ok(()),
        written => written,
    }
}

/// For file systems without links: exFAT, vfat, shared folders. Of processes that start in the same instant each may use
/// a secret of its own until it starts again.
fn rename_if_missing(draft: &Path, path: &Path) -> io::Result<()> {
    if path.exists() { Ok(()) } else { fs::rename(draft, path) }
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    readable_by_owner_only(&mut options);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_created_once_and_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/secret");
        let first = Secret::open(&path).unwrap();
        assert_eq!(Secret::open(&path).unwrap().0, first.0);
        assert_ne!(first.0, [0; 32]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn servers_that_start_together_agree_on_one_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write_private(&path, &[7; 32]).unwrap();
        create(&path).unwrap();
        assert_eq!(Secret::open(&path).unwrap().0, [7; 32], "the second server takes the first one's");
    }

    /// The first process of a container has the same id each time.
    #[test]
    fn the_draft_of_a_killed_process_with_the_same_id_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(path.with_extension(format!("new-{}", std::process::id())), [7; 5]).unwrap();
        assert_ne!(Secret::open(&path).unwrap().0[..5], [7; 5]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_system_without_links_has_a_secret_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let refused =
            |_: &Path, _: &Path| -> io::Result<()> { Err(io::Error::from(io::ErrorKind::PermissionDenied)) };
        create_with(&path, refused).unwrap();
        let first = Secret::open(&path).unwrap();
        create_with(&path, refused).unwrap();
        assert_eq!(Secret::open(&path).unwrap().0, first.0, "the one that is there stays");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_that_holds_no_secret_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, "hello").unwrap();
        let error = Secret::open(&path).unwrap_err().to_string();
        assert!(error.contains("5 bytes") && error.contains("secret"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"hello");
    }

    #[test]
    fn salts_separate_tenants_and_servers_but_not_tenants_that_share() {
        let (secret, other) = (Secret([1; 32]), Secret([2; 32]));
        let salts = [
            secret.salt("acme", Share::Isolated),
            secret.salt("beta", Share::Isolated),
            secret.salt("acme", Share::Shared),
            other.salt("acme", Share::Isolated),
            other.salt("acme", Share::Shared),
            [0; 16],
        ];
        let distinct: std::collections::BTreeSet<_> = salts.into_iter().collect();
        assert_eq!(distinct.len(), salts.len());
        assert_eq!(secret.salt("acme", Share::Shared), secret.salt("beta", Share::Shared));
        assert_eq!(secret.salt("acme", Share::Isolated), secret.salt("acme", Share::PublicPrompts));
    }

    /// Salts must never change, because they identify caches on disk. Computed with another
    /// implementation (Python's `blake3`).
    #[test]
    fn salts_are_stable_for_ever() {
        let secret = Secret([1; 32]);
        assert_eq!(
            kvik_memory::hex::written(secret.salt("acme", Share::Isolated)),
            "5ec132ed7990d2958960db6f533f7b31"
        );
        assert_eq!(
            kvik_memory::hex::written(secret.salt("acme", Share::Shared)),
            "87c1dc47692c14bca51750b21b510f7d"
        );
    }
}
