//! The time of a simulated world, and its source of choices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fake::mix;

/// A clock that moves only when it is told to; clones are the same clock.
#[derive(Clone, Default)]
pub(crate) struct Time(Arc<AtomicU64>);

impl Time {
    pub(crate) fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as u64, Ordering::Relaxed);
    }
}

/// A seeded source of choices.
pub(crate) struct Dice(pub u64);

impl Dice {
    /// From 0 to `sides`, without it.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = mix(self.0);
        (self.0 >> 20) % sides
    }

    /// Once in so many times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.roll(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len() as u64) as usize]
    }
}
