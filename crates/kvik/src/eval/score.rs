//! The expected content of an answer, and its score.

use std::collections::BTreeMap;

use serde_json::Value;

/// The expected content of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expected {
    /// Contains these texts, ignoring case.
    Contains(Vec<String>),
    /// Contains these as whole words, ignoring case.
    Words(Vec<String>),
    /// Contains any of these as a whole word: a number in digits or in letters.
    OneOf(Vec<String>),
    /// Is a JSON text of this value.
    Json(Value),
    /// Is a line `Facts: key = value; key = value` with these pairs.
    Facts(BTreeMap<String, String>),
}

impl Expected {
    /// The maximum score of an answer.
    pub(crate) fn weight(&self) -> f64 {
        match self {
            Expected::Facts(facts) => facts.len() as f64,
            _ => 1.0,
        }
    }

    /// The share of the maximum score that an answer reaches.
    pub(crate) fn score(&self, answer: &str) -> f64 {
        match self {
            Expected::Contains(texts) => share(texts, |text| contains(answer, text)),
            Expected::Words(words) => share(words, |word| contains_word(answer, word)),
            Expected::OneOf(words) => f64::from(words.iter().any(|word| contains_word(answer, word))),
            Expected::Json(value) => {
                f64::from(serde_json::from_str::<Value>(answer).is_ok_and(|given| given == *value))
            }
            Expected::Facts(facts) => {
                let given = facts_of(answer);
                share(facts, |(key, value)| given.get(&key[..]) == Some(&&value[..]))
            }
        }
    }

    /// The texts that an answer must contain.
    #[cfg(test)]
    pub(crate) fn texts(&self) -> Vec<&str> {
        match self {
            Expected::Contains(texts) | Expected::Words(texts) => texts.iter().map(String::as_str).collect(),
            Expected::OneOf(texts) => texts.iter().take(1).map(String::as_str).collect(),
            Expected::Json(_) => Vec::new(),
            Expected::Facts(facts) => facts.values().map(String::as_str).collect(),
        }
    }
}

/// The share of `items` that are right; 0 without any.
fn share<I: IntoIterator>(items: I, right: impl Fn(I::Item) -> bool) -> f64 {
    let (mut all, mut found) = (0, 0);
    for item in items {
        all += 1;
        found += usize::from(right(item));
    }
    if all == 0 { 0.0 } else { f64::from(found as u32) / f64::from(all) }
}

fn contains(answer: &str, text: &str) -> bool {
    answer.to_lowercase().contains(&text.to_lowercase())
}

/// Whether `word` occurs in `answer` with no letter or digit on either side.
fn contains_word(answer: &str, word: &str) -> bool {
    let (answer, word) = (answer.to_lowercase(), word.to_lowercase());
    answer.match_indices(&word).any(|(at, found)| {
        let before = answer[..at].chars().next_back();
        let after = answer[at + found.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

/// The pairs of a line of facts; of a duplicate key, the last.
fn facts_of(line: &str) -> BTreeMap<&str, &str> {
    let line = line.strip_prefix("Facts: ").unwrap_or(line);
    line.split("; ").filter_map(|pair| pair.split_once(" = ")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn answers_are_scored() {
        let check = |expected: Expected, answer: &str, score: f64| {
            assert_eq!(expected.score(answer), score, "{expected:?} {answer:?}");
        };
        check(Expected::Contains(texts(&["Cork"])), "You go to CORK.", 1.0);
        check(Expected::Contains(texts(&["56848"])), "The pass key is 5684.", 0.0);
        check(Expected::Contains(texts(&["a1", "b2"])), "only b2", 0.5);
        check(Expected::Words(texts(&["5"])), "15 of them", 0.0);
        check(Expected::Words(texts(&["5"])), "It is 5.", 1.0);
        check(Expected::Words(texts(&["5"])), "15, no: 5", 1.0);
        check(Expected::Words(texts(&["\u{e9}t\u{e9}"])), "\u{c9}t\u{c9}\u{e9}", 0.0);
        check(Expected::OneOf(texts(&["7", "seven"])), "Seven times.", 1.0);
        check(Expected::OneOf(texts(&["7", "seven"])), "seventy", 0.0);
        check(
            Expected::Json(json!({"folder": "Top", "priority": 1})),
            "{\"priority\": 1, \"folder\":\"Top\"}\n",
            1.0,
        );
        check(Expected::Json(json!({"folder": "Top"})), "{\"folder\": \"Top\"} and more", 0.0);
        let facts =
            [("dog", "Bolt"), ("home", "Oslo")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let facts = Expected::Facts(facts.into());
        assert_eq!(facts.weight(), 2.0);
        check(facts.clone(), "Facts: dog = Bolt; home = Oslo", 1.0);
        check(facts.clone(), "Facts: dog = Bolt; home = Rome", 0.5);
        check(facts, "nothing", 0.0);
    }
}
