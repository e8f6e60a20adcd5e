//! What is replayed: requests as lists of block ids, and how much is kept between them.

/// One request of a trace: the ids of its prompt's blocks, each id standing for the prefix up to it.
pub type TraceRequest = Vec<u64>;

/// How many blocks are kept between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// At most so many.
    Blocks(usize),
    /// All there ever were.
    Unlimited,
}
