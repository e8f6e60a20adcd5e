//! Counters of a cache, for metrics and reports.

/// Blocks by holder, and operations since the cache was created. Cheap to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// All blocks: free, withheld, owned and shared ones.
    pub blocks: usize,
    /// Blocks without a holder, except withheld ones.
    pub free: usize,
    /// Blocks of running sequences that are not in the tree.
    pub owned: usize,
    /// Blocks in the tree, each counted once, however many sequences use it.
    pub shared: usize,
    /// Shared blocks that are not locked. Together with the free blocks and the evictable places, these can be
    /// allocated.
    pub evictable: usize,
    /// Pinned blocks, each counted once.
    pub pinned: usize,
    /// Blocks of the budget that are withheld for auxiliary state: windowed parts and states.
    pub withheld: usize,
    /// Withheld blocks of evictable places: those that nothing protects.
    pub places_evictable: usize,
    /// Places where sequences can resume, for layers with windows or states.
    pub places: usize,
    /// Blocks that running sequences use: owned, shared, or withheld for them. What is only cached, pinned or continued by
    /// a derived namespace is not in use.
    pub in_use: usize,
    /// Maximum number of pinned blocks.
    pub pinned_max: usize,
    /// Nodes of the prefix tree, roots included.
    pub nodes: usize,
    /// Tokens in the tree.
    pub tokens: usize,
    /// Running sequences.
    pub sequences: usize,
    /// Counts so far.
    pub totals: Totals,
}

/// Counts since the cache was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sequences admitted.
    pub admitted: u64,
    /// Admitted sequences that reused at least one token.
    pub hits: u64,
    /// Tokens of the admitted prompts.
    pub prompt_tokens: u64,
    /// Reused tokens among them.
    pub reused_tokens: u64,
    /// Requests for blocks that were refused.
    pub refused: u64,
    /// Partial blocks copied.
    pub copies: u64,
    /// Blocks moved from a sequence to the tree.
    pub published: u64,
    /// Blocks freed because another sequence had published the same content.
    pub duplicates: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Places added.
    pub places: u64,
    /// Places evicted while their blocks remained.
    pub places_evicted: u64,
}
