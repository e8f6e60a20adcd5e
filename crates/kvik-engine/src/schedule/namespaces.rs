//! Namespaces in use: which requests share blocks in RAM, and what names those blocks on disk.

use kvik_cache::retain::{Budget, Retention};
use kvik_cache::{BLOCK_POSITIONS, Cache, Identity, Namespace, NamespaceId, Namespaces, Token};
use rustc_hash::FxHashMap;

use crate::config::EngineConfig;

/// The namespaces that requests of one engine have run in.
#[derive(Debug)]
pub(super) struct NamespaceTable {
    model: [u8; 32],
    kv_format: String,
    /// Tells what was measured of the heads from what was measured before.
    calibration: String,
    /// Those in which blocks are shared; private ones have nothing on disk.
    roots: FxHashMap<NamespaceId, Roots>,
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
}

impl NamespaceTable {
    pub(super) fn new(config: &EngineConfig) -> NamespaceTable {
        let Namespaces { model, kv_format, .. } = config.namespaces();
        NamespaceTable {
            model,
            kv_format: kv_format.to_owned(),
            calibration: calibration_name(config),
            roots: FxHashMap::default(),
        }
    }

    /// The namespace that requests with this salt share.
    pub(super) fn shared(&mut self, salt: [u8; 16], cache: &mut Cache) -> NamespaceId {
        let namespace = self.all().shared(salt);
        let id = cache.namespace(&namespace);
        self.roots.entry(id).or_insert_with(|| Roots::of(&namespace));
        id
    }

    /// The namespace of requests with this salt that share with nobody. Nothing is published in it.
    pub(super) fn private(&self, salt: [u8; 16], cache: &mut Cache) -> NamespaceId {
        cache.namespace(&self.all().private(salt))
    }

    /// The namespace of what a policy keeps of prefixes with this salt.
    pub(super) fn kept(&mut self, salt: [u8; 16], retention: &Retention, cache: &mut Cache) -> NamespaceId {
        let mut policy = retention.to_string();
        if retention.budget == Budget::Calibrated {
            // What such a budget keeps depends on what was measured of the heads.
            policy.push_str(&self.calibration);
        }
        let namespace = self.all().kept(salt, &policy);
        let id = cache.namespace(&namespace);
        self.roots.entry(id).or_insert_with(|| Roots::of(&namespace));
        id
    }

    /// A namespace of this salt that begins with the blocks of `tokens` in `base`. On disk its blocks have the
    /// root of its own salt, whatever it shares in RAM.
    pub(super) fn derived(
        &mut self,
        base: NamespaceId,
        tokens: &[Token],
        salt: [u8; 16],
        cache: &mut Cache,
    ) -> Option<NamespaceId> {
        let namespace = self.all().shared(salt);
        let id = cache.derive_namespace(base, tokens, &namespace)?;
        self.roots.entry(id).or_insert_with(|| Roots::of(&namespace));
        Some(id)
    }

    /// The namespaces that requests with this salt may have run in: their own, and those derived from public
    /// prompts.
    pub(super) fn all_of(&mut self, salt: [u8; 16], cache: &mut Cache) -> Vec<NamespaceId> {
        let own = self.shared(salt, cache);
        let identity = self.roots(own).identity;
        let same = self.roots.iter().filter(|(_, roots)| roots.identity == identity);
        let mut namespaces: Vec<NamespaceId> = same.map(|(&id, _)| id).collect();
        namespaces.sort_unstable();
        namespaces
    }

    /// The namespaces of what policies keep of prefixes with this salt.
    pub(super) fn all_kept(&mut self, salt: [u8; 16], cache: &mut Cache) -> Vec<NamespaceId> {
        let own = self.shared(salt, cache);
        let Roots { identity, owner, .. } = *self.roots(own);
        let kept = self.roots.iter().filter(|(_, roots)| roots.owner == owner && roots.identity != identity);
        kept.map(|(&id, _)| id).collect()
    }

    /// The identities of a namespace that is not private.
    pub(super) fn roots(&self, id: NamespaceId) -> &Roots {
        &self.roots[&id]
    }

    /// Forgets all: their ids are names in a cache that is gone.
    pub(super) fn clear(&mut self) {
        self.roots.clear();
    }

    fn all(&self) -> Namespaces<'_> {
        Namespaces { model: self.model, kv_format: &self.kv_format, adapter: None }
    }
}

impl Roots {
    fn of(namespace: &Namespace) -> Roots {
        let salt = namespace.salt();
        Roots { identity: Identity::root(namespace), content: content_root(salt), owner: disk_owner(salt) }
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
