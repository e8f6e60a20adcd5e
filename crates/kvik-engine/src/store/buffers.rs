//! Memory for blocks on their way to and from the disk: a fixed number, handed out and taken back.
//!
//! Whoever needs one and gets none waits or goes without. So the queues of the store are bounded
//! by the buffers, and its memory by their size.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Room for the bytes of one block. Comes back to its store when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    shelf: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The buffers of one store.
#[derive(Debug)]
pub struct Buffers {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
    payload_bytes: usize,
    /// Buffers that may still be made: memory is taken when it is first needed.
    unmade: usize,
}

impl Buffers {
    /// `count` buffers of `payload_bytes` bytes each.
    pub fn new(count: usize, payload_bytes: usize) -> Buffers {
        Buffers { idle: Arc::default(), payload_bytes, unmade: count }
    }

    /// An idle buffer, its bytes as they were left; `None` while all are in use.
    pub fn take(&mut self) -> Option<Buffer> {
        let idle = lock(&self.idle).pop();
        let bytes = idle.or_else(|| {
            self.unmade = self.unmade.checked_sub(1)?;
            Some(vec![0; self.payload_bytes])
        })?;
        Some(Buffer { bytes, shelf: Arc::clone(&self.idle) })
    }
}

/// A list of vectors is whole whatever happened to the thread that held it.
fn lock(shelf: &Mutex<Vec<Vec<u8>>>) -> MutexGuard<'_, Vec<Vec<u8>>> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        lock(&self.shelf).push(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_buffers_than_stated() {
        let mut buffers = Buffers::new(2, 8);
        let mut first = buffers.take().unwrap();
        first.copy_from_slice(&[7; 8]);
        let second = buffers.take().unwrap();
        assert!(buffers.take().is_none());
        drop(first);
        assert_eq!(&*buffers.take().unwrap(), &[7; 8]);
        drop(second);
        let all: Vec<Buffer> = std::iter::from_fn(|| buffers.take()).collect();
        assert_eq!(all.len(), 2);
    }
}
