//! Work after an answer: makes a new summary, and prefills the conversation that continues after it.
//!
//! All of it is background work. It is accounted to the tenant of the conversation, and is cancelled if the
//! conversation is deleted.

use std::sync::Arc;

use async_lock::Semaphore;
use kvik_engine::api::Pace;

use super::host::Host;
use super::job::{MemoryJob, MemoryTask};
use super::observer::SummaryOutcome;
use super::summary::{Making, compute};

/// Number of summaries that are made concurrently.
const AT_ONCE: usize = 2;
/// Maximum number of concurrent prefills of conversations without their quotes; further ones are skipped.
const AHEAD_MAX: usize = 8;

/// Makes the queued summaries, until memory [is closed](super::Memory::close).
pub async fn make_summaries<H: Host>(host: Arc<H>) {
    let arriving = host.memory().arriving.clone();
    let (slots, ahead_slots) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(AHEAD_MAX)));
    while let Ok(MemoryJob { caller, task, wanted, pending }) = arriving.recv().await {
        let (own, slots) = (host.clone(), slots.clone());
        match task {
            MemoryTask::Ahead { messages, render, terms } => {
                let Some(slot) = ahead_slots.clone().try_acquire_arc() else { continue };
                host.spawn(async move {
                    let _held = (slot, pending);
                    let how = (&render, &terms, Pace::default());
                    let computed = compute(&*own, &caller, how, move || messages);
                    // A failure shows in the next turn, which is answered either way.
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

/// Logs and counts a failure; `None` means that the conversation was deleted.
fn note_end<H: Host>(making: &Making<H>, made: Option<Result<(), H::Error>>) {
    let Some(Err(error)) = made else { return };
    tracing::warn!("a conversation goes on without a new summary for now: {error}");
    making.memory().observer.summary(SummaryOutcome::Failed);
}
