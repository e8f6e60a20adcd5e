//! Answers that come back as text within later prompts have the tokens that were generated.

use crate::common::options;
use kvik_library::{AnswerOptions, Message, Model, Options, Report, SamplingOptions};

const QUESTIONS: [&str; 6] = [
    "Who lives by the river?",
    "Tell me of a small stone.",
    "What did the letter say?",
    "And then?",
    "How was the winter?",
    "Is it over now?",
];

/// A conversation sampled at temperature 1, with all that can be drawn.
fn talk(model: &Model) -> (Vec<Message>, Vec<Report>) {
    let sampling = SamplingOptions {
        temperature: Some(1.0),
        top_k: Some(0),
        top_p: Some(1.0),
        min_p: Some(0.0),
        ..SamplingOptions::NONE
    };
    let (mut messages, mut reports) = (Vec::new(), Vec::new());
    for (seed, question) in QUESTIONS.iter().enumerate() {
        messages.push(Message::user(*question));
        let options =
            AnswerOptions { sampling, seed: Some(seed as u64), ..AnswerOptions::RECOMMENDED.at_most(48) };
        let (said, report) = model.chat(&messages, &options).unwrap().finish().unwrap();
        messages.push(Message::assistant(said));
        reports.push(report);
    }
    (messages, reports)
}

/// Tokens of questions and answers that had been computed and were computed again, in all turns together.
fn lost(reports: &[Report]) -> usize {
    let pairs = reports.iter().zip(&reports[1..]);
    // The last token of an answer is never computed.
    pairs
        .map(|(turn, next)| {
            (turn.prompt_tokens + turn.generated_tokens - 1).saturating_sub(next.cached_tokens)
        })
        .sum()
}

#[test]
fn nothing_of_an_answer_is_computed_again() {
    let (messages, reports) = talk(&Model::open(options()).unwrap());
    assert_eq!(lost(&reports), 0, "{messages:?} {reports:?}");
    assert!(reports.last().unwrap().retokenised > 0);
    let (_, reports) = talk(&Model::open(Options { retokenise: false, ..options() }).unwrap());
    assert!(lost(&reports) > 0, "a tokenizer chooses as the model did: {reports:?}");
    assert!(reports.iter().all(|report| report.retokenised == 0));
}

#[test]
fn answers_are_known_after_a_restart_with_the_same_cache() {
    let dir = tempfile::tempdir().unwrap();
    let opened = || Model::open(options().with_disk(dir.path())).unwrap();
    let ask = |model: &Model, messages: &[Message]| {
        let (_, report) = model.chat(messages, &AnswerOptions::GREEDY.at_most(1)).unwrap().finish().unwrap();
        (report.prompt_tokens, report.retokenised)
    };
    let model = opened();
    let (mut messages, _) = talk(&model);
    messages.push(Message::user("Good night."));
    let expect = ask(&model, &messages);
    assert!(expect.1 > 0);
    drop(model);
    assert_eq!(ask(&opened(), &messages), expect);
    assert_eq!(ask(&Model::open(options()).unwrap(), &messages).1, 0, "without the cache nobody knows");
}
