//! The pace of background requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const PARTS: f64 = 1e6;

/// The share of a background request that ought to be done by now, from 0 to 1. A request that lags behind takes time
/// from others, more the further it lags. All clones share one value, so the requester can update it while the request
/// runs.
#[derive(Debug, Clone, Default)]
pub struct Pace(Arc<AtomicU32>);

impl Pace {
    /// Sets the share that is due.
    pub fn set(&self, due: f64) {
        self.0.store((due.clamp(0.0, 1.0) * PARTS) as u32, Ordering::Relaxed);
    }

    /// The share that is due.
    pub fn due(&self) -> f64 {
        f64::from(self.0.load(Ordering::Relaxed)) / PARTS
    }
}

impl PartialEq for Pace {
    fn eq(&self, other: &Pace) -> bool {
        self.0.load(Ordering::Relaxed) == other.0.load(Ordering::Relaxed)
    }
}
