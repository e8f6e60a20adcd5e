//! Digests of files that have not changed since they were hashed, so that a start does not hash a model again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::small::read_own;

/// A directory with a small file per digest. Lost or damaged digests are computed again.
#[derive(Debug, Clone)]
pub struct KnownDigests {
    dir: PathBuf,
}

/// Size of a digest in bytes.
const DIGEST: usize = 32;

impl KnownDigests {
    /// The digests in `dir`, which is created when the first digest is stored.
    pub fn new(dir: &Path) -> KnownDigests {
        KnownDigests { dir: dir.to_owned() }
    }

    /// The digest stored under `key`.
    pub fn find(&self, key: &[u8; DIGEST]) -> Option<[u8; DIGEST]> {
        let bytes = read_own(&self.path(key), 2 * DIGEST as u64).ok()?;
        let digest: [u8; DIGEST] = bytes.get(..DIGEST)?.try_into().ok()?;
        (bytes[DIGEST..] == check(key, &digest)).then_some(digest)
    }

    /// Stores `digest` under `key`. A failure only costs time.
    pub fn keep(&self, key: &[u8; DIGEST], digest: &[u8; DIGEST]) {
        if let Err(error) = self.write(key, digest) {
            tracing::debug!("the digest of a model is not kept in {}: {error}", self.dir.display());
        }
    }

    fn write(&self, key: &[u8; DIGEST], digest: &[u8; DIGEST]) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let partial = self.path(key).with_extension(format!("{}.partial", std::process::id()));
        fs::write(&partial, [&digest[..], &check(key, digest)].concat())?;
        fs::rename(&partial, self.path(key))
    }

    fn path(&self, key: &[u8; DIGEST]) -> PathBuf {
        self.dir.join(blake3::Hash::from(*key).to_hex().as_str())
    }
}

/// A checksum that detects damaged and renamed files.
fn check(key: &[u8; DIGEST], digest: &[u8; DIGEST]) -> [u8; DIGEST] {
    let mut hasher = blake3::Hasher::new_derive_key("kvik 2026-11-26 a known digest");
    *hasher.update(key).update(digest).finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_found_under_its_key_and_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownDigests::new(&dir.path().join("made later"));
        let (key, other, digest) = ([1; DIGEST], [2; DIGEST], [3; DIGEST]);
        assert_eq!(known.find(&key), None);
        known.keep(&key, &digest);
        assert_eq!((known.find(&key), known.find(&other)), (Some(digest), None));
        fs::copy(known.path(&key), known.path(&other)).unwrap();
        assert_eq!(known.find(&other), None, "the file of another key");
        for cut in 0..2 * DIGEST {
            let whole = fs::read(known.path(&key)).unwrap();
            fs::write(known.path(&other), &whole[..cut]).unwrap();
            assert_eq!(known.find(&other), None, "{cut} bytes");
        }
        let mut damaged = fs::read(known.path(&key)).unwrap();
        damaged[5] ^= 1;
        fs::write(known.path(&key), damaged).unwrap();
        assert_eq!(known.find(&key), None);
    }
}
