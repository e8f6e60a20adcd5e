//! How fast work of the background ought to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const PARTS: f64 = 1e6;

/// How much of work of the background ought to be done by now, from 0, nothing, to 1, all of it. What is behind that takes
/// time of others, the more the further it is behind. All clones are one, so whoever asked for the work says how much is due
/// while it goes on.
#[derive(Debug, Clone, Default)]
pub struct Pace(Arc<AtomicU32>);

impl Pace {
    /// From now on so much of it is due.
    pub fn set(&self, due: f64) {
        self.0.store((due.clamp(0.0, 1.0) * PARTS) as u32, Ordering::Relaxed);
    }

    /// How much of it is due.
    pub fn due(&self) -> f64 {
        f64::from(self.0.load(Ordering::Relaxed)) / PARTS
    }
}

impl PartialEq for Pace {
    fn eq(&self, other: &Pace) -> bool {
        self.0.load(Ordering::Relaxed) == other.0.load(Ordering::Relaxed)
    }
}
