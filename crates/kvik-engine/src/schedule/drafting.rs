//! Drafts of a step: what each sequence is offered, how much of it is computed, and how much is accepted.

use kvik_cache::{Cache, CacheError, Followers, Token};

use super::Scheduler;
use super::answer::Prediction;
use super::draft::{DRAFT_MAX, Draft, DraftModel, DraftSetup, WantedDraft, expected};
use super::plan::Span;
use super::sampling::Sampled;
use super::sequence::{Sequence, Sharing};
use crate::panics::contain;
use crate::stats::DraftSource;

/// Maximum number of tokens that a draft model may have to read for each token that a sequence may still generate.
const READ_MAX: usize = 16;

impl Scheduler {
    /// Adds a smaller model as a draft source.
    pub fn attach_draft(&mut self, mut setup: DraftSetup) -> Result<(), CacheError> {
        setup.runner.set_pulse(self.pulse.clone());
        self.draft_model = Some(DraftModel::new(setup)?);
        Ok(())
    }

    /// Drafts for each running sequence, `[running]`, in a step with these `rows` of each; blocks for them are
    /// reserved. In a step with another sequence's prompt, drafts get a small share and the draft model is not asked:
    /// the prompt would wait for its passes. The background does not affect the foreground's drafts: its
    /// [drafts](Scheduler::fill) are added after those, and its prompts do not count as another sequence's.
    pub(super) fn draft(&mut self, rows: &[usize]) -> Vec<Draft> {
        let mut drafts = vec![Draft::default(); rows.len()];
        let foreground = self.running.foreground();
        let is_alone = rows[..foreground].iter().all(|&rows| rows == 0);
        let among = if is_alone { foreground..rows.len() } else { 0..foreground };
        let decoding = among.clone().filter(|&index| self.running[index].due() == 1).count();
        if self.config.draft_rows_max == 0 || decoding == 0 {
            return drafts;
        }
        for index in among.clone() {
            let most = self.running[index].draft_max().min(DRAFT_MAX);
            if most > 0 {
                drafts[index] = self.find_draft(index, most);
            }
        }
        let rows: usize = rows[among.clone()].iter().sum();
        if rows == decoding && among.start == 0 {
            self.ask_model(rows, &mut drafts[..among.end]);
        }
        let rows_max = self.config.draft_rows_beside(rows, decoding);
        let lengths = self.drafting.lengths(rows, decoding, &drafts, rows_max);
        for (index, (draft, len)) in drafts.iter_mut().zip(lengths).enumerate() {
            let Sequence { id, ref tokens, .. } = self.running[index];
            let has_room = len > 0 && self.ram.cache.reserve(id, tokens.len() + len).is_ok();
            draft.tokens.truncate(if has_room { len } else { 0 });
        }
        drafts
    }

    /// The draft for a sequence with the highest expected acceptance, at most `most` tokens.
    pub(super) fn find_draft(&mut self, index: usize, most: usize) -> Draft {
        let (sources, now) = (self.config.draft_sources, self.now());
        let sequence = &mut self.running[index];
        let len = sequence.tokens.len();
        sequence.drafter.learn(&sequence.tokens);
        if sources.has(DraftSource::Lookup) {
            sequence.drafter.look_up(&sequence.tokens, most);
        }
        if let Some(namespace) = sequence.publishes_in().filter(|_| sources.has(DraftSource::Tree)) {
            let in_ram = self.ram.cache.followers(namespace, &sequence.tokens, most);
            let roots = self.tenants.namespaces.roots(namespace);
            let on_disk = self.disk.followers(roots, &sequence.tokens, most, now);
            let both = on_disk.into_iter().chain(in_ram);
            let found = both.max_by_key(|found| (found.same, found.tokens.len()));
            sequence.drafter.offer(DraftSource::Tree, found, len);
        }
        if sources.has(DraftSource::Grammar) {
            let forced = sequence.answer.forced(most).map(|tokens| Followers { tokens, same: 0 });
            sequence.drafter.offer(DraftSource::Grammar, forced, len);
        }
        sequence.drafter.best()
    }

    /// Asks the draft model for the sequences for which it is expected to do better than the draft they have.
    fn ask_model(&mut self, rows: usize, drafts: &mut [Draft]) {
        let (Some(model), running) = (&mut self.draft_model, &mut self.running) else { return };
        let now = (self.clock)();
        model.set_now(now);
        let able = running.iter().take(drafts.len()).filter(|sequence| sequence.draft_max() > 0).count();
        let mut asked = Vec::new();
        for (index, draft) in drafts.iter().enumerate() {
            let sequence = &mut running[index];
            let likely = sequence.drafter.likely_of_model(&self.drafting);
            let most = self.drafting.ask(rows, able, sequence.tokens.len(), likely).min(sequence.draft_max());
            if most > 0 && draft.expected() < expected(likely, most) {
                asked.push((index, most));
            }
        }
        let wanted = asked.into_iter().map(|(index, most)| (index, wanted(&running[index], most)));
        let (indices, wanted): (Vec<usize>, Vec<WantedDraft<'_>>) = wanted
            .filter(|(index, wanted)| model.missing(wanted) <= READ_MAX * (running[*index].draft_max() + 1))
            .unzip();
        let mut since = now;
        let found = model.propose(&wanted, |sequences, only_goes_on| {
            let now = (self.clock)();
            if only_goes_on {
                self.drafting.note_pass(sequences, now.saturating_sub(since));
            }
            since = now;
        });
        for (index, tokens) in indices.into_iter().zip(found) {
            let sequence = &mut running[index];
            let found = Some(Followers { tokens, same: 0 });
            sequence.drafter.offer(DraftSource::Model, found, sequence.tokens.len());
            drafts[index] = sequence.drafter.best();
        }
    }

    /// Releases the draft model's state of sequences that have ended or were preempted.
    pub(super) fn leave_ended(&mut self) {
        let running = &self.running;
        if let Some(model) = &mut self.draft_model {
            model.follow_only(|id| running.find(id).is_some());
        }
    }

    /// After a panic, when no sequence runs any more: releases the draft model's sequences, and resets the model if its
    /// state is inconsistent.
    pub(super) fn mend_drafts(&mut self) {
        let is_sound = contain(|| {
            self.leave_ended();
            self.draft_cache().is_none_or(|cache| cache.check().is_ok())
        });
        if let (Some(model), Ok(false) | Err(_)) = (&mut self.draft_model, is_sound) {
            model.renew();
        }
    }

    /// The cache of the draft model, if there is one.
    pub fn draft_cache(&self) -> Option<&Cache> {
        self.draft_model.as_ref().map(DraftModel::cache)
    }

    /// Accepts the tokens of the draft of `span` as long as they equal the sampled ones; `rows` are the predictions
    /// after each of them, with the tokens sampled already.
    pub(super) fn verify<'a>(
        &mut self,
        span: &Span,
        rows: &mut impl Iterator<Item = (Prediction<'a>, Option<Sampled>)>,
    ) {
        let Draft { tokens, source, .. } = &span.draft;
        self.results.drafted(self.running[span.index].job, &span.draft);
        let mut drawn = 0;
        for &token in tokens {
            if !self.is_drawn(span.index, token) {
                break;
            }
            let Some((row, sampled)) = rows.next() else { break };
            drawn += 1;
            self.results.accepted(self.running[span.index].job, *source);
            self.store(span.index, 1);
            self.emit(span.index, row, sampled);
        }
        if *source == DraftSource::Model {
            self.drafting.note_model(tokens.len(), drawn);
        }
    }

    /// Whether `token` is the token that was sampled last, and the sequence continues.
    fn is_drawn(&self, index: usize, token: Token) -> bool {
        let sequence = &self.running[index];
        sequence.ended.is_none() && sequence.missing() == 1 && sequence.tokens.last() == Some(&token)
    }
}

/// The data that a draft model needs of a sequence.
fn wanted(sequence: &Sequence, most: usize) -> WantedDraft<'_> {
    let namespace = match sequence.sharing {
        Sharing::Namespace(namespace) => Some(namespace),
        Sharing::Private(_) => None,
    };
    WantedDraft { id: sequence.id, namespace, tokens: &sequence.tokens, lifetime: sequence.lifetime, most }
}
