//! Namespaces: two sequences share keys and values only if their namespaces are equal.
//!
//! Only [`Namespaces`] creates them. [`Identity::root`](crate::Identity::root) turns a namespace into 32 bytes, and
//! [`Cache::namespace`](crate::Cache::namespace) into an id of one cache.

/// The properties that must be equal for two sequences to share keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub(crate) model: [u8; 32],
    pub(crate) kv_format: String,
    pub(crate) adapter: Option<[u8; 32]>,
    pub(crate) salt: [u8; 16],
    pub(crate) scope: Scope,
}

/// Which sequences may use the blocks of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Every sequence of the namespace.
    Shared,
    /// Only the sequence that computed them: its owner neither looks up nor publishes.
    Private,
}

/// The namespaces of one model and one KV format.
#[derive(Debug, Clone, Copy)]
pub struct Namespaces<'a> {
    /// Digest of the model's weights and configuration.
    pub model: [u8; 32],
    /// Name of the KV format, keys and values, such as `q8/q4`.
    pub kv_format: &'a str,
    /// Digest of the adapter on top of the model, when there is one.
    pub adapter: Option<[u8; 32]>,
}

impl Namespaces<'_> {
    /// The namespace of requests that share with each other. `salt` separates tenants and is zero when there are
    /// none; it comes from the server, never from a client.
    pub fn shared(self, salt: [u8; 16]) -> Namespace {
        self.scoped(salt, Scope::Shared)
    }

    /// The namespace of private requests with the same `salt`, which share with no other request. It equals no
    /// shared one.
    pub fn private(self, salt: [u8; 16]) -> Namespace {
        self.scoped(salt, Scope::Private)
    }

    /// The namespace of prefixes compressed by `policy`, which is given by its canonical text. It equals no
    /// namespace of exact blocks, since no format name contains a bar.
    pub fn kept(self, salt: [u8; 16], policy: &str) -> Namespace {
        let kv_format = format!("{}|{policy}", self.kv_format);
        Namespaces { kv_format: &kv_format, ..self }.shared(salt)
    }

    fn scoped(self, salt: [u8; 16], scope: Scope) -> Namespace {
        let Namespaces { model, kv_format, adapter } = self;
        Namespace { model, kv_format: kv_format.to_owned(), adapter, salt, scope }
    }
}

impl Namespace {
    /// A namespace that distinguishes blocks only by tokens and salt: it recognises a prompt under another model or
    /// KV format.
    pub fn of_content(salt: [u8; 16]) -> Namespace {
        Namespaces { model: [0; 32], kv_format: "", adapter: None }.shared(salt)
    }

    /// The adapter on top of the model, when there is one.
    pub fn adapter(&self) -> Option<[u8; 32]> {
        self.adapter
    }

    /// The salt, which separates this namespace from those of other tenants.
    pub fn salt(&self) -> [u8; 16] {
        self.salt
    }
}
