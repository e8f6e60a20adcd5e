//! The next turn of a chat, computed while its client reads the answer.
//!
//! ```text
//! request ──▶ Turn::arrived     drops the work on its conversation, and counts what of it is found
//! events  ──▶ Turn::note
//! answer  ──▶ Turn::ended ──▶ Upcoming::prepare ──▶ a background request that generates nothing
//!                             template, tokenizer
//! ```
//!
//! A template may write a message of the history otherwise than it was generated: most leave its thoughts out. All behind
//! such a place is new in the next turn, although nothing but the next question is unknown. The work is a request like any
//! other, of the tenant, adapters and lifetime of the turn, so that it is cached where the next turn looks; it is never
//! charged, comes last, and is dropped when the next turn arrives.

mod records;
mod turn;

use std::fmt;
use std::hash::RandomState;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_engine::api::{Event, EventSink, Report};

use records::Records;

pub use records::AheadCounts;
pub use turn::{Turn, Upcoming};

/// Which next turns are computed ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AheadMode {
    /// Those of clients that find enough of them.
    #[default]
    Auto,
    /// All.
    On,
    /// None.
    Off,
}

/// The next turns of one model.
#[derive(Debug, Clone, Default)]
pub struct NextTurns {
    mode: AheadMode,
    /// Keys the fingerprints of prompts anew in every process.
    hasher: RandomState,
    records: Arc<Mutex<Records>>,
}

impl NextTurns {
    /// No turns yet.
    pub fn new(mode: AheadMode) -> NextTurns {
        NextTurns { mode, ..NextTurns::default() }
    }

    /// The same turns for a request whose next one is expected: it is computed whatever its client found before.
    pub fn expected(&self) -> NextTurns {
        let mode = if self.mode == AheadMode::Auto { AheadMode::On } else { self.mode };
        NextTurns { mode, ..self.clone() }
    }

    /// Which are computed.
    pub fn mode(&self) -> AheadMode {
        self.mode
    }

    /// Tokens computed ahead so far, and those of them that were found.
    pub fn counts(&self) -> AheadCounts {
        self.lock().counts()
    }

    /// Drops all work.
    pub fn stop(&self) {
        self.lock().stop();
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        // A panic between two changes makes counts wrong at worst.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AheadMode {
    const ALL: [AheadMode; 3] = [AheadMode::Auto, AheadMode::On, AheadMode::Off];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            AheadMode::Auto => "auto",
            AheadMode::On => "on",
            AheadMode::Off => "off",
        }
    }
}

impl FromStr for AheadMode {
    type Err = String;

    fn from_str(text: &str) -> Result<AheadMode, String> {
        let named = AheadMode::ALL.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("{text:?} is not one of auto, on and off"))
    }
}

impl fmt::Display for AheadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A place among the turns that are prepared and computed. Dropping it gives it up, unless something was computed.
#[derive(Debug)]
struct Reserved {
    turns: NextTurns,
    id: u64,
}

/// The sink of a turn that is computed ahead: nobody reads it, and its cost is counted.
struct AheadSink {
    reserved: Reserved,
    is_dropped: Arc<AtomicBool>,
}

impl EventSink for AheadSink {
    fn send(&mut self, event: Event) -> bool {
        if let Event::Done(report) = event {
            self.given_up(&report);
        }
        true
    }

    fn given_up(&mut self, report: &Report) {
        let Reserved { turns, id } = &self.reserved;
        turns.lock().computed(*id, report);
    }

    fn is_closed(&self) -> bool {
        // Relaxed, because it orders no other memory: the engine reads the flag before each step.
        self.is_dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.turns.lock().give_up(self.id);
    }
}
