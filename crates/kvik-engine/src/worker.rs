//! The thread that owns the model, the cache and the scheduler.
//!
//! Commands come in by a bounded channel, results go out through the requests' sinks, numbers
//! through a snapshot. Nothing is shared with it that could block it. When there is nothing to
//! do, it sleeps until a command comes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::api::RequestError;
use crate::batch::Runner;
use crate::engine::Board;
use crate::schedule::{Limits, Rest, Scheduler, Submission};

/// What the worker is told.
pub(crate) enum Command {
    /// Serve a request.
    Submit(Box<Submission>),
    /// Do something between two steps: look at the cache, or change what it keeps.
    Ask(Box<dyn FnOnce(&mut Scheduler) + Send>),
    /// Look whether the disk has done something.
    Wake,
    /// Refuse what is queued, let the rest run for `grace`, then stop.
    Shutdown { grace: Duration },
}

/// The worker's state.
pub(crate) struct Worker {
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: Box<dyn Runner + Send>,
    pub(crate) limits: Limits,
    pub(crate) commands: Receiver<Command>,
    pub(crate) board: Board,
    /// When what still runs is given up; set once the engine is stopping.
    pub(crate) deadline: Option<Instant>,
}

/// Whether the worker goes on.
#[derive(PartialEq, Eq)]
enum Life {
    Goes,
    Ends,
}

impl Worker {
    /// Serves until it is told to stop or nobody can tell it anything any more.
    pub(crate) fn run(mut self) {
        while self.listen() == Life::Goes {
            self.step();
            self.board.post(&self.scheduler);
            self.scheduler.take_leave();
        }
        self.scheduler.fail_all(&RequestError::Stopping);
        while let Ok(Command::Submit(mut submission)) = self.commands.try_recv() {
            submission.sink.send(crate::api::Event::Failed(RequestError::Stopping));
        }
        self.board.post(&self.scheduler);
    }

    /// Takes all commands there are; waits for one while there is nothing else to do.
    fn listen(&mut self) -> Life {
        let mut rest = self.scheduler.rest();
        loop {
            match self.next_command(rest) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Disconnected) if self.scheduler.is_idle() => return Life::Ends,
                Err(_) => break,
            }
            rest = Rest::None;
        }
        let expired = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let finished = self.deadline.is_some() && self.scheduler.is_idle();
        if expired || finished { Life::Ends } else { Life::Goes }
    }

    fn next_command(&mut self, rest: Rest) -> Result<Command, RecvTimeoutError> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match rest {
            Rest::Forever if left.is_none() => {
                self.verify();
                self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
            Rest::For(time) => self.commands.recv_timeout(left.map_or(time, |left| left.min(time))),
            _ => self.commands.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(mut submission) if self.deadline.is_some() => {
                submission.sink.send(crate::api::Event::Failed(RequestError::Stopping));
            }
            Command::Submit(submission) => self.scheduler.submit(*submission, &self.limits),
            Command::Ask(ask) => ask(&mut self.scheduler),
            Command::Wake => {}
            Command::Shutdown { grace } => {
                // A grace too long to add means no deadline that matters.
                let far = Duration::from_secs(365 * 24 * 3600);
                self.deadline = Some(Instant::now() + grace.min(far));
                self.scheduler.fail_queued(&RequestError::Stopping);
            }
        }
    }

    /// One step. A panic in it costs the requests that took part, not the engine.
    fn step(&mut self) {
        let (scheduler, runner) = (&mut self.scheduler, self.runner.as_mut());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scheduler.step(runner))) {
            let message = panic_message(panic.as_ref());
            tracing::error!("a step of the model panicked: {message}");
            self.scheduler.recover(&RequestError::Internal(message));
        }
    }

    /// Checks the cache's invariants in builds that are for finding errors.
    fn verify(&mut self) {
        if cfg!(debug_assertions)
            && let Err(violation) = self.scheduler.cache().check()
        {
            tracing::error!("the cache violates an invariant and is emptied: {violation}");
            self.scheduler.recover(&RequestError::Internal(violation.to_string()));
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}
