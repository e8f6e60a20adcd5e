//! Tasks of facts told in a conversation: one is asked at growing distance, or all are to be listed.

use serde_json::Value;

use super::words::{NAMES, SECRETS, small_talk};
use super::{Filler, scatter};
use crate::eval::draws::Draws;
use crate::eval::score::Expected;
use crate::eval::written::{Question, WrittenCase, message};

/// Kinds of facts about a person, and whether the value is a number rather than a word.
const THINGS: [(&str, bool); 8] = [
    ("gate code", true),
    ("locker code", true),
    ("safe code", true),
    ("room number", true),
    ("order number", true),
    ("project name", false),
    ("team name", false),
    ("secret word", false),
];

/// Number of distances, as fractions of a case's length.
const DISTANCES: usize = 5;
/// Facts in a conversation.
const FACTS: usize = 5;
/// The last turn of a conversation to summarise: its tokens, which count as the question, reveal no facts.
const CLOSING: (&str, &str) = ("That is all for today.", "Thank you, see you tomorrow.");
/// Tokens at the end of a conversation to summarise that count as the question.
const SUMMARY_QUESTION_TOKENS: usize = 8;

/// A fact about a person.
struct Fact {
    statement: String,
    question: String,
    /// The beginning of an answer.
    lead: String,
    value: String,
}

/// A fact among other facts and small talk, farther back with each case.
pub(super) fn recall(draws: &mut Draws, filler: &mut Filler<'_, '_>, number: usize) -> WrittenCase {
    let facts = facts(draws);
    let mut turns = filler.pieces(|| {
        let (user, assistant) = small_talk(draws);
        (turn(&user, assistant), user + assistant)
    });
    let part = number % DISTANCES;
    let asked = turns.len() * (DISTANCES - 1 - part) / DISTANCES;
    let (first, others) = facts.split_first().expect("there are some facts");
    for Fact { statement, .. } in others {
        // The other facts are at random positions, so the asked one cannot be inferred from its position.
        turns.insert(draws.below(turns.len() + 1), turn(statement, "Noted."));
    }
    turns.insert(asked.min(turns.len()), turn(&first.statement, "Noted."));
    let mut messages = vec![message("system", "You are a helpful assistant.")];
    messages.extend(turns.into_iter().flatten());
    messages.push(message("user", &first.question));
    WrittenCase {
        messages,
        question: Question::LastMessage,
        thinking: Some(false),
        lead: first.lead.clone(),
        expected: Expected::Contains(vec![first.value.clone()]),
        limit: 40,
        group: format!("{}% back", (part * 2 + 1) * 100 / (DISTANCES * 2)),
    }
}

/// Facts with different owners and values.
fn facts(draws: &mut Draws) -> Vec<Fact> {
    let (numbers, words) = (draws.numbers(5, FACTS), draws.sample(&SECRETS, FACTS));
    let owners = draws.sample(&NAMES, FACTS);
    let facts = owners.iter().zip(numbers).zip(words).map(|((owner, number), word)| {
        let (thing, is_number) = draws.pick(&THINGS);
        let value = if *is_number { number } else { (*word).to_owned() };
        let subject = format!("{owner}'s {thing}");
        Fact {
            statement: format!("Please remember that {subject} is {value}."),
            question: format!("What is {subject}?"),
            lead: format!("{subject} is"),
            value,
        }
    });
    facts.collect()
}

/// A conversation, and the request for a line of all facts in it.
pub(super) fn summary(draws: &mut Draws, filler: &mut Filler<'_, '_>, _: usize) -> WrittenCase {
    let facts = facts(draws);
    let line = |(user, assistant): (&str, &str)| format!("User: {user}\nAssistant: {assistant}");
    let turns = filler.pieces(|| {
        let (user, assistant) = small_talk(draws);
        let line = line((&user, assistant));
        (line.clone(), format!("\n{line}"))
    });
    let statements = facts.iter().map(|fact| line((&fact.statement, "Noted."))).collect();
    let text = scatter(draws, turns, statements).join("\n");
    let text = format!("Summarise this conversation:\n{text}\n{}", line(CLOSING));
    let expected = Expected::Contains(facts.into_iter().map(|fact| fact.value).collect());
    let mut summary = WrittenCase::single(text, "", expected, 160).lead("Facts:".to_owned());
    summary.messages.insert(0, message("system", "You compress conversations into a line of facts."));
    summary.question = Question::LastTokens(SUMMARY_QUESTION_TOKENS);
    summary
}

fn turn(user: &str, assistant: &str) -> Vec<Value> {
    vec![message("user", user), message("assistant", assistant)]
}
