//! Open connections: their bounded number, and which of them can be closed without loss.
//!
//! A connection without a request, or whose request is still arriving, can be closed when its slot is needed;
//! one that is being answered cannot, up to the last byte of its answer. So silent clients in any number do not
//! block others: the longest silent one is closed for the next.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Phase of a connection. Connections in earlier phases are closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// No request has arrived, or its head is incomplete.
    Idle,
    /// The body of a request is arriving.
    Receiving,
    /// The request is complete and the answer has not begun.
    Working,
    /// The answer is being sent; its last bytes may be sent in the phase that follows.
    Responding,
}

/// All open connections.
pub(super) struct Connections {
    places: Arc<Semaphore>,
    closable: Mutex<Closable>,
    /// Signalled when another connection can be closed.
    appeared: Notify,
    /// Signalled when a connection that was to make room is answered instead.
    refused: Notify,
}

/// Connections that can be closed, in closing order.
#[derive(Default)]
struct Closable {
    next: u64,
    by_age: BTreeMap<Age, Arc<Notify>>,
}

/// Phase of a connection, and a number that grows with the time when it began.
type Age = (Phase, u64);

/// An open connection. Its slot is released when this is dropped.
pub(super) struct Open {
    connections: Arc<Connections>,
    current: Mutex<Current>,
    close: Arc<Notify>,
    /// True if the client supports 1xx answers.
    knows_interim: AtomicBool,
    _place: OwnedSemaphorePermit,
}

struct Current {
    phase: Phase,
    /// True if all bytes of answers have gone to the system.
    is_flushed: bool,
    /// Key among the connections that can be closed.
    age: Option<Age>,
}

impl Current {
    /// The phase, if closing the connection only loses what the client can send again.
    fn closable(&self) -> Option<Phase> {
        let is_closable = self.is_flushed && matches!(self.phase, Phase::Idle | Phase::Receiving);
        is_closable.then_some(self.phase)
    }
}

impl Connections {
    pub(super) fn new(max: usize) -> Arc<Connections> {
        Arc::new(Connections {
            places: Arc::new(Semaphore::new(max)),
            closable: Mutex::default(),
            appeared: Notify::new(),
            refused: Notify::new(),
        })
    }

    /// Opens a connection. If all slots are taken, one that can be closed is displaced.
    pub(super) async fn open(self: &Arc<Self>) -> Arc<Open> {
        let place = self.place().await;
        let open = Arc::new(Open {
            connections: self.clone(),
            current: Mutex::new(Current { phase: Phase::Working, is_flushed: true, age: None }),
            close: Arc::default(),
            knows_interim: AtomicBool::new(false),
            _place: place,
        });
        open.enter(Phase::Idle);
        open
    }

    async fn place(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(place) = self.places.clone().try_acquire_owned() {
                return place;
            }
            // A refusal that nobody waited for is not that of the connection displaced now.
            while pin!(self.refused.notified()).enable() {}
            let another = if self.displace() { &self.refused } else { &self.appeared };
            tokio::select! {
                place = self.places.clone().acquire_owned() => {
                    return place.expect("nobody closes the semaphore");
                }
                () = another.notified() => {}
            }
        }
    }

    /// Closes the connection that was silent for longest; returns false if none can be closed.
    pub(super) fn displace(&self) -> bool {
        let oldest = self.lock().by_age.pop_first();
        oldest.inspect(|(_, close)| close.notify_one()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Closable> {
        // Every change is a single insertion or removal.
        self.closable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Sets the phase of the connection.
    pub(super) fn enter(&self, phase: Phase) {
        self.change(|current| current.phase = phase);
    }

    /// Notes whether all bytes of answers have gone to the system.
    pub(super) fn set_flushed(&self, is_flushed: bool) {
        self.change(|current| current.is_flushed = is_flushed);
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        let mut current = self.current();
        let before = current.closable();
        change(&mut current);
        if current.closable() == before {
            return;
        }
        let mut closable = self.connections.lock();
        if let Some(age) = current.age.take() {
            closable.by_age.remove(&age);
        }
        if let Some(phase) = current.closable() {
            let age = (phase, closable.next);
            closable.next += 1;
            closable.by_age.insert(age, self.close.clone());
            current.age = Some(age);
            drop(closable);
            self.connections.appeared.notify_one();
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.current().phase
    }

    /// True if an interim answer cannot split an answer.
    pub(super) fn is_flushed(&self) -> bool {
        self.current().is_flushed
    }

    /// True if no request has come, or the last one was answered to the last byte.
    pub(super) fn is_idle(&self) -> bool {
        self.current().closable() == Some(Phase::Idle)
    }

    /// Waits until the connection is displaced. If a complete request has arrived meanwhile, it is answered,
    /// and another connection is chosen.
    pub(super) async fn displaced(&self) {
        loop {
            self.close.notified().await;
            if self.current().closable().is_some() {
                return;
            }
            self.connections.refused.notify_one();
        }
    }

    pub(super) fn knows_interim(&self) -> bool {
        self.knows_interim.load(Ordering::Relaxed)
    }

    pub(super) fn set_knows_interim(&self, knows: bool) {
        self.knows_interim.store(knows, Ordering::Relaxed);
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(age) = self.current().age.take() {
            self.connections.lock().by_age.remove(&age);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn is_displaced(open: &Open) -> bool {
        timeout(Duration::from_millis(1), open.displaced()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_makes_room_then_the_longest_receiving_and_nobody_else() {
        let connections = Connections::new(4);
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(Some(connections.open().await));
        }
        let enter = |open: &Option<Arc<Open>>, phase| open.as_ref().unwrap().enter(phase);
        enter(&open[0], Phase::Receiving);
        enter(&open[1], Phase::Working);
        // Idle after an answer: for less time than the fourth.
        enter(&open[2], Phase::Responding);
        enter(&open[2], Phase::Idle);
        let mut newcomers = Vec::new();
        for expect in [3, 2, 0] {
            let opening = tokio::spawn({
                let connections = connections.clone();
                async move { connections.open().await }
            });
            assert!(is_displaced(open[expect].as_ref().unwrap()).await, "{expect}");
            open[expect] = None;
            newcomers.push(opening.await.unwrap());
            newcomers.last().unwrap().enter(Phase::Working);
        }
        let opening = connections.open();
        tokio::pin!(opening);
        assert!(timeout(Duration::from_secs(9), &mut opening).await.is_err(), "all are being answered");
        newcomers[0].enter(Phase::Idle);
        assert!(timeout(Duration::from_millis(1), &mut opening).await.is_err());
        assert!(is_displaced(&newcomers[0]).await, "who becomes idle makes room for who waits");
        newcomers.remove(0);
        opening.await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_sent_to_its_end_keeps_its_connection() {
        let connections = Connections::new(1);
        let open = connections.open().await;
        open.enter(Phase::Responding);
        open.set_flushed(false);
        // The last bytes of the answer wait for the client.
        open.enter(Phase::Idle);
        let opening = connections.open();
        tokio::pin!(opening);
        assert!(timeout(Duration::from_secs(9), &mut opening).await.is_err());
        assert!(!open.is_idle() && !is_displaced(&open).await);
        open.set_flushed(true);
        assert!(timeout(Duration::from_millis(1), &mut opening).await.is_err());
        assert!(open.is_idle() && is_displaced(&open).await, "who is answered makes room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_displaces_one_and_another_only_if_that_one_is_answered() {
        let connections = Connections::new(3);
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(connections.open().await);
        }
        let opening = tokio::spawn({
            let connections = connections.clone();
            async move { connections.open().await }
        });
        assert!(!is_displaced(&open[1]).await, "the first is");
        open[2].enter(Phase::Working);
        open[2].enter(Phase::Idle);
        assert!(!is_displaced(&open[1]).await && !is_displaced(&open[2]).await, "one makes room");
        open[0].enter(Phase::Working);
        assert!(!is_displaced(&open[0]).await, "its request has come");
        assert!(is_displaced(&open[1]).await && !is_displaced(&open[2]).await);
        open.remove(1);
        opening.await.unwrap();
    }
}
