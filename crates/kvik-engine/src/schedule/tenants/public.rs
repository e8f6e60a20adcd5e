//! Prompts that isolated tenants may share: requests that begin with one run in a namespace derived from it, which
//! reads the public blocks and hides what follows from other tenants.

use kvik_cache::{BLOCK_POSITIONS, Cache, NamespaceId, Token};

use crate::api::PinnedPrompt;
use crate::schedule::namespaces::{NamespaceTable, Place, Sharers};

/// The public prompts.
#[derive(Debug, Default)]
pub(super) struct PublicPrompts {
    prompts: Vec<PublicPrompt>,
    /// Namespaces derived from prompts that are no longer public, dropped once they are unused.
    retired: Vec<NamespaceId>,
}

#[derive(Debug)]
struct PublicPrompt {
    /// The sharing keys of the prompt.
    sharers: Sharers,
    /// The namespace of the prompt.
    base: NamespaceId,
    /// Its whole blocks: only those are shared.
    tokens: Vec<Token>,
    /// The namespaces derived from it.
    derived: Vec<NamespaceId>,
}

impl PublicPrompts {
    /// Makes these prompts public. They must be cached, or none of their blocks is shared.
    pub(super) fn set(
        &mut self,
        prompts: &[PinnedPrompt],
        namespaces: &mut NamespaceTable,
        cache: &mut Cache,
    ) {
        let before = std::mem::take(&mut self.prompts);
        for prompt in prompts {
            let sharers = Sharers::of_kept(prompt);
            let base = namespaces.shared(sharers, cache);
            let whole = prompt.tokens.len() - prompt.tokens.len() % BLOCK_POSITIONS;
            let tokens = prompt.tokens[..whole].to_vec();
            self.prompts.push(PublicPrompt { sharers, base, tokens, derived: Vec::new() });
        }
        for old in before {
            let same = |public: &&mut PublicPrompt| public.base == old.base && public.tokens == old.tokens;
            match self.prompts.iter_mut().find(same) {
                Some(public) => public.derived = old.derived,
                None => self.retired.extend(old.derived),
            }
        }
    }

    /// Drops the retired namespaces that are unused and not `awaits`ed; returns whether any was dropped.
    pub(super) fn drop_retired(&mut self, awaits: impl Fn(NamespaceId) -> bool, cache: &mut Cache) -> bool {
        let before = self.retired.len();
        self.retired.retain(|&derived| awaits(derived) || !cache.drop_derived(derived));
        self.retired.len() < before
    }

    /// Resets the state after the cache was replaced.
    pub(super) fn reset(&mut self, namespaces: &mut NamespaceTable, cache: &mut Cache) {
        self.retired.clear();
        for prompt in &mut self.prompts {
            prompt.base = namespaces.shared(prompt.sharers, cache);
            prompt.derived.clear();
        }
    }

    /// A namespace derived from the longest public prompt that `prompt` begins with; `own` is the tenant's.
    pub(super) fn namespace(
        &mut self,
        own: NamespaceId,
        sharers: Sharers,
        prompt: &[Token],
        namespaces: &mut NamespaceTable,
        cache: &mut Cache,
    ) -> Option<NamespaceId> {
        let fits = |public: &&mut PublicPrompt| public.fits(Some(own), sharers, prompt);
        let longest = self.prompts.iter_mut().filter(fits).max_by_key(|public| public.tokens.len())?;
        let derived = namespaces.derived(longest.base, &longest.tokens, sharers, cache)?;
        if !longest.derived.contains(&derived) {
            longest.derived.push(derived);
        }
        // The namespace may have been retired and not dropped since the prompt was last public.
        self.retired.retain(|&retired| retired != derived);
        cache.continues(derived, prompt).then_some(derived)
    }

    /// As [`namespace`](Self::namespace), without creating it.
    pub(super) fn place(
        &self,
        own: Option<NamespaceId>,
        sharers: Sharers,
        prompt: &[Token],
        namespaces: &NamespaceTable,
        cache: &Cache,
    ) -> Option<Place> {
        let fits = self.prompts.iter().filter(|public| public.fits(own, sharers, prompt));
        let longest = fits.max_by_key(|public| public.tokens.len())?;
        namespaces.derived_place(longest.base, &longest.tokens, sharers, cache)
    }

    /// The namespaces that must stay.
    pub(super) fn in_use(&self) -> impl Iterator<Item = NamespaceId> {
        let prompts = self.prompts.iter().flat_map(|public| public.derived.iter().chain([&public.base]));
        prompts.chain(&self.retired).copied()
    }
}

impl PublicPrompt {
    /// Whether a prompt of these sharers, whose own namespace is `own`, extends this public prompt.
    fn fits(&self, own: Option<NamespaceId>, sharers: Sharers, prompt: &[Token]) -> bool {
        Some(self.base) != own
            && self.sharers.adapter == sharers.adapter
            && prompt.len() > self.tokens.len()
            && prompt.starts_with(&self.tokens)
    }
}
