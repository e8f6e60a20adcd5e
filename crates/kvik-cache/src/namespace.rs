//! Namespaces: what must be equal for two sequences to share keys and values.
//!
//! [`Namespaces`] is the one place that makes them. A namespace becomes 32 bytes by
//! [`Identity::root`](crate::Identity::root), and an id of one cache by
//! [`Cache::namespace`](crate::Cache::namespace).

/// What must be equal for two sequences to share keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub(crate) model: [u8; 32],
    pub(crate) kv_format: String,
    pub(crate) adapter: Option<[u8; 32]>,
    pub(crate) salt: [u8; 16],
    pub(crate) scope: Scope,
}

/// Who may use the blocks of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Every sequence of the namespace.
    Shared,
    /// The sequence that computed them: its owner neither looks up nor publishes.
    Private,
}

/// The namespaces of one model and one KV format.
#[derive(Debug, Clone, Copy)]
pub struct Namespaces<'a> {
    /// Digest of the model's weights and configuration.
    pub model: [u8; 32],
    /// Name of the KV format, keys and values, as `q8/q4`.
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

    /// The namespace of requests with the same `salt` that share with nobody. It equals no shared one.
    pub fn private(self, salt: [u8; 16]) -> Namespace {
        self.scoped(salt, Scope::Private)
    }

    /// The namespace of prefixes of which `policy` keeps a part, which is its canonical text. It equals no namespace
    /// of exact blocks: no format's name has a bar.
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
    /// The namespace in which only tokens and salt tell blocks apart: it recognises a prompt under another model
    /// or KV format.
    pub fn of_content(salt: [u8; 16]) -> Namespace {
        Namespaces { model: [0; 32], kv_format: "", adapter: None }.shared(salt)
    }

    /// The adapter on top of the model, when there is one.
    pub fn adapter(&self) -> Option<[u8; 32]> {
        self.adapter
    }

    /// What separates this namespace from those of other tenants.
    pub fn salt(&self) -> [u8; 16] {
        self.salt
    }
}
