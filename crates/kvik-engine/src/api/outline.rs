//! What the prefix tree holds, as data.

use std::time::Duration;

use kvik_cache::{NodeInfo, OutlineNode, PinId, Policy, Token};

/// The heaviest nodes of the prefix tree, or of a part of it; see [`Outline`](kvik_cache::Outline).
#[derive(Debug, Clone, PartialEq)]
pub struct TreeView {
    /// Each after the node that it continues.
    pub nodes: Vec<TreeNode>,
    /// Nodes there are, shown or not.
    pub nodes_total: usize,
    /// Tokens of all of them.
    pub tokens_total: usize,
    /// Whether there are nodes that are not shown.
    pub truncated: bool,
    /// When this was so, on the clock of the nodes' times.
    pub now: Duration,
}

/// A node of the outline and what it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeNode {
    /// Its place in the outline.
    pub outline: OutlineNode,
    /// What is known of it.
    pub info: NodeInfo,
    /// Those of its tokens that are on disk as well.
    pub disk_tokens: usize,
}

/// One node of the prefix tree.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// What is known of it.
    pub info: NodeInfo,
    /// All tokens up to its end; none where it holds a part that a policy kept of a prefix, whose positions are not
    /// those of its tokens.
    pub prefix: Option<Vec<Token>>,
    /// Tokens of its own.
    pub tokens: usize,
    /// Those of them that are on disk as well.
    pub disk_tokens: usize,
    /// The pins that keep it, oldest first, at most 1,000.
    pub pins: Vec<PinId>,
    /// By what it is evicted.
    pub policy: Policy,
    /// When this was so, on the clock of its times.
    pub now: Duration,
}
