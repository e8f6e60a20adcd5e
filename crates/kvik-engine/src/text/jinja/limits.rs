//! What a template may use: steps of work and bytes of memory, counted while it runs.
//!
//! Every value that grows is charged before it grows and gives its bytes back when it is dropped, so a
//! template that doubles a string is stopped at the limit and not by the allocator.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes that one step of work handles: copying that many takes about as long as the rest of a step.
const BYTES_PER_STEP: usize = 64;

/// What every allocation costs beside its contents.
const OVERHEAD: usize = 64;

/// How much a template may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Steps: expressions and statements evaluated, and bytes handled, 64 to a step.
    pub(crate) steps: u64,
    /// Bytes of values alive at the same time.
    pub(crate) memory_bytes: usize,
    /// Bytes of the rendered text.
    pub(crate) output_bytes: usize,
}

/// Why a template came to no end of its own.
#[derive(Debug, PartialEq)]
pub(crate) enum Fault {
    /// It took too many steps.
    Steps,
    /// Its values take too much memory.
    Memory,
    /// It wrote too much.
    Output,
    /// It called `raise_exception`.
    Raised(String),
    /// It asked for something that cannot be done.
    Failed {
        /// What, and why not.
        reason: String,
        /// Line of the template, from 1; known once a statement has seen the fault.
        line: Option<u32>,
    },
}

/// The outcome of anything a template does.
pub(super) type Result<T> = std::result::Result<T, Fault>;

/// A fault of the template's own making.
pub(super) fn failed(reason: impl Into<String>) -> Fault {
    Fault::Failed { reason: reason.into(), line: None }
}

/// Counts down what is left.
#[derive(Debug)]
pub(super) struct Meter {
    steps: Cell<u64>,
    bytes: Cell<usize>,
}

impl Meter {
    pub(super) fn new(limits: &Limits) -> Rc<Meter> {
        Rc::new(Meter { steps: limits.steps.into(), bytes: limits.memory_bytes.into() })
    }

    /// Takes steps.
    pub(super) fn spend(&self, steps: usize) -> Result<()> {
        let left = self.steps.get().checked_sub(steps as u64).ok_or(Fault::Steps)?;
        self.steps.set(left);
        Ok(())
    }

    /// Takes the steps for looking at or copying so many bytes.
    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<()> {
        self.spend(1 + bytes / BYTES_PER_STEP)
    }
}

/// Bytes taken from a meter for as long as this lives.
#[derive(Debug)]
pub(super) struct Charge {
    meter: Rc<Meter>,
    bytes: usize,
}

impl Charge {
    /// Takes memory, and the steps to fill it.
    pub(super) fn new(meter: &Rc<Meter>, bytes: usize) -> Result<Charge> {
        let mut charge = Charge { meter: meter.clone(), bytes: 0 };
        charge.grow(bytes.saturating_add(OVERHEAD))?;
        Ok(charge)
    }

    /// Takes more.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<()> {
        let left = self.meter.bytes.get().checked_sub(bytes).ok_or(Fault::Memory)?;
        self.meter.spend_bytes(bytes)?;
        self.meter.bytes.set(left);
        self.bytes += bytes;
        Ok(())
    }

    pub(super) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.meter.bytes.set(self.meter.bytes.get() + self.bytes);
    }
}
