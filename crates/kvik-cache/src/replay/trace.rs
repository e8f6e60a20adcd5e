//! The input of a replay: requests as lists of block ids, and the capacity between them.

/// A request of a trace: the ids of its prompt's blocks, each id standing for the prefix up to it.
pub type TraceRequest = Vec<u64>;

/// Number of blocks kept between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// At most this many.
    Blocks(usize),
    /// All blocks.
    Unlimited,
}
