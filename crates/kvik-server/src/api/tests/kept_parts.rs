//! Compressed prefixes over the routes, with the real engine and the embedded model.

use serde_json::{Value, json};

use super::{
    kept::{Server, TENANTS, tokens},
    with,
};

const PROMPT: &str = "/v1/prompts/x";

/// A completion of a prompt with this beginning, with log-probabilities.
fn completion(prompt: &[u32], kvik: Value) -> Value {
    let prompt = [prompt, &tokens(9, 20)].concat();
    json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "kvik": kvik})
}

/// Returns text and log-probabilities, which are equal only if the logits are.
fn said(answer: &Value) -> &Value {
    &answer["choices"][0]
}

#[tokio::test]
async fn a_part_is_kept_shown_changed_and_released() {
    let server = Server::new("");
    let prompt = tokens(1, 165);
    let put = async |retain: Value| {
        server.done("", "PUT", PROMPT, json!({"prompt": prompt, "retain": retain})).await
    };
    let made = put(json!("keydiff:0.25")).await;
    let retain = &made["retain"];
    assert_eq!((&retain["policy"], &retain["measured"]), (&json!("keydiff:0.25"), &json!(false)), "{made}");
    assert_eq!(
        (&made["tokens"], &retain["tokens"], &retain["share_kept"]),
        (&json!(165), &json!(160), &json!(0.25))
    );
    let (kept, dropped) =
        (retain["positions_kept"].as_u64().unwrap(), retain["positions_dropped"].as_u64().unwrap());
    assert_eq!(3 * kept, dropped);

    let shown = server.done("", "GET", PROMPT, Value::Null).await;
    let listed = server.done("", "GET", "/v1/prompts", Value::Null).await;
    for shown in [&shown, &listed["data"][0]] {
        assert_eq!(
            (&shown["retain"], &shown["cached"], &shown["pinned"]),
            (retain, &json!(true), &json!(true))
        );
        assert_eq!((&shown["tokens"], &shown["ram"]), (&json!(165), &json!(160)));
    }
    let pinned = server.app.serving.engine.stats().cache.pinned;
    assert!(pinned < 10, "{pinned} blocks; the exact prompt has 10");

    let again = put(json!({"policy": "keydiff", "keep": 0.25})).await;
    assert_eq!((&again["built"], &again["retain"]), (&json!(false), retain), "the same in other words");
    let changed = put(json!("keydiff:0.5")).await;
    assert_ne!(changed["sha256"], made["sha256"]);
    assert_eq!(changed["retain"]["share_kept"], 0.5);
    let whole = put(json!("none")).await;
    assert!(whole.get("retain").is_none(), "{whole}");
    server.has_pinned(10).await;
    put(json!("keydiff:0.25")).await;
    server.has_pinned(pinned).await;
    server.done("", "DELETE", PROMPT, Value::Null).await;
    server.has_pinned(0).await;
}

#[tokio::test]
async fn a_request_reads_the_part_that_it_names_and_others_the_exact_prompt() {
    let server = Server::new("");
    let prompt = tokens(1, 165);
    let alone =
        server.done("", "POST", "/v1/completions", completion(&prompt, json!({"cache": "private"}))).await;
    server.done("", "PUT", PROMPT, json!({"prompt": prompt, "retain": "keydiff:0.25"})).await;
    let reads = completion(&prompt, json!({"kept_prefix": "x"}));
    let first = server.done("", "POST", "/v1/completions", reads.clone()).await;
    let (retain, cache) = (&first["kvik"]["retain"], &first["kvik"]["cache"]);
    assert_eq!((&retain["policy"], &retain["share_kept"]), (&json!("keydiff:0.25"), &json!(0.25)), "{first}");
    assert_eq!(retain["measured"], false);
    assert_eq!((&cache["cached_tokens"], &cache["reason"]), (&json!(160), &json!("retained")), "{cache}");
    assert_ne!(said(&first), said(&alone), "three quarters of its prefix are dropped");

    for _ in 0..2 {
        let exact = server.done("", "POST", "/v1/completions", completion(&prompt, json!({}))).await;
        assert_eq!(said(&exact), said(&alone), "who does not ask reads all of it");
        assert!(exact["kvik"].get("retain").is_none());
        let again = server.done("", "POST", "/v1/completions", reads.clone()).await;
        assert_eq!(said(&again), said(&first));
    }
    let explained = server.done("", "POST", "/v1/cache/explain", reads).await;
    assert_eq!(explained["kvik"]["cache"]["cached_tokens"], 160, "{explained}");
    assert_eq!(explained["kvik"]["cache"]["reason"], "retained", "{explained}");
}

#[tokio::test]
async fn who_allows_any_part_reads_all_while_all_is_known() {
    let server = Server::new("");
    let prompt = tokens(1, 165);
    let plain = completion(&prompt, json!({}));
    let alone = server.done("", "POST", "/v1/completions", plain.clone()).await;
    let allowed = completion(&prompt, json!({"kept_prefix": true}));
    let exact = server.done("", "POST", "/v1/completions", allowed.clone()).await;
    assert_eq!((said(&exact), exact["kvik"].get("retain")), (said(&alone), None), "nothing was forgotten");
    server.done("", "PUT", PROMPT, json!({"prompt": prompt, "retain": "keydiff:0.25"})).await;
    server.done("", "DELETE", "/v1/cache", Value::Null).await;
    server.done("", "PUT", PROMPT, json!({"prompt": prompt, "retain": "keydiff:0.5"})).await;
    let known = server.done("", "POST", "/v1/completions", allowed).await;
    assert_eq!(said(&known), said(&alone), "the exact prompt is in the cache beside its part");
}

#[tokio::test]
async fn what_cannot_be_read_or_kept_names_its_field() {
    let server = Server::new(TENANTS);
    let prompt = tokens(1, 165);
    server.done("acme", "PUT", PROMPT, json!({"prompt": prompt, "retain": "keydiff:0.25"})).await;
    server.done("acme", "PUT", "/v1/prompts/whole", json!({"prompt": prompt})).await;
    let reads = async |key: &str, prompt: &[u32], kvik: Value, words: &str| {
        let (status, answer) = server.send(key, "POST", "/v1/completions", completion(prompt, kvik)).await;
        let (param, message) =
            (&answer["error"]["param"], answer["error"]["message"].as_str().unwrap_or_default());
        assert_eq!((status.as_u16(), param), (400, &json!("kvik.kept_prefix")), "{answer}");
        assert!(message.contains("kvik.kept_prefix") && message.contains(words), "{message}");
    };
    let mine = || json!({"kept_prefix": "x"});
    reads("acme", &prompt, json!({"kept_prefix": "y"}), "kvik prompt add y").await;
    reads("beta", &prompt, mine(), "no prompt is kept").await;
    reads("acme", &prompt, json!({"kept_prefix": "whole"}), "--retain").await;
    let mut other = prompt.clone();
    other[37] += 1;
    reads("acme", &other, mine(), "the first 37 agree, then the prompt differs").await;
    reads("acme", &[], mine(), "the first 0 agree").await;
    reads("acme", &prompt, json!({"kept_prefix": "x", "retain": "keydiff:0.5"}), "send one of them").await;
    reads("acme", &prompt, json!({"kept_prefix": "x", "cache": "private"}), "kvik.cache").await;

    for (fields, at) in [
        (json!({"retain": "nonsense"}), "retain.policy"),
        (json!({"retain": "keydiff:0"}), "retain.keep"),
        (json!({"retain": {"policy": "keydiff", "windows": 3}}), "retain.windows"),
        (json!({"retain": "keydiff:0.5,budget=calibrated"}), "retain.budget"),
        (json!({"retain": "auto"}), "retain.policy"),
        (json!({"retain": 5}), "retain"),
        (json!({"retain": "keydiff:0.5", "prompt": tokens(1, 15)}), "retain"),
        (json!({"retain": "keydiff:0.5", "public": true}), "public"),
    ] {
        let body = with(json!({"prompt": prompt}), fields);
        let (status, answer) = server.send("root", "PUT", "/v1/prompts/y", body.clone()).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(at)), "{body} {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(at), "{answer}");
    }
}

#[tokio::test]
async fn two_names_on_one_prompt_keep_what_each_says() {
    let server = Server::new("");
    let prompt = tokens(1, 100);
    for (name, retain) in [("a", "keydiff:0.5"), ("b", "keydiff:0.5"), ("c", "knorm:0.5"), ("d", "none")] {
        let body = json!({"prompt": prompt, "retain": retain});
        server.done("", "PUT", &format!("/v1/prompts/{name}"), body).await;
    }
    for (name, left) in [("a", vec!["b", "c", "d"]), ("d", vec!["b", "c"]), ("c", vec!["b"]), ("b", vec![])] {
        server.done("", "DELETE", &format!("/v1/prompts/{name}"), Value::Null).await;
        for other in left {
            let state = server.done("", "GET", &format!("/v1/prompts/{other}"), Value::Null).await;
            assert_eq!(
                (&state["cached"], &state["pinned"]),
                (&json!(true), &json!(true)),
                "{other}: {state}"
            );
        }
    }
    server.has_pinned(0).await;
}

/// A check without `retain` compares only the prompts.
#[tokio::test]
async fn a_check_says_whether_prompt_and_part_are_the_same() {
    let server = Server::new("");
    let prompt = tokens(1, 100);
    server.done("", "PUT", PROMPT, json!({"prompt": prompt, "retain": "keydiff:0.5"})).await;
    let check = async |fields: Value, changed: bool| {
        let body = with(json!({"prompt": prompt}), fields);
        let state = server.done("", "POST", "/v1/prompts/x/check", body).await;
        assert_eq!(state["changed"], changed, "{state}");
    };
    check(json!({}), false).await;
    check(json!({"retain": {"policy": "keydiff", "keep": 0.5}}), false).await;
    check(json!({"retain": "keydiff:0.25"}), true).await;
    check(json!({"retain": "none"}), true).await;
    check(json!({"prompt": tokens(2, 100)}), true).await;
}

#[tokio::test]
async fn shown_positions_are_those_that_are_counted() {
    let server = Server::new("");
    for policy in ["snapkv", "keydiff", "sinks"] {
        let retain = json!({"policy": policy, "keep": 0.25, "show": true});
        let answer = server
            .done("", "POST", "/v1/completions", completion(&tokens(1, 200), json!({"retain": retain})))
            .await;
        let retain = &answer["kvik"]["retain"];
        let positions = &retain["positions"];
        let heads: Vec<Vec<(u64, u64)>> = serde_json::from_value(positions["kept"].clone()).unwrap();
        let count = |name: &str| positions[name].as_u64().unwrap();
        assert_eq!(
            (heads.len() as u64, &positions["tokens"]),
            (count("layers") * count("heads"), &retain["tokens"])
        );
        let lengths = heads.iter().map(|head| head.iter().map(|(from, to)| to - from).sum::<u64>());
        assert_eq!(lengths.clone().sum::<u64>(), retain["positions_kept"].as_u64().unwrap(), "{policy}");
        assert_eq!(lengths.clone().min(), retain["smallest_head"].as_u64());
        assert_eq!(lengths.max(), retain["largest_head"].as_u64());
        for head in heads {
            assert!(head.iter().all(|(from, to)| from < to && *to <= count("tokens")), "{policy}: {head:?}");
            assert!(
                head.windows(2).all(|pair| pair[0].1 < pair[1].0),
                "{policy}: ascending and apart: {head:?}"
            );
        }
    }
}

/// The time of compression does not affect a prefix: settings that differ only in it are recognised, shared
/// and released.
#[tokio::test]
async fn a_part_is_kept_and_released_whatever_it_says_of_when() {
    let server = Server::new("");
    let prompt = tokens(1, 165);
    let body = json!({"prompt": prompt, "retain": "knorm:0.3,order=large,when=either"});
    server.done("", "PUT", "/v1/prompts/m", body.clone()).await;
    let shown = server.done("", "GET", "/v1/prompts/m", Value::Null).await;
    assert_eq!((&shown["cached"], &shown["pinned"]), (&json!(true), &json!(true)), "{shown}");
    let again = server.done("", "PUT", "/v1/prompts/m", body).await;
    assert_eq!(again["built"], false, "{again}");
    let plain = json!({"prompt": prompt, "retain": "knorm:0.3,order=large"});
    assert_eq!(server.done("", "PUT", "/v1/prompts/n", plain).await["built"], false, "the same part");
    server.done("", "DELETE", "/v1/prompts/m", Value::Null).await;
    let shown = server.done("", "GET", "/v1/prompts/n", Value::Null).await;
    assert_eq!(shown["pinned"], true, "another name keeps it: {shown}");
    server.done("", "DELETE", "/v1/prompts/n", Value::Null).await;
    server.has_pinned(0).await;
}
