//! Submission: how a request enters the queue.

use kvik_cache::{BLOCK_POSITIONS, Token};
use kvik_text::constraint::Guide;

use super::Scheduler;
use super::answer::{Answer, Rules};
use super::forget::Forgetting;
use super::job::JobId;
use super::limits::{RequestLimits, Submission};
use super::namespaces::Sharers;
use super::sequence::{Sequence, Sharing};
use crate::api::Request;
use crate::panics::contain;

impl Scheduler {
    /// Puts a request into the queue. It must be within `limits`. A panic in doing so fails the request.
    ///
    /// A background request ends idle time too: its answer is wanted, while what idle time computes may never be used.
    pub fn submit(&mut self, submission: Submission, limits: &RequestLimits) {
        self.drop_idle_job();
        let Submission { request, guide, sink } = submission;
        let job = self.results.open(sink, request.prompt.len(), request.choices, self.now());
        if request.background.is_some() {
            self.results.set_background(job);
        }
        if let Err(error) = contain(|| self.enqueue(job, request, guide, limits)) {
            self.fail(job, error.clone());
            self.recover_if_broken(&error);
        }
    }

    pub(super) fn enqueue(
        &mut self,
        job: JobId,
        mut request: Request,
        guide: Option<Guide>,
        limits: &RequestLimits,
    ) {
        self.drop_unused_namespaces();
        let tokens_max = limits.answer_tokens(&request);
        let prompt = std::mem::take(&mut request.prompt);
        let sharing = self.sharing(&request, &prompt);
        let (tenant, retention, kept_prefix) = (request.tenant, request.retention, request.kept_prefix);
        if !self.queue.serves(tenant) && !self.running.serves(tenant) {
            self.turns.come_back(tenant);
        }
        let rules = Rules::new(request, tokens_max, self.results.vocabulary());
        let answer = Answer::new(&rules, 0, &prompt, guide);
        let forgetting = retention.map(|retention| {
            let token_bytes = self.config.block_bytes / BLOCK_POSITIONS;
            Box::new(match kept_prefix {
                Some(prefix) => Forgetting::of_prefix(self.of_prefix(&retention), prefix),
                None => {
                    let (retention, context) = (retention.resolve(token_bytes), self.config.context_tokens);
                    Forgetting::new(retention, prompt.len(), context)
                }
            })
        });
        self.queue.insert(Sequence { forgetting, ..Sequence::new(job, sharing, answer, prompt) });
    }

    /// The namespace and the sharing of a request. A private request has a namespace in which nothing is ever
    /// published.
    fn sharing(&mut self, request: &Request, prompt: &[Token]) -> Sharing {
        let (tenants, sharers) = (&mut self.tenants, Sharers::of(request));
        let cache = &mut self.ram.cache;
        let needs_states = request.wants.pooling().is_some_and(|pooling| !pooling.needs_only_the_last());
        let sharing = if request.reuse && (request.retention.is_some() || needs_states) {
            // The tokens to observe, drop or pool may be in a public prompt, which a derived namespace always reuses.
            Sharing::Namespace(tenants.namespaces.shared(sharers, cache))
        } else if request.reuse {
            Sharing::Namespace(tenants.shared_namespace((request.tenant, sharers), prompt, cache))
        } else {
            let own = tenants.namespaces.shared(sharers, cache);
            self.disk.note_private(tenants.namespaces.roots(own), prompt);
            Sharing::Private(tenants.namespaces.private(sharers, cache))
        };
        let (Sharing::Namespace(id) | Sharing::Private(id)) = sharing;
        let is_new = tenants.register(id, (request.tenant, request.salt), &mut self.ram, &mut self.disk);
        if is_new && matches!(sharing, Sharing::Namespace(_)) && sharers.adapter.is_some() {
            // Which adapters are in use is not known earlier.
            self.disk.add_candidates(&[id], &tenants.namespaces);
        }
        sharing
    }
}
