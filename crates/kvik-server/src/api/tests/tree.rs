//! `/v1/cache/tree` with the real engine, the embedded model, and tenants.

use serde_json::{Value, json};

use super::{
    kept::{Server, TENANTS, tokens},
    tenants::code,
};
use kvik_serving::settings::{disk_place::DiskPlace, model::CacheArgs, size::ByteSize};

impl Server {
    async fn complete(&self, key: &str, prompt: &[u32]) {
        self.done(key, "POST", "/v1/completions", json!({"prompt": prompt, "max_tokens": 1})).await;
        self.settles_down().await;
    }

    async fn tree(&self, key: &str, query: &str) -> Value {
        self.done(key, "GET", &format!("/v1/cache/tree{query}"), Value::Null).await
    }

    async fn node(&self, key: &str, id: &Value) -> Value {
        self.done(key, "GET", &format!("/v1/cache/tree/{}", id.as_str().unwrap()), Value::Null).await
    }

    async fn has_node(&self, key: &str, id: &Value) -> bool {
        let path = format!("/v1/cache/tree/{}", id.as_str().unwrap());
        let (status, answer) = self.send(key, "GET", &path, Value::Null).await;
        assert!(status == 200 || (status == 404 && code(&answer) == "node_not_found"), "{answer}");
        status == 200
    }
}

fn nodes(tree: &Value) -> &[Value] {
    tree["nodes"].as_array().unwrap()
}

fn number(node: &Value, name: &str) -> u64 {
    node[name].as_u64().unwrap_or_else(|| panic!("{name} is a number: {node}"))
}

/// Returns a prompt that shares 48 tokens with all others of this `first`, and has its own end.
fn prompt(first: u32, end: u32) -> Vec<u32> {
    [tokens(first, 48), tokens(50 + end, 30 + end)].concat()
}

/// Returns the tree without the fields that change with time.
fn timeless(mut tree: Value) -> Value {
    for node in tree["nodes"].as_array_mut().unwrap() {
        node["age_s"].take();
    }
    tree
}

#[tokio::test]
async fn the_tree_shows_what_was_asked_and_folds_the_rest() {
    let server = Server::new("");
    for end in 0..4 {
        server.complete("", &prompt(1, end)).await;
    }
    let all = server.tree("", "").await;
    let [top, ends @ ..] = nodes(&all) else { panic!("{all}") };
    assert_eq!((&all["block_tokens"], &all["truncated"]), (&json!(16), &json!(false)));
    assert_eq!((&top["parent"], &top["tokens"], &top["children"]), (&Value::Null, &json!(48), &json!(4)));
    assert_eq!(
        (&top["tenant"], &top["reuses"], &top["pinned"]),
        (&json!("default"), &json!(3), &json!(false))
    );
    assert_eq!(ends.len(), 4);
    let own: u64 = nodes(&all).iter().map(|node| number(node, "tokens")).sum();
    assert_eq!((number(&all, "tokens_total"), number(top, "weight")), (own, own));
    assert!(ends.iter().all(|end| end["parent"] == top["id"] && number(end, "start") == 48));
    assert!(ends.is_sorted_by_key(|end| std::cmp::Reverse(number(end, "weight"))));
    assert!(nodes(&all).iter().all(|node| node["age_s"].as_f64().is_some_and(|age| age >= 0.0)));

    let few = server.tree("", "?nodes=2").await;
    assert_eq!((&few["truncated"], number(&few, "nodes_total"), nodes(&few).len()), (&json!(true), 5, 2));
    assert_eq!(nodes(&few)[1]["id"], ends[0]["id"], "the heaviest");
    let folded: u64 = ends[1..].iter().map(|end| number(end, "weight")).sum();
    assert_eq!(nodes(&few)[0]["folded"], json!({"nodes": 3, "tokens": folded}));
    let part = server.tree("", &format!("?under={}", ends[2]["id"].as_str().unwrap())).await;
    assert_eq!((nodes(&part).len(), &nodes(&part)[0]["id"]), (1, &ends[2]["id"]));
    assert_eq!(nodes(&part)[0]["parent"], Value::Null, "it is not in the list");
    for (query, status) in [("?nodes=x", 400), ("?node=1", 400), ("?under=n17-3", 404)] {
        let answer = server.send("", "GET", &format!("/v1/cache/tree{query}"), Value::Null).await;
        assert_eq!(answer.0.as_u16(), status, "{query}: {}", answer.1);
    }
}

#[tokio::test]
async fn a_node_names_the_prompt_by_which_it_is_pinned_and_evicted() {
    let server = Server::new("");
    for end in 0..2 {
        server.complete("", &prompt(1, end)).await;
    }
    let tree = server.tree("", "").await;
    let (top, end) = (&nodes(&tree)[0]["id"], &nodes(&tree)[1]["id"]);
    let node = server.node("", top).await;
    let shared = tokens(1, 48);
    assert_eq!((&node["prompt"], &node["start"], &node["tokens"]), (&json!(shared), &json!(0), &json!(48)));
    assert_eq!(node["text"], server.app.serving.texts.tokenizer.decode(&shared));
    assert_eq!((&node["text_truncated"], &node["why"]["kept"]), (&json!(false), &json!("continued")));
    let leaf = server.node("", end).await;
    assert_eq!(leaf["why"]["kept"], "evictable");
    assert!(leaf["why"]["sentence"].as_str().unwrap().contains("until space is short"), "{leaf}");
    let own = &leaf["prompt"].as_array().unwrap()[48..];
    assert_eq!(own.len() as u64, number(&leaf, "tokens"));

    let named = json!({"prompt": node["prompt"]});
    server.done("", "POST", "/v1/cache/pin", named.clone()).await;
    let pinned = server.node("", top).await;
    assert_eq!((&pinned["pinned"], &pinned["why"]["kept"]), (&json!(true), &json!("pinned")), "{pinned}");
    assert_eq!(pinned["age_s"], Value::Null);
    server.done("", "POST", "/v1/cache/evict", named).await;
    assert!(!server.has_node("", top).await && !server.has_node("", end).await);
    server.complete("", &prompt(2, 0)).await;
    assert!(!server.has_node("", top).await, "not even when another has its place");
}

#[tokio::test]
async fn a_node_names_the_pins_that_keep_it_by_their_tokens() {
    let server = Server::new("");
    // All prompts share a beginning that is longer than the listed text of a pin.
    let beginning = tokens(1, 160);
    let ends = [3, 5, 7].map(|end| [beginning.clone(), tokens(end, 32)].concat());
    let mut pinned = Vec::new();
    for end in &ends {
        server.complete("", end).await;
    }
    for end in [&ends[2], &ends[0]] {
        server.done("", "POST", "/v1/cache/pin", json!({"prompt": end})).await;
        let pins = server.done("", "GET", "/v1/cache/pins", Value::Null).await;
        pinned.push((end, pins["data"].as_array().unwrap().last().unwrap()["id"].clone()));
    }
    let tree = server.tree("", "").await;
    let mut seen = Vec::new();
    for node in nodes(&tree) {
        let shown = server.node("", &node["id"]).await;
        let prompt: Vec<u32> = serde_json::from_value(shown["prompt"].clone()).unwrap();
        let keeping = pinned.iter().filter(|(end, _)| end.starts_with(&prompt));
        let expected: Vec<&Value> = keeping.map(|(_, pin)| pin).collect();
        assert_eq!((&shown["pins"], &shown["pinned"]), (&json!(expected), &json!(!expected.is_empty())));
        seen.push(expected.len());
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 1, 2], "the beginning has both, the end that is not pinned none");
}

#[tokio::test]
async fn a_tenant_is_shown_nothing_that_another_caused() {
    let server = Server::new(TENANTS);
    for end in 0..3 {
        server.complete("acme", &prompt(1, end)).await;
    }
    let before = timeless(server.tree("acme", "?nodes=3").await);
    assert_eq!((number(&before, "nodes_total"), &nodes(&before)[0]["tenant"]), (4, &Value::Null));
    // The same prompts, so that a shared node would be visible in weights and reuses, and different ones.
    for end in 0..5 {
        server.complete("beta", &prompt(1, end)).await;
        server.complete("beta", &prompt(2, end)).await;
    }
    assert_eq!(timeless(server.tree("acme", "?nodes=3").await), before);
    let beta = server.tree("beta", "").await;
    for node in nodes(&beta) {
        assert!(server.has_node("beta", &node["id"]).await && server.has_node("root", &node["id"]).await);
        assert!(!server.has_node("acme", &node["id"]).await);
        let path = format!("/v1/cache/tree?under={}", node["id"].as_str().unwrap());
        assert_eq!(server.send("acme", "GET", &path, Value::Null).await.0, 404);
    }
    let all = server.tree("root", "").await;
    assert_eq!(number(&all, "nodes_total"), 4 + number(&beta, "nodes_total"));
    let of = |name: &str| nodes(&all).iter().filter(|node| node["tenant"] == name).count();
    assert_eq!((of("acme"), of("beta")), (4, nodes(&beta).len()));
}

#[tokio::test]
async fn tenants_who_share_see_numbers_and_no_texts() {
    let server = Server::new(&TENANTS.replace("public-prompts", "shared"));
    server.complete("acme", &prompt(1, 0)).await;
    let tree = server.tree("beta", "").await;
    let node = server.node("beta", &nodes(&tree)[0]["id"]).await;
    assert_eq!((&node["text"], &node["prompt"]), (&Value::Null, &Value::Null));
    assert!(node["why"]["sentence"].as_str().unwrap().contains("Tenants share this cache"), "{node}");
    assert!(server.node("root", &nodes(&tree)[0]["id"]).await["text"].is_string());
}

#[tokio::test]
async fn a_long_text_is_cut_at_a_character() {
    let server = Server::with("", CacheArgs::in_ram(2048, ByteSize(8 << 20)));
    let text = "once upon a time ü ".repeat(230);
    server.done("", "POST", "/v1/completions", json!({"prompt": text, "max_tokens": 1})).await;
    server.settles_down().await;
    let tree = server.tree("", "").await;
    let node = server.node("", &nodes(&tree)[0]["id"]).await;
    let shown = node["text"].as_str().unwrap();
    assert_eq!(node["text_truncated"], true);
    assert!((4090..=4096).contains(&shown.len()) && text.starts_with(shown), "{}", shown.len());
}

#[tokio::test]
async fn tokens_that_are_on_disk_too_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CacheArgs {
        cache_disk: DiskPlace::Directory(dir.path().to_owned()),
        cache_disk_size: ByteSize(16 << 20),
        ..CacheArgs::in_ram(512, ByteSize(8 << 20))
    };
    let server = Server::with("", cache);
    server.complete("", &prompt(1, 0)).await;
    server.complete("", &prompt(1, 7)).await;
    let on_disk = async || {
        let tree = server.tree("", "").await;
        let pairs = nodes(&tree).iter().map(|node| (number(node, "ram_tokens"), number(node, "disk_tokens")));
        pairs.collect::<Vec<_>>()
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while on_disk().await.iter().any(|(ram, disk)| ram != disk) {
        assert!(std::time::Instant::now() < deadline, "not all is written: {:?}", on_disk().await);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(on_disk().await.len(), 3);
}
