use std::{fs, path::Path, time::Instant};

use super::{
    fields::Bodies,
    mutate::{Random, Vocabulary, mutate},
    *,
};

/// Mutants that `cargo test` sends; `KVIK_FUZZ_INPUTS` sends more and `KVIK_FUZZ_SEED` others.
const INPUTS: usize = 600;
const SEED: usize = 7;
/// One input may take no longer, on a machine that does other things as well.
const INPUT_MAX: Duration = Duration::from_secs(20);
/// The process, with what the tests beside this one take.
const MEMORY_KIB_MAX: u64 = 2 << 20;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/http_body");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let parts = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let (head, body) = text.split_once('\n').unwrap();
        (head.to_owned(), body.as_bytes().to_vec())
    };
    paths.iter().map(parts).collect()
}

fn input(head: &str, body: &[u8]) -> Vec<u8> {
    [head.as_bytes(), b"\n", body].concat()
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Seeds that are refused would exercise nothing but refusals.
#[test]
fn every_seed_is_answered() {
    let server = Server::shared();
    for name in ["notes", "text"] {
        let body = br#"{"prompt": "You sort notes, and you are quick."}"#;
        server.send(Method::PUT, &format!("/v1/prompts/{name}"), body);
    }
    for (head, body) in corpus() {
        let (method, path) = head.split_once(' ').unwrap();
        let answer = server.send(Method::from_bytes(method.as_bytes()).unwrap(), path, &body);
        let (status, _, text) = answer.unwrap_or_else(|| panic!("{head} has no answer"));
        // Other tests of this process delete what this one has kept.
        let gone = head.contains("/v1/prompts/") && status == StatusCode::NOT_FOUND;
        assert!(status.is_success() || gone, "{head}: {status} {}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn mutated_bodies_are_answered() {
    let corpus = corpus();
    let vocabulary = Vocabulary::of(corpus.iter().map(|(_, body)| body.as_slice()));
    let bodies: Vec<_> = corpus.iter().filter(|(_, body)| !body.is_empty()).collect();
    let seed = setting("KVIK_FUZZ_SEED", SEED);
    let mut random = Random::new(seed as u64);
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..setting("KVIK_FUZZ_INPUTS", INPUTS) {
        let (head, body) = bodies[number % bodies.len()];
        // One in eight goes to a route that it was not made for.
        let head = if random.below(8) == 0 { &bodies[random.below(bodies.len())].0 } else { head };
        let mutant = input(head, &mutate(body, &vocabulary, &mut random));
        let start = Instant::now();
        let outcome = std::panic::catch_unwind(|| answer_to(&mutant));
        let took = start.elapsed();
        let shown = String::from_utf8_lossy(&mutant[..mutant.len().min(2000)]).into_owned();
        let status = outcome.unwrap_or_else(|_| panic!("input {number} of seed {seed} failed: {shown}"));
        assert!(took < INPUT_MAX, "input {number} of seed {seed} took {took:?}: {shown}");
        let used = peak_kib();
        assert!(
            used < MEMORY_KIB_MAX,
            "after input {number} of seed {seed} {} MiB are used: {shown}",
            used >> 10
        );
        accepted += usize::from(status.is_some_and(|status| status.is_success()));
        refused += usize::from(status.is_some_and(|status| status.is_client_error()));
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 0 && refused > 0, "{accepted} were accepted and {refused} refused");
}

/// Bodies of every route, made from what the document says of them: any field may be nested, huge, or of another kind.
#[test]
fn bodies_with_any_value_in_any_field_are_answered() {
    let (bodies, seed, server) = (Bodies::new(), setting("KVIK_FUZZ_SEED", SEED), Server::shared());
    let (routes, mut random) = (bodies.routes(), Random::new(seed as u64));
    assert!(routes.len() > 20, "{} routes", routes.len());
    let (mut accepted, mut slowest) = (0, (Duration::ZERO, String::new()));
    for number in 0..setting("KVIK_FUZZ_BODIES", kvik_testing::effort(60, 400)) * routes.len() {
        let (head, schema) = &routes[number % routes.len()];
        let body = bodies.text(schema, &mut random, 0);
        let (start, shown) = (Instant::now(), || format!("{head} {}", &body[..body.len().min(2000)]));
        let (method, path) = head.split_once(' ').unwrap();
        let answer = server.send(Method::from_bytes(method.as_bytes()).unwrap(), path, body.as_bytes());
        if let Some((status, _, text)) = answer {
            let failed = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
            let text = String::from_utf8_lossy(&text);
            assert!(!failed, "body {number} of seed {seed}: {status} {text} to {}", shown());
            accepted += usize::from(status.is_success());
        }
        slowest = slowest.max((start.elapsed(), shown()));
        assert!(slowest.0 < INPUT_MAX, "body {number} of seed {seed} took {slowest:?}");
    }
    println!("{accepted} accepted, the slowest took {:?}: {:.300}", slowest.0, slowest.1);
    assert!(accepted > 0);
}
