//! Answers beside those of the processor.

use kvik_engine::api::Request;
use kvik_kernels::KvFormat;
use kvik_testing::tiny_model;

use super::{World, greedy, has_device, ids, on_device, on_processor, opened, prompts};

/// Tokens of an answer.
const ANSWER: usize = 12;
const BLOCKS: usize = 512;
/// What two tokens may be apart, in logits, that a device and the processor choose differently between.
const TOLERANCE: f32 = 2e-3;

#[test]
fn greedy_answers_are_those_of_the_processor() {
    if !has_device() {
        return;
    }
    let count = kvik_testing::effort(8, 200);
    let requests: Vec<Request> = prompts(count, 6).iter().map(|prompt| greedy(prompt, ANSWER)).collect();
    let mut device =
        World::new(on_device(opened(&tiny_model()), KvFormat::F16, BLOCKS), KvFormat::F16, BLOCKS);
    let found = device.answers(&requests);
    // It says how likely others were.
    let told: Vec<Request> =
        requests.iter().map(|request| Request { logprobs: Some(8), ..request.clone() }).collect();
    let processor = on_processor(opened(&tiny_model()), KvFormat::F16, BLOCKS);
    let expected = World::new(processor, KvFormat::F16, BLOCKS).answers(&told);
    let mut equal = 0;
    for ((found, _), (expected, _)) in found.iter().zip(&expected) {
        assert_eq!(found.len(), ANSWER);
        // Where two tokens are as likely as rounding can tell, either answer is right, and they part.
        let Some(at) = (0..ANSWER).find(|&at| found[at].token != expected[at].token) else {
            equal += 1;
            continue;
        };
        let (chosen, likeliest) = expected[at].logprob.as_ref().unwrap();
        let other = likeliest.iter().find(|other| other.token == found[at].token);
        let apart = other.map(|other| chosen.logprob - other.logprob);
        assert!(apart.is_some_and(|apart| apart <= TOLERANCE), "{:?}: {apart:?}", ids(found));
    }
    println!("{equal} of {count} answers of {ANSWER} tokens are equal");
    assert!(equal * 100 >= count * 99, "{equal} of {count}");
}
