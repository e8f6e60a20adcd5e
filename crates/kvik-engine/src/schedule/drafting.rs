//! Drafts of a step: what each sequence is offered, and how much of it is computed.

use kvik_cache::Followers;

use super::background::BackgroundShare;
use super::draft::{DRAFT_MAX, Draft, Drafting, WantedDraft, expected};
use super::prefixes::Prefixes;
use super::running::Running;
use super::sequence::{Sequence, Sharing};
use crate::config::EngineConfig;
use crate::stats::{DraftSource, DraftSources};

/// Maximum number of tokens that a draft model may have to read for each token that a sequence may still generate.
const READ_MAX: usize = 16;

/// Drafts for each running sequence, `[running]`, in a step with these `rows` of each; blocks for them are reserved. In
/// a step with another sequence's prompt, drafts get a small share and the draft model is not asked: the prompt would
/// wait for its passes. The background does not affect the foreground's drafts: its [drafts](fill) are added after those,
/// and its prompts do not count as another sequence's.
pub(super) fn draft(
    rows: &[usize],
    running: &mut Running,
    prefixes: &mut Prefixes,
    drafting: &mut Drafting,
    config: &EngineConfig,
) -> Vec<Draft> {
    let mut drafts = vec![Draft::default(); rows.len()];
    let foreground = running.foreground();
    let is_alone = rows[..foreground].iter().all(|&rows| rows == 0);
    let among = if is_alone { foreground..rows.len() } else { 0..foreground };
    let decoding = among.clone().filter(|&index| running[index].due() == 1).count();
    if config.draft_rows_max == 0 || decoding == 0 {
        return drafts;
    }
    for index in among.clone() {
        let most = running[index].draft_max().min(DRAFT_MAX);
        if most > 0 {
            drafts[index] = find_draft(&mut running[index], most, prefixes, config.draft_sources);
        }
    }
    let rows: usize = rows[among.clone()].iter().sum();
    if rows == decoding && among.start == 0 {
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

/// Asks the draft model for the sequences for which it is expected to do better than the draft they have.
fn ask_model(
    rows: usize,
    drafts: &mut [Draft],
    running: &mut Running,
    prefixes: &mut Prefixes,
    drafting: &mut Drafting,
) {
    let Prefixes { draft_model: Some(model), clock, .. } = prefixes else { return };
    let now = clock();
    model.set_now(now);
    let able = running.iter().take(drafts.len()).filter(|sequence| sequence.draft_max() > 0).count();
    let mut asked = Vec::new();
    for (index, draft) in drafts.iter().enumerate() {
        let sequence = &mut running[index];
        let likely = sequence.drafter.likely_of_model(drafting);
        let most = drafting.ask(rows, able, sequence.tokens.len(), likely).min(sequence.draft_max());
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
        let now = clock();
        if only_goes_on {
            drafting.note_pass(sequences, now.saturating_sub(since));
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

/// The data that a draft model needs of a sequence.
fn wanted(sequence: &Sequence, most: usize) -> WantedDraft<'_> {
    let namespace = match sequence.sharing {
        Sharing::Namespace(namespace) => Some(namespace),
        Sharing::Private(_) => None,
    };
    WantedDraft { id: sequence.id, namespace, tokens: &sequence.tokens, lifetime: sequence.lifetime, most }
}
