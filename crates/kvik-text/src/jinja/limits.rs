//! Limits on a template's steps of work and bytes of memory, counted while it runs.
//!
//! Every value is charged before it grows and refunds its bytes when it is dropped, so a template that
//! doubles a string is stopped at the limit and not by the allocator.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes processed per step: copying that many takes about as long as the rest of a step.
const BYTES_PER_STEP: usize = 64;

/// Bytes that an entry counts in a search if its key has fewer: eight entries take about as long as a step.
const ENTRY_BYTES: usize = 8;

/// Maximum nesting of values, because comparing, writing and dropping them recurse.
pub(super) const VALUE_DEPTH_MAX: u32 = 200;

/// Bytes charged for every allocation in addition to its contents.
const OVERHEAD: usize = 64;

/// Limits of one rendering.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenderLimits {
    /// Steps: expressions and statements evaluated, and bytes processed, 64 per step.
    pub(crate) steps: u64,
    /// Bytes of values alive at the same time.
    pub(crate) memory_bytes: usize,
    /// Bytes of the rendered text.
    pub(crate) output_bytes: usize,
}

/// The reason why a rendering failed.
#[derive(Debug, PartialEq)]
pub(crate) enum Fault {
    /// The template took too many steps.
    Steps,
    /// Its values take too much memory.
    Memory,
    /// Its output is too long.
    Output,
    /// The template called `raise_exception`.
    Raised(String),
    /// An operation of the template failed.
    Failed {
        /// The operation and the reason.
        reason: String,
        /// Line of the template, from 1; set by the statement that contains the operation.
        line: Option<u32>,
    },
}

/// The result of an operation of a template.
pub(super) type Result<T> = std::result::Result<T, Fault>;

/// A failed operation of the template.
pub(super) fn failed(reason: impl Into<String>) -> Fault {
    Fault::Failed { reason: reason.into(), line: None }
}

/// Counts down the remaining steps and bytes.
#[derive(Debug)]
pub(super) struct Meter {
    steps: Cell<u64>,
    bytes: Cell<usize>,
    /// Current nesting of values being read.
    depth: Cell<u32>,
}

impl Meter {
    pub(super) fn new(limits: &RenderLimits) -> Rc<Meter> {
        Rc::new(Meter { steps: limits.steps.into(), bytes: limits.memory_bytes.into(), depth: Cell::new(0) })
    }

    /// Spends steps.
    pub(super) fn spend(&self, steps: usize) -> Result<()> {
        let left = self.steps.get().checked_sub(steps as u64).ok_or(Fault::Steps)?;
        self.steps.set(left);
        Ok(())
    }

    /// Reads a value inside another one. A changed list may contain itself, which would recurse forever.
    pub(super) fn inside<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        let depth = self.depth.get() + 1;
        if depth > VALUE_DEPTH_MAX {
            return Err(failed("values are nested too deeply"));
        }
        self.depth.set(depth);
        let result = read();
        self.depth.set(depth - 1);
        result
    }

    /// Spends the steps for reading or copying bytes.
    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<()> {
        self.spend(1 + bytes / BYTES_PER_STEP)
    }

    /// Spends the steps for comparing a key of this many bytes with those of all entries.
    pub(super) fn spend_search(&self, entries: usize, key_bytes: usize) -> Result<()> {
        self.spend_bytes(entries.saturating_mul(key_bytes.max(ENTRY_BYTES)))
    }
}

/// Bytes taken from a meter; dropping it refunds them.
#[derive(Debug)]
pub(super) struct Charge {
    meter: Rc<Meter>,
    bytes: usize,
}

impl Charge {
    /// Takes memory, and spends the steps to fill it.
    pub(super) fn new(meter: &Rc<Meter>, bytes: usize) -> Result<Charge> {
        let mut charge = Charge { meter: meter.clone(), bytes: 0 };
        charge.grow(bytes.saturating_add(OVERHEAD))?;
        Ok(charge)
    }

    /// Takes no memory.
    pub(super) fn nothing(meter: &Rc<Meter>) -> Charge {
        Charge { meter: meter.clone(), bytes: 0 }
    }

    /// Takes more memory.
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
