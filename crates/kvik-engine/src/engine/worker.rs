//! The thread that owns the model, the cache and the scheduler.
//!
//! The thread receives commands through a channel, sends results through the requests' sinks, and publishes
//! statistics as a snapshot. It shares nothing that could block it. When it has nothing to do, it
//! sleeps until a command arrives.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kvik_model::batch::Runner;
use kvik_model::pulse::{Phase, Pulse};

use super::board::Board;
use super::time_share::Rests;
use crate::answers::GeneratedAnswers;
use crate::api::{Event, KvEvent, RequestError};
use crate::panics::contain;
use crate::schedule::{Pause, RequestLimits, Scheduler, Submission};

/// How long an engine that ends writes what the next start wants; what is worth most is written first.
const LAST_WRITES: Duration = Duration::from_secs(5);
/// How long it waits for a disk that completes nothing.
const LAST_WRITES_STALL: Duration = Duration::from_secs(1);
/// How often it looks what has been written.
const LAST_WRITES_LOOK: Duration = Duration::from_millis(5);
/// Time for commands between two steps. The next step waits for one that has begun, and not for those behind it: a
/// caller that asks again as soon as it is answered would otherwise hold up all answers.
const COMMANDS_TIME: Duration = Duration::from_millis(1);

/// A closure that runs between two steps. Its reply is sent once the change of the cache has been published.
pub(crate) type Call = Box<dyn FnOnce(&mut Scheduler, &mut dyn Runner) -> Reply + Send>;

/// Sends a call's result to its caller.
pub(crate) type Reply = Box<dyn FnOnce()>;

/// A command to the worker.
pub(crate) enum Command {
    /// Serve a request.
    Submit(Pending),
    /// Run a closure between two steps, which may read or change the cache. It does not panic.
    Call(Call),
    /// Collect completions of the disk. At most one is queued.
    Wake,
    /// Refuse queued requests, let running ones run for `grace`, then stop.
    Shutdown { grace: Duration },
}

/// A submission on its way to the scheduler. Dropping it sends [`RequestError::Stopping`] to its sink.
pub(crate) struct Pending(Option<Box<Submission>>);

impl Pending {
    pub(crate) fn new(submission: Submission) -> Pending {
        Pending(Some(Box::new(submission)))
    }

    /// The submission, whose sink the caller now has to notify.
    pub(crate) fn take(mut self) -> Option<Box<Submission>> {
        self.0.take()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(mut submission) = self.0.take() {
            // A sink that panics gets no event.
            let _ = contain(|| submission.sink.send(Event::Failed(RequestError::Stopping)));
        }
    }
}

/// The worker's state.
pub(crate) struct Worker {
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: Box<dyn Runner + Send>,
    pub(crate) limits: RequestLimits,
    pub(crate) commands: Receiver<Command>,
    pub(crate) board: Board,
    /// Whether a [`Command::Wake`] is queued.
    pub(crate) woken: Arc<AtomicBool>,
    /// When running requests fail; set when the engine is stopping.
    pub(crate) deadline: Option<Instant>,
    pub(crate) pulse: Arc<Pulse>,
    /// When the clock was at zero.
    pub(crate) started: Instant,
    pub(crate) rests: Rests,
    /// The answers that were generated, where they are remembered.
    pub(crate) answers: Weak<GeneratedAnswers>,
    /// See [`KvListener`](crate::api::KvListener).
    pub(crate) kv_sink: Option<Box<dyn FnMut(Vec<KvEvent>) + Send>>,
    /// See [`Attached::before_step`](super::Attached::before_step).
    pub(crate) before_step: Option<Box<dyn FnMut() + Send>>,
}

/// Records that the thread has ended, even after a panic.
struct EndGuard(Arc<Pulse>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.enter(Phase::Ended);
    }
}

impl Worker {
    /// Serves until a shutdown is complete or every sender of commands has been dropped.
    pub(crate) fn run(mut self) {
        let _end = EndGuard(self.pulse.clone());
        while self.receive_commands().is_continue() {
            if self.rest().is_some() {
                self.attend()
            } else {
                self.step()
            }
            self.publish();
            self.pulse.enter(Phase::Notify);
            self.scheduler.notify_finished();
            self.answers.upgrade().iter().for_each(|answers| answers.drop_ended());
        }
        self.pulse.enter(Phase::Notify);
        if let Err(error) = contain(|| self.scheduler.spill_for_next_start()) {
            tracing::error!("nothing is left for the next start: {error}");
        }
        self.scheduler.fail_all(&RequestError::Stopping);
        self.finish_writing();
        self.board.publish(&self.scheduler);
        // Dropping the channel drops the commands left in it, which notifies their senders.
    }

    /// Writes what the next start wants, for a limited time. Commands that arrive meanwhile come too late.
    fn finish_writing(&mut self) {
        let (begun, mut progress, mut left) = (Instant::now(), Instant::now(), usize::MAX);
        loop {
            let unwritten = self.scheduler.unwritten_blocks();
            if unwritten < left {
                (left, progress) = (unwritten, Instant::now());
            }
            if unwritten == 0 || begun.elapsed() > LAST_WRITES || progress.elapsed() > LAST_WRITES_STALL {
                return;
            }
            self.attend();
            match self.commands.recv_timeout(LAST_WRITES_LOOK) {
                Ok(Command::Wake) => self.woken.store(false, Ordering::Release),
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LAST_WRITES_LOOK),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Executes the queued commands, for a limited time unless the scheduler is idle; waits for one while it has nothing
    /// to do.
    fn receive_commands(&mut self) -> ControlFlow<()> {
        self.pulse.enter(Phase::Receive);
        let mut pause = match (self.scheduler.next_pause(), self.rest()) {
            (Pause::None, Some(rest)) => Pause::For(rest),
            (pause, _) => self.until_answers_expire(pause),
        };
        let mut spent = Duration::ZERO;
        while spent < COMMANDS_TIME || self.scheduler.next_pause() == Pause::Forever {
            let command = self.next_command(pause);
            self.pulse.enter(Phase::Receive);
            match command {
                Ok(command) => spent += self.execute(command),
                Err(RecvTimeoutError::Disconnected) if self.scheduler.is_idle() => {
                    return ControlFlow::Break(());
                }
                Err(_) => break,
            }
            pause = Pause::None;
        }
        let expired = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let finished = self.deadline.is_some() && self.scheduler.is_idle();
        if expired || finished { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// A pause that ends in time to drop the answers that have expired.
    fn until_answers_expire(&self, pause: Pause) -> Pause {
        let look = self.answers.upgrade().and_then(|answers| answers.next_look());
        let left = look.map(|look| look.saturating_duration_since(Instant::now()));
        match (pause, left) {
            (Pause::For(time), Some(left)) => Pause::For(time.min(left)),
            (Pause::Forever, Some(left)) => Pause::For(left),
            (pause, _) => pause,
        }
    }

    fn next_command(&mut self, pause: Pause) -> Result<Command, RecvTimeoutError> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match pause {
            Pause::Forever if left.is_none() => {
                self.verify();
                self.pulse.enter(Phase::Idle);
                self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
            Pause::For(time) => {
                self.pulse.enter(Phase::Idle);
                self.commands.recv_timeout(left.map_or(time, |left| left.min(time)))
            }
            _ => self.commands.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        }
    }

    /// Executes a command; returns how long that took.
    fn execute(&mut self, command: Command) -> Duration {
        let began = Instant::now();
        match command {
            Command::Submit(pending) if self.deadline.is_some() => drop(pending),
            Command::Submit(pending) => {
                if let Some(submission) = pending.take() {
                    self.scheduler.submit(*submission, &self.limits);
                }
            }
            Command::Call(call) => {
                self.pulse.enter(Phase::Call);
                self.keep_time();
                let reply = call(&mut self.scheduler, self.runner.as_mut());
                self.publish();
                reply();
            }
            Command::Wake => self.woken.store(false, Ordering::Release),
            Command::Shutdown { grace } => {
                // Caps a grace that would overflow the clock.
                let far = Duration::from_secs(365 * 24 * 3600);
                self.deadline = Some(Instant::now() + grace.min(far));
                self.scheduler.fail_queued(&RequestError::Stopping);
            }
        }
        began.elapsed()
    }

    /// Drops what has outlived its time, so that a call does not find it. What a panic leaves is mended.
    fn keep_time(&mut self) {
        let scheduler = &mut self.scheduler;
        if let Err(error) = contain(|| scheduler.keep_time()) {
            tracing::error!("what has expired cannot be dropped: {error}");
            self.scheduler.recover(&error, self.runner.as_mut());
        }
    }

    /// How long to rest before the next poll, if the share of time requires it. Without requests no rest is needed.
    fn rest(&mut self) -> Option<Duration> {
        if self.scheduler.is_idle() {
            return None;
        }
        self.rests.rest(self.started.elapsed())
    }

    /// Ends requests and continues disk transfers during a rest.
    fn attend(&mut self) {
        let (scheduler, runner) = (&mut self.scheduler, self.runner.as_mut());
        if let Err(error) = contain(|| scheduler.attend(runner)) {
            tracing::error!("a rest panicked: {error}");
            self.scheduler.recover(&error, self.runner.as_mut());
        }
    }

    /// Runs a step. A panic that cannot be attributed to a request fails the running requests, not the engine.
    fn step(&mut self) {
        if let Some(before_step) = &mut self.before_step {
            self.pulse.enter(Phase::Call);
            before_step();
        }
        let began = Instant::now();
        let (scheduler, runner) = (&mut self.scheduler, self.runner.as_mut());
        if let Err(error) = contain(|| scheduler.step(runner)) {
            tracing::error!("a step panicked: {error}");
            self.scheduler.recover(&error, self.runner.as_mut());
        }
        self.rests.computed(began.elapsed(), self.started.elapsed());
    }

    /// Makes a step or a call visible to other threads, before its caller is answered: KV events and statistics.
    fn publish(&mut self) {
        if let Some(sink) = &mut self.kv_sink {
            let events = self.scheduler.prefixes.take_kv_events();
            if !events.is_empty() {
                sink(events);
            }
        }
        self.board.publish(&self.scheduler);
    }

    /// Checks the cache's invariants in debug builds.
    fn verify(&mut self) {
        if cfg!(debug_assertions)
            && let Err(violation) = self.scheduler.cache().check()
        {
            tracing::error!("the cache violates an invariant and is emptied: {violation}");
            let error = RequestError::Internal(violation.to_string());
            self.scheduler.recover(&error, self.runner.as_mut());
        }
    }
}

#[cfg(test)]
mod tests;
