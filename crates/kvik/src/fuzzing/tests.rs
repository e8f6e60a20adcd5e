use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use kvik_testing::{
    effort,
    fuzz::{self, Campaign, Random},
};

use super::{
    fields::Bodies,
    mutate::{Vocabulary, mutate},
    *,
};
use crate::command::example::{self, Shows};

/// Maximum duration of one input, on a busy machine.
const INPUT_MAX: Duration = Duration::from_secs(20);
/// A body that takes longer twice is a hang.
const HANG: Duration = Duration::from_secs(2);

/// The line with the method and the path of an input, and its body.
fn parts(input: &[u8]) -> (&str, &[u8]) {
    let end = input.iter().position(|&byte| byte == b'\n').expect("a line stands before the body");
    (std::str::from_utf8(&input[..end]).unwrap(), &input[end + 1..])
}

fn input(head: &str, body: &[u8]) -> Vec<u8> {
    [head.as_bytes(), b"\n", body].concat()
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The requests that `kvik serve` prints as examples.
#[test]
fn examples_are_answered() {
    for shows in [Shows::Completion, Shows::Chat, Shows::Triage] {
        let mut body = example::body("kvik", shows);
        body["max_tokens"] = 4.into();
        let input = input(&format!("POST {}", shows.path()), body.to_string().as_bytes());
        assert_eq!(answer_to(&input), Some(StatusCode::OK), "{shows:?}");
    }
    let completion = example::curl("http://h:1", "base", Shows::Completion, false);
    assert!(completion.starts_with("curl -s http://h:1/v1/completions "), "{completion}");
}

/// Refused seeds would exercise only refusals; seeds of attacks must be refused without further effect.
#[test]
fn every_seed_is_answered() {
    let server = Server::shared();
    for name in ["notes", "text"] {
        let body = br#"{"prompt": "You sort notes, and you are quick."}"#;
        server.send(Method::PUT, &format!("/v1/prompts/{name}"), body);
    }
    for seed in fuzz::corpus("http_body").unwrap() {
        let (head, body) = parts(&seed);
        let (method, path) = head.split_once(' ').unwrap();
        let answer = server.send(Method::from_bytes(method.as_bytes()).unwrap(), path, body);
        let (status, _, text) = answer.unwrap_or_else(|| panic!("{head} has no answer"));
        // Other tests of this process delete prompts that this one has pinned.
        let gone = head.contains("/v1/prompts/") && status == StatusCode::NOT_FOUND;
        let served = status.is_success() || status == StatusCode::NOT_IMPLEMENTED;
        assert!(served || gone, "{head}: {status} {}", String::from_utf8_lossy(&text));
    }
    for attack in fuzz::corpus("http_attacks").unwrap() {
        let status = answer_to(&attack).unwrap_or_else(|| panic!("{} has no answer", parts(&attack).0));
        assert!(status.is_client_error(), "{}: {status}", parts(&attack).0);
    }
}

#[test]
fn mutated_bodies_are_answered() {
    let mut seeds = fuzz::corpus("http_body").unwrap();
    seeds.extend(fuzz::corpus("http_attacks").unwrap());
    let vocabulary = Vocabulary::of(seeds.iter().map(|seed| parts(seed).1));
    seeds.retain(|seed| !parts(seed).1.is_empty());
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let send = |input: &[u8]| {
        let status = answer_to(input);
        accepted.set(accepted.get() + usize::from(status.is_some_and(|status| status.is_success())));
        refused.set(refused.get() + usize::from(status.is_some_and(|status| status.is_client_error())));
    };
    let change = |one: &[u8], other: &[u8], random: &mut Random| {
        let (head, body) = parts(one);
        // One in eight goes to a route that it was not made for.
        let head = if random.below(8) == 0 { parts(other).0 } else { head };
        input(head, &mutate(body, &vocabulary, random))
    };
    let campaign = Campaign {
        name: "http_body",
        target: &send,
        corpus: seeds,
        mutate: &change,
        input_max: INPUT_MAX,
        duration: effort(Duration::from_secs(6), Duration::from_secs(60)),
    };
    campaign.run();
    let (accepted, refused) = (accepted.get(), refused.get());
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 0 && refused > 0, "{accepted} were accepted and {refused} refused");
}

/// Bodies of every route, generated from the OpenAPI document: any field may be nested, huge, or of another type.
/// `KVIK_FUZZ_BODIES` is the number for each dialect (10,000 to qualify a release), and `FUZZ_SEED` selects others.
#[test]
fn bodies_with_any_value_in_any_field_are_answered() {
    let (bodies, seed, server) = (Bodies::new(), setting("FUZZ_SEED", 7), Server::shared());
    let mut random = Random::new(seed as u64);
    let many = setting("KVIK_FUZZ_BODIES", effort(440, 10_000));
    let mut accepted_of_all = 0;
    for (dialect, routes) in bodies.dialects() {
        let (mut accepted, mut slowest) = (0, (Duration::ZERO, String::new()));
        for number in 0..many {
            let (head, schema) = &routes[number % routes.len()];
            let body = bodies.text(schema, &mut random, 0);
            let shown = || format!("body {number} of seed {seed}: {head} {}", &body[..body.len().min(2000)]);
            let (mut took, mut status) = timed(server, head, &body, &shown);
            if took > HANG {
                // The machine may have been busy.
                (took, status) = timed(server, head, &body, &shown);
                assert!(took <= HANG, "{took:?}, twice, for {}", shown());
            }
            accepted += usize::from(status.is_some_and(|status| status.is_success()));
            slowest = slowest.max((took, shown()));
        }
        println!("{dialect}: {accepted} of {many} accepted, {:?} at most: {:.200}", slowest.0, slowest.1);
        accepted_of_all += accepted;
    }
    assert!(
        accepted_of_all > many / 4,
        "{accepted_of_all} were accepted: hardly anything but refusals was tried"
    );
}

/// The duration and the status of an answer, which must not be an internal error. If the answer did not arrive in time,
/// the duration of another client's request instead.
fn timed(
    server: &Server,
    head: &str,
    body: &str,
    shown: &dyn Fn() -> String,
) -> (Duration, Option<StatusCode>) {
    let start = Instant::now();
    let (method, path) = head.split_once(' ').unwrap();
    let answer = server.send(Method::from_bytes(method.as_bytes()).unwrap(), path, body.as_bytes());
    let Some((status, _, text)) = answer else {
        let start = Instant::now();
        server.answer_another(&shown());
        return (start.elapsed(), None);
    };
    let failed = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
    assert!(!failed, "{status} {} to {}", String::from_utf8_lossy(&text), shown());
    (start.elapsed(), Some(status))
}
