//! Open connections: how many there may be, and which can be closed without loss.
//!
//! A connection that has sent no request, or whose request is still coming in, can be closed when
//! the place is wanted; one that is being answered cannot. So a crowd of silent clients keeps
//! nobody out: the one that has been silent for longest makes room for the next.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// What a connection is doing. Those that come first in this order are closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// No request has come, or its head is not complete.
    Idle,
    /// The body of a request is coming in.
    Receiving,
    /// The request is complete and has no answer yet.
    Working,
    /// The answer is going out.
    Responding,
}

impl Phase {
    /// Whether nothing is lost but what the client can send again.
    fn is_closable(self) -> bool {
        matches!(self, Phase::Idle | Phase::Receiving)
    }
}

/// All open connections.
pub(super) struct Connections {
    places: Arc<Semaphore>,
    closable: Mutex<Closable>,
    /// Told when there is one more that can be closed.
    appeared: Notify,
}

/// Connections that can be closed, in the order in which they would be.
#[derive(Default)]
struct Closable {
    next: u64,
    by_age: BTreeMap<Age, Arc<Notify>>,
}

/// What a connection is doing, and a number that grows with the time since when.
type Age = (Phase, u64);

/// One open connection. Its place is free when this is dropped.
pub(super) struct Open {
    connections: Arc<Connections>,
    current: Mutex<Current>,
    close: Arc<Notify>,
    /// The client understands answers of the class 1xx.
    knows_interim: AtomicBool,
    _place: OwnedSemaphorePermit,
}

struct Current {
    phase: Phase,
    /// Its key among those that can be closed.
    age: Option<Age>,
}

impl Connections {
    pub(super) fn new(max: usize) -> Arc<Connections> {
        Arc::new(Connections {
            places: Arc::new(Semaphore::new(max)),
            closable: Mutex::default(),
            appeared: Notify::new(),
        })
    }

    /// Opens one more. Where all places are taken one that can be closed makes room.
    pub(super) async fn open(self: &Arc<Self>) -> Arc<Open> {
        let place = self.place().await;
        let open = Arc::new(Open {
            connections: self.clone(),
            current: Mutex::new(Current { phase: Phase::Working, age: None }),
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
            self.displace();
            tokio::select! {
                place = self.places.clone().acquire_owned() => {
                    return place.expect("nobody closes the semaphore");
                }
                () = self.appeared.notified() => {}
            }
        }
    }

    /// Has the connection closed that was silent for longest, if there is one.
    pub(super) fn displace(&self) {
        let oldest = self.lock().by_age.pop_first();
        if let Some((_, close)) = oldest {
            close.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Closable> {
        // Every change is a single insertion or removal.
        self.closable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Notes what the connection does from now on.
    pub(super) fn enter(&self, phase: Phase) {
        let mut current = self.current();
        if current.phase == phase {
            return;
        }
        let mut closable = self.connections.lock();
        if let Some(age) = current.age.take() {
            closable.by_age.remove(&age);
        }
        current.phase = phase;
        if phase.is_closable() {
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

    /// Waits until the place is wanted by somebody else. A request that has come in meanwhile is
    /// answered, and another connection is looked for.
    pub(super) async fn displaced(&self) {
        loop {
            self.close.notified().await;
            if self.phase().is_closable() {
                return;
            }
            self.connections.appeared.notify_one();
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
        // Back from an answer: idle for less time than the fourth.
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
}
