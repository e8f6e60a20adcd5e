//! The store's own thread: it carries out all slow operations, and ends when the store is closed.

use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use kvik_engine::store::remote::Chain;
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::blocks::{Offer, fetch, forget, keep_up, look_up, write_all};
use crate::budget::SweepRules;
use crate::error::RemoteError;
use crate::names::Key;
use crate::node::Node;
use crate::probe;

/// How long closing waits for pending writes.
const DRAIN_MAX: Duration = Duration::from_secs(2);
const DRAIN_STEP: Duration = Duration::from_millis(5);
/// Maximum number of threads that read and write files, which also bounds those that a disk blocks forever.
const DISK_THREADS_MAX: usize = 8;
/// Interval at which one node of the fleet sweeps a store that does not expire values itself.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// Time limit of a sweep.
const SWEEP_MAX: Duration = Duration::from_secs(300);
/// Maximum number of values that are renewed or removed concurrently.
const UPKEEP_MAX: usize = 2;
/// Number of tasks above which finished ones are removed.
const TASKS_MAX: usize = 64;

/// Work of another part of the server.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Commands to the thread.
pub(crate) enum Command {
    LookUp(u64, Chain),
    Fetch(u64, Chain, Range<usize>),
    Cancel(u64),
    Write(Offer),
    Forget(Vec<Key>),
    Run(Work),
    Close,
}

/// The thread, which ends when this is dropped.
pub(crate) struct Thread {
    commands: UnboundedSender<Command>,
    handle: Option<JoinHandle<()>>,
}

impl Thread {
    pub(crate) fn start(node: Arc<Node>) -> Result<Thread, RemoteError> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(DISK_THREADS_MAX)
            .build()
            .map_err(RemoteError::System)?;
        let (commands, received) = unbounded_channel();
        let run = move || {
            runtime.block_on(serve(node, received));
            // A hanging disk must not delay the shutdown.
            runtime.shutdown_background();
        };
        let handle = Builder::new().name("kvik-remote".to_owned()).spawn(run).map_err(RemoteError::System)?;
        Ok(Thread { commands, handle: Some(handle) })
    }

    /// Sends a command to the thread; does nothing after that has ended.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(crate) fn commands(&self) -> UnboundedSender<Command> {
        self.commands.clone()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.send(Command::Close);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// Carries out commands until it is told to close.
async fn serve(node: Arc<Node>, mut commands: UnboundedReceiver<Command>) {
    let (offers, offered) = unbounded_channel();
    tokio::spawn(write_all(Arc::clone(&node), offered));
    (0..UPKEEP_MAX).for_each(|_| drop(tokio::spawn(keep_up(Arc::clone(&node)))));
    let watched = Arc::clone(&node);
    tokio::spawn(async move { probe::watch(&watched).await });
    tokio::spawn(sweep(Arc::clone(&node)));
    let mut tasks = Tasks::default();
    while let Some(command) = commands.recv().await {
        let node = Arc::clone(&node);
        match command {
            Command::LookUp(ticket, chain) => {
                tasks.start(ticket, async move { look_up(&node, ticket, &chain).await });
            }
            Command::Fetch(ticket, chain, blocks) => {
                tasks.start(ticket, async move { fetch(&node, ticket, &chain, blocks).await });
            }
            Command::Cancel(ticket) => tasks.cancel(ticket),
            Command::Write(offer) => drop(offers.send(offer)),
            Command::Forget(keys) => drop(tokio::spawn(async move { forget(&node, keys).await })),
            Command::Run(work) => drop(tokio::spawn(work)),
            Command::Close => break,
        }
    }
    drain(&node).await;
}

/// Waits for pending writes, up to a time limit.
async fn drain(node: &Node) {
    let until = Instant::now() + DRAIN_MAX;
    while node.counters.writing_blocks.load(Relaxed) > 0 && Instant::now() < until {
        sleep(DRAIN_STEP).await;
    }
}

/// Sweeps the store forever, also while it is not used: a full store may need it most. Faults are only logged:
/// requests that need the store notice them.
async fn sweep(node: Arc<Node>) {
    let rules = SweepRules::new(&node.budget, node.ttl, SWEEP_EVERY);
    loop {
        sleep(SWEEP_EVERY).await;
        match timeout(SWEEP_MAX, node.backend.sweep(&rules)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the remote cache was not swept"),
            Err(_) => tracing::debug!("the remote cache was not swept in time"),
        }
    }
}

/// Running lookups and fetches.
#[derive(Default)]
struct Tasks(HashMap<u64, AbortHandle>);

impl Tasks {
    fn start(&mut self, ticket: u64, task: impl Future<Output = ()> + Send + 'static) {
        if self.0.len() >= TASKS_MAX {
            self.0.retain(|_, task| !task.is_finished());
        }
        self.0.insert(ticket, tokio::spawn(task).abort_handle());
    }

    fn cancel(&mut self, ticket: u64) {
        if let Some(task) = self.0.remove(&ticket) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::Memory;
    use crate::node::tests::node_over;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_not_used_is_swept() {
        let memory = Arc::new(Memory::new(1 << 20, 4096));
        let node = node_over(&memory);
        tokio::spawn(sweep(Arc::clone(&node)));
        sleep(2 * SWEEP_EVERY + SWEEP_EVERY / 2).await;
        assert!(!node.health.is_up());
        assert_eq!(memory.sweeps(), 2);
    }
}
