//! The clock of a store, which gives its values their times. That of this machine may be wrong, and must expire nothing
//! that other nodes use.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The last time that a store told, and since when; none until it has told one.
#[derive(Default)]
pub(super) struct StoreClock(Mutex<Option<(SystemTime, Instant)>>);

impl StoreClock {
    /// Notes the store's time of just now.
    pub(super) fn set(&self, now: SystemTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// The store's time; that of this machine until the store has told one.
    pub(super) fn now(&self) -> SystemTime {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // The clock of this machine may be set meanwhile.
            Some((told, since)) => told.checked_add(since.elapsed()).unwrap_or(told),
            None => SystemTime::now(),
        }
    }

    /// Time since an object was written or renewed; zero if that is to come.
    pub(super) fn age(&self, modified: SystemTime) -> Duration {
        self.now().duration_since(modified).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_from_what_the_store_told() {
        let (clock, day) = (StoreClock::default(), Duration::from_secs(24 * 3600));
        let ago = clock.age(SystemTime::now() - day);
        assert!(ago >= day && ago < 2 * day, "that of this machine");
        let told = SystemTime::UNIX_EPOCH + day;
        clock.set(told);
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(clock.now(), told + Duration::from_secs(7));
        assert_eq!((clock.age(told), clock.age(told + day)), (Duration::from_secs(7), Duration::ZERO));
    }
}
