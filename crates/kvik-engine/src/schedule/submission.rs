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
    let prompt = std::mem::take(&mut request.prompt);
    let sharing = sharing(&request, &prompt, prefixes);
    let (retention, kept_prefix) = (request.retention, request.kept_prefix);
    let rules = Rules::new(request, tokens_max, jobs.results.vocabulary());
    let answer = Answer::new(&rules, &prompt, guide);
    let forgetting = retention.map(|retention| {
        Box::new(match kept_prefix {
            Some(prefix) => Forgetting::of_prefix(prefixes.of_prefix(&retention), prefix),
            None => {
                let retention = retention.resolve(config.block_bytes / BLOCK_POSITIONS);
                let points = retention.points(prompt.len(), config.context_tokens);
                Forgetting::new(retention, points.in_groups(&config.tile_heads))
            }
        })
    });
    jobs.enqueue(Sequence { forgetting, ..Sequence::new(job, sharing, answer, prompt) });
}

/// The namespace and the sharing of a request. A private request has a namespace in which nothing is ever published.
fn sharing(request: &Request, prompt: &[Token], prefixes: &mut Prefixes) -> Sharing {
    let Prefixes { ram, disk, tenants, .. } = prefixes;
    let (sharers, cache) = (Sharers::of(request), &mut ram.cache);
    let needs_states = request.wants.pooling().is_some_and(|pooling| !pooling.needs_only_the_last());
    let sharing = if request.reuse && (request.retention.is_some() || needs_states) {
        // The tokens to observe, drop or pool may be in a public prompt, which a derived namespace always reuses.
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
