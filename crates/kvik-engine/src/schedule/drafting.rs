//! Drafts of a step: what each sequence is offered, and how much of it is computed.

use kvik_cache::{Followers, SeqId, Token};
use kvik_model::batch::{PredictionHead, WantedTokens};

use super::background::BackgroundShare;
use super::draft::{DRAFT_MAX, Draft, Drafting, WantedDraft, expected};
use super::prefixes::Prefixes;
use super::running::Running;
use super::sequence::{Sequence, Sharing};
use crate::config::EngineConfig;
use crate::panics::contain;
use crate::stats::{DraftSource, DraftSources};

/// Maximum number of tokens that a draft model may have to read for each token that a sequence may still generate.
const READ_MAX: usize = 16;

/// Drafts for each running sequence, `[running]`, in a step with these `rows` of each; blocks for them are reserved. In
/// a step with another sequence's prompt, drafts get a small share, and neither the draft model nor the `head` is asked:
/// the prompt would wait for its passes. The background does not affect the foreground's drafts: its [drafts](fill) are added after those,
/// and its prompts do not count as another sequence's.
pub(super) fn draft(
    rows: &[usize],
    running: &mut Running,
    prefixes: &mut Prefixes,
    drafting: &mut Drafting,
    (config, head): (&EngineConfig, Option<&mut dyn PredictionHead>),
) -> Vec<Draft> {
    let mut drafts = vec![Draft::default(); rows.len()];
    let foreground = running.foreground();
    let is_alone = rows[..foreground].iter().all(|&rows| rows == 0);
    let among = if is_alone { foreground..rows.len() } else { 0..foreground };
    let decoding = among.clone().filter(|&index| running.due(index) == 1).count();
    if config.draft_rows_max == 0 || decoding == 0 {
        return drafts;
    }
    for index in among.clone() {
        let most = running.draft_max(index).min(DRAFT_MAX);
        if most > 0 {
            drafts[index] = find_draft(&mut running[index], most, prefixes, config.draft_sources);
        }
    }
    let rows: usize = rows[among.clone()].iter().sum();
    if rows == decoding && among.start == 0 {
        if let Some(head) = head {
            ask_head(rows, &mut drafts[..among.end], running, (prefixes, head), drafting);
        }
        ask_model(rows, &mut drafts[..among.end], running, prefixes, drafting);
    }
    let rows_max = config.draft_rows_beside(rows, decoding);
    let lengths = drafting.lengths(rows, decoding, &drafts, rows_max);
    for (index, (draft, len)) in drafts.iter_mut().zip(lengths).enumerate() {
        let Sequence { id, ref tokens, .. } = running[index];
        let has_room = len > 0 && prefixes.ram.cache.reserve(id, tokens.len() + len).is_ok();
        draft.tokens.truncate(if has_room { len } else { 0 });
    }
    drafts
}

/// Tells the prediction head which sequences it follows: the oldest that it may draft for. Returns the maximum number of
/// them.
pub(super) fn follow(head: &mut dyn PredictionHead, running: &Running) -> usize {
    let most = head.sequences_max();
    head.follow_only(&|id| running.followed(most).any(|sequence| sequence.id == id));
    most
}

/// Gives the background its rows, and the rows it leaves to drafts for it. The blocks for the drafts are reserved; a
/// draft without blocks is left out.
pub(super) fn fill(
    rows: &mut [usize],
    drafts: &mut [Draft],
    running: &mut Running,
    prefixes: &mut Prefixes,
    background: &mut BackgroundShare,
    config: &EngineConfig,
) {
    let foreground = running.foreground();
    let drafted = drafts[..foreground].iter().map(|draft| draft.tokens.len()).sum();
    let mut left = background.share(running, rows, drafted);
    for index in foreground..rows.len() {
        let sequence = &mut running[index];
        let most = sequence.draft_max().min(DRAFT_MAX).min(left);
        if config.draft_rows_max == 0 || most == 0 || rows[index] != 1 {
            continue;
        }
        let mut draft = find_draft(sequence, most, prefixes, config.draft_sources);
        draft.tokens.truncate(most);
        if prefixes.ram.cache.reserve(sequence.id, sequence.tokens.len() + draft.tokens.len()).is_ok() {
            left -= draft.tokens.len();
            drafts[index] = draft;
        }
    }
}

/// The draft for a sequence with the highest expected acceptance, at most `most` tokens.
fn find_draft(sequence: &mut Sequence, most: usize, prefixes: &Prefixes, sources: DraftSources) -> Draft {
    let len = sequence.tokens.len();
    sequence.drafter.learn(&sequence.tokens);
    if sources.has(DraftSource::Lookup) {
        sequence.drafter.look_up(&sequence.tokens, most);
    }
    if let Some(namespace) = sequence.publishes_in().filter(|_| sources.has(DraftSource::Tree)) {
        let in_ram = prefixes.ram.cache.followers(namespace, &sequence.tokens, most);
        let roots = prefixes.tenants.namespaces.roots(namespace);
        let on_disk = prefixes.disk.followers(roots, &sequence.tokens, most, prefixes.now());
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

/// The sequences for which a source that computes its drafts is expected to do better than the draft they have, each
/// with the number of tokens to request.
fn to_ask(
    source: DraftSource,
    rows: usize,
    drafts: &[Draft],
    running: &mut Running,
    drafting: &mut Drafting,
) -> Vec<(usize, usize)> {
    let able = (0..drafts.len()).filter(|&index| running.draft_max(index) > 0).count();
    let mut asked = Vec::new();
    for (index, draft) in drafts.iter().enumerate() {
        let draft_max = running.draft_max(index);
        if draft_max == 0 {
            continue;
        }
        let sequence = &mut running[index];
        let likely = sequence.drafter.likely_of(source, drafting);
        let most = drafting.ask(source, (rows, able), sequence.id, likely);
        let most = most.min(draft_max);
        if most > 0 && draft.expected() < expected(likely, most) {
            asked.push((index, most));
        }
    }
    asked
}

/// Notes what a source has drafted for the sequence at `index`, and returns the best draft it now has.
fn offered(source: DraftSource, index: usize, tokens: Vec<Token>, running: &mut Running) -> Draft {
    let sequence = &mut running[index];
    let found = Some(Followers { tokens, same: 0 });
    sequence.drafter.offer(source, found, sequence.tokens.len());
    sequence.drafter.best()
}

/// Asks the prediction head.
fn ask_head(
    rows: usize,
    drafts: &mut [Draft],
    running: &mut Running,
    (prefixes, head): (&Prefixes, &mut dyn PredictionHead),
    drafting: &mut Drafting,
) {
    let mut asked = to_ask(DraftSource::Head, rows, drafts, running, drafting);
    asked.retain(|&(index, _)| running[index].is_followed());
    let wanted = |&(index, most): &(usize, usize)| {
        let sequence = &running[index];
        WantedTokens { id: sequence.id, tokens: &sequence.tokens, most }
    };
    let wanted: Vec<WantedTokens<'_>> = asked.iter().map(wanted).collect();
    if wanted.is_empty() {
        return;
    }
    let since = prefixes.now();
    let found = contain(|| head.predict(&wanted)).unwrap_or_else(|error| {
        tracing::error!("the prediction head failed and drafts nothing in this step: {error}");
        head.follow_only(&|_| false);
        Vec::new()
    });
    let passes = found.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let mut only_goes_on = true;
    for (&(index, _), _) in asked.iter().zip(&found).filter(|(_, tokens)| !tokens.is_empty()) {
        let sequence = &mut running[index];
        only_goes_on &= sequence.drafter.head_goes_on(sequence.id, sequence.tokens.len());
    }
    if passes > 0 && only_goes_on {
        let elapsed = prefixes.now().saturating_sub(since);
        let ids: Vec<SeqId> = asked.iter().map(|&(index, _)| running[index].id).collect();
        drafting.note_pass(DraftSource::Head, &ids, elapsed / passes);
    }
    for ((index, _), tokens) in asked.into_iter().zip(found) {
        drafts[index] = offered(DraftSource::Head, index, tokens, running);
    }
}

/// Asks the draft model.
fn ask_model(
    rows: usize,
    drafts: &mut [Draft],
    running: &mut Running,
    prefixes: &mut Prefixes,
    drafting: &mut Drafting,
) {
    let Prefixes { draft_model: Some(model), clock, .. } = prefixes else { return };
    let now = clock();
    let asked = to_ask(DraftSource::Model, rows, drafts, running, drafting);
    let wanted = asked.into_iter().map(|(index, most)| (index, wanted(&running[index], most)));
    let (indices, wanted): (Vec<usize>, Vec<WantedDraft<'_>>) = wanted
        .filter(|(index, wanted)| model.reads(wanted, READ_MAX * (running[*index].draft_max() + 1)))
        .unzip();
    let mut since = now;
    let found = model.propose(&wanted, |sequences, only_goes_on| {
        let now = clock();
        if only_goes_on {
            drafting.note_pass(DraftSource::Model, sequences, now.saturating_sub(since));
        }
        since = now;
    });
    for (index, tokens) in indices.into_iter().zip(found) {
        drafts[index] = offered(DraftSource::Model, index, tokens, running);
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
