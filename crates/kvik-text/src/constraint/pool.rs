//! Compiles constraints on its own threads, fairly among tenants, each grammar once.
//!
//! Compiling is bounded (`limits`), so it is never interrupted; a job whose waiters have all
//! disconnected is skipped. The engine stops without waiting for the threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use kvik_cache::TenantId;

use super::Compiler;
use super::budget::MemoryBudget;
use super::guide::{CompiledGrammar, Guide};
use super::limits::STACK_BYTES;
use crate::forms::{Constraint, ConstraintError};
use crate::stream::Vocabulary;

/// Number of threads: more would only take processors from the model.
const THREADS: usize = 2;
/// Maximum grammars that wait, in all and of one tenant.
const WAITING_MAX: usize = 64;
const TENANT_WAITING_MAX: usize = WAITING_MAX / 2;
/// Maximum grammars cached for later requests.
const KEPT_MAX: usize = 32;
/// Maximum bytes of a cached grammar.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Receives a compiled constraint.
pub trait Waiter: Send {
    /// Whether the client has disconnected.
    fn is_closed(&self) -> bool;
    /// Takes the result.
    fn done(self: Box<Self>, guide: Result<Guide, ConstraintError>);
}

/// The threads and their jobs.
pub struct CompilerPool {
    shared: Arc<Shared>,
}

struct Shared {
    compiler: Compiler,
    budget: MemoryBudget,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Waiting tenants in round-robin order, each with its jobs; no list is empty.
    waiting: VecDeque<(TenantId, VecDeque<Job>)>,
    /// Constraints being compiled.
    running: Vec<(Key, Vec<Box<dyn Waiter>>)>,
    /// Cached grammars, most recently used last.
    kept: VecDeque<(Key, Arc<CompiledGrammar>)>,
    threads: usize,
    /// The pool was dropped.
    closed: bool,
}

struct Job {
    key: Key,
    constraint: Constraint,
    waiters: Vec<Box<dyn Waiter>>,
}

/// The tenant and a digest of the constraint. Tenants share no grammars: response times would reveal
/// to one tenant what another one requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    tenant: TenantId,
    digest: u128,
}

impl Key {
    fn of(tenant: TenantId, constraint: &Constraint) -> Key {
        Key { tenant, digest: xxhash_rust::xxh3::xxh3_128(format!("{constraint:?}").as_bytes()) }
    }
}

impl CompilerPool {
    /// A pool for a vocabulary and a model with `vocab_len` logits.
    pub fn of(vocabulary: Arc<Vocabulary>, vocab_len: usize) -> CompilerPool {
        CompilerPool::new(Compiler::new(vocabulary, vocab_len))
    }

    pub(super) fn new(compiler: Compiler) -> CompilerPool {
        let (budget, state, wake) = (MemoryBudget::default(), Mutex::default(), Condvar::new());
        CompilerPool { shared: Arc::new(Shared { compiler, budget, state, wake }) }
    }

    /// Compiles a constraint for a tenant and passes the result to `waiter`.
    ///
    /// # Errors
    /// If too many constraints wait, or no thread can be started.
    pub fn compile(
        &self,
        tenant: TenantId,
        constraint: &Constraint,
        waiter: Box<dyn Waiter>,
    ) -> Result<(), ConstraintError> {
        let key = Key::of(tenant, constraint);
        let mut state = self.shared.lock();
        if let Some(grammar) = state.find_kept(key) {
            drop(state);
            waiter.done(Ok(Guide::new(grammar)));
            return Ok(());
        }
        if let Some(waiters) = state.find_waiters(key) {
            waiters.push(waiter);
            return Ok(());
        }
        state.push(Job { key, constraint: constraint.clone(), waiters: vec![waiter] })?;
        self.add_thread(&mut state)?;
        self.shared.wake.notify_one();
        Ok(())
    }

    fn add_thread(&self, state: &mut State) -> Result<(), ConstraintError> {
        if state.threads == THREADS {
            return Ok(());
        }
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("kvik-grammar".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn(move || shared.work()) {
            Ok(_) => state.threads += 1,
            Err(_) if state.threads > 0 => {}
            Err(error) => return Err(ConstraintError::NoThread(error.to_string())),
        }
        Ok(())
    }
}

impl Drop for CompilerPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles jobs until the pool is dropped.
    fn work(&self) {
        while let Some((key, constraint)) = self.next() {
            let compiled = self.compile(key, &constraint);
            let waiters = self.finish(key, compiled.as_ref().ok());
            for waiter in waiters {
                let guide = compiled.clone().map(Guide::new);
                // A waiter that panics affects only itself; the thread continues with the others.
                let _ = catch_unwind(AssertUnwindSafe(|| waiter.done(guide)));
            }
        }
    }

    /// Waits for the next job with a connected waiter.
    fn next(&self) -> Option<(Key, Constraint)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(Job { key, constraint, waiters }) = state.pop() {
                state.running.push((key, waiters));
                return Some((key, constraint));
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn compile(&self, key: Key, constraint: &Constraint) -> Result<Arc<CompiledGrammar>, ConstraintError> {
        let grammar = self.compiler.compile_grammar(constraint)?;
        let take = || self.budget.take(key.tenant, grammar.bytes);
        let charge = take().or_else(|| {
            self.lock().kept.clear();
            take()
        });
        let charge = charge.ok_or(ConstraintError::Busy { retry_after_s: 1 })?;
        grammar.charge.lock().unwrap_or_else(PoisonError::into_inner).replace(charge);
        Ok(Arc::new(grammar))
    }

    /// Caches the compiled grammar, and returns its waiters.
    fn finish(&self, key: Key, grammar: Option<&Arc<CompiledGrammar>>) -> Vec<Box<dyn Waiter>> {
        let mut state = self.lock();
        if let Some(grammar) = grammar.filter(|grammar| grammar.bytes <= KEPT_BYTES_MAX) {
            if state.kept.len() == KEPT_MAX {
                state.kept.pop_front();
            }
            state.kept.push_back((key, grammar.clone()));
        }
        let running = state.running.iter().position(|(running, _)| *running == key);
        running.map(|index| state.running.swap_remove(index).1).unwrap_or_default()
    }
}

impl State {
    fn find_kept(&mut self, key: Key) -> Option<Arc<CompiledGrammar>> {
        let index = self.kept.iter().position(|(kept, _)| *kept == key)?;
        let found = self.kept.remove(index)?;
        let grammar = found.1.clone();
        self.kept.push_back(found);
        Some(grammar)
    }

    /// The waiters of this constraint, if it is queued or being compiled.
    fn find_waiters(&mut self, key: Key) -> Option<&mut Vec<Box<dyn Waiter>>> {
        let waiting = self.waiting.iter_mut().flat_map(|(_, jobs)| jobs.iter_mut());
        let waiting = waiting.map(|job| (job.key, &mut job.waiters));
        let running = self.running.iter_mut().map(|(key, waiters)| (*key, waiters));
        waiting.chain(running).find(|(known, _)| *known == key).map(|(_, waiters)| waiters)
    }

    fn push(&mut self, job: Job) -> Result<(), ConstraintError> {
        let tenant = job.key.tenant;
        let all: usize = self.waiting.iter().map(|(_, jobs)| jobs.len()).sum();
        let own = self.waiting.iter_mut().find(|(waiting, _)| *waiting == tenant);
        let own_len = own.as_ref().map_or(0, |(_, jobs)| jobs.len());
        if all >= WAITING_MAX || own_len >= TENANT_WAITING_MAX {
            return Err(ConstraintError::Busy { retry_after_s: 1 });
        }
        match own {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.waiting.push_back((tenant, VecDeque::from([job]))),
        }
        Ok(())
    }

    /// The next job of the next tenant; drops jobs without a connected waiter.
    fn pop(&mut self) -> Option<Job> {
        while let Some((tenant, mut jobs)) = self.waiting.pop_front() {
            let job = jobs.pop_front();
            if !jobs.is_empty() {
                self.waiting.push_back((tenant, jobs));
            }
            if let Some(job) = job.filter(|job| job.waiters.iter().any(|waiter| !waiter.is_closed())) {
                return Some(job);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use serde_json::json;

    use super::super::tests::compiler;
    use super::*;

    /// The result that a waiter receives.
    type Outcome = Result<Guide, ConstraintError>;

    struct Client {
        closed: bool,
        outcome: Sender<Outcome>,
    }

    impl Waiter for Client {
        fn is_closed(&self) -> bool {
            self.closed
        }

        fn done(self: Box<Self>, guide: Outcome) {
            // The test may have ended already.
            let _ = self.outcome.send(guide);
        }
    }

    fn hostile(divisor: u64) -> Constraint {
        Constraint::JsonSchema(json!({"type": "integer", "multipleOf": divisor}))
    }

    #[test]
    fn equal_constraints_of_one_tenant_are_compiled_once() {
        let pool = CompilerPool::new(compiler());
        let (sender, outcomes) = channel();
        let ask = |tenant, text: &str| {
            let client = Client { closed: false, outcome: sender.clone() };
            pool.compile(TenantId(tenant), &Constraint::Regex(text.into()), Box::new(client)).unwrap();
        };
        (0..64).for_each(|_| ask(1, "a+"));
        let guides: Vec<Guide> = outcomes.iter().take(64).map(Result::unwrap).collect();
        assert!(guides.iter().all(|guide| guide.shares_grammar_with(&guides[0])));
        for (tenant, text, same) in [(1, "a+", true), (1, "b+", false), (2, "a+", false)] {
            ask(tenant, text);
            assert_eq!(
                outcomes.recv().unwrap().unwrap().shares_grammar_with(&guides[0]),
                same,
                "{tenant} {text}"
            );
        }
    }

    #[test]
    fn a_full_queue_refuses_and_a_tenant_leaves_room_for_others() {
        let pool = CompilerPool::new(compiler());
        let (sender, outcomes) = channel();
        let ask = |tenant, divisor| {
            let client = Client { closed: false, outcome: sender.clone() };
            pool.compile(TenantId(tenant), &hostile(divisor), Box::new(client))
        };
        let refused = (0..200).find_map(|i| ask(1, 10_000_019 + i).err());
        assert_eq!(refused, Some(ConstraintError::Busy { retry_after_s: 1 }));
        ask(2, 10_000_019).unwrap();
        drop(outcomes);
    }

    #[test]
    fn jobs_without_a_connected_waiter_are_not_compiled() {
        let pool = CompilerPool::new(compiler());
        let (sender, outcomes) = channel();
        for i in 0..30 {
            let client = Client { closed: true, outcome: sender.clone() };
            pool.compile(TenantId(1), &hostile(10_000_019 + i), Box::new(client)).unwrap();
        }
        drop(sender);
        // Each waiter is dropped without a result.
        assert!(outcomes.recv_timeout(Duration::from_secs(60)).is_err());
    }
}
