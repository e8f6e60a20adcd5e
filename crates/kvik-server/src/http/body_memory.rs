//! Memory budget for request bodies, divided among tenants.
//!
//! Only bytes that have arrived count, beyond the first 64 KiB of each body, never the announced length. If the memory
//! is full, a body waits, and slow bodies are aborted; otherwise a slow body does no harm. While no body is complete,
//! the oldest may continue into a part that is reserved for it, so that bodies cannot deadlock waiting for each other.
//! Each tenant leaves at least as much free as it uses.
//!
//! Long answers count as well, until their clients have read them, with what they keep of long requests. They never
//! wait, and leave half of the memory to bodies: an answer that finds no room is refused, or ends where it grows. A
//! single answer of any length is admitted if no other is in memory. Where tenants share the memory, it counts as half
//! of that for answers at most, so that it leaves others as much as it uses.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::body::Bytes;
use kvik_cache::TenantId;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// Bytes of each body that are not counted: a body up to this length is small.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;
/// Budget for all bodies, in units of the largest one.
const BODIES: u64 = 4;
/// Budget for all answers, in the same unit.
const ANSWERS: u64 = 2;
/// Part of the largest body below which what an answer keeps of its request does not count. A usual conversation takes
/// less, and the queue has places for hundreds.
const UNCOUNTED_PART: u64 = 8;
/// Minimum rate of a body, in bytes per second, while others wait for its memory.
const WANTED_RATE: u64 = 256 << 10;
/// Maximum time that a body may be late.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which a waiting body looks for one that has become slow.
const LOOK: Duration = Duration::from_millis(250);

/// Memory budget for the bodies of all requests.
pub(crate) struct BodyMemory {
    /// Bytes of the largest body.
    body_bytes: u64,
    /// True if several tenants share the budget.
    is_divided: bool,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Counted bytes of all bodies and answers.
    taken: u64,
    /// Bodies and answers, by age.
    bodies: BTreeMap<u64, Taken>,
}

/// Use of one body or answer.
struct Taken {
    tenant: TenantId,
    arrived: u64,
    progress: Progress,
    given_up: Arc<Notify>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The body is arriving; the next bytes are due at this time.
    Due(Instant),
    /// The body waits for memory.
    Waiting,
    /// The body is complete.
    Complete,
    /// The body was aborted, because it was too slow while others waited.
    GivenUp,
    /// An answer, which its client is reading.
    Answer,
}

/// Share of one body in the memory; released when dropped.
pub(crate) struct BodyShare {
    memory: Arc<BodyMemory>,
    id: u64,
    given_up: Arc<Notify>,
}

/// The error that a body was too slow while others waited for its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooSlow;

impl BodyMemory {
    pub(crate) fn new(body_bytes: u64, is_divided: bool) -> Arc<BodyMemory> {
        Arc::new(BodyMemory { body_bytes, is_divided, state: Mutex::default(), freed: Notify::new() })
    }

    /// Begins a body of this tenant.
    pub(crate) fn begin(self: &Arc<Self>, tenant: TenantId) -> BodyShare {
        self.share(tenant, Progress::Due(Instant::now() + PATIENCE))
    }

    /// Reserves `bytes` for an answer of this tenant, if there is memory.
    pub(crate) fn hold(self: &Arc<Self>, tenant: TenantId, bytes: u64) -> Option<BodyShare> {
        let share = self.share(tenant, Progress::Answer);
        share.resize(bytes).then_some(share)
    }

    /// Of the bytes that an answer keeps of its request, how many count.
    pub(crate) fn counted_of_request(&self, kept_bytes: u64) -> u64 {
        kept_bytes.saturating_sub(self.body_bytes / UNCOUNTED_PART)
    }

    /// Sets the size of an answer's share to what `bytes` returns, if there is memory.
    fn resize(&self, id: u64, bytes: impl FnOnce() -> u64) -> bool {
        let mut state = self.lock();
        let all = self.answer_bytes();
        // Capped, so that an answer above the budget does not block bodies or others for as long as its client takes.
        let most = if self.is_divided { all / 2 } else { all };
        let bytes = bytes().min(most.saturating_add(SMALL_BYTES));
        let Taken { tenant, arrived, .. } = state.bodies[&id];
        let (old, new) = (counted(arrived), counted(bytes));
        if new > old && !self.may_grow(&state, tenant, old, new) {
            return false;
        }
        state.taken = state.taken - old + new;
        state.bodies.get_mut(&id).expect("it is there until its part is dropped").arrived = bytes;
        true
    }

    /// True if the counted bytes of an answer of this tenant may grow from `old` to `new`.
    fn may_grow(&self, state: &State, tenant: TenantId, old: u64, new: u64) -> bool {
        let all = self.answer_bytes();
        let others = state.of_answers(|_| true) - old;
        if others == 0 {
            return true;
        }
        let own = state.of_answers(|of| of == tenant) - old + new;
        let left = all.saturating_sub(others + new);
        let is_fair = !self.is_divided || own <= left && self.is_fair(state, tenant, new - old);
        is_fair && others + new <= all && state.taken - old + new <= self.common_bytes()
    }

    /// Adds a body or answer without bytes.
    fn share(self: &Arc<Self>, tenant: TenantId, progress: Progress) -> BodyShare {
        let mut state = self.lock();
        let (id, given_up) = (state.next, Arc::<Notify>::default());
        state.next += 1;
        state.bodies.insert(id, Taken { tenant, arrived: 0, progress, given_up: given_up.clone() });
        BodyShare { memory: self.clone(), id, given_up }
    }

    /// Counts `bytes` more of a body, if there is memory; otherwise looks for a body to abort.
    fn try_take(&self, id: u64, bytes: u64, now: Instant) -> Result<bool, TooSlow> {
        let mut state = self.lock();
        let body = &state.bodies[&id];
        if body.progress == Progress::GivenUp {
            return Err(TooSlow);
        }
        let (tenant, arrived) = (body.tenant, body.arrived + bytes);
        let taken = state.taken + counted(arrived) - counted(body.arrived);
        let fits = taken == state.taken || self.fits(&state, id, tenant, taken);
        if fits {
            state.taken = taken;
        } else {
            let is_full = taken > self.common_bytes();
            state.give_up_slowest(now, |other| is_full || other.tenant == tenant);
        }
        let body = state.bodies.get_mut(&id).expect("it is there until its part is dropped");
        if fits {
            body.arrived = arrived;
            body.progress = body.progress.after(bytes, now);
        } else {
            body.progress = Progress::Waiting;
        }
        Ok(fits)
    }

    /// True if the total may become `taken` bytes by granting more to this body.
    fn fits(&self, state: &State, id: u64, tenant: TenantId, taken: u64) -> bool {
        let all = self.body_bytes.saturating_mul(BODIES);
        // Complete bodies free memory without help.
        if state.oldest_incomplete() == Some(id) && !state.has_complete() {
            return taken <= all;
        }
        taken <= self.common_bytes() && self.is_fair(state, tenant, taken - state.taken)
    }

    /// True if a tenant that takes `more` bytes leaves at least as much free as it uses.
    fn is_fair(&self, state: &State, tenant: TenantId, more: u64) -> bool {
        let free = self.body_bytes.saturating_mul(BODIES).saturating_sub(state.taken + more);
        !self.is_divided || state.of_tenant(tenant) + more <= free
    }

    /// Budget of all answers.
    fn answer_bytes(&self) -> u64 {
        self.body_bytes.saturating_mul(ANSWERS)
    }

    /// Budget of all bodies except the oldest.
    fn common_bytes(&self) -> u64 {
        self.body_bytes.saturating_mul(BODIES - 1)
    }

    /// Counted bytes of all bodies and answers.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Sums and entries change together, without a possible panic in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn oldest_incomplete(&self) -> Option<u64> {
        let is_incomplete = |body: &Taken| matches!(body.progress, Progress::Due(_) | Progress::Waiting);
        self.bodies.iter().find(|(_, body)| is_incomplete(body)).map(|(id, _)| *id)
    }

    fn has_complete(&self) -> bool {
        self.bodies.values().any(|body| body.progress == Progress::Complete)
    }

    fn of_answers(&self, are: impl Fn(TenantId) -> bool) -> u64 {
        let answers = self.bodies.values().filter(|body| body.progress == Progress::Answer);
        answers.filter(|body| are(body.tenant)).map(|body| counted(body.arrived)).sum()
    }

    fn of_tenant(&self, tenant: TenantId) -> u64 {
        self.bodies.values().filter(|body| body.tenant == tenant).map(|body| counted(body.arrived)).sum()
    }

    /// Aborts the largest of the late bodies among those that block others.
    fn give_up_slowest(&mut self, now: Instant, is_in_the_way: impl Fn(&Taken) -> bool) {
        let is_late = |body: &&mut Taken| {
            counted(body.arrived) > 0 && matches!(body.progress, Progress::Due(due) if due < now)
        };
        let late = self.bodies.values_mut().filter(|body| is_in_the_way(body)).filter(is_late);
        if let Some(body) = late.max_by_key(|body| body.arrived) {
            body.progress = Progress::GivenUp;
            body.given_up.notify_one();
        }
    }
}

impl Progress {
    /// Updates the due time after the arrival of `bytes`, at the minimum rate.
    fn after(self, bytes: u64, now: Instant) -> Progress {
        let due = match self {
            // Being late counts only up to `PATIENCE`, which also limits being early.
            Progress::Due(due) => due.max(now.checked_sub(PATIENCE).unwrap_or(due)),
            _ => now + PATIENCE,
        };
        let earned = Duration::from_micros(bytes.saturating_mul(1_000_000) / WANTED_RATE);
        Progress::Due((due + earned).min(now + PATIENCE))
    }
}

/// Counted bytes of a body of which `arrived` bytes have arrived.
fn counted(arrived: u64) -> u64 {
    arrived.saturating_sub(SMALL_BYTES)
}

impl BodyShare {
    /// Counts `bytes` that have arrived; waits until there is memory for them.
    pub(crate) async fn take(&self, bytes: usize) -> Result<(), TooSlow> {
        loop {
            let freed = self.memory.freed.notified();
            if self.memory.try_take(self.id, bytes as u64, Instant::now())? {
                return Ok(());
            }
            let _ = timeout(LOOK, freed).await;
        }
    }

    /// Sets the size of an answer's share, if there is memory; shrinking always succeeds.
    pub(crate) fn resize(&self, bytes: u64) -> bool {
        self.resize_to(|| bytes)
    }

    /// [`resize`](BodyShare::resize) to a size that other threads change: it is read in turn with theirs, so that the
    /// last one sets the last size.
    pub(crate) fn resize_to(&self, bytes: impl FnOnce() -> u64) -> bool {
        let fits = self.memory.resize(self.id, bytes);
        self.memory.freed.notify_waiters();
        fits
    }

    /// Bytes of the share, those that do not count included.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.lock().bodies[&self.id].arrived
    }

    /// Waits until the body is aborted.
    pub(crate) async fn given_up(&self) -> TooSlow {
        self.given_up.notified().await;
        TooSlow
    }

    /// Marks the body as complete, so that it cannot be too slow any more.
    pub(crate) fn complete(&self) {
        if let Some(body) = self.memory.lock().bodies.get_mut(&self.id) {
            body.progress = Progress::Complete;
        }
        // Another body is the oldest incomplete one now.
        self.memory.freed.notify_waiters();
    }
}

/// Bytes of an answer, which hold its share until the last of them is sent or dropped.
pub(crate) fn charged<S: Send + Sync + 'static>(text: Vec<u8>, share: S) -> Bytes {
    Bytes::from_owner(Charged { text, _share: share })
}

struct Charged<S> {
    text: Vec<u8>,
    _share: S,
}

impl<S> AsRef<[u8]> for Charged<S> {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        let mut state = self.memory.lock();
        if let Some(body) = state.bodies.remove(&self.id) {
            state.taken -= counted(body.arrived);
        }
        drop(state);
        self.memory.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: u64 = 1 << 20;
    const ACME: TenantId = TenantId(1);
    const BETA: TenantId = TenantId(2);

    /// Takes `bytes` in pieces as a network delivers them; returns the time that it took.
    async fn send(body: &BodyShare, bytes: u64) -> Result<Duration, TooSlow> {
        let start = Instant::now();
        for _ in 0..bytes >> 14 {
            body.take(1 << 14).await?;
        }
        Ok(start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_were_begun_and_do_not_come_hold_nobody_up() {
        let memory = BodyMemory::new(LARGEST, false);
        let slow: Vec<BodyShare> = (0..100).map(|_| memory.begin(ACME)).collect();
        for body in &slow {
            send(body, SMALL_BYTES).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        for _ in 0..10 {
            assert_eq!(send(&memory.begin(ACME), LARGEST).await, Ok(Duration::ZERO));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_fill_the_room_and_stop_are_given_up_for_others() {
        let memory = BodyMemory::new(LARGEST, false);
        let mut stopped = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let body = memory.begin(ACME);
            send(&body, LARGEST * 5 / 8).await.unwrap();
            stopped.spawn(async move { body.given_up().await });
        }
        tokio::time::sleep(2 * PATIENCE).await;
        let newcomer = memory.begin(ACME);
        let took =
            timeout(60 * PATIENCE, send(&newcomer, LARGEST)).await.expect("somebody is given up").unwrap();
        assert!(took <= 2 * LOOK, "{took:?}");
        tokio::task::yield_now().await;
        let given_up = std::iter::from_fn(|| stopped.try_join_next()).count();
        assert_eq!(given_up, 2, "as many as had to");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_at_the_wanted_rate_stays_and_one_below_it_goes() {
        for (pause_ms, stays) in [(50, true), (100, false)] {
            let memory = BodyMemory::new(LARGEST, false);
            let steady = memory.begin(ACME);
            send(&steady, LARGEST / 2).await.unwrap();
            let half = Duration::from_millis(pause_ms / 2);
            let mut sent = Ok(());
            for _ in 0..40 {
                tokio::time::sleep(half).await;
                // Simulates another body that waits for memory.
                memory.lock().give_up_slowest(Instant::now(), |_| true);
                tokio::time::sleep(half).await;
                sent = sent.and(steady.take(1 << 14).await);
            }
            assert_eq!(sent.is_ok(), stays, "16 KiB every {pause_ms} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_all_wait_go_on_one_after_another() {
        let memory = BodyMemory::new(LARGEST, false);
        let whole = (0..12).map(|_| {
            let body = memory.begin(ACME);
            tokio::spawn(async move {
                // All reach the half before any is complete.
                send(&body, LARGEST / 2).await?;
                tokio::task::yield_now().await;
                send(&body, LARGEST / 2).await?;
                body.complete();
                Ok::<_, TooSlow>(())
            })
        });
        for body in whole.collect::<Vec<_>>() {
            body.await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_leave_half_of_it_to_bodies_and_one_goes_through_alone() {
        let memory = BodyMemory::new(LARGEST, false);
        let mut answers = Vec::new();
        while let Some(answer) = memory.hold(ACME, LARGEST / 2) {
            answers.push(answer);
        }
        assert_eq!(answers.len(), 4, "with what is not counted of each");
        assert!(memory.hold(ACME, SMALL_BYTES).is_some(), "a small one is not counted");
        assert_eq!(send(&memory.begin(ACME), LARGEST).await, Ok(Duration::ZERO));
        answers.clear();
        assert_eq!(memory.taken(), 0);
        let large = memory.hold(ACME, 9 * LARGEST).expect("it is alone");
        assert!(memory.hold(ACME, LARGEST / 2).is_none());
        drop(large);
    }

    /// Agents send megabytes each turn, and as many wait as the queue has places.
    #[test]
    fn what_usual_conversations_keep_is_held_however_many_wait() {
        let memory = BodyMemory::new(32 << 20, true);
        let usual = memory.counted_of_request(3 << 20);
        let waiting: Vec<_> = (0..1000).map_while(|_| memory.hold(ACME, usual)).collect();
        assert_eq!(waiting.len(), 1000);
        assert_eq!(memory.counted_of_request(32 << 20), 28 << 20, "larger ones count");
    }

    #[tokio::test(start_paused = true)]
    async fn the_answers_of_a_tenant_leave_room_for_those_of_others() {
        for (bytes, held) in [(LARGEST / 2, 2), (9 * LARGEST, 1)] {
            let memory = BodyMemory::new(LARGEST, true);
            let flood: Vec<BodyShare> = std::iter::from_fn(|| memory.hold(ACME, bytes)).collect();
            assert_eq!(flood.len(), held, "answers of {bytes} bytes");
            let other = memory.hold(BETA, LARGEST / 2).expect("as much is free as the other tenant uses");
            assert!(other.resize(LARGEST / 4), "shrinking always succeeds");
            drop(other);
            assert_eq!(send(&memory.begin(BETA), LARGEST).await, Ok(Duration::ZERO), "bodies have their own");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_leaves_room_for_others() {
        let memory = BodyMemory::new(LARGEST, true);
        let flood: Vec<BodyShare> = (0..8).map(|_| memory.begin(ACME)).collect();
        for body in &flood {
            let _ = timeout(Duration::from_millis(1), send(body, LARGEST)).await;
            body.complete();
        }
        let held = memory.lock().of_tenant(ACME);
        assert!(held <= 2 * LARGEST, "{held}");
        assert_eq!(send(&memory.begin(BETA), LARGEST).await, Ok(Duration::ZERO));
    }
}
