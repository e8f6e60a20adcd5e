//! `/v1/cache/tree`: the prefix tree for display, and single nodes of it.
//!
//! A tenant sees its own nodes and counts, the administrator all of them.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    http::StatusCode,
};
use kvik_cache::{BLOCK_POSITIONS, NodeInfo, NodeName, Policy, Token};
use kvik_engine::api::{NodeView, TreeNode};
use serde::{Deserialize, Serialize};

use super::{
    cache::{block_bytes, may_read, mine},
    prompts::{blocking, engine},
};
use crate::{
    app::{keys::Caller, state::App},
    described::JsonSchema,
    http::{answer::words, error::ApiError},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Default and maximum number of nodes shown.
const SHOWN: usize = 400;
const SHOWN_MAX: usize = 2000;
/// Maximum bytes of a node's text. No token is shorter than a byte.
const TEXT_BYTES_MAX: usize = 4 << 10;

words! {
    TreeWord = "cache.tree";
    NodeWord = "cache.node";
}

/// The heaviest nodes of the prefix tree.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheTree")]
pub(crate) struct Tree {
    object: TreeWord,
    block_tokens: usize,
    block_bytes: usize,
    nodes_total: usize,
    tokens_total: usize,
    /// More was there than was looked at.
    truncated: bool,
    nodes: Vec<Node>,
}

/// A node, with what is folded into it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TreeNode")]
struct Node {
    id: String,
    /// Null of a root.
    parent: Option<String>,
    /// For the admin.
    tenant: Option<String>,
    start: usize,
    tokens: usize,
    weight: usize,
    children: usize,
    folded: Folded,
    ram_tokens: usize,
    disk_tokens: usize,
    in_use: bool,
    #[serde(flatten)]
    life: Life,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Folded {
    nodes: usize,
    tokens: usize,
}

/// What decides how long a node is kept.
#[derive(Debug, Serialize, JsonSchema)]
struct Life {
    /// Null of one that is in use.
    age_s: Option<f64>,
    reuses: u32,
    pinned: bool,
    priority: i8,
    expires_s: Option<f64>,
}

/// One node, with its text and the tokens that lead to it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheNode")]
pub(crate) struct ShownNode {
    object: NodeWord,
    id: String,
    /// Null where a tenant must not see it, or where it is none.
    text: Option<String>,
    text_truncated: bool,
    start: usize,
    tokens: usize,
    /// The tokens that lead to it; null where its text is.
    prompt: Option<Vec<Token>>,
    pins: Vec<u64>,
    why: Why,
    ram_tokens: usize,
    disk_tokens: usize,
    #[serde(flatten)]
    life: Life,
}

/// Why a node is there.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Why {
    kept: Kept,
    sentence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
enum Kept {
    #[serde(rename = "in use")]
    InUse,
    #[serde(rename = "pinned")]
    Pinned,
    #[serde(rename = "continued")]
    Continued,
    #[serde(rename = "evictable")]
    Evictable,
}

/// The parameters of the tree.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Shown {
    nodes: Option<usize>,
    under: Option<String>,
    /// By which the shelf has chosen the model already.
    #[serde(rename = "model")]
    _model: Option<String>,
}

/// The parameters of the tree, as the OpenAPI document describes them.
pub(super) const PARAMETERS: [(&str, &str); 2] = [
    ("nodes", "Nodes at most, 2000 and less; 400 where nothing is asked for"),
    ("under", "Id of a node: only what is at and below it"),
];

/// `GET /v1/cache/tree`: the heaviest nodes.
pub(crate) async fn tree(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Parameters(shown): Parameters<Shown>,
) -> Result<Json<Tree>> {
    let limit = shown.nodes.unwrap_or(SHOWN).min(SHOWN_MAX);
    let under = shown.under.as_deref().map(|id| named(&app, id)).transpose()?;
    blocking(move || {
        let view = engine(&app)?.outline(mine(&caller), limit, under)?;
        let view = view.ok_or_else(|| not_found(shown.under.as_deref().unwrap_or_default()))?;
        let node = |node: &TreeNode| shown_node(&app, &caller, node, view.now);
        Ok(Json(Tree {
            object: TreeWord,
            block_tokens: BLOCK_POSITIONS,
            block_bytes: block_bytes(&app.serving.engine.stats()),
            nodes_total: view.nodes_total,
            tokens_total: view.tokens_total,
            truncated: view.truncated,
            nodes: view.nodes.iter().map(node).collect(),
        }))
    })
    .await
}

/// `GET /v1/cache/tree/{id}`: one node, with its text and the tokens of its path.
pub(crate) async fn node(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<ShownNode>> {
    let name = named(&app, &id)?;
    blocking(move || {
        let node = engine(&app)?.node(name, mine(&caller))?.ok_or_else(|| not_found(&id))?;
        let NodeView { info, tokens, now, .. } = &node;
        let prefix = node.prefix.as_ref().filter(|_| may_read(&caller));
        let (text, text_truncated) = prefix.map(|prefix| text(&app, &prefix[info.start..])).unzip();
        let prompt = prefix.cloned();
        Ok(Json(ShownNode {
            object: NodeWord,
            id,
            text,
            text_truncated: text_truncated.unwrap_or(false),
            start: info.start,
            tokens: *tokens,
            prompt,
            pins: node.pins.iter().map(|pin| pin.0).collect(),
            why: why(&node, &caller),
            ram_tokens: *tokens,
            disk_tokens: node.disk_tokens,
            life: life(info, *now),
        }))
    })
    .await
}

fn shown_node(app: &App, caller: &Caller, node: &TreeNode, now: Duration) -> Node {
    let TreeNode { outline, info, disk_tokens } = node;
    let id = |name: NodeName| app.node_ids.id(name);
    Node {
        id: id(outline.name),
        parent: outline.parent.map(id),
        tenant: caller.admin.then(|| app.keys().tenants().name_of(info.tenant).to_owned()),
        start: outline.start,
        tokens: outline.tokens,
        weight: outline.weight,
        children: outline.children,
        folded: Folded { nodes: outline.folded_nodes, tokens: outline.folded_tokens },
        ram_tokens: outline.tokens,
        disk_tokens: *disk_tokens,
        in_use: info.in_use,
        life: life(info, now),
    }
}

fn life(info: &NodeInfo, now: Duration) -> Life {
    Life {
        age_s: info.last_use.map(|at| now.saturating_sub(at).as_secs_f64()),
        reuses: info.reuses,
        pinned: info.pinned,
        priority: info.priority,
        expires_s: info.expires.map(|at| at.saturating_sub(now).as_secs_f64()),
    }
}

/// Explains why a node is cached, and which of its data is hidden.
fn why(node: &NodeView, caller: &Caller) -> Why {
    let (kept, sentence) = kept(&node.info, node.policy);
    let hidden = match node.prefix {
        None => " It holds what a policy kept of a prefix, which is no text.",
        Some(_) if !may_read(caller) => " Tenants share this cache, so neither text nor tokens are shown.",
        Some(_) => "",
    };
    Why { kept, sentence: format!("{sentence}{hidden}") }
}

fn kept(info: &NodeInfo, policy: Policy) -> (Kept, String) {
    if info.in_use {
        return (Kept::InUse, "A running request reads it, or it belongs to a public prompt.".to_owned());
    }
    if info.pinned {
        return (Kept::Pinned, "A pin keeps it until it is removed.".to_owned());
    }
    let evicted = match info.is_continued {
        true => "Other prefixes continue it, and they are evicted before it".to_owned(),
        false => format!("It stays until space is short and the policy {} chooses it", policy.name()),
    };
    let kept = if info.is_continued { Kept::Continued } else { Kept::Evictable };
    let expires = if info.expires.is_some() { ", or until its time to live ends" } else { "" };
    (kept, format!("{evicted}{expires}."))
}

/// Returns the text of tokens, at most 4 KiB of it, and whether it was truncated.
fn text(app: &App, tokens: &[Token]) -> (String, bool) {
    let shown = &tokens[..tokens.len().min(TEXT_BYTES_MAX)];
    let mut text = app.serving.texts.tokenizer.decode(shown);
    let is_cut = shown.len() < tokens.len() || text.len() > TEXT_BYTES_MAX;
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    (text, is_cut)
}

fn named(app: &App, id: &str) -> Result<NodeName> {
    app.node_ids.name(id).ok_or_else(|| not_found(id))
}

/// Returns the error for a missing node; another tenant's node counts as missing.
fn not_found(id: &str) -> ApiError {
    let message = format!(
        "there is no node {id:?}; it may have been evicted, and GET /v1/cache/tree lists those there are"
    );
    ApiError::new(StatusCode::NOT_FOUND, Some("node_not_found"), message)
}
