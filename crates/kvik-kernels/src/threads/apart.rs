//! Values that threads write at the same time, each in lines of cache of its own.

use std::ops::Deref;

/// A value that shares no line of cache with its neighbours.
///
/// 128 bytes: Intel fetches lines of 64 in pairs, and Apple's and some of Arm's are that long.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
