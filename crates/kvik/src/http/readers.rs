//! Who may read a body next: parsing, templating and tokenizing take processors from the model, so few
//! requests do it at a time.
//!
//! Large bodies never hold all permits, so a small one waits for small ones only. Among those that wait
//! the tenant goes first whose last turn is longest ago, and where there are several tenants none holds
//! all permits. One tenant's bodies go in the order in which they came.
//!
//! Who has to wait for something outside, a file, gives the permit up meanwhile: see [`aside`].

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use kvik_cache::TenantId;
use tokio::sync::oneshot;

use super::error::ApiError;
use crate::system::give_priority_up;

/// Bodies that are read at the same time.
const READERS: usize = 2;

/// The permits for reading, and who waits for one.
#[derive(Debug)]
pub(crate) struct Readers {
    /// Places that one tenant may hold.
    per_tenant: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reading: Vec<Reader>,
    /// In the order in which they came.
    waiting: VecDeque<Waiter>,
    /// Work of nobody who waits: one at a time, beside the readers, and begun only where a permit is free that nobody
    /// wants. So requests get every permit when they would get it without.
    background: VecDeque<oneshot::Sender<BackgroundPermit>>,
    is_background_on: bool,
    /// When each tenant had its last turn, counted in turns.
    turns: BTreeMap<TenantId, u64>,
    turn: u64,
}

/// Who reads a body, or wants to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) tenant: TenantId,
    /// The body is of the size that may take seconds.
    pub(crate) large: bool,
}

#[derive(Debug)]
struct Waiter {
    reader: Reader,
    go: oneshot::Sender<Permit>,
}

/// The right to read one body; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    /// Absent when the permit was given back already.
    readers: Option<Arc<Readers>>,
    reader: Reader,
}

/// The right to do such work; given back when dropped.
#[derive(Debug)]
struct BackgroundPermit(Option<Arc<Readers>>);

impl Readers {
    /// `shared` where several tenants are served.
    pub(crate) fn new(shared: bool) -> Arc<Readers> {
        let per_tenant = if shared { READERS - 1 } else { READERS };
        Arc::new(Readers { per_tenant, state: Mutex::default() })
    }

    /// Waits for a permit. Dropping the future gives up the turn.
    pub(crate) async fn enter(self: &Arc<Self>, reader: Reader) -> Result<Permit, ApiError> {
        self.line_up(reader).await.map_err(|_| ApiError::stopping())
    }

    /// Runs what takes its time on a thread for that, when it is the reader's turn. When whoever waits for it leaves, the
    /// work is told; the permit is free only when it has ended.
    pub(crate) async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        reader: Reader,
        work: impl FnOnce(Presence) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.enter(reader).await?;
        apart(move |presence| permit.read(|| work(presence))).await
    }

    /// The same of reading what is kept of a tenant. Where that is much, threads of the model go first: a prompt of that
    /// size is waited for by its own client, while records are read at the cost of others.
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
        // A thread of its own: priority that was given up is not given back.
        let thread = std::thread::Builder::new().name("kvik-records".to_owned()).spawn(move || {
            give_priority_up();
            let _ = done.send(permit.read(|| work(presence)));
        });
        thread.map_err(|error| ApiError::internal(format!("no thread to read records: {error}")))?;
        result.await.map_err(|_| ApiError::internal("reading the records failed"))?
    }

    /// The same of work of the background.
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

    fn line_up(self: &Arc<Self>, reader: Reader) -> oneshot::Receiver<Permit> {
        let (go, turn) = oneshot::channel();
        let mut state = self.lock();
        state.waiting.push_back(Waiter { reader, go });
        self.fill(&mut state);
        turn
    }

    /// Gives free permits to those whose turn it is.
    fn fill(self: &Arc<Self>, state: &mut State) {
        state.waiting.retain(|waiter| !waiter.go.is_closed());
        while let Some(index) = state.next(self.per_tenant) {
            let Some(Waiter { reader, go }) = state.waiting.remove(index) else { return };
            let permit = Permit { readers: Some(self.clone()), reader };
            match go.send(permit) {
                Ok(()) => state.seat(reader),
                // The client has left in this moment; nobody was seated.
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
        if let Some(index) = state.reading.iter().position(|seated| *seated == reader) {
            state.reading.swap_remove(index);
        }
        self.fill(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Index of the waiter that gets a permit now, if there is one for anybody.
    fn next(&self, per_tenant: usize) -> Option<usize> {
        if self.reading.len() >= READERS {
            return None;
        }
        let seated = |of: &dyn Fn(&Reader) -> bool| self.reading.iter().filter(|reader| of(reader)).count();
        let may_enter = |waiter: &Waiter| {
            let Reader { tenant, large } = waiter.reader;
            // One large body at a time: whatever small ones wait for is short.
            let fits = !large || seated(&|reader| reader.large) == 0;
            fits && seated(&|reader| reader.tenant == tenant) < per_tenant
        };
        let waiting = self.waiting.iter().enumerate().filter(|(_, waiter)| may_enter(waiter));
        let last_turn = |waiter: &Waiter| self.turns.get(&waiter.reader.tenant).copied().unwrap_or(0);
        waiting.min_by_key(|(index, waiter)| (last_turn(waiter), *index)).map(|(index, _)| index)
    }

    fn seat(&mut self, reader: Reader) {
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

/// Runs work on a thread that may take its time, and tells it when nobody waits for it any more.
async fn apart<T: Send + 'static>(
    work: impl FnOnce(Presence) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let presence = Presence::default();
    let _client = presence.client();
    match tokio::task::spawn_blocking(move || work(presence)).await {
        Ok(result) => result,
        // Only this request is lost: the panic ended its own closure and held no lock.
        Err(panic) => Err(ApiError::internal(format!("reading the request failed: {panic}"))),
    }
}

thread_local! {
    /// The permit by which this thread reads.
    static PERMIT: RefCell<Option<Permit>> = const { RefCell::new(None) };
}

impl Permit {
    /// Reads on this thread, and gives the permit back.
    pub(crate) fn read<T>(self, read: impl FnOnce() -> T) -> T {
        /// Takes the permit off the thread also when reading panics.
        struct OnThread;
        impl Drop for OnThread {
            fn drop(&mut self) {
                drop(PERMIT.take());
            }
        }
        PERMIT.set(Some(self));
        let _on_thread = OnThread;
        read()
    }

    /// Lets somebody else read.
    fn stand_up(&self) {
        self.readers.iter().for_each(|readers| readers.leave(self.reader));
    }

    /// Goes on reading at once, beside those who read now: who waited for a permit here could hold a lock that they want.
    fn sit_down(&self) {
        self.readers.iter().for_each(|readers| readers.lock().reading.push(self.reader));
    }
}

/// Waits for something outside, as a file. Whoever reads by a permit on this thread does not have it meanwhile, so that
/// others read.
pub(crate) fn aside<T>(wait: impl FnOnce() -> T) -> T {
    /// Takes the permit back also when the wait panics.
    struct Away(Option<Permit>);
    impl Drop for Away {
        fn drop(&mut self) {
            let permit = self.0.take().inspect(Permit::sit_down);
            PERMIT.set(permit);
        }
    }
    let _away = Away(PERMIT.take().inspect(Permit::stand_up));
    wait()
}

/// The same for whoever keeps records.
pub(crate) fn give_way(wait: &mut dyn FnMut()) {
    aside(wait);
}

/// Tells the thread that reads a body whether its client is still there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Presence(Arc<AtomicBool>);

/// Held by the connection; dropped when the client leaves.
#[derive(Debug)]
pub(crate) struct Client(Presence);

impl Presence {
    pub(crate) fn client(&self) -> Client {
        Client(self.clone())
    }

    /// An error, which nobody will see, once the client has left: what is being read is not wanted.
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

    /// A request that has asked for a permit, and its permit once it has one.
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

    /// Whatever requests do, they get their permits as if there were no background.
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
            let beside = aside(|| {
                aside(|| ());
                permit(&readers)
            });
            assert!(!ask(&readers, 0, SMALL).is_in(), "both read now");
            drop(beside);
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
        // Given a permit and gone before taking it.
        let fifth = ask(&readers, 0, SMALL);
        drop(second);
        drop(fifth);
        assert!(ask(&readers, 0, SMALL).is_in());
    }
}
