//! Values that threads write concurrently, each in cache lines of its own.

use std::ops::Deref;

/// A value that shares no cache line with its neighbours.
///
/// Aligned to 128 bytes: Intel fetches lines of 64 in pairs, and Apple and some Arm processors have lines of 128.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
