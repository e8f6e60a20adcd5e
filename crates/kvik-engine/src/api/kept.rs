//! Prompts that are computed in advance and pinned, as data.

use kvik_cache::retain::Retention;
use kvik_cache::{Lifetime, PinId, TenantId, Token, whole_blocks};

use super::{AdapterMix, Request};

/// A prompt to compute and pin.
#[derive(Debug, Clone, PartialEq)]
pub struct PinnedPrompt {
    /// Its tokens, at least one.
    pub tokens: Vec<Token>,
    /// The adapters that it is computed with.
    pub adapters: Option<AdapterMix>,
    /// Separates tenants, as in [`Request::salt`].
    pub salt: [u8; 16],
    /// The tenant that owns it.
    pub tenant: TenantId,
    /// The policy under which its whole blocks are compressed and pinned. The exact prompt is then cached like any
    /// prompt and not pinned.
    pub retention: Option<Retention>,
}

/// How much of a prompt is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cached {
    /// Its tokens.
    pub tokens: usize,
    /// Leading tokens in RAM.
    pub ram: usize,
    /// Tokens after them on disk.
    pub disk: usize,
    /// Whether its whole blocks are pinned in RAM.
    pub pinned: bool,
}

/// The result of an explicit eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// RAM blocks freed.
    pub blocks: usize,
    /// Pins removed.
    pub pins: usize,
}

/// Which pins to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpin {
    /// This one.
    One(PinId),
    /// Every pin.
    All,
}

impl Cached {
    /// Whether no token of it would have to be computed.
    pub fn is_whole(&self) -> bool {
        self.ram + self.disk >= self.tokens
    }
}

impl PinnedPrompt {
    /// The request that computes it and generates nothing.
    pub fn request(&self) -> Request {
        let prefix = self.retention.map(|_| whole_blocks(&self.tokens));
        Request {
            ignore_eos: true,
            adapters: self.adapters.clone(),
            salt: self.salt,
            tenant: self.tenant,
            lifetime: Lifetime { pin: true, ..Lifetime::default() },
            retention: self.retention,
            kept_prefix: prefix.map(<[Token]>::len),
            ..Request::new(prefix.unwrap_or(&self.tokens).to_vec(), 0)
        }
    }
}
