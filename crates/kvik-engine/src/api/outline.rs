//! Views of the prefix tree, as data.

use std::time::Duration;

use kvik_cache::{NodeInfo, OutlineNode, PinId, Policy, Token};

/// The heaviest nodes of the prefix tree, or of a part of it; see [`Outline`](kvik_cache::Outline).
#[derive(Debug, Clone, PartialEq)]
pub struct TreeView {
    /// The nodes, each after its parent.
    pub nodes: Vec<TreeNode>,
    /// Total number of nodes, shown or not.
    pub nodes_total: usize,
    /// Total number of tokens of all nodes.
    pub tokens_total: usize,
    /// Whether some nodes are not shown.
    pub truncated: bool,
    /// Time of the view, on the clock of the nodes' times.
    pub now: Duration,
}

/// A node of the outline with its current state.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeNode {
    /// Its position in the outline.
    pub outline: OutlineNode,
    /// Its current state.
    pub info: NodeInfo,
    /// Number of its tokens that are on disk as well.
    pub disk_tokens: usize,
}

/// A node of the prefix tree.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// Its current state.
    pub info: NodeInfo,
    /// All tokens up to its end; `None` for a part of a compressed prefix, whose positions are not those of its tokens.
    pub prefix: Option<Vec<Token>>,
    /// Number of its own tokens.
    pub tokens: usize,
    /// Number of these that are on disk as well.
    pub disk_tokens: usize,
    /// The pins that hold it, oldest first, at most 1,000.
    pub pins: Vec<PinId>,
    /// The eviction policy.
    pub policy: Policy,
    /// Time of the view, on the clock of its times.
    pub now: Duration,
}
