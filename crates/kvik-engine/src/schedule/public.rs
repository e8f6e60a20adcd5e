//! Prompts that tenants who keep apart may share: requests that begin with one run in a namespace derived from
//! it, which reads the public blocks and shows what follows to nobody else.

use kvik_cache::{BLOCK_POSITIONS, NamespaceId, TenantId, Token};

use super::Scheduler;
use super::disk::Roots;
use crate::api::KeptPrompt;

/// A public prompt.
#[derive(Debug)]
pub(super) struct Public {
    /// Separates who keeps it.
    salt: [u8; 16],
    /// Where it is kept.
    base: NamespaceId,
    /// Its whole blocks: only those are shared.
    tokens: Vec<Token>,
    /// The namespaces that go on from it.
    derived: Vec<NamespaceId>,
}

impl Scheduler {
    /// From now on these prompts are public. They must be kept, else nothing of them is shared.
    pub fn set_public(&mut self, prompts: &[KeptPrompt]) {
        let before = std::mem::take(&mut self.public);
        for prompt in prompts {
            let base = self.namespace(prompt.salt);
            let whole = prompt.tokens.len() - prompt.tokens.len() % BLOCK_POSITIONS;
            let tokens = prompt.tokens[..whole].to_vec();
            self.public.push(Public { salt: prompt.salt, base, tokens, derived: Vec::new() });
        }
        for old in before {
            let same = |public: &&mut Public| public.base == old.base && public.tokens == old.tokens;
            match self.public.iter_mut().find(same) {
                Some(public) => public.derived = old.derived,
                None => self.leaving.extend(old.derived),
            }
        }
        self.drop_derived();
    }

    /// Drops the namespaces derived from prompts that are public no longer, as soon as nobody uses them.
    pub(super) fn drop_derived(&mut self) {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|&derived| self.queue.awaits(derived) || !self.cache.drop_derived(derived));
        self.leaving = leaving;
    }

    /// The cache is a new one.
    pub(super) fn renew_public(&mut self) {
        let mut public = std::mem::take(&mut self.public);
        for prompt in &mut public {
            prompt.base = self.namespace(prompt.salt);
            prompt.derived.clear();
        }
        self.public = public;
    }

    /// The namespace that a request shares: its tenant's own, or one derived from the longest public prompt that
    /// it begins with, when its tenant may. What a tenant had before a prompt became public stays its own:
    /// it goes where more of its prompt is known.
    pub(super) fn shared_namespace(
        &mut self,
        tenant: TenantId,
        salt: [u8; 16],
        prompt: &[Token],
    ) -> NamespaceId {
        let own = self.namespace(salt);
        let public = self.owners.is_public(tenant).then(|| self.public_namespace(own, salt, prompt));
        let known = |namespace| self.cache.lookup(namespace, prompt).tokens;
        public.flatten().filter(|&public| known(public) >= known(own)).unwrap_or(own)
    }

    fn public_namespace(
        &mut self,
        own: NamespaceId,
        salt: [u8; 16],
        prompt: &[Token],
    ) -> Option<NamespaceId> {
        let fits = |public: &&mut Public| {
            public.base != own && prompt.len() > public.tokens.len() && prompt.starts_with(&public.tokens)
        };
        let longest = self.public.iter_mut().filter(fits).max_by_key(|public| public.tokens.len())?;
        let namespace = self.config.namespaces().shared(salt);
        let derived = self.cache.derive_namespace(longest.base, &longest.tokens, &namespace)?;
        if !longest.derived.contains(&derived) {
            longest.derived.push(derived);
        }
        // It may be one that has not ended since the prompt was public before.
        self.leaving.retain(|&leaving| leaving != derived);
        // On disk a tenant's blocks stand under its own root, whatever it shares in RAM.
        self.roots.entry(derived).or_insert_with(|| Roots::of(&namespace));
        self.cache.continues(derived, prompt).then_some(derived)
    }
}
