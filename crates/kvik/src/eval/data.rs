//! A user's own cases: one JSON object a line, with messages and the texts that the answer must contain.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use super::score::Expected;
use super::written::{Question, WrittenCase, content};

/// Default maximum tokens of an answer.
const LIMIT: usize = 64;
/// Upper limit of the maximum tokens of an answer.
const LIMIT_MAX: usize = 4096;
/// Tokens that count as the question of a single-message case that does not mark where its question begins.
const QUESTION_TOKENS: usize = 32;

/// A line of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataCase {
    /// Messages in OpenAI's shape.
    messages: Vec<Value>,
    /// Texts that the answer must contain.
    contains: Texts,
    /// The text in the last message at which the question begins.
    #[serde(default)]
    question: Option<String>,
    /// Maximum tokens of the answer.
    #[serde(default)]
    max_tokens: Option<usize>,
    /// Group of cases that are also counted together.
    #[serde(default)]
    group: String,
}

/// A text or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
}

/// The cases of a file.
///
/// # Errors
/// If it cannot be read or a line is not a valid case: names the line and the field.
pub(crate) fn cases(path: &Path) -> anyhow::Result<Vec<WrittenCase>> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("--data: {} cannot be read; it must be UTF-8", path.display()))?;
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let cases: anyhow::Result<Vec<WrittenCase>> = lines
        .map(|(line, number)| {
            case(line).with_context(|| format!("--data: line {number} of {}", path.display()))
        })
        .collect();
    let cases = cases?;
    anyhow::ensure!(!cases.is_empty(), "--data: {} has no cases", path.display());
    Ok(cases)
}

/// The case of a line.
fn case(line: &str) -> anyhow::Result<WrittenCase> {
    let case: DataCase = serde_json::from_str(line)?;
    let texts = match case.contains {
        Texts::One(text) => vec![text],
        Texts::Several(texts) => texts,
    };
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        bail!("`contains` must be a text, or a list of texts, and none may be empty");
    }
    let limit = case.max_tokens.unwrap_or(LIMIT);
    anyhow::ensure!((1..=LIMIT_MAX).contains(&limit), "`max_tokens` must be between 1 and {LIMIT_MAX}");
    check(&case.messages)?;
    let question = question(&case.messages, case.question)?;
    let (expected, lead, group) = (Expected::Contains(texts), String::new(), case.group);
    Ok(WrittenCase { messages: case.messages, question, thinking: Some(false), lead, expected, limit, group })
}

/// Checks that messages have text contents, and that the last is the user's.
fn check(messages: &[Value]) -> anyhow::Result<()> {
    for (message, index) in messages.iter().zip(0..) {
        let role = message["role"].as_str().unwrap_or_default();
        if !["system", "user", "assistant"].contains(&role) {
            bail!("`messages[{index}].role` must be system, user or assistant");
        }
        if content(message).is_empty() {
            bail!("`messages[{index}].content` must be a text that is not empty");
        }
    }
    match messages.last() {
        Some(last) if last["role"] == "user" => Ok(()),
        Some(_) => bail!("the last of `messages` must be of the user"),
        None => bail!("`messages` must not be empty"),
    }
}

/// The position at which the question of a case begins.
fn question(messages: &[Value], text: Option<String>) -> anyhow::Result<Question> {
    match text {
        Some(text) => {
            let last = messages.last().map_or("", content);
            anyhow::ensure!(
                !text.is_empty() && last.contains(&text),
                "`question` must be a text of the last message: the question begins there"
            );
            Ok(Question::From(text))
        }
        None if messages.len() > 1 => Ok(Question::LastMessage),
        None => Ok(Question::LastTokens(QUESTION_TOKENS)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(text: &str) -> anyhow::Result<Vec<WrittenCase>> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        cases(file.path())
    }

    const MESSAGES: &str = r#""messages": [{"role": "user", "content": "The key is 5. What is the key?"}]"#;

    #[test]
    fn cases_are_read() {
        let line = format!(r#"{{{MESSAGES}, "contains": "5", "question": "What is", "max_tokens": 7}}"#);
        let cases = read(&format!("\n{line}\n{{{MESSAGES}, \"contains\": [\"5\", \"key\"]}}\n")).unwrap();
        assert_eq!(cases[0].question, Question::From("What is".to_owned()));
        assert_eq!((cases[0].limit, cases[1].limit), (7, LIMIT));
        assert_eq!(cases[1].expected, Expected::Contains(vec!["5".to_owned(), "key".to_owned()]));
    }

    #[test]
    fn a_bad_line_is_named_with_its_field() {
        let check = |line: &str, said: &[&str]| {
            let error = format!("{:#}", read(&format!("\n{line}\n")).unwrap_err());
            for part in said.iter().chain(&["--data"]) {
                assert!(error.contains(part), "{line}: {error}");
            }
        };
        check("{", &["line 2"]);
        check("", &["no cases"]);
        check(&format!("{{{MESSAGES}}}"), &["line 2", "contains"]);
        check(&format!(r#"{{{MESSAGES}, "contains": []}}"#), &["`contains`"]);
        check(&format!(r#"{{{MESSAGES}, "contains": "5", "contain": 1}}"#), &["contain"]);
        check(&format!(r#"{{{MESSAGES}, "contains": "5", "question": "Who"}}"#), &["`question`"]);
        check(&format!(r#"{{{MESSAGES}, "contains": "5", "max_tokens": 0}}"#), &["`max_tokens`"]);
        check(r#"{"messages": [], "contains": "5"}"#, &["`messages`"]);
        check(r#"{"messages": [{"role": "robot", "content": "a"}], "contains": "5"}"#, &["messages[0].role"]);
        check(r#"{"messages": [{"role": "user", "content": 5}], "contains": "5"}"#, &["messages[0].content"]);
        check(r#"{"messages": [{"role": "system", "content": "a"}], "contains": "5"}"#, &["of the user"]);
    }
}
