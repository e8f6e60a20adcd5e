//! A tenant's limits: requests and tokens per minute, and prompts at a time.
//!
//! Both rates are token buckets that hold a minute's worth. A request takes one from its bucket on
//! arrival. Its cost in tokens is known only when it has ended, so it is admitted while its tenant is
//! not in debt and charged afterwards: the debt is bounded by the running requests, and the tenant
//! waits until it is refilled. Tokens from the cache cost nothing.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A request or token in the unit of a bucket: a limit of `n` per minute refills `n` units per nanosecond, so
/// that rounding never shortens a tenant's rate.
const ONE: u128 = 60_000_000_000;
/// `retry_after` while too many of a tenant's own prompts run; when one of them ends is unknown.
const PARALLEL_RETRY: Duration = Duration::from_secs(1);

/// A tenant's limits; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TenantLimits {
    pub(crate) requests_per_minute: Option<NonZeroU32>,
    /// Prompt tokens computed and tokens generated.
    pub(crate) tokens_per_minute: Option<NonZeroU32>,
    /// Prompts in the engine at a time.
    pub(crate) parallel: Option<NonZeroU32>,
}

/// The usage of one tenant against its limits; it survives changes of the limits.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<TenantUsage>);

#[derive(Debug, Default)]
struct TenantUsage {
    requests: Bucket,
    tokens: Bucket,
    /// Prompts in the engine.
    running: usize,
}

/// A token bucket that counts the missing units, so that a new one is full whatever its size.
#[derive(Debug, Default)]
struct Bucket {
    missing: u128,
    at: Duration,
}

/// Reasons why a request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many requests in the last minute.
    Requests { limit: u32, retry_after: Duration },
    /// Too many tokens in the last minute.
    Tokens { limit: u32, retry_after: Duration },
    /// Too many prompts at the same time.
    Parallel { limit: u32, retry_after: Duration },
    /// The request has more prompts than may ever run at the same time.
    TooManyPrompts { limit: usize, prompts: usize },
    /// The remaining admission slots are reserved for other tenants.
    Crowded { running: usize },
}

/// The rest of one rate, as in the headers `x-ratelimit-*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    /// Time until the bucket is full.
    pub(crate) reset: Duration,
}

/// The engine's slots for running and waiting prompts, which all tenants share.
#[derive(Debug)]
pub(crate) struct AdmissionSlots {
    count: usize,
    taken: AtomicUsize,
}

/// Permission to have `prompts` prompts in the engine; dropping it frees their slots.
#[derive(Debug)]
pub(crate) struct AdmissionPermit {
    meter: Arc<Meter>,
    slots: Option<Arc<AdmissionSlots>>,
    prompts: usize,
}

impl TenantLimits {
    pub(crate) const NONE: TenantLimits =
        TenantLimits { requests_per_minute: None, tokens_per_minute: None, parallel: None };
}

impl Meter {
    /// Takes one request from the bucket, at `now` on a monotonic clock.
    pub(crate) fn take_request(&self, limits: &TenantLimits, now: Duration) -> Result<(), Refusal> {
        let Some(limit) = limits.requests_per_minute.map(NonZeroU32::get) else { return Ok(()) };
        let bucket = &mut self.lock().requests;
        bucket.refill(limit, now);
        if !bucket.has_one(limit) {
            return Err(Refusal::Requests { limit, retry_after: bucket.time_until_one(limit) });
        }
        bucket.take(1);
        Ok(())
    }

    /// Checks that the tenant has tokens left.
    pub(crate) fn check_tokens(&self, limits: &TenantLimits, now: Duration) -> Result<(), Refusal> {
        let Some(limit) = limits.tokens_per_minute.map(NonZeroU32::get) else { return Ok(()) };
        let bucket = &mut self.lock().tokens;
        bucket.refill(limit, now);
        if !bucket.has_one(limit) {
            return Err(Refusal::Tokens { limit, retry_after: bucket.time_until_one(limit) });
        }
        Ok(())
    }

    /// Charges computed or generated `tokens`.
    pub(crate) fn charge(&self, limits: &TenantLimits, tokens: usize, now: Duration) {
        let Some(limit) = limits.tokens_per_minute.map(NonZeroU32::get) else { return };
        let bucket = &mut self.lock().tokens;
        bucket.refill(limit, now);
        bucket.take(tokens);
    }

    /// Admits `prompts` prompts into the engine.
    ///
    /// A tenant keeps to its own limit. And where tenants share `slots`, no tenant holds more slots
    /// than remain free: one flooding tenant gets half of them, two get a third each, and a newcomer
    /// always finds a free slot.
    pub(crate) fn enter(
        self: &Arc<Self>,
        limits: &TenantLimits,
        slots: Option<&Arc<AdmissionSlots>>,
        prompts: usize,
    ) -> Result<AdmissionPermit, Refusal> {
        let mut taken = self.lock();
        let wanted = taken.running + prompts;
        let parallel = limits.parallel.map(NonZeroU32::get);
        let own = parallel.map(|limit| limit as usize);
        let most = own.into_iter().chain(slots.map(|slots| slots.count)).min();
        if let Some(limit) = most.filter(|&limit| prompts > limit) {
            return Err(Refusal::TooManyPrompts { limit, prompts });
        }
        if let Some(limit) = parallel.filter(|&limit| wanted > limit as usize) {
            return Err(Refusal::Parallel { limit, retry_after: PARALLEL_RETRY });
        }
        if slots.is_some_and(|slots| !slots.take(prompts, wanted)) {
            return Err(Refusal::Crowded { running: taken.running });
        }
        taken.running = wanted;
        Ok(AdmissionPermit { meter: self.clone(), slots: slots.cloned(), prompts })
    }

    /// The rest of the limits on requests and on tokens; `None` is unlimited.
    pub(crate) fn allowances(&self, limits: &TenantLimits, now: Duration) -> [Option<Allowance>; 2] {
        let mut taken = self.lock();
        let requests = limits.requests_per_minute.map(|limit| taken.requests.allowance(limit.get(), now));
        let tokens = limits.tokens_per_minute.map(|limit| taken.tokens.allowance(limit.get(), now));
        [requests, tokens]
    }

    fn lock(&self) -> MutexGuard<'_, TenantUsage> {
        // These are plain numbers, so a panic under the lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket {
    fn refill(&mut self, limit: u32, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.missing = self.missing.saturating_sub(u128::from(limit) * passed.as_nanos());
        self.at = self.at.max(now);
    }

    fn take(&mut self, count: usize) {
        self.missing = self.missing.saturating_add(count as u128 * ONE);
    }

    /// True if the bucket holds at least one request or token.
    fn has_one(&self, limit: u32) -> bool {
        self.missing + ONE <= full(limit)
    }

    /// Time until no more than `missing` is missing.
    fn time_until(&self, missing: u128, limit: u32) -> Duration {
        let nanos = self.missing.saturating_sub(missing).div_ceil(u128::from(limit));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn time_until_one(&self, limit: u32) -> Duration {
        self.time_until(full(limit) - ONE, limit)
    }

    fn allowance(&mut self, limit: u32, now: Duration) -> Allowance {
        self.refill(limit, now);
        let remaining = full(limit).saturating_sub(self.missing) / ONE;
        Allowance { limit, remaining: remaining as u32, reset: self.time_until(0, limit) }
    }
}

/// Units of a full bucket.
fn full(limit: u32) -> u128 {
    u128::from(limit) * ONE
}

impl AdmissionSlots {
    /// `count` free slots.
    pub(crate) fn new(count: usize) -> Arc<AdmissionSlots> {
        Arc::new(AdmissionSlots { count, taken: AtomicUsize::new(0) })
    }

    /// Takes `prompts` slots for a tenant that then holds `wanted`, if as many stay free.
    fn take(&self, prompts: usize, wanted: usize) -> bool {
        let fits = |taken: usize| {
            let taken = taken + prompts;
            let free = self.count.saturating_sub(taken);
            // A tenant without slots may take the last ones.
            let first = wanted == prompts && taken <= self.count;
            (first || wanted <= free).then_some(taken)
        };
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.meter.lock().running -= self.prompts;
        if let Some(slots) = &self.slots {
            slots.taken.fetch_sub(self.prompts, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(requests: u32, tokens: u32, parallel: u32) -> TenantLimits {
        TenantLimits {
            requests_per_minute: NonZeroU32::new(requests),
            tokens_per_minute: NonZeroU32::new(tokens),
            parallel: NonZeroU32::new(parallel),
        }
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_minute_admits_its_limit_of_requests() {
        let (meter, limits) = (Meter::default(), limits(60, 0, 0));
        let start = seconds(1e6);
        (0..60).for_each(|_| meter.take_request(&limits, start).unwrap());
        let refusal = meter.take_request(&limits, start).unwrap_err();
        assert_eq!(refusal, Refusal::Requests { limit: 60, retry_after: seconds(1.0) });
        assert!(meter.take_request(&limits, start + seconds(0.9)).is_err());
        assert!(meter.take_request(&limits, start + seconds(1.0)).is_ok());
        assert!(meter.take_request(&limits, start + seconds(1.0)).is_err());
    }

    /// Whatever the pattern of arrival, no window of a minute admits more than two buckets, and a steady
    /// client gets its whole rate.
    #[test]
    fn the_rate_holds_over_any_time() {
        for (limit, gap) in [(60, 0.1), (7, 3.0), (600, 0.05), (1, 20.0)] {
            let (meter, limits) = (Meter::default(), limits(limit, 0, 0));
            let times = (0..4000).map(|i| f64::from(i) * gap);
            let admitted: Vec<f64> =
                times.filter(|&time| meter.take_request(&limits, seconds(time)).is_ok()).collect();
            let span = 4000.0 * gap;
            let offered = (span / gap).min(f64::from(limit) * (span / 60.0 + 1.0));
            let count = admitted.len() as f64;
            assert!(count <= offered + 1.0 && count >= 0.95 * offered - 1.0, "{count} of {offered}");
            for (i, from) in admitted.iter().enumerate() {
                let within = admitted[i..].iter().take_while(|&&time| time < from + 60.0).count();
                assert!(within <= 2 * limit as usize, "{within} in a minute");
            }
        }
    }

    #[test]
    fn a_tenant_in_debt_waits_until_it_is_refilled() {
        let (meter, limits) = (Meter::default(), limits(0, 600, 0));
        let start = seconds(5.0);
        meter.check_tokens(&limits, start).unwrap();
        meter.charge(&limits, 1500, start);
        let refusal = meter.check_tokens(&limits, start).unwrap_err();
        let retry_after = seconds(90.1);
        assert_eq!(refusal, Refusal::Tokens { limit: 600, retry_after });
        assert!(meter.check_tokens(&limits, start + seconds(90.0)).is_err());
        meter.check_tokens(&limits, start + retry_after).unwrap();
    }

    #[test]
    fn a_clock_that_stops_or_goes_back_refills_nothing() {
        let (meter, limits) = (Meter::default(), limits(2, 0, 0));
        meter.take_request(&limits, seconds(100.0)).unwrap();
        meter.take_request(&limits, seconds(50.0)).unwrap();
        assert!(meter.take_request(&limits, seconds(0.0)).is_err());
        assert!(meter.take_request(&limits, seconds(100.0)).is_err());
    }

    #[test]
    fn without_limits_every_request_is_admitted() {
        let meter = Arc::new(Meter::default());
        let permits: Vec<AdmissionPermit> = (0..1000)
            .map(|_| {
                meter.take_request(&TenantLimits::NONE, Duration::ZERO).unwrap();
                meter.charge(&TenantLimits::NONE, 1 << 30, Duration::ZERO);
                meter.check_tokens(&TenantLimits::NONE, Duration::ZERO).unwrap();
                meter.enter(&TenantLimits::NONE, None, 1).unwrap()
            })
            .collect();
        assert_eq!(permits.len(), 1000);
        assert_eq!(meter.allowances(&TenantLimits::NONE, Duration::ZERO), [None, None]);
    }

    #[test]
    fn dropped_permits_free_their_slots() {
        let (meter, slots, limits) = (Arc::new(Meter::default()), AdmissionSlots::new(100), limits(0, 0, 3));
        let two = meter.enter(&limits, Some(&slots), 2).unwrap();
        let refusal = meter.enter(&limits, Some(&slots), 2).unwrap_err();
        assert_eq!(refusal, Refusal::Parallel { limit: 3, retry_after: PARALLEL_RETRY });
        let one = meter.enter(&limits, Some(&slots), 1).unwrap();
        drop(two);
        meter.enter(&limits, Some(&slots), 2).unwrap();
        drop(one);
        let refusal = meter.enter(&limits, Some(&slots), 4).unwrap_err();
        assert_eq!(refusal, Refusal::TooManyPrompts { limit: 3, prompts: 4 });
        let refusal = meter.enter(&TenantLimits::NONE, Some(&AdmissionSlots::new(9)), 10).unwrap_err();
        assert_eq!(refusal, Refusal::TooManyPrompts { limit: 9, prompts: 10 }, "no time comes for it");
        assert_eq!((slots.taken.load(Ordering::Relaxed), meter.lock().running), (0, 0));
    }

    /// `k` flooding tenants leave one part in `k + 1` free, and a newcomer is admitted.
    #[test]
    fn a_flood_never_takes_the_last_slots() {
        for floods in 1..6 {
            let slots = AdmissionSlots::new(120);
            let meters: Vec<Arc<Meter>> = (0..floods).map(|_| Arc::default()).collect();
            let mut permits = Vec::new();
            for _ in 0..200 {
                permits.extend(
                    meters.iter().filter_map(|meter| meter.enter(&TenantLimits::NONE, Some(&slots), 1).ok()),
                );
            }
            let free = 120 - permits.len();
            assert!(free >= 120 / (floods + 1) && free <= 120 / (floods + 1) + floods, "{free} free");
            Arc::new(Meter::default()).enter(&TenantLimits::NONE, Some(&slots), 1).unwrap();
        }
    }

    #[test]
    fn allowances_say_what_is_left() {
        let (meter, limits) = (Meter::default(), limits(60, 600, 0));
        meter.take_request(&limits, Duration::ZERO).unwrap();
        meter.charge(&limits, 700, Duration::ZERO);
        let [requests, tokens] = meter.allowances(&limits, Duration::ZERO);
        assert_eq!(requests, Some(Allowance { limit: 60, remaining: 59, reset: seconds(1.0) }));
        assert_eq!(tokens, Some(Allowance { limit: 600, remaining: 0, reset: seconds(70.0) }));
    }
}
