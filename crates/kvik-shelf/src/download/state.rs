//! The present bytes of a part file, saved now and then, so that a later process can resume.

use std::{fs, ops::Range, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    Wanted,
    part::{Part, new_state_path_of, state_path_of},
};
use crate::{ShelfError, disk};

/// Maximum size of a state file.
const BYTES_MAX: u64 = 1 << 20;

/// The present bytes of a file that is fetched in pieces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    url: String,
    size: u64,
    /// Checksum of the file that the bytes belong to; if it changes, they are useless.
    sha256: Option<String>,
    /// Length of each piece but the last.
    piece_bytes: u64,
    /// Number of present bytes of each piece, from its start.
    have: Vec<u64>,
    /// The process that fetches the file, for waiting processes.
    holder: String,
}

impl State {
    /// The saved state of the part, if it belongs to the wanted file and the part has the right length; otherwise
    /// an empty one.
    pub(super) fn load(wanted: &Wanted, part: &Part, size: u64, piece_bytes: u64) -> State {
        let fresh = State {
            url: wanted.url.clone(),
            size,
            sha256: wanted.sha256.clone(),
            piece_bytes,
            have: vec![0; usize::try_from(size.div_ceil(piece_bytes)).unwrap_or(0)],
            holder: this_process(),
        };
        let path = state_path_of(&wanted.target);
        let written = disk::read_small(&path, BYTES_MAX).ok();
        let found = written.and_then(|text| serde_json::from_slice::<State>(&text).ok());
        let has_length = part.file.metadata().is_ok_and(|metadata| metadata.len() == size);
        match found.filter(|found| has_length && found.is_of(&fresh, wanted.is_pinned)) {
            Some(found) => State { holder: fresh.holder, url: fresh.url, ..found },
            None => fresh,
        }
    }

    /// Returns whether this state describes bytes of the same file. Without a checksum or a commit, two versions of
    /// a file could not be distinguished, so the result is false.
    fn is_of(&self, wanted: &State, is_pinned: bool) -> bool {
        let is_known = wanted.sha256.is_some() || (is_pinned && self.url == wanted.url);
        let pieces = self.size.checked_div(self.piece_bytes).map(|_| self.size.div_ceil(self.piece_bytes));
        is_known
            && self.sha256 == wanted.sha256
            && self.size == wanted.size
            && pieces == Some(self.have.len() as u64)
            && (0..self.have.len())
                .all(|piece| self.have[piece] <= self.range(piece).end - self.range(piece).start)
    }

    /// Number of pieces of the file.
    pub(super) fn pieces(&self) -> usize {
        self.have.len()
    }

    fn range(&self, piece: usize) -> Range<u64> {
        let start = piece as u64 * self.piece_bytes;
        start..self.size.min(start + self.piece_bytes)
    }

    /// The missing bytes of a piece.
    pub(super) fn missing(&self, piece: usize) -> Range<u64> {
        let Range { start, end } = self.range(piece);
        start + self.have[piece]..end
    }

    /// Notes that `bytes` more bytes of a piece are present.
    pub(super) fn add(&mut self, piece: usize, bytes: u64) {
        self.have[piece] += bytes;
        assert!(!self.missing(piece).is_empty() || self.missing(piece).start == self.range(piece).end);
    }

    /// Number of present bytes.
    pub(super) fn done(&self) -> u64 {
        self.have.iter().sum()
    }

    /// Saves the state, after syncing the bytes it describes to disk.
    pub(super) fn save(&self, part: &Part) -> Result<(), ShelfError> {
        part.file.sync_data().map_err(ShelfError::io(&part.path))?;
        let path = state_path_of(&part.target);
        let text = serde_json::to_vec(self).unwrap_or_default();
        disk::replace(&path, &new_state_path_of(&part.target), &text)
            .map_err(super::write_error(part, text.len() as u64))
    }
}

/// The process that fetches a target, for a message.
pub(super) fn holder(target: &Path) -> String {
    let text = disk::read_small(&state_path_of(target), BYTES_MAX).unwrap_or_default();
    let holder = serde_json::from_slice::<State>(&text).map(|state| state.holder).unwrap_or_default();
    match holder.is_empty() || holder.len() > 200 || holder.contains(char::is_control) {
        true => "another process".to_owned(),
        false => holder,
    }
}

fn this_process() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => format!("process {}", std::process::id()),
        host => format!("process {} on {host}", std::process::id()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    fn wanted(dir: &Path, sha256: Option<&str>, is_pinned: bool) -> Wanted {
        let (what, url) = ("m".into(), "http://hub/m".into());
        Wanted {
            what,
            url,
            target: dir.join("m"),
            size: Some(25),
            sha256: sha256.map(str::to_owned),
            is_pinned,
        }
    }

    fn part(wanted: &Wanted, len: u64) -> Part {
        let part =
            Part::new(wanted, disk::open_to_lock(&super::super::part::path_of(&wanted.target)).unwrap());
        part.file.set_len(len).unwrap();
        part
    }

    #[test]
    fn what_was_saved_is_found_again_for_the_same_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let first = wanted(dir.path(), Some("a"), false);
        let mut state = State::load(&first, &part(&first, 25), 25, 10);
        assert_eq!((state.pieces(), state.done(), state.missing(2)), (3, 0, 20..25));
        state.add(0, 4);
        state.add(2, 5);
        state.save(&part(&first, 25)).unwrap();
        let done = |wanted: &Wanted, len, size| State::load(wanted, &part(wanted, len), size, 10).done();
        assert_eq!(done(&first, 25, 25), 9);
        assert!(holder(&first.target).contains(&std::process::id().to_string()));
        assert_eq!(done(&wanted(dir.path(), Some("b"), false), 25, 25), 0, "another checksum");
        assert_eq!(done(&wanted(dir.path(), None, false), 25, 25), 0, "no checksum");
        assert_eq!(done(&first, 24, 25), 0, "the part is not that long");
        assert_eq!(done(&first, 26, 26), 0, "another size");
        let again = State::load(&first, &part(&first, 25), 25, 7);
        assert_eq!((again.pieces(), again.missing(0)), (3, 4..10), "pieces stay as they were");
    }

    #[test]
    fn a_commit_says_as_much_as_a_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let pinned = wanted(dir.path(), None, true);
        let mut state = State::load(&pinned, &part(&pinned, 25), 25, 10);
        state.add(1, 3);
        state.save(&part(&pinned, 25)).unwrap();
        assert_eq!(State::load(&pinned, &part(&pinned, 25), 25, 10).done(), 3);
        let other = Wanted { url: "http://hub/other".into(), ..pinned };
        assert_eq!(State::load(&other, &part(&other, 25), 25, 10).done(), 0);
    }

    #[test]
    fn hostile_states_are_no_states() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = wanted(dir.path(), Some("a"), false);
        let good = r#"{"url": "u", "size": 25, "sha256": "a", "piece_bytes": 10, "have": [1, 2, 3], "holder": "me"}"#;
        let check = |from: &str, to: &str, expect: u64| {
            fs::write(state_path_of(&wanted.target), good.replace(from, to)).unwrap();
            assert_eq!(State::load(&wanted, &part(&wanted, 25), 25, 10).done(), expect, "{to}");
        };
        check("me", "me", 6);
        check("[1, 2, 3]", "[11, 2, 3]", 0);
        check("[1, 2, 3]", "[1, 2, 6]", 0);
        check("[1, 2, 3]", "[1, 2]", 0);
        check("[1, 2, 3]", "[1, 2, 18446744073709551615]", 0);
        check("\"piece_bytes\": 10", "\"piece_bytes\": 0", 0);
        check("{", "", 0);
        check("\"me\"", "\"a\\u001bb\"", 6);
        assert_eq!(holder(&wanted.target), "another process");
    }
}
