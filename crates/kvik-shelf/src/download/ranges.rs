//! Fetches the pieces of a file of known size over several connections, each from where it stopped.

use std::{
    io::{ErrorKind, Read},
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Wanted, Watch, part::Part, state::State, write_error};
use crate::{
    Hub, ShelfError, disk,
    hub::{Answer, Retry},
};

/// Target number of pieces of a file, within the limits of their size.
const PIECES: u64 = 16;
/// Interval at which the state is saved during a transfer.
const SAVE_TIME: Duration = Duration::from_secs(1);

/// The outcome of a transfer.
pub(super) enum Outcome {
    /// All bytes are present, and should have this checksum.
    Complete(Option<String>),
    /// The server does not respond with ranges, or with ranges of another file.
    NoRanges,
}

/// Fetches the missing bytes of the part.
pub(super) fn fetch(
    hub: &Hub,
    wanted: &Wanted,
    part: &Part,
    size: u64,
    watch: Watch<'_>,
) -> Result<Outcome, ShelfError> {
    let Range { start: smallest, end: largest } = hub.tuning.piece_bytes;
    let state = State::load(wanted, part, size, size.div_ceil(PIECES).clamp(smallest, largest));
    if let Err(error) = disk::reserve(&part.file, size) {
        // The space reserved so far would only keep others from the little room there is.
        part.discard()?;
        return Err(write_error(part, size)(error));
    }
    // Waiting processes read from it who holds the lock.
    state.save(part)?;
    watch.progress.bytes(watch.file, state.done(), Some(size));
    let sha256 = wanted.sha256.clone();
    let shared = Shared { taken: vec![false; state.pieces()], state, sha256, saved: Instant::now() };
    let transfer =
        Transfer { hub, wanted, part, size, watch, stop: AtomicBool::new(false), shared: shared.into() };
    transfer.run()
}

/// A file transfer in progress.
struct Transfer<'a> {
    hub: &'a Hub,
    wanted: &'a Wanted,
    part: &'a Part,
    size: u64,
    watch: Watch<'a>,
    /// Set when a connection has failed: further bytes are useless.
    stop: AtomicBool,
    shared: Mutex<Shared>,
}

struct Shared {
    state: State,
    /// Pieces that a connection fetches or has fetched.
    taken: Vec<bool>,
    /// The checksum, once known.
    sha256: Option<String>,
    /// When the state was last saved.
    saved: Instant,
}

/// The outcome of a connection.
enum Received {
    /// The number of bytes received, up to the end of its piece or until the connection broke.
    Bytes(u64),
    NoRanges,
}

impl Transfer<'_> {
    fn run(self) -> Result<Outcome, ShelfError> {
        let ended = thread::scope(|scope| {
            let workers = self.hub.tuning.connections.min(self.lock().state.pieces());
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(|| self.work())).collect();
            let ended = threads.into_iter().map(|thread| thread.join().expect("a connection does not panic"));
            ended.collect::<Vec<_>>()
        });
        let shared = self.lock();
        // After an error as well: the next process resumes from here.
        let saved = shared.state.save(self.part);
        let failed = ended.into_iter().find(|ended| !matches!(ended, Ok(true)));
        match failed {
            Some(Err(error)) => Err(error),
            Some(_) => Ok(Outcome::NoRanges),
            None => saved.map(|()| Outcome::Complete(shared.sha256.clone())),
        }
    }

    /// Fetches pieces until none is left; returns whether the server supports ranges. The first failure stops all
    /// connections.
    fn work(&self) -> Result<bool, ShelfError> {
        let mut retry = Retry::new(self.hub.tuning.first_pause);
        while let Some(piece) = self.take() {
            let ended = self.fetch_piece(piece, &mut retry);
            if !matches!(ended, Ok(true)) {
                self.stop.store(true, Relaxed);
                return ended;
            }
        }
        Ok(true)
    }

    /// Takes an incomplete piece that no connection fetches.
    fn take(&self) -> Option<usize> {
        let mut shared = self.lock();
        let Shared { state, taken, .. } = &mut *shared;
        let piece = (0..state.pieces()).find(|&piece| !taken[piece] && !state.missing(piece).is_empty())?;
        taken[piece] = true;
        Some(piece).filter(|_| !self.stop.load(Relaxed))
    }

    /// Fetches the rest of a piece, reconnecting as often as necessary.
    fn fetch_piece(&self, piece: usize, retry: &mut Retry) -> Result<bool, ShelfError> {
        loop {
            let missing = self.lock().state.missing(piece);
            if missing.is_empty() || self.stop.load(Relaxed) {
                return Ok(true);
            }
            match self.receive(piece, missing.clone()) {
                Ok(Received::NoRanges) => return Ok(false),
                Ok(Received::Bytes(bytes)) if bytes == missing.end - missing.start => retry.succeeded(),
                Ok(Received::Bytes(bytes)) => {
                    if bytes > 0 {
                        retry.succeeded();
                    }
                    retry.pause(self.broke_off(), self.watch.progress)?;
                }
                Err(error) => retry.pause(error, self.watch.progress)?,
            }
        }
    }

    /// Receives bytes of `range` over one connection. An early end is not an error here: the next connection resumes.
    fn receive(&self, piece: usize, range: Range<u64>) -> Result<Received, ShelfError> {
        // The whole file is requested without a range, which every server supports.
        let is_whole = range == (0..self.size);
        let asked = (!is_whole).then(|| range.clone());
        let answer = self.hub.get_file(&self.wanted.url, &self.wanted.what, asked)?;
        let fits = match is_whole {
            true => answer.whole().is_some_and(|length| length.is_none_or(|length| length == self.size)),
            false => answer.part() == Some((range.start, self.size)),
        };
        if !fits {
            return self.unfit(&answer);
        }
        let Answer { response, sha256 } = answer;
        {
            let mut shared = self.lock();
            shared.sha256 = shared.sha256.take().or(sha256);
        }
        let len = range.end - range.start;
        self.copy(piece, range.start, response.into_body().into_reader().take(len)).map(Received::Bytes)
    }

    /// What an answer means that does not have the requested bytes: the server has no ranges, or something else has
    /// answered, such as a proxy with a page of its own, which must not cost what is present.
    fn unfit(&self, answer: &Answer) -> Result<Received, ShelfError> {
        let is_other = match answer.whole() {
            Some(Some(length)) => length != self.size,
            Some(None) => self.lock().state.done() > 0,
            None => false,
        };
        if is_other { Err(self.broke_off()) } else { Ok(Received::NoRanges) }
    }

    /// Writes bytes of a piece to their position in the file; returns how many there were.
    fn copy(&self, piece: usize, from: u64, mut bytes: impl Read) -> Result<u64, ShelfError> {
        let mut buffer = vec![0; 128 << 10];
        let mut copied = 0;
        while !self.stop.load(Relaxed) {
            self.watch.check()?;
            let count = match bytes.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let missing = self.size - self.lock().state.done().min(self.size);
            disk::write_at(&self.part.file, &buffer[..count], from + copied)
                .map_err(write_error(self.part, missing))?;
            copied += count as u64;
            self.arrived(piece, count as u64)?;
        }
        Ok(copied)
    }

    /// Notes written bytes, and saves the state if that is due.
    fn arrived(&self, piece: usize, bytes: u64) -> Result<(), ShelfError> {
        let mut shared = self.lock();
        shared.state.add(piece, bytes);
        self.watch.progress.bytes(self.watch.file, shared.state.done(), Some(self.size));
        if shared.saved.elapsed() >= SAVE_TIME {
            // Other connections wait for the lock, and fill their buffers meanwhile.
            shared.state.save(self.part)?;
            shared.saved = Instant::now();
        }
        Ok(())
    }

    fn broke_off(&self) -> ShelfError {
        let have = self.lock().state.done();
        ShelfError::BrokeOff { file: self.wanted.what.clone(), have, size: self.size }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Every change is a single assignment, so the data is consistent even after a panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
