//! Ctrl-C. At the prompt of a terminal it is an ordinary key; this is the signal.

use std::{
    future::{Future, poll_fn},
    task::Poll,
};

use tokio::{runtime::Runtime, sync::watch};

/// The status that a shell reports for a process ended by SIGINT.
pub(crate) const INTERRUPTED: i32 = 130;

/// Whether an interrupt waits to be heard; the receivers are the turns.
#[derive(Clone)]
pub(super) struct Interrupts(watch::Sender<bool>);

/// A time in which an interrupt stops an answer: one that is running, or the next one that begins in it.
pub(crate) struct Turn {
    interrupts: Interrupts,
    waiting: watch::Receiver<bool>,
}

impl Interrupts {
    fn new() -> Interrupts {
        Interrupts(watch::Sender::new(false))
    }

    pub(super) fn turn(&self) -> Turn {
        Turn { interrupts: self.clone(), waiting: self.0.subscribe() }
    }

    /// Installs a handler of the signal, which runs in `runtime`.
    pub(super) fn handled_in(runtime: &Runtime) -> Interrupts {
        let interrupts = Interrupts::new();
        let mut handler = Box::pin(interrupts.clone().handle());
        // It is installed by the first poll, and a task has that at some later time.
        runtime.block_on(poll_fn(|context| {
            let _ = handler.as_mut().poll(context);
            Poll::Ready(())
        }));
        runtime.spawn(handler);
        interrupts
    }

    /// Takes interrupts for ever.
    async fn handle(self) {
        while tokio::signal::ctrl_c().await.is_ok() {
            if !self.take() {
                std::process::exit(INTERRUPTED);
            }
        }
    }

    /// Takes an interrupt; false outside a turn, and when the one before was not heard.
    pub(super) fn take(&self) -> bool {
        let mut is_taken = false;
        self.0.send_if_modified(|waits| {
            is_taken = self.0.receiver_count() > 0 && !*waits;
            *waits |= is_taken;
            is_taken
        });
        is_taken
    }
}

impl Turn {
    /// Waits for an interrupt, which is then heard.
    pub(super) async fn interrupted(&self) {
        // The sender is in `self`.
        let _ = self.waiting.clone().wait_for(|waits| *waits).await;
        self.forget();
    }

    /// Forgets an interrupt that came too late for an answer; it ends the program through a pipe, whose prompt has
    /// no keys.
    pub(crate) fn end(self, is_piped: bool) {
        if self.forget() && is_piped {
            std::process::exit(INTERRUPTED);
        }
    }

    /// Whether an interrupt was not heard; it is now.
    fn forget(&self) -> bool {
        self.interrupts.0.send_replace(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_outside_a_turn_is_not_taken() {
        let interrupts = Interrupts::new();
        drop(interrupts.turn());
        assert!(!interrupts.take());
    }

    #[test]
    fn an_interrupt_before_an_answer_stops_it_and_the_next_one_runs() {
        let interrupts = Interrupts::new();
        let turn = interrupts.turn();
        assert!(interrupts.take());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(interrupts.turn().interrupted());
        assert!(!turn.forget());
    }

    #[test]
    fn a_second_interrupt_that_nobody_heard_is_not_taken() {
        let interrupts = Interrupts::new();
        let turn = interrupts.turn();
        assert!(interrupts.take());
        assert!(!interrupts.take());
        assert!(turn.forget());
        assert!(interrupts.take());
    }
}
