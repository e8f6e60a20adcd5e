//! Namespaces in use: which requests share blocks in RAM, and the identities of those blocks on disk.

use kvik_cache::retain::{Budget, Retention};
use kvik_cache::{
    BLOCK_POSITIONS, Cache, Identity, Match, Namespace, NamespaceId, Namespaces, StopReason, Token,
};
use rustc_hash::FxHashMap;

use crate::api::{AdapterMix, PinnedPrompt, Request};
use crate::config::EngineConfig;

/// The keys by which requests share blocks, in addition to model and KV format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharers {
    /// Separates tenants.
    pub(super) salt: [u8; 16],
    /// Separates what is computed with adapters: the digest of their mix.
    pub(super) adapter: Option<[u8; 32]>,
}

impl Sharers {
    /// The keys of a request.
    pub(super) fn of(request: &Request) -> Sharers {
        Sharers { salt: request.salt, adapter: request.adapters.as_ref().map(AdapterMix::digest) }
    }

    /// The keys of a pinned prompt.
    pub(super) fn of_kept(prompt: &PinnedPrompt) -> Sharers {
        Sharers { salt: prompt.salt, adapter: prompt.adapters.as_ref().map(AdapterMix::digest) }
    }

    /// The keys of requests with this salt and without adapters.
    pub(super) fn plain(salt: [u8; 16]) -> Sharers {
        Sharers { salt, adapter: None }
    }
}

/// The namespaces that requests of one engine have run in.
#[derive(Debug)]
pub(super) struct NamespaceTable {
    model: [u8; 32],
    kv_format: String,
    /// Digest of the measured importance of the heads; empty without calibration.
    calibration: String,
    /// Digest of the gates; empty without any.
    gates: String,
    /// The namespaces in which blocks are shared; private ones have nothing on disk.
    roots: FxHashMap<NamespaceId, Roots>,
    /// Salts of the prompts whose cache events are reported.
    told: Vec<[u8; 16]>,
}

/// The identities of one namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roots {
    /// The root of its blocks.
    pub(super) identity: Identity,
    /// The root of their content: the same for every model and KV format.
    pub(super) content: Identity,
    /// The owner of its blocks on disk.
    pub(super) owner: u64,
    /// Whether its tokens are names of compressed prefixes and not those of prompts.
    pub(super) is_part: bool,
    /// The adapters with which its blocks are computed.
    pub(super) adapter: Option<[u8; 32]>,
}

/// A namespace in which requests share, which need not exist: a lookup creates nothing.
#[derive(Debug)]
pub(super) struct Place {
    /// Its id, if it exists.
    pub(super) id: Option<NamespaceId>,
    pub(super) roots: Roots,
    namespace: Namespace,
    /// Tokens of a public prompt with which it would begin, if it does not exist.
    public: usize,
}

impl Place {
    /// Returns this place as derived from a public prompt of `public` cached tokens.
    fn behind(self, id: Option<NamespaceId>, public: usize) -> Place {
        Place { id, public, ..self }
    }

    /// Whether it begins with a public prompt.
    pub(super) fn is_derived(&self) -> bool {
        self.public > 0
    }

    /// How much of a prompt the cache has there.
    pub(super) fn lookup(&self, prompt: &[Token], cache: &Cache) -> Match {
        self.lookup_up_to(prompt, prompt.len(), cache)
    }

    /// As [`lookup`](Place::lookup), for a request that may reuse at most `reuse_max` tokens.
    pub(super) fn lookup_up_to(&self, prompt: &[Token], reuse_max: usize, cache: &Cache) -> Match {
        match self.id {
            Some(id) => cache.lookup_up_to(id, prompt, reuse_max),
            None if self.public > 0 => {
                Match { tokens: self.public, stop: StopReason::FirstSeen, evicted: None }
            }
            None => cache.lookup_absent(&self.namespace, prompt),
        }
    }

    /// Why the cache has no more than the first `known` tokens of a prompt, of which a lower tier has some, if it had more.
    pub(super) fn lookup_lost(&self, prompt: &[Token], known: usize, cache: &Cache) -> Option<Match> {
        let base = self.public - self.public % BLOCK_POSITIONS;
        let root = self.roots.identity_after(&prompt[..base]);
        let lost = cache.lookup_lost(&root, &prompt[base..], known.checked_sub(base)?)?;
        Some(Match { tokens: known, ..lost })
    }
}

impl NamespaceTable {
    pub(super) fn new(config: &EngineConfig) -> NamespaceTable {
        let Namespaces { model, kv_format, .. } = config.namespaces();
        NamespaceTable {
            model,
            kv_format: kv_format.to_owned(),
            calibration: calibration_name(config),
            gates: gates_name(config),
            roots: FxHashMap::default(),
            told: Vec::new(),
        }
    }

    /// Starts to report the cache events of prompts with these salts.
    pub(super) fn tell(&mut self, salts: Vec<[u8; 16]>) {
        self.told = salts;
    }

    /// The namespace that these requests share, created if needed.
    pub(super) fn shared(&mut self, sharers: Sharers, cache: &mut Cache) -> NamespaceId {
        let namespace = self.of(sharers).shared(sharers.salt);
        let id = cache.namespace(&namespace);
        let roots = *self.roots.entry(id).or_insert_with(|| Roots::of(&namespace));
        if self.told.contains(&sharers.salt) {
            cache.tell(id, roots.identity);
        }
        id
    }

    /// The namespace that these requests share, without creating it.
    pub(super) fn place(&self, sharers: Sharers, cache: &Cache) -> Place {
        let namespace = self.of(sharers).shared(sharers.salt);
        Place { id: cache.known_namespace(&namespace), roots: Roots::of(&namespace), namespace, public: 0 }
    }

    /// The namespace for private requests. No block is published in it.
    pub(super) fn private(&self, sharers: Sharers, cache: &mut Cache) -> NamespaceId {
        cache.namespace(&self.of(sharers).private(sharers.salt))
    }

    /// The namespace of the compressed prefixes of these requests under a policy.
    pub(super) fn kept(&mut self, sharers: Sharers, retention: &Retention, cache: &mut Cache) -> NamespaceId {
        let namespace = self.kept_namespace(sharers, retention);
        let id = cache.namespace(&namespace);
        self.roots.entry(id).or_insert_with(|| Roots { is_part: true, ..Roots::of(&namespace) });
        id
    }

    /// As [`kept`](NamespaceTable::kept), without creating the namespace.
    pub(super) fn known_kept(
        &self,
        sharers: Sharers,
        retention: &Retention,
        cache: &Cache,
    ) -> Option<NamespaceId> {
        cache.known_namespace(&self.kept_namespace(sharers, retention))
    }

    fn kept_namespace(&self, sharers: Sharers, retention: &Retention) -> Namespace {
        let mut policy = retention.to_string();
        if retention.budget == Budget::Calibrated {
            // The positions that such a budget retains depend on the calibration.
            policy.push_str(&self.calibration);
        }
        if retention.needs().gated {
            // Others would retain other positions.
            policy.push_str(&self.gates);
        }
        self.of(sharers).kept(sharers.salt, &policy)
    }

    /// The namespace that [`derived`](NamespaceTable::derived) would return, without creating it; `None` if not all of
    /// `tokens` is in `base`.
    pub(super) fn derived_place(
        &self,
        base: NamespaceId,
        tokens: &[Token],
        sharers: Sharers,
        cache: &Cache,
    ) -> Option<Place> {
        let place = self.place(sharers, cache);
        let known = cache.known_derived(base, tokens, &place.namespace);
        let is_there = known.is_some() || cache.lookup(base, tokens).tokens == tokens.len();
        is_there.then(|| place.behind(known, tokens.len()))
    }

    /// A namespace of these requests that begins with the blocks of `tokens` in `base`. On disk its blocks have the
    /// root of their own salt, whatever they share in RAM.
    pub(super) fn derived(
        &mut self,
        base: NamespaceId,
        tokens: &[Token],
        sharers: Sharers,
        cache: &mut Cache,
    ) -> Option<NamespaceId> {
        let namespace = self.of(sharers).shared(sharers.salt);
        let id = cache.derive_namespace(base, tokens, &namespace)?;
        self.roots.entry(id).or_insert_with(|| Roots::of(&namespace));
        Some(id)
    }

    /// The namespaces in which requests with this salt have run: their own, with each mix of adapters, and those
    /// derived from public prompts.
    pub(super) fn all_of(&self, salt: [u8; 16]) -> Vec<NamespaceId> {
        let owner = disk_owner(salt);
        let same = self.roots.iter().filter(|(_, roots)| roots.owner == owner && !roots.is_part);
        let mut namespaces: Vec<NamespaceId> = same.map(|(&id, _)| id).collect();
        namespaces.sort_unstable();
        namespaces
    }

    /// The namespaces of compressed prefixes with this salt.
    pub(super) fn all_kept(&self, salt: [u8; 16]) -> Vec<NamespaceId> {
        let owner = disk_owner(salt);
        let kept = self.roots.iter().filter(|(_, roots)| roots.owner == owner && roots.is_part);
        kept.map(|(&id, _)| id).collect()
    }

    /// The identities of a namespace that is not private.
    pub(super) fn roots(&self, id: NamespaceId) -> &Roots {
        &self.roots[&id]
    }

    /// The ids of the namespaces with the roots of their blocks.
    pub(super) fn ids(&self) -> impl Iterator<Item = (NamespaceId, Identity)> {
        self.roots.iter().map(|(&id, roots)| (id, roots.identity))
    }

    /// The namespace whose blocks have this root.
    pub(super) fn rooted(&self, root: &Identity) -> Option<NamespaceId> {
        self.ids().find(|(_, identity)| identity == root).map(|(id, _)| id)
    }

    /// The roots of a namespace; `None` if it is private or does not exist.
    pub(super) fn shared_roots(&self, id: NamespaceId) -> Option<&Roots> {
        self.roots.get(&id)
    }

    /// Whether this namespace exists.
    pub(super) fn has(&self, id: NamespaceId) -> bool {
        self.roots.contains_key(&id)
    }

    /// Removes a namespace that was dropped.
    pub(super) fn remove(&mut self, id: NamespaceId) {
        self.roots.remove(&id);
    }

    /// Removes all: their ids belong to a cache that is gone.
    pub(super) fn clear(&mut self) {
        self.roots.clear();
    }

    fn of(&self, sharers: Sharers) -> Namespaces<'_> {
        Namespaces { model: self.model, kv_format: &self.kv_format, adapter: sharers.adapter }
    }
}

impl Roots {
    fn of(namespace: &Namespace) -> Roots {
        let salt = namespace.salt();
        Roots {
            identity: Identity::root(namespace),
            content: content_root(salt),
            owner: disk_owner(salt),
            is_part: false,
            adapter: namespace.adapter(),
        }
    }

    /// The identity of the last of the whole blocks of `tokens`; the root if there is none.
    pub(super) fn identity_after(&self, tokens: &[Token]) -> Identity {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        self.identity.blocks(whole).last().unwrap_or(self.identity)
    }

    /// The content key of a prompt's first block.
    pub(super) fn first_content_key(&self, tokens: &[Token]) -> u64 {
        content_key(&self.content.child(&tokens[..tokens.len().min(BLOCK_POSITIONS)]))
    }
}

/// Names the calibration of the heads; empty without one.
fn calibration_name(config: &EngineConfig) -> String {
    let Some(importance) = &config.calibration else { return String::new() };
    let words = importance.layers.iter().flat_map(|heads| {
        std::iter::once(heads.len() as Token).chain(heads.iter().map(|value| value.to_bits()))
    });
    digest_name(words.collect())
}

/// Names the gates; empty without any.
fn gates_name(config: &EngineConfig) -> String {
    let Some(gates) = &config.gates else { return String::new() };
    let heads = gates.layers.iter().flatten();
    let words = heads.flat_map(|gate| gate.weights.iter().chain([&gate.bias]).map(|value| value.to_bits()));
    digest_name(words.collect())
}

/// A short name of numbers.
fn digest_name(mut words: Vec<Token>) -> String {
    // Only whole blocks are part of an identity.
    words.resize(words.len().next_multiple_of(BLOCK_POSITIONS), 0);
    let name = Identity::root(&Namespace::of_content([0; 16])).blocks(&words).last();
    name.map_or_else(String::new, |name| format!("|{:016x}", content_key(&name)))
}

/// The owner id of a tenant on disk, derived from its salt. 0 without tenants.
pub(super) fn disk_owner(salt: [u8; 16]) -> u64 {
    if salt == [0; 16] { 0 } else { content_key(&content_root(salt)) }
}

/// The content of a block as it is stored in a record.
pub(super) fn content_key(content: &Identity) -> u64 {
    let (key, _) = content.0.split_first_chunk().expect("an identity has 32 bytes");
    u64::from_le_bytes(*key)
}

fn content_root(salt: [u8; 16]) -> Identity {
    Identity::root(&Namespace::of_content(salt))
}
