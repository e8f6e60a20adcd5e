//! Behind the answer: a new summary, and the conversation as it goes on from it, computed ahead.
//!
//! All of it is work of nobody who waits. It is paid by the tenant whose conversation it is, and ends where that is
//! deleted.

use std::sync::Arc;

use kvik_engine::api::Pace;
use tokio::sync::Semaphore;

use super::host::Host;
use super::job::{MemoryJob, MemoryTask};
use super::summary::{Making, compute};
use crate::app::metrics::memory::SummaryOutcome;
use crate::http::error::ApiError;

/// Summaries that are made at the same time.
const AT_ONCE: usize = 2;
/// Conversations that are computed without what was quoted in them, at the same time; others are not.
const AHEAD_MAX: usize = 8;

/// Makes the summaries that arrive, for ever.
pub(crate) async fn make_summaries<H: Host>(host: Arc<H>) {
    let Some(mut arriving) = host.memory().arriving() else { return };
    let (slots, ahead_slots) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(AHEAD_MAX)));
    while let Some(MemoryJob { caller, task, wanted, pending }) = arriving.recv().await {
        let (host, slots) = (host.clone(), slots.clone());
        match task {
            MemoryTask::Ahead { messages, render } => {
                let Ok(slot) = ahead_slots.clone().try_acquire_owned() else { continue };
                tokio::spawn(async move {
                    let _held = (slot, pending);
                    // Whether it was computed shows in the next turn, which is answered either way.
                    let _ = wanted
                        .during(compute(&*host, &caller, Pace::default(), &render, move || messages))
                        .await;
                });
            }
            MemoryTask::Rebuild(rebuild) => {
                tokio::spawn(async move {
                    let making = Making::new(host, caller, rebuild, wanted);
                    let made = making.wanted.during(async {
                        let _slot = slots.acquire().await;
                        making.run().await
                    });
                    note_end(&making, made.await);
                    drop((making, pending));
                });
            }
        }
    }
}

/// Says what became of a summary; `None` where its conversation was deleted.
fn note_end<H: Host>(making: &Making<H>, made: Option<Result<(), ApiError>>) {
    let Some(Err(error)) = made else { return };
    tracing::warn!(
        "a conversation goes on without a new summary for now: {}",
        error.body()["error"]["message"]
    );
    making.memory().metrics.memory.summary(SummaryOutcome::Failed);
}
