//! Requests that forget: what they ask for, what others may find of what they computed, and what their reports say.

use kvik_cache::retain::{Retention, Watch, WatchedRows};
use kvik_cache::{StopReason, Token};
use kvik_engine::api::{Report, Request, RequestError};

use crate::fake::twin::{self, Thinned};
use crate::runner;
use crate::world::{Active, World, summary};

/// Policies that watch nothing, look at keys, watch the last rows or all of them, and repeat; with keeps small
/// enough to drop something of short sequences, and steps small enough to do so often.
const POLICIES: [&str; 14] = [
    "sinks:24,every=16",
    "sinks:0.5,every=20",
    "sinks:0.5,every=16,protect=16",
    "random:0.3,every=16",
    "knorm:20,every=16",
    "keydiff:0.6,every=33",
    "keydiff:32,every=16,protect=16",
    "keydiff:0.1,every=16,protect=64",
    "h2o:0.4,every=16",
    "h2o:24,every=16,counter=sketch",
    "snapkv:0.5,window=1,every=17",
    "snapkv:0.5,window=8,every=16",
    "scissorhands:0.5,window=16,every=16",
    "kvzip:0.5,budget=head",
];
/// Those that may be told to forget when memory is short.
const UNDER_PRESSURE: [&str; 3] =
    ["knorm:0.3,every=16,when=pressure", "h2o:0.4,every=16,when=either", "sinks:24,every=16,when=pressure"];
/// Few, so that requests meet.
const OF_PREFIXES: [&str; 3] = ["keydiff:0.5", "h2o:0.4", "kvzip:0.5,budget=head"];

/// What a policy keeps of a prefix of a tenant's prompts.
pub(crate) struct CompressedPrefix {
    salt: u8,
    retention: Retention,
    tokens: Vec<Token>,
    /// Requests that asked for it.
    asked: u32,
    /// The step since which it must be in RAM.
    since: Option<u64>,
}

impl CompressedPrefix {
    fn is_of(&self, request: &Request) -> bool {
        let prefix = request.kept_prefix.map(|prefix| &request.prompt[..prefix]);
        self.salt == request.salt[0]
            && Some(self.retention) == request.retention
            && Some(&self.tokens[..]) == prefix
    }
}

impl World {
    /// Lets a request forget, sometimes; some of them of a prefix only.
    pub(crate) fn let_forget(&mut self, request: &mut Request) {
        if !self.regime.retention || !self.dice.once_in(3) {
            return;
        }
        let blocks = request.prompt.len() as u64 / 16;
        let of_prefix = blocks > 0 && self.dice.once_in(3);
        let policy = match (of_prefix, self.dice.once_in(if self.regime.roomy { 10 } else { 2 })) {
            (true, _) => self.dice.pick(&OF_PREFIXES),
            (false, true) => self.dice.pick(&UNDER_PRESSURE),
            (false, false) => self.dice.pick(&POLICIES),
        };
        let retention: Retention = policy.parse().unwrap();
        request.retention = Some(retention);
        if retention.when.under_pressure() {
            // The report tells the points of the first choice only.
            request.choices = 1;
        }
        request.kept_prefix = of_prefix.then(|| 16 * (1 + self.dice.roll(blocks.min(3)) as usize));
        if let Some(prefix) = request.kept_prefix
            && self.dice.once_in(4)
        {
            request.prompt.truncate(prefix);
        }
    }

    /// Leading tokens of a request that are computed exactly: others may find these only.
    pub(crate) fn exact_until(&self, request: &Request) -> usize {
        let points = twin::points(request, self.regime.engine.context_tokens);
        points.and_then(|points| points.next(0)).unwrap_or(usize::MAX)
    }

    /// Leading tokens of a request that it may take over: what it observes of rows it observes itself.
    pub(crate) fn reuse_max(&self, request: &Request) -> usize {
        request
            .prompt
            .len()
            .saturating_sub(usize::from(request.max_tokens > 0))
            .min(self.observed_from(request))
    }

    fn observed_from(&self, request: &Request) -> usize {
        let points = twin::points(request, self.regime.engine.context_tokens);
        let (Some(retention), Some(points)) = (request.retention, points) else { return usize::MAX };
        let exact = self.exact_until(request);
        match retention.watch() {
            Watch::Nothing | Watch::Repeat => exact,
            Watch::Queries { .. } | Watch::Attention { rows: WatchedRows::All, .. } => 0,
            Watch::Attention { rows: WatchedRows::Last(_), .. } => points.watched(exact).start,
        }
    }

    /// Records what a request may keep of a prefix, for others.
    pub(crate) fn remember_part(&mut self, request: &Request) {
        let (Some(prefix), Some(retention), true) = (request.kept_prefix, request.retention, request.reuse)
        else {
            return;
        };
        if let Some(part) = self.parts.iter_mut().find(|part| part.is_of(request)) {
            part.asked += 1;
            return;
        }
        let (salt, tokens) = (request.salt[0], request.prompt[..prefix].to_vec());
        self.parts.push(CompressedPrefix { salt, retention, tokens, asked: 1, since: None });
    }

    /// What is kept of prefixes may be gone.
    pub(crate) fn doubt_parts(&mut self) {
        self.dropped_at = self.steps;
        self.parts.iter_mut().for_each(|part| part.since = None);
    }

    /// A request has ended well: what it kept of a prefix is in RAM as long as there is room.
    pub(crate) fn note_part(&mut self, active: &Active) {
        let stays = self.regime.roomy && !self.regime.ttl && active.came > self.dropped_at;
        let made = active.retained.is_some() && active.request.reuse;
        if let Some(part) = self.parts.iter_mut().find(|part| part.is_of(&active.request))
            && stays
            && made
        {
            part.since = part.since.or(Some(self.steps));
        }
    }

    /// Prompt tokens of a request that it must, and that it may, have found as what is kept of its prefix.
    pub(crate) fn kept_tokens(&self, active: &Active) -> (usize, usize) {
        let request = &active.request;
        let prefix = request.kept_prefix.unwrap_or(0);
        // The last token of the prompt is computed, for its logits.
        let reads = prefix < request.prompt.len() || request.max_tokens == 0;
        let Some(part) = self.parts.iter().find(|part| reads && part.is_of(request)) else { return (0, 0) };
        let must = part.since.is_some_and(|since| since <= active.came);
        let may = part.asked > 1;
        (if must { prefix } else { 0 }, if may { prefix } else { 0 })
    }

    /// A request was told to forget because memory was short: it answers as its twin does at these points.
    pub(crate) fn note_tightened(&mut self, active: &mut Active, report: &Report) {
        let Some(retained) = report.retained.as_ref().filter(|retained| !retained.tightened.is_empty())
        else {
            return;
        };
        let (request, tightened) = (&active.request, &retained.tightened);
        assert!(request.retention.is_some_and(|retention| retention.when.under_pressure()));
        assert!(tightened.is_sorted() && tightened[0] >= request.prompt.len(), "{tightened:?}");
        let tokens_max = self.limits.answer_tokens(request);
        let context = self.regime.engine.context_tokens;
        (active.answers, active.retained) =
            runner::forgetful_answers(request, tokens_max, context, tightened);
        self.coverage.tightened += tightened.len() as u64;
    }

    /// The first choice of a request was cut short after `tokens` tokens: it may have passed the point before the next one.
    pub(crate) fn note_cut_retained(&self, active: &mut Active, report: &Report, tokens: usize) {
        if active.request.retention.is_none() {
            return;
        }
        let context = self.regime.engine.context_tokens;
        let tightened = report.retained.as_deref().map_or_else(Vec::new, |kept| kept.tightened.clone());
        let kept = |tokens_max| runner::forgetful_answers(&active.request, tokens_max, context, &tightened).1;
        let passed = kept(tokens + 1);
        active.retained = if thinned(report) == passed { passed } else { kept(tokens) };
    }

    /// Checks what the report of a request says about what it kept.
    pub(crate) fn check_retained(&mut self, active: &Active, report: &Report) {
        assert_eq!(thinned(report), active.retained, "{}", summary(&active.request));
        let Some(kept) = report.retained.as_deref() else { return };
        assert_eq!(Some(kept.retention), active.request.retention);
        assert_eq!(kept.kept + kept.dropped, kept.tokens as u64, "{kept:?}");
        assert_eq!((kept.smallest_head, kept.largest_head), (kept.kept as usize, kept.kept as usize));
        self.coverage.forgetful += 1;
    }

    /// Checks why a request that forgets reused no more than it did.
    pub(crate) fn check_kept_reuse(&mut self, active: &Active, reason: StopReason, cached: usize) {
        let (must, may) = self.kept_tokens(active);
        assert!(cached >= must, "{cached} of {must} tokens that are kept: {}", summary(&active.request));
        if may == 0 && self.regime.roomy && !self.regime.panics {
            let observes = self.reuse_max(&active.request) == self.observed_from(&active.request)
                && cached == self.observed_from(&active.request);
            assert!(
                observes || reason != StopReason::Retained,
                "{reason:?} after {cached}: {}",
                summary(&active.request)
            );
        }
        let found = may > 0 && cached == may && reason == StopReason::Retained;
        self.coverage.kept_found += u64::from(found);
        self.coverage.kept_after_restart += u64::from(found && self.is_restarted && must == 0);
    }

    /// A piece of a pass has panicked, which no request can be blamed for: those that run fail, and nobody else.
    pub(crate) fn recover(&mut self) {
        self.trace(|| "a pass panics".to_owned());
        let queued = self.scheduler.queued();
        let error = RequestError::Internal("a pass panicked".to_owned());
        self.scheduler.recover(&error, &mut self.runner);
        assert_eq!(self.scheduler.queued(), queued, "requests that wait survive a panic");
        assert_eq!(self.scheduler.running(), 0);
        self.recovered_at = Some(self.steps);
        self.coverage.recovered += 1;
        // What was written or read for the disk just now is given up.
        for known in &mut self.memory.known {
            known.disk = 0;
            known.is_torn = true;
        }
    }
}

/// What a report says its request kept last.
fn thinned(report: &Report) -> Option<Thinned> {
    let kept = report.retained.as_deref()?;
    Some(Thinned { tokens: kept.tokens, positions: kept.kept as usize })
}
