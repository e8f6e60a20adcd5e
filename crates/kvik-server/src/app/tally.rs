//! Usage of tenants since the start: counters in memory, cheap enough to be read each second.

use std::{
    collections::BTreeMap,
    ops::AddAssign,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use kvik_cache::tier::ByLevel;
use kvik_engine::api::Report;

/// The counts of every tenant, by name.
pub(crate) struct Tally {
    pub(crate) started: SystemTime,
    tenants: Mutex<BTreeMap<String, Counts>>,
}

/// Usage of one tenant, or of all.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) prompt_tokens: u64,
    /// Prompt tokens that came from the cache.
    pub(crate) cached_tokens: u64,
    /// Cached tokens that came from tiers below RAM.
    pub(crate) loaded: ByLevel<u64>,
    /// Prompt tokens that were computed. A prompt that was given up before it was looked up has neither these nor cached
    /// ones.
    pub(crate) computed_tokens: u64,
    pub(crate) generated_tokens: u64,
    /// Prompts that were answered to the end.
    pub(crate) answered: u64,
    /// Prompts whose answer broke off because of an error.
    pub(crate) failed: u64,
    /// Requests that a limit turned away.
    pub(crate) refused: u64,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { started: SystemTime::now(), tenants: Mutex::default() }
    }

    /// Adds the counts of a prompt and its answer, complete or not.
    pub(crate) fn add(&self, tenant: &str, counts: Counts) {
        *self.lock().entry(tenant.to_owned()).or_default() += counts;
    }

    /// The counts of one tenant, or of all.
    pub(crate) fn of(&self, tenant: Option<&str>) -> Counts {
        let tenants = self.lock();
        match tenant {
            Some(name) => tenants.get(name).copied().unwrap_or_default(),
            None => tenants.values().fold(Counts::default(), |mut sum, &counts| {
                sum += counts;
                sum
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Counts>> {
        // An addition has either completed or not begun, whatever panicked.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    pub(crate) const ANSWERED: Counts = Counts { answered: 1, ..Counts::NONE };
    pub(crate) const FAILED: Counts = Counts { failed: 1, ..Counts::NONE };
    pub(crate) const REFUSED: Counts = Counts { refused: 1, ..Counts::NONE };
    const NONE: Counts = Counts {
        prompt_tokens: 0,
        cached_tokens: 0,
        loaded: ByLevel::each(0),
        computed_tokens: 0,
        generated_tokens: 0,
        answered: 0,
        failed: 0,
        refused: 0,
    };

    /// The tokens of a prompt and its answer.
    pub(crate) fn tokens(report: &Report) -> Counts {
        Counts {
            prompt_tokens: report.prompt_tokens as u64,
            cached_tokens: report.cached_tokens as u64,
            loaded: report.loaded.map(|tokens| tokens as u64),
            computed_tokens: report.computed_tokens as u64,
            generated_tokens: report.generated_tokens as u64,
            ..Counts::NONE
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.loaded += other.loaded;
        self.computed_tokens += other.computed_tokens;
        self.generated_tokens += other.generated_tokens;
        self.answered += other.answered;
        self.failed += other.failed;
        self.refused += other.refused;
    }
}
