//! The pulse of the engine's thread: where it stands, and since when it has said nothing.
//!
//! The thread writes one word as it goes from one phase to the next, and within a model twice a layer; whoever wants to
//! know whether the engine lives reads it. Neither waits for the other. It takes part in no decision.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the engine's thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// It sleeps until there is work.
    #[default]
    Idle,
    /// It takes the commands that were sent to it.
    Receive,
    /// It runs what somebody wants between two steps.
    Call,
    /// It decides what the next step computes: cache, disk, admission, drafts.
    Plan,
    /// The model computes, and answers say their next tokens.
    Compute,
    /// It gives blocks to the cache and to the disk, and ends what is done.
    Publish,
    /// It tells those whose answers are complete.
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

/// Where the engine's thread stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Life {
    /// What it does.
    pub phase: Phase,
    /// The time since it last said so; zero while there is nothing to do.
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
    /// From now on the engine's thread does this. Only that thread calls it.
    pub fn enter(&self, phase: Phase) {
        self.write(phase as u64);
    }

    /// The engine's thread goes on with what it does. Only that thread calls it.
    pub fn beat(&self) {
        self.write(self.last.load(Ordering::Relaxed) & 0xff);
    }

    /// Where the engine's thread stands now.
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
        // Alone it says all there is to say: nobody reads other memory by it.
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
        pulse.beat();
        let life = pulse.life();
        assert!(life.phase == Phase::Compute && life.age < Duration::from_millis(20), "{life:?}");
    }
}
