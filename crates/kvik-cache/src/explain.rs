//! Why reuse stopped where it did.

/// Why the known prefix of a prompt ends where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// The whole prompt was known.
    Complete,
    /// Nothing was ever seen from here on, in this namespace.
    FirstSeen,
    /// A known prompt goes on differently from here.
    Diverged,
    /// What comes next was known and has been evicted.
    Evicted,
}
