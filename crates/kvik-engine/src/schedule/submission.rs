//! Submission: how a request enters the queue.

use kvik_cache::{BLOCK_POSITIONS, Token};
use kvik_text::constraint::Guide;

use super::answer::{Answer, Rules};
use super::forget::Forgetting;
use super::job::JobId;
use super::jobs::Jobs;
use super::limits::RequestLimits;
use super::namespaces::Sharers;
use super::prefixes::Prefixes;
use super::sequence::{Sequence, Sharing};
use crate::api::Request;
use crate::config::EngineConfig;

/// Puts the first sequence of an open request into the queue.
pub(super) fn enqueue(
    job: JobId,
    mut request: Request,
    guide: Option<Guide>,
    limits: &RequestLimits,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    config: &EngineConfig,
) {
    let tokens_max = limits.answer_tokens(&request);
    let forgetting = forgetting(&request, prefixes, config).map(Box::new);
    let prompt = std::mem::take(&mut request.prompt);
    let sharing = sharing(&request, &prompt, prefixes);
    let rules = Rules::new(request, tokens_max, jobs.results.vocabulary());
    let answer = Answer::new(&rules, &prompt, guide);
    jobs.enqueue(Sequence { forgetting, ..Sequence::new(job, sharing, answer, prompt) });
}

/// The state of a request's retention policy, if it has one, before anything is computed.
pub(super) fn forgetting(
    request: &Request,
    prefixes: &Prefixes,
    config: &EngineConfig,
) -> Option<Forgetting> {
    let retention = request.retention?;
    if let Some(prefix) = request.kept_prefix {
        return Some(Forgetting::of_prefix(prefixes.of_prefix(&retention), prefix));
    }
    let retention = retention.resolve(config.block_bytes / BLOCK_POSITIONS);
    let points = retention.points(request.prompt.len(), config.context_tokens);
    Some(Forgetting::new(retention, points.in_groups(&config.tile_heads)))
}

/// Whether a request shares blocks in the namespace of its tenant only: the tokens to observe, drop or pool may be in a
/// public prompt, which a derived namespace always reuses.
pub(super) fn shares_its_own_only(request: &Request) -> bool {
    request.retention.is_some() || request.wants.pools_all()
}

/// The namespace and the sharing of a request. A private request has a namespace in which nothing is ever published.
fn sharing(request: &Request, prompt: &[Token], prefixes: &mut Prefixes) -> Sharing {
    let Prefixes { ram, disk, tenants, .. } = prefixes;
    let (sharers, cache) = (Sharers::of(request), &mut ram.cache);
    let sharing = if request.reuse && shares_its_own_only(request) {
        Sharing::Namespace(tenants.namespaces.shared(sharers, cache))
    } else if request.reuse {
        Sharing::Namespace(tenants.shared_namespace((request.tenant, sharers), prompt, cache))
    } else {
        let own = tenants.namespaces.shared(sharers, cache);
        disk.note_private(tenants.namespaces.roots(own), prompt);
        Sharing::Private(tenants.namespaces.private(sharers, cache))
    };
    let (Sharing::Namespace(id) | Sharing::Private(id)) = sharing;
    let is_new = tenants.register(id, (request.tenant, request.salt), ram, disk);
    if is_new && matches!(sharing, Sharing::Namespace(_)) && sharers.adapter.is_some() {
        // Which adapters are in use is not known earlier.
        disk.add_candidates(&[id], &tenants.namespaces);
    }
    sharing
}
