//! Scheduling of body processing: parsing, templating and tokenizing take processors from the model, so only a few
//! requests do it at a time.
//!
//! Large bodies never hold all permits, so a small body waits only for small ones. Among the waiting tenants, the one
//! whose last turn is longest ago goes first, and if there are several tenants, none holds all permits. Bodies of one
//! tenant are read in the order of their arrival.
//!
//! A reader that waits for something outside, such as a file, releases its permit meanwhile: see `aside`.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use kvik_cache::TenantId;
use kvik_text::tokenizer::encoding_for;
use tokio::sync::oneshot;

use super::error::ApiError;
use kvik_serving::system::give_priority_up;

/// Number of bodies that are read concurrently.
const READERS: usize = 2;

/// Permits for reading, with the queue of waiting readers.
#[derive(Debug)]
pub(crate) struct Readers {
    /// Maximum number of permits of one tenant.
    per_tenant: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reading: Vec<Reader>,
    /// Waiting readers, in the order of their arrival.
    waiting: VecDeque<Waiter>,
    /// Background work: one piece at a time, in addition to the readers, and begun only if a permit is free and no
    /// request waits. So requests get every permit as soon as they would without it.
    background: VecDeque<oneshot::Sender<BackgroundPermit>>,
    is_background_on: bool,
    /// Number of each tenant's last turn.
    turns: BTreeMap<TenantId, u64>,
    turn: u64,
}

/// A reader of a body: one that reads or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) tenant: TenantId,
    /// True if the body is so large that reading may take seconds.
    pub(crate) large: bool,
}

#[derive(Debug)]
struct Waiter {
    reader: Reader,
    go: oneshot::Sender<Permit>,
}

/// The right to read one body; released when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    /// `None` once the permit was released.
    readers: Option<Arc<Readers>>,
    reader: Reader,
}

/// The right to do background work; released when dropped.
#[derive(Debug)]
struct BackgroundPermit(Option<Arc<Readers>>);

impl Readers {
    /// Creates the permits; `shared` if several tenants are served.
    pub(crate) fn new(shared: bool) -> Arc<Readers> {
        let per_tenant = if shared { READERS - 1 } else { READERS };
        Arc::new(Readers { per_tenant, state: Mutex::default() })
    }

    /// Acquires a permit. Dropping the future leaves the queue.
    pub(crate) async fn enter(self: &Arc<Self>, reader: Reader) -> Result<Permit, ApiError> {
        self.acquire(reader).await.map_err(|_| ApiError::stopping())
    }

    /// Runs blocking work on a thread for it, with a permit. If the client leaves, the work is notified; the permit is
    /// released only when the work has ended.
    pub(crate) async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        reader: Reader,
        work: impl FnOnce(Presence) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.enter(reader).await?;
        apart(move |presence| permit.read(|| work(presence))).await
    }

    /// Runs work that reads a tenant's records, with a permit. Large work has a lower priority than the model's
    /// threads: a client waits for its own prompt of that size, but records are read at the cost of others.
    pub(crate) async fn in_turn_behind_models<T: Send + 'static>(
        self: &Arc<Self>,
        reader: Reader,
        work: impl FnOnce(Presence) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if !reader.large {
            return self.in_turn(reader, work).await;
        }
        let permit = self.enter(reader).await?;
        let (done, result) = oneshot::channel();
        let presence = Presence::default();
        let _client = presence.client();
        // A thread of its own, because lowered priority is not restored.
        let thread = std::thread::Builder::new().name("kvik-records".to_owned()).spawn(move || {
            give_priority_up();
            let _ = done.send(permit.read(|| work(presence)));
        });
        thread.map_err(|error| ApiError::internal(format!("no thread to read records: {error}")))?;
        result.await.map_err(|_| ApiError::internal("reading the records failed"))?
    }

    /// Runs background work.
    pub(crate) async fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Presence) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.enter_background().await.map_err(|_| ApiError::stopping())?;
        apart(move |presence| {
            let _permit = permit;
            work(presence)
        })
        .await
    }

    fn enter_background(self: &Arc<Self>) -> oneshot::Receiver<BackgroundPermit> {
        let (go, turn) = oneshot::channel();
        let mut state = self.lock();
        state.background.push_back(go);
        self.fill(&mut state);
        turn
    }

    fn acquire(self: &Arc<Self>, reader: Reader) -> oneshot::Receiver<Permit> {
        let (go, turn) = oneshot::channel();
        let mut state = self.lock();
        state.waiting.push_back(Waiter { reader, go });
        self.fill(&mut state);
        turn
    }

    /// Grants free permits to the waiting readers whose turn it is.
    fn fill(self: &Arc<Self>, state: &mut State) {
        state.waiting.retain(|waiter| !waiter.go.is_closed());
        while let Some(index) = state.next(self.per_tenant) {
            let Some(Waiter { reader, go }) = state.waiting.remove(index) else { return };
            let permit = Permit { readers: Some(self.clone()), reader };
            match go.send(permit) {
                Ok(()) => state.grant(reader),
                // The client has left at this moment; no permit is granted.
                Err(mut permit) => permit.readers = None,
            }
        }
        while !state.is_background_on && state.waiting.is_empty() && state.reading.len() < READERS {
            let Some(go) = state.background.pop_front() else { return };
            match go.send(BackgroundPermit(Some(self.clone()))) {
                Ok(()) => state.is_background_on = true,
                Err(mut permit) => permit.0 = None,
            }
        }
    }

    fn leave(self: &Arc<Self>, reader: Reader) {
        let mut state = self.lock();
        if let Some(index) = state.reading.iter().position(|holders| *holders == reader) {
            state.reading.swap_remove(index);
        }
        self.fill(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No panic is possible between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Index of the waiting reader that gets a permit now, if a permit is free for any of them.
    fn next(&self, per_tenant: usize) -> Option<usize> {
        if self.reading.len() >= READERS {
            return None;
        }
        let holders = |of: &dyn Fn(&Reader) -> bool| self.reading.iter().filter(|reader| of(reader)).count();
        let may_enter = |waiter: &Waiter| {
            let Reader { tenant, large } = waiter.reader;
            // At most one large body at a time, so that small ones wait only for short work.
            let fits = !large || holders(&|reader| reader.large) == 0;
            fits && holders(&|reader| reader.tenant == tenant) < per_tenant
        };
        let waiting = self.waiting.iter().enumerate().filter(|(_, waiter)| may_enter(waiter));
        let last_turn = |waiter: &Waiter| self.turns.get(&waiter.reader.tenant).copied().unwrap_or(0);
        waiting.min_by_key(|(index, waiter)| (last_turn(waiter), *index)).map(|(index, _)| index)
    }

    fn grant(&mut self, reader: Reader) {
        self.turn += 1;
        self.turns.insert(reader.tenant, self.turn);
        self.reading.push(reader);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(readers) = self.readers.take() {
            readers.leave(self.reader);
        }
    }
}

impl Drop for BackgroundPermit {
    fn drop(&mut self) {
        if let Some(readers) = self.0.take() {
            let mut state = readers.lock();
            state.is_background_on = false;
            readers.fill(&mut state);
        }
    }
}

/// Runs work on a blocking thread, and notifies it when the client leaves.
async fn apart<T: Send + 'static>(
    work: impl FnOnce(Presence) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let presence = Presence::default();
    let _client = presence.client();
    match tokio::task::spawn_blocking(move || work(presence)).await {
        Ok(result) => result,
        // Only this request is lost: the panic ended its own closure and held no lock.
        Err(panic) => Err(ApiError::panicked("reading the request", &panic)),
    }
}

thread_local! {
    /// Permit of this thread.
    static PERMIT: RefCell<Option<Permit>> = const { RefCell::new(None) };
}

impl Permit {
    /// Reads on this thread, and releases the permit. Texts that are encoded meanwhile are the tenant's.
    pub(crate) fn read<T>(self, read: impl FnOnce() -> T) -> T {
        /// Removes the permit from the thread, even if reading panics.
        struct OnThread;
        impl Drop for OnThread {
            fn drop(&mut self) {
                drop(PERMIT.take());
            }
        }
        let tenant = self.reader.tenant;
        PERMIT.set(Some(self));
        let _on_thread = OnThread;
        encoding_for(tenant, read)
    }

    /// Releases the permit temporarily.
    fn release(&self) {
        self.readers.iter().for_each(|readers| readers.leave(self.reader));
    }

    /// Reacquires the permit at once, in addition to the current readers: waiting for it here could deadlock on a lock
    /// that this thread holds.
    fn reacquire(&self) {
        self.readers.iter().for_each(|readers| readers.lock().reading.push(self.reader));
    }
}

/// Waits for something outside, such as a file. A permit of this thread is released meanwhile, so that others can read.
pub(crate) fn aside<T>(wait: impl FnOnce() -> T) -> T {
    /// Reacquires the permit, even if the wait panics.
    struct Away(Option<Permit>);
    impl Drop for Away {
        fn drop(&mut self) {
            let permit = self.0.take().inspect(Permit::reacquire);
            PERMIT.set(permit);
        }
    }
    let _away = Away(PERMIT.take().inspect(Permit::release));
    wait()
}

/// `aside` in the form that records take.
pub fn give_way(wait: &mut dyn FnMut()) {
    aside(wait);
}

/// Tells the thread that reads a body whether its client is still connected.
#[derive(Debug, Clone, Default)]
pub(crate) struct Presence(Arc<AtomicBool>);

/// Held by the connection; dropped when the client leaves.
#[derive(Debug)]
pub(crate) struct Client(Presence);

impl Presence {
    pub(crate) fn client(&self) -> Client {
        Client(self.clone())
    }

    /// Returns an error, which no client sees, once the client has left: the result is not wanted.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self.0.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(ApiError::bad_request("the client has left")),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    type Entering = Pin<Box<dyn Future<Output = Result<Permit, ApiError>>>>;

    const SMALL: bool = false;
    const LARGE: bool = true;

    /// A request for a permit, and the permit once it is granted.
    struct Asked(Option<Entering>, Option<Permit>);

    fn ask(readers: &Arc<Readers>, tenant: u32, large: bool) -> Asked {
        let readers = readers.clone();
        let entering = async move { readers.enter(Reader { tenant: TenantId(tenant), large }).await };
        let mut asked = Asked(Some(Box::pin(entering)), None);
        asked.is_in();
        asked
    }

    impl Asked {
        fn is_in(&mut self) -> bool {
            if let Some(entering) = &mut self.0
                && let Poll::Ready(permit) = entering.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                (self.0, self.1) = (None, Some(permit.unwrap()));
            }
            self.1.is_some()
        }
    }

    #[test]
    fn a_small_body_never_waits_for_large_ones() {
        let readers = Readers::new(false);
        let mut large: Vec<Asked> = (0..5).map(|_| ask(&readers, 0, LARGE)).collect();
        assert_eq!(large.iter_mut().filter_map(|asked| asked.is_in().then_some(())).count(), 1);
        assert!(ask(&readers, 0, SMALL).is_in());
        large.remove(0);
        assert!(large[0].is_in(), "the next large one");
        assert!(ask(&readers, 0, SMALL).is_in());
    }

    /// Requests get their permits as if there were no background work.
    #[test]
    fn the_background_takes_no_turn_of_a_request() {
        for shared in [false, true] {
            let (readers, twin) = (Readers::new(shared), Readers::new(shared));
            let mut background: Vec<_> = (0..40).map(|_| readers.enter_background()).collect();
            let (mut asked, mut draw) = (Vec::new(), 7u64);
            let mut ended = 0;
            for _ in 0..2000 {
                draw = draw.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let number = (draw >> 33) as usize;
                match number % 5 {
                    0 | 1 if asked.len() < 6 => {
                        let (tenant, large) = ((number / 5 % 3) as u32, number.is_multiple_of(2));
                        asked.push([&readers, &twin].map(|readers| ask(readers, tenant, large)));
                    }
                    2 => background.retain_mut(|turn| match turn.try_recv() {
                        Ok(permit) => {
                            drop(permit);
                            ended += 1;
                            false
                        }
                        Err(_) => true,
                    }),
                    _ if !asked.is_empty() => drop(asked.remove(number / 5 % asked.len())),
                    _ => {}
                }
                for [with, without] in &mut asked {
                    assert_eq!(with.is_in(), without.is_in());
                }
            }
            assert_eq!(ended, 40, "it has its turns");
        }
    }

    #[test]
    fn one_piece_of_the_background_runs_at_a_time_and_none_where_requests_wait() {
        let readers = Readers::new(false);
        let mut reading: Vec<Asked> = (0..3).map(|_| ask(&readers, 0, SMALL)).collect();
        let mut turns = [readers.enter_background(), readers.enter_background()];
        assert!(turns[0].try_recv().is_err());
        drop(reading.remove(0));
        assert!(reading[1].is_in() && turns[0].try_recv().is_err());
        drop(reading.remove(0));
        let permit = turns[0].try_recv().unwrap();
        assert!(turns[1].try_recv().is_err());
        drop(permit);
        assert!(turns[1].try_recv().is_ok());
    }

    #[test]
    fn a_large_body_waits_for_the_small_ones_before_it_only() {
        let readers = Readers::new(false);
        let mut before: Vec<Asked> = (0..3).map(|_| ask(&readers, 0, SMALL)).collect();
        let mut large = ask(&readers, 0, LARGE);
        let mut after = ask(&readers, 0, SMALL);
        before.remove(0);
        assert!(before[1].is_in() && !large.is_in());
        before.remove(0);
        assert!(large.is_in() && !after.is_in());
    }

    #[test]
    fn a_tenant_that_floods_leaves_the_others_their_turns() {
        let readers = Readers::new(true);
        let mut flood: Vec<Asked> = (0..10).map(|i| ask(&readers, 1, i % 2 == 0)).collect();
        assert_eq!(flood.iter_mut().filter_map(|asked| asked.is_in().then_some(())).count(), 1);
        let (mut second, mut third) = (ask(&readers, 2, SMALL), ask(&readers, 3, SMALL));
        assert!(second.is_in() && !third.is_in());
        flood.remove(0);
        assert!(third.is_in(), "before the flood's next");
    }

    #[test]
    fn who_waits_for_something_outside_gives_up_the_place_meanwhile() {
        let readers = Readers::new(false);
        let permit = |readers: &Arc<Readers>| ask(readers, 0, LARGE).1.take().unwrap();
        permit(&readers).read(|| {
            assert!(!ask(&readers, 0, LARGE).is_in());
            let auxiliary = aside(|| {
                aside(|| ());
                permit(&readers)
            });
            assert!(!ask(&readers, 0, SMALL).is_in(), "both read now");
            drop(auxiliary);
            assert!(!ask(&readers, 0, LARGE).is_in() && ask(&readers, 0, SMALL).is_in());
        });
        assert!(readers.lock().reading.is_empty());
        let panics = || permit(&readers).read(|| aside(|| panic!("as a file may")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(readers.lock().reading.is_empty() && PERMIT.take().is_none());
    }

    #[test]
    fn who_leaves_gives_up_the_turn_or_the_place() {
        let readers = Readers::new(false);
        let (first, second) = (ask(&readers, 0, SMALL), ask(&readers, 0, SMALL));
        let (third, mut fourth) = (ask(&readers, 0, SMALL), ask(&readers, 0, SMALL));
        drop(third);
        drop(first);
        assert!(fourth.is_in());
        // Granted a permit, and dropped before taking it.
        let fifth = ask(&readers, 0, SMALL);
        drop(second);
        drop(fifth);
        assert!(ask(&readers, 0, SMALL).is_in());
    }
}
