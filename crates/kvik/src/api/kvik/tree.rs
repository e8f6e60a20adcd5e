//! `/v1/cache/tree`: the prefix tree as a picture shows it, and one node of it.
//!
//! A tenant sees its own nodes and counts, the admin all.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Query as Parameters, State},
    http::StatusCode,
};
use kvik_cache::{BLOCK_POSITIONS, NodeInfo, NodeName, Policy, Token};
use kvik_engine::api::{NodeView, TreeNode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    cache::{block_bytes, may_read, mine},
    prompts::{blocking, engine},
};
use crate::{
    app::{keys::Caller, state::App},
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Nodes that are shown where nothing is asked for, and at most.
const SHOWN: usize = 400;
const SHOWN_MAX: usize = 2000;
/// Bytes of a node's text at most. No token is shorter than a byte.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// The parameters of the tree.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Shown {
    nodes: Option<usize>,
    under: Option<String>,
}

/// The same, for the document of all routes.
pub(super) const PARAMETERS: [(&str, &str); 2] = [
    ("nodes", "Nodes at most, 2000 and less; 400 where nothing is asked for"),
    ("under", "Id of a node: only what is at and below it"),
];

/// `GET /v1/cache/tree`: the heaviest nodes.
pub(crate) async fn tree(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Parameters(shown): Parameters<Shown>,
) -> Result<Json<Value>> {
    let limit = shown.nodes.unwrap_or(SHOWN).min(SHOWN_MAX);
    let under = shown.under.as_deref().map(|id| named(&app, id)).transpose()?;
    blocking(move || {
        let view = engine(&app)?.outline(mine(&caller), limit, under)?;
        let view = view.ok_or_else(|| not_found(shown.under.as_deref().unwrap_or_default()))?;
        let node = |node: &TreeNode| node_json(&app, &caller, node, view.now);
        Ok(Json(json!({
            "object": "cache.tree",
            "block_tokens": BLOCK_POSITIONS,
            "block_bytes": block_bytes(&app.serving.engine.stats()),
            "nodes_total": view.nodes_total,
            "tokens_total": view.tokens_total,
            "truncated": view.truncated,
            "nodes": view.nodes.iter().map(node).collect::<Vec<Value>>(),
        })))
    })
    .await
}

/// `GET /v1/cache/tree/{id}`: one node, with its text and the tokens that lead to it.
pub(crate) async fn node(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>> {
    let name = named(&app, &id)?;
    blocking(move || {
        let node = engine(&app)?.node(name, mine(&caller))?.ok_or_else(|| not_found(&id))?;
        let NodeView { info, tokens, now, .. } = &node;
        let prefix = node.prefix.as_ref().filter(|_| may_read(&caller));
        let (text, text_truncated) = prefix.map(|prefix| text(&app, &prefix[info.start..])).unzip();
        let mut answer = json!({
            "object": "cache.node",
            "id": id,
            "text": text,
            "text_truncated": text_truncated.unwrap_or(false),
            "start": info.start,
            "tokens": tokens,
            "prompt": prefix,
            "pins": node.pins.iter().map(|pin| pin.0).collect::<Vec<u64>>(),
            "why": why(&node, &caller),
            "ram_tokens": tokens,
            "disk_tokens": node.disk_tokens,
        });
        extend(&mut answer, life(info, *now));
        Ok(Json(answer))
    })
    .await
}

fn node_json(app: &App, caller: &Caller, node: &TreeNode, now: Duration) -> Value {
    let TreeNode { outline, info, disk_tokens } = node;
    let id = |name: NodeName| app.node_ids.id(name);
    let mut described = json!({
        "id": id(outline.name),
        "parent": outline.parent.map(id),
        "tenant": caller.admin.then(|| app.keys().tenants().name_of(info.tenant).to_owned()),
        "start": outline.start,
        "tokens": outline.tokens,
        "weight": outline.weight,
        "children": outline.children,
        "folded": {"nodes": outline.folded_nodes, "tokens": outline.folded_tokens},
        "ram_tokens": outline.tokens,
        "disk_tokens": disk_tokens,
        "in_use": info.in_use,
    });
    extend(&mut described, life(info, now));
    described
}

/// What decides how long a node is kept.
fn life(info: &NodeInfo, now: Duration) -> Value {
    json!({
        "age_s": info.last_use.map(|at| now.saturating_sub(at).as_secs_f64()),
        "reuses": info.reuses,
        "pinned": info.pinned,
        "priority": info.priority,
        "expires_s": info.expires.map(|at| at.saturating_sub(now).as_secs_f64()),
    })
}

fn extend(answer: &mut Value, more: Value) {
    if let (Value::Object(answer), Value::Object(more)) = (answer, more) {
        answer.extend(more);
    }
}

/// Why a node is there, and what is not shown of it.
fn why(node: &NodeView, caller: &Caller) -> Value {
    let (kept, sentence) = kept(&node.info, node.policy);
    let hidden = match node.prefix {
        None => " It holds what a policy kept of a prefix, which is no text.",
        Some(_) if !may_read(caller) => " Tenants share this cache, so neither text nor tokens are shown.",
        Some(_) => "",
    };
    json!({"kept": kept, "sentence": format!("{sentence}{hidden}")})
}

fn kept(info: &NodeInfo, policy: Policy) -> (&'static str, String) {
    if info.in_use {
        return ("in use", "A running request reads it, or it belongs to a public prompt.".to_owned());
    }
    if info.pinned {
        return ("pinned", "A pin keeps it until it is removed.".to_owned());
    }
    let evicted = match info.is_continued {
        true => "Other prefixes continue it, and they are evicted before it".to_owned(),
        false => format!("It stays until space is short and the policy {} chooses it", policy.name()),
    };
    let kept = if info.is_continued { "continued" } else { "evictable" };
    let expires = if info.expires.is_some() { ", or until its time to live ends" } else { "" };
    (kept, format!("{evicted}{expires}."))
}

/// The text of tokens, at most 4 KiB of it, and whether there is more.
fn text(app: &App, tokens: &[Token]) -> (String, bool) {
    let shown = &tokens[..tokens.len().min(TEXT_BYTES_MAX)];
    let mut text = app.serving.tokenizer.decode(shown);
    let is_cut = shown.len() < tokens.len() || text.len() > TEXT_BYTES_MAX;
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    (text, is_cut)
}

fn named(app: &App, id: &str) -> Result<NodeName> {
    app.node_ids.name(id).ok_or_else(|| not_found(id))
}

/// Another tenant's node is like one that is gone.
fn not_found(id: &str) -> ApiError {
    let message = format!(
        "there is no node {id:?}; it may have been evicted, and GET /v1/cache/tree lists those there are"
    );
    ApiError::new(StatusCode::NOT_FOUND, Some("node_not_found"), message)
}
