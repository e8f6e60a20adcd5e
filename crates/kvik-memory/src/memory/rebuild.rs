//! Behind the answer: a new summary, and the conversation as it goes on from it, computed ahead.
//!
//! All of it is work of nobody who waits. It is paid by the tenant whose conversation it is, and ends where that is
//! deleted.

use std::sync::Arc;

use async_lock::Semaphore;
use kvik_engine::api::Pace;

use super::host::Host;
use super::job::{MemoryJob, MemoryTask};
use super::observer::SummaryOutcome;
use super::summary::{Making, compute};

/// Summaries that are made at the same time.
const AT_ONCE: usize = 2;
/// Conversations that are computed without what was quoted in them, at the same time; others are not.
const AHEAD_MAX: usize = 8;

/// Makes the summaries that arrive, until memory [is closed](super::Memory::close).
pub async fn make_summaries<H: Host>(host: Arc<H>) {
    let arriving = host.memory().arriving.clone();
    let (slots, ahead_slots) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(AHEAD_MAX)));
    while let Ok(MemoryJob { caller, task, wanted, pending }) = arriving.recv().await {
        let (own, slots) = (host.clone(), slots.clone());
        match task {
            MemoryTask::Ahead { messages, render } => {
                let Some(slot) = ahead_slots.clone().try_acquire_arc() else { continue };
                host.spawn(async move {
                    let _held = (slot, pending);
                    let computed = compute(&*own, &caller, Pace::default(), &render, move || messages);
                    // Whether it was computed shows in the next turn, which is answered either way.
                    let _ = wanted.during(computed).await;
                });
            }
            MemoryTask::Rebuild(rebuild) => host.spawn(async move {
                let making = Making::new(own, caller, rebuild, wanted);
                let made = making.wanted.during(async {
                    let _slot = slots.acquire().await;
                    making.run().await
                });
                note_end(&making, made.await);
                drop((making, pending));
            }),
        }
    }
}

/// Says what became of a summary; `None` where its conversation was deleted.
fn note_end<H: Host>(making: &Making<H>, made: Option<Result<(), H::Error>>) {
    let Some(Err(error)) = made else { return };
    tracing::warn!("a conversation goes on without a new summary for now: {error}");
    making.memory().observer.summary(SummaryOutcome::Failed);
}
