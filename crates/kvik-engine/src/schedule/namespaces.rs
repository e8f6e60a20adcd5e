//! Namespaces in use: which requests share blocks in RAM, and what names those blocks on disk.

use kvik_cache::retain::{Budget, Retention};
use kvik_cache::{
    BLOCK_POSITIONS, Cache, Identity, Match, Namespace, NamespaceId, Namespaces, StopReason, Token,
};
use rustc_hash::FxHashMap;

use crate::api::{AdapterMix, KeptPrompt, Request};
use crate::config::EngineConfig;

/// Who shares with whom, besides model and KV format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharers {
    /// Separates tenants.
    pub(super) salt: [u8; 16],
    /// Separates what is computed with adapters: the digest of their mix.
    pub(super) adapter: Option<[u8; 32]>,
}

impl Sharers {
    /// Those of a request.
    pub(super) fn of(request: &Request) -> Sharers {
        Sharers { salt: request.salt, adapter: request.adapters.as_ref().map(AdapterMix::digest) }
    }

    /// Those of a prompt that is kept.
    pub(super) fn of_kept(prompt: &KeptPrompt) -> Sharers {
        Sharers { salt: prompt.salt, adapter: prompt.adapters.as_ref().map(AdapterMix::digest) }
    }

    /// Those with this salt who use the model alone.
    pub(super) fn plain(salt: [u8; 16]) -> Sharers {
        Sharers { salt, adapter: None }
    }
}

/// The namespaces that requests of one engine have run in.
#[derive(Debug)]
pub(super) struct NamespaceTable {
    model: [u8; 32],
    kv_format: String,
    /// Tells what was measured of the heads from what was measured before.
    calibration: String,
    /// Those in which blocks are shared; private ones have nothing on disk.
    roots: FxHashMap<NamespaceId, Roots>,
    /// Whose prompts may be told outside, by their salts.
    told: Vec<[u8; 16]>,
}

/// The identities of one namespace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roots {
    /// Of its blocks.
    pub(super) identity: Identity,
    /// Of their content: the same for every model and KV format.
    pub(super) content: Identity,
    /// Whose blocks they are, on disk.
    pub(super) owner: u64,
    /// Whether its tokens are names of what a policy keeps of prefixes, and not those of prompts.
    pub(super) is_part: bool,
    /// The adapters with which its blocks are computed.
    pub(super) adapter: Option<[u8; 32]>,
}

/// Where requests share, which need not be there: whoever only looks makes nothing.
#[derive(Debug)]
pub(super) struct Place {
    /// Its id, if it is there.
    pub(super) id: Option<NamespaceId>,
    pub(super) roots: Roots,
    namespace: Namespace,
    /// Tokens of a public prompt with which it would begin, where it is not there.
    public: usize,
}

impl Place {
    /// The same derived from a public prompt of so many tokens that are cached.
    fn behind(self, id: Option<NamespaceId>, public: usize) -> Place {
        Place { id, public, ..self }
    }

    /// How much of a prompt the cache has there.
    pub(super) fn lookup(&self, prompt: &[Token], cache: &Cache) -> Match {
        match self.id {
            Some(id) => cache.lookup(id, prompt),
            None if self.public > 0 => {
                Match { tokens: self.public, stop: StopReason::FirstSeen, evicted: None }
            }
            None => cache.lookup_absent(&self.namespace, prompt),
        }
    }
}

impl NamespaceTable {
    pub(super) fn new(config: &EngineConfig) -> NamespaceTable {
        let Namespaces { model, kv_format, .. } = config.namespaces();
        NamespaceTable {
            model,
            kv_format: kv_format.to_owned(),
            calibration: calibration_name(config),
            roots: FxHashMap::default(),
            told: Vec::new(),
        }
    }

    /// From now on prompts with these salts may be told outside.
    pub(super) fn tell(&mut self, salts: Vec<[u8; 16]>) {
        self.told = salts;
    }

    /// The namespace that these requests share.
    pub(super) fn shared(&mut self, sharers: Sharers, cache: &mut Cache) -> NamespaceId {
        let namespace = self.of(sharers).shared(sharers.salt);
        let id = cache.namespace(&namespace);
        let roots = *self.roots.entry(id).or_insert_with(|| Roots::of(&namespace));
        if self.told.contains(&sharers.salt) {
            cache.tell(id, roots.identity);
        }
        id
    }

    /// Where these requests share, without making it.
    pub(super) fn place(&self, sharers: Sharers, cache: &Cache) -> Place {
        let namespace = self.of(sharers).shared(sharers.salt);
        Place { id: cache.known_namespace(&namespace), roots: Roots::of(&namespace), namespace, public: 0 }
    }

    /// The namespace of those of these requests that share with nobody. Nothing is published in it.
    pub(super) fn private(&self, sharers: Sharers, cache: &mut Cache) -> NamespaceId {
        cache.namespace(&self.of(sharers).private(sharers.salt))
    }

    /// The namespace of what a policy keeps of the prefixes of these requests.
    pub(super) fn kept(&mut self, sharers: Sharers, retention: &Retention, cache: &mut Cache) -> NamespaceId {
        let namespace = self.kept_namespace(sharers, retention);
        let id = cache.namespace(&namespace);
        self.roots.entry(id).or_insert_with(|| Roots { is_part: true, ..Roots::of(&namespace) });
        id
    }

    /// The same if it is there.
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
            // What such a budget keeps depends on what was measured of the heads.
            policy.push_str(&self.calibration);
        }
        self.of(sharers).kept(sharers.salt, &policy)
    }

    /// The namespace that [`derived`](NamespaceTable::derived) would give, without making it; none when not all of
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
    /// root of their own salt, whatever it shares in RAM.
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

    /// The namespaces that requests with this salt have run in: their own, with each mix of adapters, and those
    /// derived from public prompts.
    pub(super) fn all_of(&self, salt: [u8; 16]) -> Vec<NamespaceId> {
        let owner = disk_owner(salt);
        let same = self.roots.iter().filter(|(_, roots)| roots.owner == owner && !roots.is_part);
        let mut namespaces: Vec<NamespaceId> = same.map(|(&id, _)| id).collect();
        namespaces.sort_unstable();
        namespaces
    }

    /// The namespaces of what policies keep of prefixes with this salt.
    pub(super) fn all_kept(&self, salt: [u8; 16]) -> Vec<NamespaceId> {
        let owner = disk_owner(salt);
        let kept = self.roots.iter().filter(|(_, roots)| roots.owner == owner && roots.is_part);
        kept.map(|(&id, _)| id).collect()
    }

    /// The identities of a namespace that is not private.
    pub(super) fn roots(&self, id: NamespaceId) -> &Roots {
        &self.roots[&id]
    }

    /// Their ids with the roots of their blocks.
    pub(super) fn ids(&self) -> impl Iterator<Item = (NamespaceId, Identity)> {
        self.roots.iter().map(|(&id, roots)| (id, roots.identity))
    }

    /// The one whose blocks have this root.
    pub(super) fn rooted(&self, root: &Identity) -> Option<NamespaceId> {
        self.ids().find(|(_, identity)| identity == root).map(|(id, _)| id)
    }

    /// The roots of a namespace in which blocks are shared.
    pub(super) fn shared_roots(&self, id: NamespaceId) -> Option<&Roots> {
        self.roots.get(&id)
    }

    /// Whether this one is there.
    pub(super) fn has(&self, id: NamespaceId) -> bool {
        self.roots.contains_key(&id)
    }

    /// Forgets one that was dropped.
    pub(super) fn remove(&mut self, id: NamespaceId) {
        self.roots.remove(&id);
    }

    /// Forgets all: their ids are names in a cache that is gone.
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

    /// The identity of the last of the whole blocks of `tokens`; the root's when there is none.
    pub(super) fn identity_after(&self, tokens: &[Token]) -> Identity {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        self.identity.blocks(whole).last().unwrap_or(self.identity)
    }

    /// The content key of a prompt's first block.
    pub(super) fn first_content_key(&self, tokens: &[Token]) -> u64 {
        content_key(&self.content.child(&tokens[..tokens.len().min(BLOCK_POSITIONS)]))
    }
}

/// Names what was measured of the heads; empty where nothing was.
fn calibration_name(config: &EngineConfig) -> String {
    let Some(importance) = &config.calibration else { return String::new() };
    let words = importance.layers.iter().flat_map(|heads| {
        std::iter::once(heads.len() as Token).chain(heads.iter().map(|value| value.to_bits()))
    });
    let words: Vec<Token> = words.collect();
    let name = Identity::root(&Namespace::of_content([0; 16])).blocks(&words).last();
    name.map_or_else(String::new, |name| format!("|{:016x}", content_key(&name)))
}

/// Names a tenant on disk: what a salt comes to. 0 where there are no tenants.
pub(super) fn disk_owner(salt: [u8; 16]) -> u64 {
    if salt == [0; 16] { 0 } else { content_key(&content_root(salt)) }
}

/// The content of a block as it stands in a record.
pub(super) fn content_key(content: &Identity) -> u64 {
    let (key, _) = content.0.split_first_chunk().expect("an identity has 32 bytes");
    u64::from_le_bytes(*key)
}

fn content_root(salt: [u8; 16]) -> Identity {
    Identity::root(&Namespace::of_content(salt))
}
