//! Numbers about a cache, for metrics and reports.

/// Blocks by who holds them, and what was done since the cache was made. Cheap to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// All blocks: free, owned and shared ones.
    pub blocks: usize,
    /// Blocks that hold nothing.
    pub free: usize,
    /// Blocks of running sequences that are not in the tree.
    pub owned: usize,
    /// Blocks in the tree, each counted once, however many sequences use it.
    pub shared: usize,
    /// Shared blocks that no running sequence uses. With the free ones and what places can give up, all that can be
    /// allocated.
    pub evictable: usize,
    /// Shared blocks that pins keep, each counted once.
    pub pinned: usize,
    /// Blocks' worth of the budget that stands beside blocks: windowed parts and states.
    pub withheld: usize,
    /// Of these, what can be given up: places where nobody goes on now.
    pub places_evictable: usize,
    /// Places where sequences can go on, of layers with windows or states.
    pub places: usize,
    /// Blocks that pins may keep.
    pub pinned_max: usize,
    /// Nodes of the prefix tree, roots included.
    pub nodes: usize,
    /// Tokens in the tree.
    pub tokens: usize,
    /// Running sequences.
    pub sequences: usize,
    /// What was done so far.
    pub totals: Totals,
}

/// Counts since the cache was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sequences admitted.
    pub admitted: u64,
    /// Of these, sequences that reused at least one token.
    pub hits: u64,
    /// Tokens of the prompts admitted.
    pub prompt_tokens: u64,
    /// Of these, tokens reused.
    pub reused_tokens: u64,
    /// Requests for blocks that were refused.
    pub refused: u64,
    /// Partial blocks copied.
    pub copies: u64,
    /// Blocks that passed from a sequence to the tree.
    pub published: u64,
    /// Blocks freed because another sequence had published the same.
    pub duplicates: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Places made.
    pub places: u64,
    /// Places evicted, while their blocks stayed.
    pub places_evicted: u64,
}
