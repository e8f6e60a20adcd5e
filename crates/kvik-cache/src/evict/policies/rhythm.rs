//! Evicts the leaf with the lowest Gittins index by the caller's clock, given its age and its rhythm.
//!
//! `forecast` measures ages in blocks used. But a tool or a reader takes as long whatever other sessions do, so that
//! on the clock the next use is much better known: an agent that has called its tools every ten seconds is used
//! again within seconds, or has ended or waits for its user, and is then worth less than one that has just begun to
//! wait. `rhythm` learns from the pauses of all sessions how a pause follows from the last one, and when it has
//! become so long that its session is likely to have ended.

use super::forecast::Forecast;
use crate::evict::sample::AgeClock;

/// Leaves by class and last use, on the caller's clock.
pub(super) fn rhythm() -> Forecast {
    Forecast::by(AgeClock::Milliseconds)
}
