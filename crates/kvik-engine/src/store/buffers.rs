//! A fixed number of buffers for blocks being transferred to and from the disk.
//!
//! A caller that gets no buffer waits or skips its operation. The number of buffers therefore bounds
//! the queues of the store, and their size bounds its memory.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer for the bytes of one block. Dropping it returns it to its store.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The buffers of one store.
#[derive(Debug)]
pub struct Buffers {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
    payload_bytes: usize,
    /// Buffers not yet allocated: each is allocated at its first use.
    unallocated: usize,
}

impl Buffers {
    /// Bytes of a buffer.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// `count` buffers of `payload_bytes` bytes each.
    pub fn new(count: usize, payload_bytes: usize) -> Buffers {
        Buffers { idle: Arc::default(), payload_bytes, unallocated: count }
    }

    /// Frees the memory of idle buffers until they are used again.
    pub fn trim(&mut self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        self.unallocated += idle.len();
    }

    /// An idle buffer with unspecified bytes; `None` while all are in use.
    pub fn take(&mut self) -> Option<Buffer> {
        let idle = lock(&self.idle).pop();
        let bytes = idle.or_else(|| {
            self.unallocated = self.unallocated.checked_sub(1)?;
            Some(vec![0; self.payload_bytes])
        })?;
        Some(Buffer { bytes, idle: Arc::clone(&self.idle) })
    }
}

/// A panic under the lock leaves the list of vectors consistent.
fn lock(idle: &Mutex<Vec<Vec<u8>>>) -> MutexGuard<'_, Vec<Vec<u8>>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
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
        lock(&self.idle).push(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_buffers_exist_than_configured() {
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

    #[test]
    fn idle_buffers_give_their_memory_back_and_stay_as_many() {
        let mut buffers = Buffers::new(3, 8);
        let used = buffers.take().unwrap();
        drop(buffers.take());
        buffers.trim();
        assert_eq!((lock(&buffers.idle).len(), buffers.unallocated), (0, 2));
        drop(used);
        let all: Vec<Buffer> = std::iter::from_fn(|| buffers.take()).collect();
        assert_eq!(all.len(), 3);
    }
}
