//! One world: an engine, its disk, its clients, and the naive twin of the cache. It may be a node of a fleet.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvik_cache::tier::Level;
use kvik_cache::{BLOCK_POSITIONS, StopReason, TenantId, Token, blocks_for};
use kvik_engine::api::{FinishReason, Pace, Report, Request, RequestError, Unpin};
use kvik_engine::schedule::{RequestLimits, Scheduler, Submission};

use crate::account::Account;
use crate::client::Client;
use crate::coverage::Coverage;
use crate::disk::{Platter, common};
use crate::fake::VOCAB;
use crate::fake::twin::Thinned;
use crate::fleet::{Share, Waited, is_remote};
use crate::forgetting::CompressedPrefix;
use crate::grammar;
use crate::memory::{Expected, Known, Memory, Reading, View};
use crate::regime::{Regime, SALTS};
use crate::runner::{self, Answer, Broken, POISON, SECRET, SimRunner};
use crate::time::{Dice, Time};
use crate::upkeep::{Kept, scheduler};

/// Steps allowed for the disk in addition to those of the rows.
const PATIENCE_STEPS: u64 = 4000;

/// A request that has not ended.
pub(crate) struct Active {
    client: Client,
    pub(crate) request: Request,
    pub(crate) answers: Vec<Answer>,
    /// What its first choice keeps at the last point.
    pub(crate) retained: Option<Thinned>,
    /// The views of its lookup; two if it is uncertain whether its public prompt is cached yet.
    views: Vec<View>,
    /// Its own entries in the naive twin.
    pub(crate) own: std::ops::Range<usize>,
    /// Whether no other request overlapped it.
    pub(crate) alone: bool,
    pub(crate) came: u64,
    /// Rows of the requests that had ended before it arrived.
    rows_before: u64,
    /// Blocks that were not for it at most since it arrived, because they were pinned, withheld or public.
    held_max: usize,
    kept: Option<u64>,
    pub(crate) waited: Waited,
}

/// An engine, its disk, its clients, and the naive twin of the cache.
pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) regime: Regime,
    pub(crate) time: Time,
    pub(crate) platter: Arc<Mutex<Platter>>,
    pub(crate) scheduler: Scheduler,
    pub(crate) runner: SimRunner,
    pub(crate) limits: RequestLimits,
    /// When this process started.
    pub(crate) started: Duration,
    pub(crate) active: Vec<Active>,
    pub(crate) memory: Memory,
    /// Conversations to continue.
    pub(crate) conversations: Vec<(u8, Vec<Token>)>,
    pub(crate) kept: Vec<Kept>,
    /// First blocks of private prompts, by tenant, that this process has seen.
    pub(crate) private: HashSet<(u8, Vec<Token>)>,
    /// What may be kept of prefixes.
    pub(crate) parts: Vec<CompressedPrefix>,
    /// The last step at which blocks were dropped explicitly or lost.
    pub(crate) dropped_at: u64,
    /// The last step at which a panic failed all requests that ran.
    pub(crate) recovered_at: Option<u64>,
    pub(crate) next_kept: u64,
    pub(crate) steps: u64,
    /// Maximum rows that all requests so far need.
    pub(crate) rows: u64,
    /// Blocks were dropped explicitly.
    pub(crate) is_dropped: bool,
    pub(crate) is_restarted: bool,
    /// The process was killed before the disk's queue was empty: a removed pin may reappear.
    pub(crate) is_cut_off: bool,
    is_traced: bool,
    pub(crate) coverage: Coverage,
    pub(crate) account: Account,
    /// What it has of the store that nodes share.
    pub(crate) share: Option<Share>,
    /// By how much its clock has jumped.
    pub(crate) jumped: Duration,
}

impl World {
    /// The world of a seed, whose blocks are in RAM or on a device.
    pub(crate) fn new(seed: u64, on_device: bool) -> World {
        let mut dice = Dice(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let regime = Regime { on_device, ..Regime::draw(&mut dice) };
        World::with(dice, regime, Time::default(), None)
    }

    /// The world of a configuration, which may share a store with others.
    pub(crate) fn with(dice: Dice, regime: Regime, time: Time, share: Option<Share>) -> World {
        let platter = Arc::new(Mutex::new(regime.disk.map_or_else(Platter::default, |disk| disk.platter())));
        let limits = RequestLimits::new(&regime.engine, regime.blocks, VOCAB);
        let runner = regime.runner(&time);
        let world = World {
            scheduler: scheduler(&regime, &time, &platter, share.as_ref()),
            dice,
            regime,
            time,
            platter,
            runner,
            limits,
            started: Duration::ZERO,
            active: Vec::new(),
            memory: Memory::default(),
            conversations: Vec::new(),
            kept: Vec::new(),
            private: HashSet::new(),
            parts: Vec::new(),
            dropped_at: 0,
            recovered_at: None,
            next_kept: 0,
            steps: 0,
            rows: 0,
            is_dropped: false,
            is_restarted: false,
            is_cut_off: false,
            is_traced: std::env::var_os("TRACE").is_some(),
            coverage: Coverage::default(),
            account: Account::default(),
            share,
            jumped: Duration::ZERO,
        };
        world.trace(|| format!("{:?}", world.regime));
        world
    }

    /// Triggers a random event, steps the engine, steps the disk.
    pub(crate) fn live(&mut self) {
        match self.dice.roll(200) {
            0 if self.regime.restarts => self.restart(),
            1..=3 => self.settle(),
            4..=12 => self.cancel(),
            13..=30 => self.wait(),
            31..=34 if self.regime.pins => self.keep(),
            35..=37 if self.regime.pins => self.release(),
            38 if self.regime.pins => self.clear(),
            39..=41 if self.regime.public => self.publish(),
            42..=43 if self.regime.panics => self.runner.stumbles.store(true, Ordering::Relaxed),
            44 if self.regime.panics => self.runner.trips = true,
            45 if self.share.is_some() => self.evict(),
            46 if self.regime.deletes && !self.regime.pins => self.delete(),
            _ if self.active.len() < self.regime.crowd && self.dice.once_in(3) => {
                let request = self.request();
                self.submit(request, None);
            }
            _ => {}
        }
        self.step();
    }

    /// Ends all requests, drops all blocks, and checks that nothing is left.
    pub(crate) fn end(mut self) -> Coverage {
        self.settle();
        while let Some(kept) = self.kept.pop() {
            self.unpin(&kept);
        }
        self.scheduler.set_public(&[]);
        self.settle();
        self.scheduler.set_public(&[]);
        if self.is_cut_off {
            self.scheduler.prefixes.unpin(Unpin::All, None);
        }
        self.clear();
        self.settle();
        let stats = self.scheduler.cache().stats();
        assert_eq!(self.scheduler.prefixes.pins(None, 9), [], "a pin is left");
        assert_eq!(
            (stats.shared, stats.owned, stats.free),
            (0, 0, stats.blocks),
            "blocks are left without a reason"
        );
        self.note_counters();
        self.coverage
    }

    /// Prints an event, if tracing is on.
    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            eprintln!("{:>6} {:>12.6} s  {}", self.steps, self.time.now().as_secs_f64(), what());
        }
    }

    pub(crate) fn step(&mut self) {
        self.steps += 1;
        let began = self.time.now();
        self.tell_compute_rate();
        let stepped = catch_unwind(AssertUnwindSafe(|| self.scheduler.step(&mut self.runner)));
        match stepped {
            Err(panic) if !panic.is::<Broken>() => resume_unwind(panic),
            Err(_) => self.recover(),
            Ok(()) => {}
        }
        self.scheduler.notify_finished();
        let stats = self.scheduler.cache().stats();
        let held = stats.pinned + stats.withheld + self.public_blocks();
        self.active.iter_mut().for_each(|active| active.held_max = held.max(active.held_max));
        assert_eq!(stats.free + stats.withheld + stats.owned + stats.shared, stats.blocks, "blocks are lost");
        assert!(stats.pinned <= self.regime.pinned_max(), "more is pinned than may be: {stats:?}");
        self.check_tenants();
        self.follow_events();
        self.time.advance(Duration::from_micros(50));
        self.step_disk();
        self.step_store(began);
        self.collect();
    }

    pub(crate) fn step_disk(&mut self) {
        if self.regime.disk.is_some() {
            let mut platter = self.platter.lock().unwrap();
            (0..1 + self.dice.roll(8)).for_each(|_| platter.step(&mut self.dice));
        }
    }

    /// Advances the clock, sometimes by a lot.
    fn wait(&mut self) {
        let millis = self.dice.pick(&[1, 10, 100, 1000, 5000, 20_000, 100_000]);
        self.time.advance(Duration::from_millis(millis));
        self.jumped += Duration::from_millis(millis);
        self.trace(|| format!("{millis} ms have passed"));
    }

    fn request(&mut self) -> Request {
        let salt = if self.regime.tenants { 1 + self.dice.roll(u64::from(SALTS) - 1) as u8 } else { 0 };
        let mut prompt = self.prompt(salt);
        let capacity = self.regime.engine.context_tokens.min(self.regime.blocks * BLOCK_POSITIONS);
        prompt.truncate(capacity);
        if self.regime.panics && self.dice.once_in(20) {
            let at = self.dice.roll(prompt.len() as u64) as usize;
            prompt[at] = POISON;
        }
        let is_private = self.regime.private && self.dice.once_in(6);
        if is_private && self.dice.once_in(2) {
            prompt[0] = SECRET;
        }
        let warm = self.dice.once_in(4);
        let mut request = crate::fake::request(prompt, self.dice.pick(&[0, 1, 1, 5, 20, 40]));
        request.choices = self.dice.pick(&[1, 1, 1, 1, 2, 4]);
        request.ignore_eos = self.dice.once_in(2);
        request.sampling.temperature = if warm { 1.0 } else { 0.0 };
        request.sampling.seed = self.dice.roll(5);
        request.reuse = !is_private;
        if self.regime.background && self.dice.once_in(3) {
            let pace = Pace::default();
            pace.set(self.dice.pick(&[0.0, 0.5, 1.0]));
            request.background = Some(pace);
        }
        request.salt = [salt; 16];
        request.tenant = TenantId(salt.into());
        if self.regime.ttl && self.dice.once_in(2) {
            request.lifetime.ttl = Some(Duration::from_secs(self.dice.pick(&[1, 10, 60, 600])));
        }
        if self.regime.grammars && self.dice.once_in(2) {
            request.constraint = Some(grammar::pick(&mut self.dice));
        }
        self.let_forget(&mut request);
        request
    }

    /// Mostly new tokens after a known prefix.
    fn prompt(&mut self, salt: u8) -> Vec<Token> {
        let mine: Vec<usize> =
            (0..self.conversations.len()).filter(|&index| self.conversations[index].0 == salt).collect();
        let mut tokens = match self.dice.roll(4) {
            0 if !mine.is_empty() => self.conversations[self.dice.pick(&mine)].1.clone(),
            1 if self.kept.iter().any(|kept| kept.public) => {
                self.kept.iter().find(|kept| kept.public).unwrap().tokens.clone()
            }
            _ => {
                let len = self.dice.pick(&[0, 5, 16, 31, 32, 40, 64]);
                crate::fake::prompt(self.dice.roll(3), len)
            }
        };
        let len = self.dice.pick(&[0, 1, 3, 8, 16, 30]);
        tokens.extend(crate::fake::prompt(100 + self.dice.roll(4), 1 + len));
        tokens
    }

    pub(crate) fn submit(&mut self, request: Request, kept: Option<u64>) {
        if self.limits.check(&request).is_err() {
            self.coverage.refused += 1;
            return;
        }
        let auxiliary = self.regime.engine.auxiliary;
        let fits = |positions: &usize| auxiliary.needed(*positions) <= self.regime.blocks;
        let positions = (0..=self.regime.engine.context_tokens).rev().find(fits).expect("nothing fits");
        let (answers, retained) = if request.retention.is_some() {
            runner::forgetful_answers(
                &request,
                self.limits.answer_tokens(&request),
                self.regime.engine.context_tokens,
                &[],
            )
        } else {
            (runner::answers(&request, request.max_tokens.min(positions + 1 - request.prompt.len())), None)
        };
        let views = self.views(&request);
        self.trace(|| format!("{} arrives, views {views:?}, answers {answers:?}", summary(&request)));
        let before = self.memory.known.len();
        self.remember(&request, &answers, &views, kept.is_some());
        self.active.iter_mut().for_each(|active| active.alone = false);
        let outstanding: u64 = self.active.iter().map(Active::rows).sum();
        let client = Client::new(request.choices);
        let submission = Submission {
            guide: grammar::guide(&request),
            sink: Box::new(client.clone()),
            request: request.clone(),
        };
        self.scheduler.submit(submission, &self.limits);
        let active = Active {
            client,
            answers,
            retained,
            views,
            own: before..self.memory.known.len(),
            alone: self.active.is_empty(),
            came: self.steps,
            held_max: 0,
            rows_before: self.rows.saturating_sub(outstanding),
            kept,
            request,
            waited: self.waited(),
        };
        self.rows += active.rows();
        self.active.push(active);
    }

    /// The views in which a request looks up its prompt and publishes its blocks.
    fn views(&self, request: &Request) -> Vec<View> {
        let salt = request.salt[0];
        let own = View { salt, base: None };
        let may = self.regime.public && salt > 1 && request.retention.is_none();
        let fits = |kept: &&Kept| {
            let base = kept.whole();
            let continues = request.prompt.len() > base.len() && request.prompt.starts_with(base);
            kept.public && kept.salt != salt && continues
        };
        let longest = self.kept.iter().filter(|_| may).filter(fits).max_by_key(|kept| kept.whole().len());
        let Some(kept) = longest else { return vec![own] };
        let derived = View { salt, base: Some((kept.salt, kept.whole().to_vec())) };
        // A tenant with a longer prefix of its own, or maybe one, continues that.
        let has_own = |known: &Known| {
            let common = common(&known.tokens, &request.prompt).min(known.maybe);
            known.view.salt == salt && !known.is_base && common > kept.whole().len()
        };
        let has_own = self.memory.known.iter().any(has_own);
        if kept.ready && !has_own { vec![derived] } else { vec![derived, own] }
    }

    /// Records the sequences that a request may publish.
    fn remember(&mut self, request: &Request, answers: &[Answer], views: &[View], pinned: bool) {
        if !request.reuse {
            self.private.insert(first_block(request));
            return;
        }
        self.remember_part(request);
        let exact = self.exact_until(request);
        let poison = request.prompt.iter().position(|&token| token == POISON);
        for view in views {
            for (generated, _) in answers {
                let tokens = [&request.prompt, generated.as_slice()].concat();
                let maybe = poison.unwrap_or(tokens.len()).min(exact);
                self.note_in_ledger(view.salt, &tokens, maybe);
                self.memory.known.push(Known {
                    view: view.clone(),
                    tokens,
                    ram: 0,
                    disk: 0,
                    since: self.steps,
                    maybe,
                    is_torn: false,
                    in_use: true,
                    began: self.time.now(),
                    used: self.time.now(),
                    ttl: request.lifetime.ttl,
                    pinned,
                    is_base: false,
                });
            }
        }
    }

    fn cancel(&mut self) {
        if self.active.is_empty() {
            return;
        }
        let index = self.dice.roll(self.active.len() as u64) as usize;
        let active = self.active.swap_remove(index);
        self.trace(|| format!("{} disconnects", summary(&active.request)));
        active.client.inbox().closed = true;
        self.forgive_lookups();
        self.leave(&active, None);
        self.coverage.cancelled += 1;
        self.active.iter_mut().for_each(|active| active.alone = false);
        // The request is cancelled at the next step.
        self.step();
    }

    /// Checks the answers of requests that have ended.
    pub(crate) fn collect(&mut self) {
        let ended = |active: &Active| active.client.inbox().end.is_some();
        while let Some(index) = self.active.iter().position(ended) {
            let mut active = self.active.remove(index);
            let end = active.client.inbox().end.clone().unwrap();
            self.trace(|| format!("{} ends: {end:?}", summary(&active.request)));
            self.check_age(&active);
            match end {
                Ok(report) => {
                    self.note_tightened(&mut active, &report);
                    self.note_cut(&mut active, &report);
                    self.check_answer(&active);
                    self.check_reuse(&active, &report);
                    self.check_retained(&active, &report);
                    self.leave(&active, Some(&report));
                }
                Err(error) => {
                    self.forgive_lookups();
                    self.check_error(&active, &error);
                    self.leave(&active, None);
                }
            }
        }
    }

    /// A request ends within steps that are many times its rows and those of all that overlapped it. That nobody is
    /// overtaken for ever is not seen here: a world has fewer steps.
    fn check_age(&self, active: &Active) {
        let (steps, rows) = (self.steps - active.came, self.rows - active.rows_before);
        assert!(
            steps <= 4 * rows + PATIENCE_STEPS,
            "{steps} steps for {rows} rows: {}",
            summary(&active.request)
        );
    }

    /// Pins may leave no room for the rest of an answer: then it is the answer to a request for so many tokens.
    fn note_cut(&mut self, active: &mut Active, report: &Report) {
        let choices = active.client.inbox().choices.clone();
        for (choice, (tokens, end)) in choices.into_iter().enumerate() {
            let (generated, reason) = &active.answers[choice];
            let is_other = tokens.len() < generated.len() || *reason != FinishReason::Length;
            let begins = !tokens.is_empty() && generated.starts_with(&tokens);
            if end == Some(FinishReason::Length)
                && is_other
                && begins
                && self.lacks_room(active, tokens.len())
            {
                if choice == 0 {
                    self.note_cut_retained(active, report, tokens.len());
                }
                active.answers[choice] = (tokens, FinishReason::Length);
                self.coverage.cut += 1;
            }
        }
    }

    /// Whether a request and so many generated tokens do not fit beside what is pinned, though nothing else runs.
    fn lacks_room(&self, active: &Active, generated: usize) -> bool {
        let needed = self.regime.engine.auxiliary.needed(active.request.prompt.len() + generated + 1);
        // Who forgets holds what it stores and what it keeps, and may repeat its prompt before.
        let needed = if active.request.retention.is_some() { 3 * needed + 3 } else { needed };
        // What is pinned keeps a place at its end. Of several choices one may end long before the request, and before what
        // was pinned then is let go.
        needed + active.held_max > self.regime.blocks
    }

    fn check_answer(&mut self, active: &Active) {
        let inbox = active.client.inbox();
        assert!(!active.is_poisoned(), "the model cannot have answered {}", summary(&active.request));
        for ((tokens, end), (generated, reason)) in inbox.choices.iter().zip(&active.answers) {
            assert_eq!((tokens, *end), (generated, Some(*reason)), "{}", summary(&active.request));
        }
        self.coverage.finished += 1;
        self.coverage.background += u64::from(active.request.background.is_some());
        self.coverage.constrained += u64::from(active.request.constraint.is_some());
    }

    fn check_error(&mut self, active: &Active, error: &RequestError) {
        match error {
            RequestError::Internal(_) if active.is_poisoned() => self.coverage.poisoned += 1,
            // It was alone in the batch that panicked, so it fails.
            RequestError::Internal(_) if self.runner.stumbled_alone > 0 => self.runner.stumbled_alone -= 1,
            RequestError::Internal(_) if self.recovered_at == Some(self.steps) => {}
            RequestError::Stopping => {}
            RequestError::OverBudget { .. } | RequestError::Pinned { .. } => {
                let longest = active.answers.iter().map(|(generated, _)| generated.len()).max().unwrap_or(0);
                assert!(
                    self.lacks_room(active, longest),
                    "it would fit: {error}, {}",
                    summary(&active.request)
                );
                let has_begun = active.client.inbox().choices.iter().any(|(tokens, _)| !tokens.is_empty());
                assert!(!has_begun, "what it has said is lost: {error}, {}", summary(&active.request));
                self.coverage.refused += 1;
            }
            RequestError::PinLimit(limit) if active.kept.is_some() => {
                assert!(limit.pinned + limit.needed > limit.limit && limit.needed > 0, "{error}");
                self.coverage.refused += 1;
            }
            _ => panic!("{error}: {}", summary(&active.request)),
        }
    }

    /// Blocks of public prompts, which stay while requests continue them or wait to, pinned or not.
    fn public_blocks(&self) -> usize {
        let kept = self.kept.iter().filter(|kept| kept.public).map(|kept| (kept.salt, kept.whole().to_vec()));
        let awaited = self.active.iter().filter_map(|active| active.views[0].base.clone());
        let public: HashSet<(u8, Vec<Token>)> = kept.chain(awaited).collect();
        public.iter().map(|(_, tokens)| blocks_for(tokens.len())).sum()
    }

    fn check_reuse(&mut self, active: &Active, report: &Report) {
        let (request, cached) = (&active.request, report.cached_tokens);
        let reason = report.cache.expect("it was admitted");
        assert_eq!(cached + report.computed_tokens, report.prompt_tokens, "{report:?}");
        let (loaded, disk) = (report.loaded[Level::Host] + report.loaded[Level::Disk], self.regime.disk);
        self.check_shared(active, report);
        assert!(
            loaded + report.loaded[Level::Remote] <= cached && (disk.is_some() || loaded == 0),
            "{report:?}"
        );
        assert!(
            disk.is_some_and(|disk| disk.host_blocks > 0) || report.loaded[Level::Host] == 0,
            "{report:?}"
        );
        self.coverage.from_disk += report.loaded[Level::Disk] as u64;
        self.coverage.from_host += report.loaded[Level::Host] as u64;
        let (found, auxiliary) = ([cached as u64, loaded as u64], &self.regime.engine.auxiliary);
        let (has_windows, has_state) = (auxiliary.windows.is_some(), auxiliary.state_bytes > 0);
        let coverage = &mut self.coverage;
        let kinds = [(has_windows, &mut coverage.windows), (has_state, &mut coverage.states)];
        for (_, counts) in kinds.into_iter().filter(|(has, _)| *has) {
            counts.iter_mut().zip(found).for_each(|(count, found)| *count += found);
        }
        if !request.reuse {
            assert_eq!((cached, reason), (0, StopReason::Private), "{}", summary(request));
            self.coverage.private += 1;
            return;
        }
        let now = self.started + report.admitted_at;
        let expected = self.expected(active, now, Reading::May);
        // Blocks that it waited for may have expired meanwhile.
        let gave_up = matches!(
            reason,
            StopReason::RecomputeWasCheaper
                | StopReason::LoadFailed
                | StopReason::RemoteFailed
                | StopReason::Expired
        );
        let is_sound = disk.is_some_and(|disk| disk.is_sound());
        assert!(reason != StopReason::LoadFailed || !is_sound, "no read fails: {}", summary(request));
        let min = if gave_up || request.kept_prefix.is_some() { expected.ram } else { expected.min };
        let max = expected.max.max(self.kept_tokens(active).1);
        assert!(
            min <= cached && cached <= max,
            "{cached} of {} tokens are reused ({reason:?}), expected are {expected:?}: {}",
            request.prompt.len(),
            summary(request),
        );
        self.coverage.public += u64::from(active.views[0].base.is_some() && cached > 0);
        match request.retention {
            Some(_) => self.check_kept_reuse(active, reason, cached),
            None => self.check_reason(active, reason, cached, now),
        }
    }

    /// Tokens of a request that must be found, in any of its views.
    fn expected(&self, active: &Active, now: Duration, reading: Reading) -> Expected {
        let request = &active.request;
        let max = self.reuse_max(request);
        let views = active.views.iter();
        let of = views
            .map(|view| self.memory.expected(view, &request.prompt, active.came, &active.own, now, reading));
        let whole = of.reduce(|one, other| Expected {
            ram: one.ram.min(other.ram),
            min: one.min.min(other.min),
            max: one.max.max(other.max),
        });
        let Expected { mut ram, mut min, max: maybe } = whole.expect("there is a view");
        if !self.regime.roomy {
            // The copy of a partial block is dropped if only that block is lacking.
            (ram, min) = (ram - ram % BLOCK_POSITIONS, min - min % BLOCK_POSITIONS);
        }
        if !self.regime.engine.auxiliary.is_nothing() {
            // Where a sequence can go on beside its blocks is for the twin of the cache to say.
            (ram, min) = (0, 0);
        }
        let maybe = maybe.max(self.may_be_shared(active));
        Expected { ram: ram.min(max), min: min.min(max), max: maybe.min(max) }
    }

    fn check_reason(&mut self, active: &Active, reason: StopReason, cached: usize, now: Duration) {
        let [view] = active.views.as_slice() else { return };
        let prompt = &active.request.prompt;
        let expected = self.expected(active, now, Reading::Cannot);
        // Blocks queued for a slow disk or for other nodes stay in RAM, which prolongs their life.
        let timely = !self.regime.ttl || (self.regime.disk.is_none() && self.share.is_none());
        let known = self.regime.roomy && active.alone && timely && expected.min == expected.max;
        if !known || self.memory.is_doubtful(view, prompt, cached, &active.own, now) {
            return;
        }
        if self.is_restarted {
            self.coverage.exact_after_restart += u64::from(expected.min > expected.ram);
            return;
        }
        if self.is_dropped || expected.ram != expected.min {
            return;
        }
        // All of it may be known although its last token is computed for its logits.
        let whole = self.memory.expected(view, prompt, active.came, &active.own, now, Reading::Cannot);
        let predicted = self.memory.reason(view, prompt, whole.ram.max(cached), active.came, now);
        let Some(predicted) = predicted.filter(|_| whole.ram == whole.max) else { return };
        // For a tenant's own private prompt the reason is `Private`.
        let was_private = self.regime.disk.is_some()
            && cached < BLOCK_POSITIONS
            && self.private.contains(&first_block(&active.request));
        if is_remote(reason) {
            return;
        }
        let predicted =
            if predicted == StopReason::FirstSeen && was_private { StopReason::Private } else { predicted };
        assert_eq!(reason, predicted, "{cached} tokens of {}", summary(&active.request));
        self.coverage.exact += 1;
        self.coverage.expired += u64::from(reason == StopReason::Expired);
    }

    /// Records the end of a request: its sequences are known if it ended without an error.
    pub(crate) fn leave(&mut self, active: &Active, report: Option<&Report>) {
        let now = self.time.now();
        let exact = self.exact_until(&active.request);
        // It leaves its exact blocks when it forgets, and computes none where what is kept of its prefix is there.
        let forgets = active.request.retention.is_some();
        let any_time = active.request.retention.is_some_and(|retention| retention.when.under_pressure());
        let vague = forgets && (self.regime.ttl || any_time || active.request.kept_prefix.is_some());
        for (number, index) in active.own.clone().enumerate() {
            let known = &mut self.memory.known[index];
            (known.in_use, known.used, known.since) = (false, now, self.steps);
            known.pinned &= report.is_some();
            let (generated, reason) = &active.answers[number % active.answers.len()];
            // The last generated token is never computed.
            let uncomputed = usize::from(*reason != FinishReason::Eos && !generated.is_empty());
            // What others may find of one that was told to forget, it computed as if it had not been.
            let computed = if any_time { known.tokens.len() } else { known.tokens.len() - uncomputed };
            let stored = computed.min(exact);
            let single = active.views.len() == 1;
            // For several choices, the end time of each is unknown.
            let soon = known.used - known.began < Duration::from_secs(1);
            let timely = active.request.choices == 1 || known.ttl.is_none() || soon;
            if report.is_some() && single && timely && !vague && !known.is_torn && self.regime.roomy {
                known.ram = stored;
            } else if known.pinned && single {
                known.ram = known.tokens.len() / BLOCK_POSITIONS * BLOCK_POSITIONS;
            }
            known.maybe = known.maybe.min(stored);
        }
        if report.is_some() {
            self.note_part(active);
        }
        if active.kept.is_some() {
            return self.note_kept(active, report);
        }
        let is_secret = active.request.prompt[0] == SECRET;
        if report.is_some() && !is_secret && self.conversations.len() < 40 {
            let tokens = [active.request.prompt.as_slice(), &active.answers[0].0].concat();
            self.conversations.push((active.request.salt[0], tokens));
        }
    }

    fn note_kept(&mut self, active: &Active, report: Option<&Report>) {
        let mine = |kept: &&mut Kept| Some(kept.id) == active.kept;
        if let Some(kept) = self.kept.iter_mut().find(mine) {
            kept.ready = report.is_some();
        }
    }
}

fn first_block(request: &Request) -> (u8, Vec<Token>) {
    (request.salt[0], request.prompt[..request.prompt.len().min(BLOCK_POSITIONS)].to_vec())
}

/// A request on one line.
pub(crate) fn summary(request: &Request) -> String {
    let Request {
        prompt,
        choices,
        max_tokens,
        salt,
        reuse,
        lifetime,
        sampling,
        retention,
        kept_prefix,
        background,
        constraint,
        ..
    } = request;
    let (salt, warm, seed) = (salt[0], sampling.temperature, sampling.seed);
    format!(
        "[{} tokens {prompt:?}, salt {salt}, {choices} x {max_tokens}, reuse {reuse}, {warm} by {seed}, {lifetime:?}, {} {kept_prefix:?}, {background:?}, {constraint:?}]",
        prompt.len(),
        retention.map_or_else(String::new, |retention| retention.to_string()),
    )
}

impl Active {
    fn rows(&self) -> u64 {
        // Memory may be short, and the answer another one.
        let any_time = self.request.retention.is_some_and(|retention| retention.when.under_pressure());
        let most = if any_time { self.request.max_tokens } else { 0 };
        let rows = |generated: &[Token]| self.request.prompt.len() + generated.len().max(most) + 1;
        // Passes take steps as well, and some repeat the prompt.
        let passes = if self.request.retention.is_some() { 3 } else { 1 };
        passes * self.answers.iter().map(|(generated, _)| rows(generated) as u64).sum::<u64>()
    }

    fn is_poisoned(&self) -> bool {
        self.request.prompt.contains(&POISON)
    }
}
