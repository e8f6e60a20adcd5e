//! The clock of a simulated world, and its random numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::fake::mix;

/// A manual clock; clones share the time.
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

/// A seeded generator of random choices.
pub(crate) struct Dice(pub u64);

impl Dice {
    /// A number from 0 to `sides - 1`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = mix(self.0);
        (self.0 >> 20) % sides
    }

    /// True once in `times` times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.roll(times) == 0
    }

    /// Another generator.
    pub(crate) fn split(&mut self) -> Dice {
        Dice(mix(self.roll(u64::MAX)))
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len() as u64) as usize]
    }
}
