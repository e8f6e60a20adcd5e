//! The pulse of the engine's thread: its current phase, and the time since its last sign of life.
//!
//! The thread writes one word at each change of phase, and twice per layer within a model; observers read it to see
//! whether the engine is alive. Neither waits for the other. The pulse affects no decision.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The phases of the engine's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Sleeps until there is work.
    #[default]
    Idle,
    /// Receives commands.
    Receive,
    /// Runs a call between two steps.
    Call,
    /// Plans the next step: cache, disk, admission, drafts.
    Plan,
    /// Runs the model and samples the next tokens.
    Compute,
    /// Publishes blocks to the cache and the disk, and ends finished sequences.
    Publish,
    /// Notifies the clients of finished requests.
    Notify,
    /// The thread has ended.
    Ended,
}

impl Phase {
    const ALL: [Phase; 8] = [
        Phase::Idle,
        Phase::Receive,
        Phase::Call,
        Phase::Plan,
        Phase::Compute,
        Phase::Publish,
        Phase::Notify,
        Phase::Ended,
    ];

    /// Its name in logs and answers.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Receive => "receive",
            Phase::Call => "call",
            Phase::Plan => "plan",
            Phase::Compute => "compute",
            Phase::Publish => "publish",
            Phase::Notify => "notify",
            Phase::Ended => "ended",
        }
    }
}

/// The state of the engine's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Life {
    /// The current phase.
    pub phase: Phase,
    /// Time since its last sign of life; zero while it is idle.
    pub age: Duration,
}

/// The word that the engine's thread writes.
#[derive(Debug)]
pub struct Pulse {
    started: Instant,
    /// Microseconds since `started`, and the phase in the lowest eight bits.
    last: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { started: Instant::now(), last: AtomicU64::new(Phase::Idle as u64) }
    }
}

impl Pulse {
    /// Enters a phase. Called only by the engine's thread.
    pub fn enter(&self, phase: Phase) {
        self.write(phase as u64);
    }

    /// Signals progress within the current phase. Called only by the engine's thread.
    pub fn beat(&self) {
        self.write(self.last.load(Ordering::Relaxed) & 0xff);
    }

    /// The current state of the engine's thread.
    pub fn life(&self) -> Life {
        let last = self.last.load(Ordering::Relaxed);
        let phase = Phase::ALL[(last & 0xff) as usize];
        let age = match phase {
            Phase::Idle => Duration::ZERO,
            _ => self.started.elapsed().saturating_sub(Duration::from_micros(last >> 8)),
        };
        Life { phase, age }
    }

    fn write(&self, phase: u64) {
        // The word is self-contained: no other memory is synchronised by it.
        self.last.store((self.started.elapsed().as_micros() as u64) << 8 | phase, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_read_as_it_was_written_and_ages_but_for_idleness() {
        let pulse = Pulse::default();
        for phase in Phase::ALL {
            pulse.enter(phase);
            std::thread::sleep(Duration::from_millis(3));
            let life = pulse.life();
            assert_eq!(life.phase, phase);
            assert_eq!(life.age >= Duration::from_millis(3), phase != Phase::Idle, "{life:?}");
        }
        pulse.enter(Phase::Compute);
        std::thread::sleep(Duration::from_millis(20));
        let before = Instant::now();
        pulse.beat();
        let (life, since) = (pulse.life(), before.elapsed());
        assert!(life.phase == Phase::Compute && life.age < since + Duration::from_millis(10), "{life:?}");
    }
}
