//! The words that a summary is asked for and told with: a file per language, or per model that knows only some.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use kvik_text::files::small::{SETTINGS_BYTES_MAX, read_small_text};

use crate::context::chain::text_of;
use serde::Deserialize;
use serde_json::{Value, json};

/// Words of one language.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    /// Models that know no others.
    #[serde(default)]
    models: Vec<String>,
    /// The system message of whoever writes a summary.
    system: String,
    /// What it is asked where there is no summary yet; `{conversation}` stands for what was said.
    fresh: String,
    /// What it is asked where there is one, `{summary}`.
    merge: String,
    /// What stands before what each role says.
    user: String,
    assistant: String,
    tool: String,
    /// What the user asks for a summary at the end of the conversation itself, whose beginning is computed already; where
    /// it is absent, what was said is always told in a request of its own.
    pub in_place: Option<String>,
    /// A system message, `{system}`, with a summary.
    told: String,
    /// The same where the conversation has no system message.
    told_alone: String,
    /// A question, `{question}`, with `{quotes}` of what was said before; where it is absent they stand before the
    /// question as they were said.
    quoted: Option<String>,
}

/// Which words are used: those of the user's file, those of a model that knows no others, or those of the language that is
/// spoken.
#[derive(Debug, Clone)]
pub struct Wording {
    fixed: Option<Arc<Words>>,
}

/// Why a file of words cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WordsError {
    /// It cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// It is not what it should be.
    #[error("{}: {error}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong where.
        error: Box<toml::de::Error>,
    },
    /// Words do not say where something belongs.
    #[error("{}: `{field}` must name {placeholder}", path.display())]
    Placeholder {
        /// The file.
        path: PathBuf,
        /// Which words.
        field: &'static str,
        /// What stands for it.
        placeholder: &'static str,
    },
}

/// Messages whose language is that of a conversation.
const LATEST: usize = 4;

/// The files that are built in; the first is for languages without one.
const FILES: [&str; 3] =
    [include_str!("words/en.toml"), include_str!("words/zh.toml"), include_str!("words/kvik-tiny.toml")];

static BUILT_IN: LazyLock<[Arc<Words>; FILES.len()]> =
    LazyLock::new(|| FILES.map(|text| Arc::new(toml::from_str(text).expect("a test reads all files"))));

impl Wording {
    /// The words of the user's file where there is one, else the built-in ones for a model.
    pub fn new(own: Option<Words>, model: &str) -> Wording {
        let [_, _, tiny] = &*BUILT_IN;
        let known = || tiny.models.iter().any(|known| known == model).then(|| tiny.clone());
        Wording { fixed: own.map(Arc::new).or_else(known) }
    }

    /// The words that a summary is told with. They follow from the summary alone: a conversation that changes its language
    /// behind it begins as before, so that what is computed of it stays of use.
    pub fn telling(&self, summary: &str) -> &Words {
        self.of(summary)
    }

    /// The words that messages are asked about with: those of their last language.
    pub fn asking(&self, messages: &[Value]) -> &Words {
        self.of(&messages.iter().rev().take(LATEST).map(text_of).collect::<String>())
    }

    fn of(&self, text: &str) -> &Words {
        let [english, chinese, _] = &*BUILT_IN;
        self.fixed.as_ref().unwrap_or(if is_chinese(text) { chinese } else { english })
    }
}

impl Words {
    /// The words of a file of the user's.
    pub fn read(path: &Path) -> Result<Words, WordsError> {
        let path = path.to_owned();
        let text = match read_small_text(&path, SETTINGS_BYTES_MAX) {
            Ok(text) => text,
            Err(error) => return Err(WordsError::Read { path, error }),
        };
        let words: Words = match toml::from_str(&text) {
            Ok(words) => words,
            Err(error) => return Err(WordsError::Parse { path, error: Box::new(error) }),
        };
        match words.missing() {
            Some((field, placeholder)) => Err(WordsError::Placeholder { path, field, placeholder }),
            None => Ok(words),
        }
    }

    /// What is not told where it has to be.
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        let must = [
            ("fresh", &self.fresh, "{conversation}"),
            ("merge", &self.merge, "{conversation}"),
            ("merge", &self.merge, "{summary}"),
            ("told", &self.told, "{system}"),
            ("told", &self.told, "{summary}"),
            ("told_alone", &self.told_alone, "{summary}"),
        ];
        let quoted = self
            .quoted
            .iter()
            .flat_map(|text| ["{quotes}", "{question}"].map(|placeholder| ("quoted", text, placeholder)));
        let missing =
            must.into_iter().chain(quoted).find(|(_, text, placeholder)| !text.contains(placeholder));
        missing.map(|(field, _, placeholder)| (field, placeholder))
    }

    /// The messages that ask for a summary of `messages`, and of what `summary` says of those before.
    pub fn ask(&self, summary: &str, messages: &[Value]) -> Vec<Value> {
        let said: Vec<String> = messages.iter().filter_map(|message| self.line(message)).collect();
        let question = if summary.is_empty() { &self.fresh } else { &self.merge };
        let question = filled(question, &[("{summary}", summary), ("{conversation}", &said.join("\n"))]);
        vec![json!({"role": "system", "content": self.system}), json!({"role": "user", "content": question})]
    }

    /// The messages that ask for a summary behind `told`, which the conversation itself begins with; `None` where these
    /// words cannot.
    pub fn ask_in_place(&self, mut told: Vec<Value>) -> Option<Vec<Value>> {
        told.push(json!({"role": "user", "content": self.in_place.as_ref()?}));
        Some(told)
    }

    /// What a message says, in a line or more; `None` where that is nothing.
    fn line(&self, message: &Value) -> Option<String> {
        let who = match message.get("role").and_then(Value::as_str)? {
            "user" => &self.user,
            "assistant" => &self.assistant,
            "tool" => &self.tool,
            _ => return None,
        };
        let text = text_of(message);
        let text = text.trim();
        (!text.is_empty()).then(|| format!("{who}{text}"))
    }

    /// A conversation behind a summary: `prefix`, which begins with `systems` system messages, then `recent`. The summary
    /// is told in the last system message; where it says nothing, not at all.
    pub fn told(&self, summary: &str, prefix: &[Value], systems: usize, recent: &[Value]) -> Vec<Value> {
        let mut messages = [prefix, recent].concat();
        if summary.is_empty() {
            return messages;
        }
        if systems == 0 {
            let content = filled(&self.told_alone, &[("{summary}", summary)]);
            messages.insert(0, json!({"role": "system", "content": content}));
        } else if let Some(message) = messages.get_mut(systems - 1) {
            let content = filled(&self.told, &[("{summary}", summary), ("{system}", &text_of(message))]);
            message["content"] = Value::String(content);
        }
        messages
    }

    /// Quotes exchanges at the last of `messages`, which is a user's question.
    pub fn quote(&self, exchanges: &[&[Value]], messages: &mut Vec<Value>) {
        let Some(question) = messages.last_mut().filter(|_| !exchanges.is_empty()) else { return };
        match &self.quoted {
            Some(quoted) => {
                let said: Vec<String> =
                    exchanges.concat().iter().filter_map(|message| self.line(message)).collect();
                let text =
                    filled(quoted, &[("{quotes}", &said.join("\n")), ("{question}", &text_of(question))]);
                question["content"] = Value::String(text);
            }
            None => {
                let at = messages.len() - 1;
                messages.splice(at..at, exchanges.concat());
            }
        }
    }
}

/// A text with what its placeholders stand for; what is filled in may hold placeholders itself, which then stay.
fn filled(text: &str, with: &[(&str, &str)]) -> String {
    let (mut filled, mut rest) = (String::new(), text);
    let next = |rest: &str| {
        let found = with.iter().filter_map(|&(name, value)| Some((rest.find(name)?, name, value)));
        found.min_by_key(|&(at, ..)| at)
    };
    while let Some((at, name, value)) = next(rest) {
        filled.push_str(&rest[..at]);
        filled.push_str(value);
        rest = &rest[at + name.len()..];
    }
    filled + rest
}

fn is_chinese(text: &str) -> bool {
    let han = text.chars().filter(|c| ('\u{4e00}'..='\u{9fff}').contains(c)).count();
    3 * han > text.chars().filter(|c| c.is_alphabetic()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: &str, text: &str) -> Value {
        json!({"role": role, "content": text})
    }

    #[test]
    fn every_file_says_all() {
        for text in FILES {
            assert_eq!(toml::from_str::<Words>(text).unwrap().missing(), None, "{text}");
        }
    }

    #[test]
    fn words_are_those_of_the_model_or_the_language() {
        let english = [said("user", "My dog is called Bolt.")];
        let (qwen, tiny) = (Wording::new(None, "qwen"), Wording::new(None, "kvik-tiny"));
        assert!(qwen.asking(&english).system.starts_with("You keep"));
        assert!(qwen.asking(&[said("user", "我的狗叫闪电。")]).system.starts_with("你"));
        assert_eq!(tiny.asking(&english).system, "You write short memory summaries.");
    }

    #[test]
    fn a_conversation_that_changes_its_language_begins_as_before() {
        let wording = Wording::new(None, "qwen");
        let told = |summary: &str, said_last: &str| {
            let recent = [said("user", "What is my dog called?"), said("user", said_last)];
            wording.telling(summary).told(summary, &[], 0, &recent)[0].clone()
        };
        for summary in ["The dog is called Bolt.", "狗叫闪电。"] {
            assert_eq!(told(summary, "我的狗叫闪电。"), told(summary, "My dog is called Bolt."));
        }
        assert_ne!(told("狗叫闪电。", ""), told("The dog is called Bolt.", ""));
    }

    #[test]
    fn the_model_inside_is_asked_as_it_was_trained() {
        let wording = Wording::new(None, "kvik-tiny");
        let words = wording.asking(&[]);
        let messages = [said("user", "Hi."), said("assistant", "Hello."), said("assistant", "")];
        let asked = words.ask("Facts: dog = Bolt", &messages);
        let expect = "Old summary:\nFacts: dog = Bolt\n\nNew conversation:\nUser: Hi.\nAssistant: Hello.";
        assert_eq!(asked[1]["content"], expect);
        let system = [said("system", "You are a helpful assistant.")];
        let told = words.told("Facts: dog = Bolt", &system, 1, &[said("user", "Hi.")]);
        assert_eq!(told[0]["content"], "You are a helpful assistant. Facts: dog = Bolt");
    }

    #[test]
    fn a_summary_is_told_without_a_system_message() {
        let recent = [said("user", "Hi.")];
        let wording = Wording::new(None, "qwen");
        let words = wording.asking(&recent);
        let told = words.told("- a dog called Bolt", &[], 0, &recent);
        assert_eq!((told.len(), told[0]["role"].as_str()), (2, Some("system")));
        assert!(told[0]["content"].as_str().unwrap().ends_with("- a dog called Bolt"));
        assert_eq!(words.told("", &[], 0, &recent), recent, "no summary is told");
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let text = filled("{b} and {a}, {b}.", &[("{a}", "{b}"), ("{b}", "x{a}")]);
        assert_eq!(text, "x{a} and {b}, x{a}.");
    }

    #[test]
    fn quotes_stand_in_the_question_or_before_it() {
        let exchange = [said("user", "My dog is called Bolt."), said("assistant", "Got it.")];
        let quoted = |model: &str| {
            let mut messages =
                vec![said("user", "Hi."), said("assistant", "Hello."), said("user", "My dog?")];
            Wording::new(None, model).asking(&messages).quote(&[&exchange], &mut messages);
            messages
        };
        let before = quoted("kvik-tiny");
        assert_eq!((before.len(), &before[2..4], &before[4]), (5, &exchange[..], &said("user", "My dog?")));
        let inside = quoted("qwen");
        let text = inside[2]["content"].as_str().unwrap();
        assert!(
            inside.len() == 3 && text.contains("User: My dog is called Bolt.\nAssistant: Got it."),
            "{text}"
        );
        assert!(text.ends_with("My dog?"), "{text}");
    }

    #[test]
    fn a_file_of_the_users_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words.toml");
        let check = |text: &str, expect: &str| {
            std::fs::write(&path, text).unwrap();
            let error = Words::read(&path).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("system = 1", "system");
        check(&FILES[0].replace("{conversation}", "it"), "`fresh` must name {conversation}");
        assert!(Words::read(&dir.path().join("none.toml")).is_err());
        std::fs::write(&path, FILES[1]).unwrap();
        assert!(Words::read(&path).is_ok());
    }
}
