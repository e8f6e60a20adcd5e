//! Wording of the requests for a summary and of its use in prompts: a file per language, or per model that was trained
//! on fixed phrases.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use kvik_text::files::small::{SETTINGS_BYTES_MAX, read_small_text};

use crate::context::chain::text_of;
use crate::context::summaries::is_spoken;
use serde::Deserialize;
use serde_json::{Value, json};

/// Wording in one language.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    /// Names of models that know no other wording.
    #[serde(default)]
    models: Vec<String>,
    /// System message of a request for a summary.
    system: String,
    /// Request for a first summary; `{conversation}` stands for the messages.
    fresh: String,
    /// Request for a summary that extends an earlier one, `{summary}`.
    merge: String,
    /// Request for the facts of `{conversation}`, where a summary cannot be used; if absent, that is requested again.
    facts: Option<String>,
    /// Prefixes of the messages of each role.
    user: String,
    assistant: String,
    tool: String,
    /// Request for a summary at the end of the conversation itself, whose beginning is in the cache; if absent, the
    /// messages are always sent in a request of their own.
    pub in_place: Option<String>,
    /// A system message, `{system}`, extended by a summary.
    told: String,
    /// System message for a conversation that has none.
    told_alone: String,
    /// A question, `{question}`, with `{quotes}` of earlier messages; if absent, the quoted messages are inserted
    /// before the question verbatim.
    quoted: Option<String>,
}

/// Choice of the wording: that of the user's file, that of a model that knows no other, or that of the conversation's
/// language.
#[derive(Debug, Clone)]
pub struct Wording {
    fixed: Option<Arc<Words>>,
}

/// An error of a file of wording.
#[derive(Debug, thiserror::Error)]
pub enum WordsError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        error: std::io::Error,
    },
    /// The file cannot be parsed.
    #[error("{}: {error}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        error: Box<toml::de::Error>,
    },
    /// A placeholder is missing.
    #[error("{}: `{field}` must name {placeholder}", path.display())]
    Placeholder {
        /// The file.
        path: PathBuf,
        /// Field of the file.
        field: &'static str,
        /// The missing placeholder.
        placeholder: &'static str,
    },
}

/// Number of latest messages of the user and the model that determine the language of a conversation.
const LATEST: usize = 4;

/// The built-in files; the first is for languages without one.
const FILES: [&str; 3] =
    [include_str!("words/en.toml"), include_str!("words/zh.toml"), include_str!("words/kvik-tiny.toml")];

static BUILT_IN: LazyLock<[Arc<Words>; FILES.len()]> =
    LazyLock::new(|| FILES.map(|text| Arc::new(toml::from_str(text).expect("a test reads all files"))));

impl Wording {
    /// The wording of the user's file if there is one, otherwise the built-in one for a model.
    pub fn new(own: Option<Words>, model: &str) -> Wording {
        let [_, _, tiny] = &*BUILT_IN;
        let known = || tiny.models.iter().any(|known| known == model).then(|| tiny.clone());
        Wording { fixed: own.map(Arc::new).or_else(known) }
    }

    /// Wording for a summary in a prompt. It depends only on the summary: a conversation that changes its language
    /// later keeps its beginning, so that its cached prefix stays valid.
    pub fn telling(&self, summary: &str) -> &Words {
        self.of(summary)
    }

    /// Wording for requests about messages: that of their latest language.
    pub fn asking(&self, messages: &[Value]) -> &Words {
        let spoken = messages.iter().rev().filter(|message| is_spoken(message));
        self.of(&spoken.take(LATEST).map(text_of).collect::<Vec<_>>().join("\n"))
    }

    fn of(&self, text: &str) -> &Words {
        let [english, chinese, _] = &*BUILT_IN;
        self.fixed.as_ref().unwrap_or(if is_chinese(text) { chinese } else { english })
    }
}

impl Words {
    /// Reads the wording from a user's file.
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

    /// The first required placeholder that is missing, with its field.
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        let must = [
            ("fresh", &self.fresh, "{conversation}"),
            ("merge", &self.merge, "{conversation}"),
            ("merge", &self.merge, "{summary}"),
            ("told", &self.told, "{system}"),
            ("told", &self.told, "{summary}"),
            ("told_alone", &self.told_alone, "{summary}"),
        ];
        let may = self
            .quoted
            .iter()
            .flat_map(|text| ["{quotes}", "{question}"].map(|placeholder| ("quoted", text, placeholder)))
            .chain(self.facts.iter().map(|text| ("facts", text, "{conversation}")));
        let missing = must.into_iter().chain(may).find(|(_, text, placeholder)| !text.contains(placeholder));
        missing.map(|(field, _, placeholder)| (field, placeholder))
    }

    /// Messages that request a summary of `messages`, extending `summary`.
    pub fn ask(&self, summary: &str, messages: &[Value]) -> Vec<Value> {
        let question = if summary.is_empty() { &self.fresh } else { &self.merge };
        let said = self.lines(messages).join("\n");
        self.request(filled(question, &[("{summary}", summary), ("{conversation}", &said)]))
    }

    /// Messages that request the facts of `messages` and of the earlier `summary`.
    pub fn ask_facts(&self, summary: &str, messages: &[Value]) -> Vec<Value> {
        let Some(facts) = &self.facts else { return self.ask(summary, messages) };
        let known = (!summary.is_empty()).then(|| summary.to_owned());
        let said: Vec<String> = known.into_iter().chain(self.lines(messages)).collect();
        self.request(filled(facts, &[("{conversation}", &said.join("\n"))]))
    }

    fn request(&self, question: String) -> Vec<Value> {
        vec![json!({"role": "system", "content": self.system}), json!({"role": "user", "content": question})]
    }

    /// Appends the request for a summary to `told`, the beginning of the conversation itself; `None` if the wording has
    /// no such request.
    pub fn ask_in_place(&self, mut told: Vec<Value>) -> Option<Vec<Value>> {
        told.push(json!({"role": "user", "content": self.in_place.as_ref()?}));
        Some(told)
    }

    /// Messages as lines of text, without those that have no text.
    fn lines(&self, messages: &[Value]) -> Vec<String> {
        messages.iter().filter_map(|message| self.line(message)).collect()
    }

    /// Prefix of a message; `None` for roles that are not told.
    pub fn speaker(&self, message: &Value) -> Option<&str> {
        match message.get("role").and_then(Value::as_str)? {
            "user" => Some(&self.user),
            "assistant" => Some(&self.assistant),
            "tool" => Some(&self.tool),
            _ => None,
        }
    }

    /// A message as lines of text; `None` if it has no text.
    fn line(&self, message: &Value) -> Option<String> {
        let (who, text) = (self.speaker(message)?, text_of(message));
        let text = text.trim();
        (!text.is_empty()).then(|| format!("{who}{text}"))
    }

    /// A conversation after a summary: `prefix`, which begins with `systems` system messages, then `recent`. The
    /// summary is added to the last system message, unless it is empty.
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

    /// Quotes exchanges in or before the last of `messages`, which is a user's question.
    pub fn quote(&self, exchanges: &[&[Value]], messages: &mut Vec<Value>) {
        let Some(question) = messages.last_mut().filter(|_| !exchanges.is_empty()) else { return };
        match &self.quoted {
            Some(quoted) => {
                let said = self.lines(&exchanges.concat()).join("\n");
                let text = filled(quoted, &[("{quotes}", &said), ("{question}", &text_of(question))]);
                question["content"] = Value::String(text);
            }
            None => {
                let at = messages.len() - 1;
                messages.splice(at..at, exchanges.concat());
            }
        }
    }
}

/// Replaces the placeholders of a text; placeholders in the inserted values stay as they are.
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

/// True if most words are in Han, without the kana that a text in Japanese has between them. Three characters of Han are
/// two words: letters cannot be compared, as one name of a function has more than a sentence in Han.
fn is_chinese(text: &str) -> bool {
    let letters = || text.chars().filter(|c| c.is_alphabetic());
    let is_han = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
    let han = letters().filter(|c| is_han(*c)).count();
    let kana = letters().filter(|c| ('\u{3040}'..='\u{30ff}').contains(c)).count();
    let others = text.split(|c: char| !c.is_alphabetic() || is_han(c)).filter(|word| !word.is_empty());
    2 * han > 3 * others.count() && 10 * kana <= han
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
        for (text, is_chinese) in [
            ("我的狗叫闪电。", true),
            ("我在便利店买一碗「そば」，坐地铁去公司上班，晚上和同事在餐馆吃饭。", true),
            ("私の犬の名前は稲妻です。東京都港区在住。", false),
            ("明日午前十時に東京駅八重洲口集合です。", false),
            ("PagedAttention 和 StreamingLLM 有什么区别？", true),
            (
                "在 crates/kvik-memory/src/context/summaries/sentences.rs 里，函数 is_question 和 without_mark \
                的行为对中文句子来说是不对的，请修改它们并运行测试。",
                true,
            ),
            ("What does 你好 mean, and is it polite?", false),
        ] {
            let asked = qwen.asking(&[said("user", text)]).system.starts_with("你");
            assert_eq!(asked, is_chinese, "{text}");
        }
        let log = "error: the request failed\n".repeat(100);
        let spoken = [("user", "请运行测试。"), ("tool", &log[..]), ("assistant", "测试失败了。")];
        let spoken = spoken.map(|(role, text)| said(role, text));
        assert!(qwen.asking(&spoken).system.starts_with("你"), "tools speak languages of their own");
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
    fn facts_are_asked_for_with_those_that_are_known() {
        let said = [said("user", "My dog is called Bolt."), said("assistant", "Got it.")];
        let asked = |model: &str, summary: &str| {
            let question =
                Wording::new(None, model).asking(&said).ask_facts(summary, &said)[1]["content"].take();
            question.as_str().unwrap().to_owned()
        };
        let (first, next) = (asked("qwen", ""), asked("qwen", "- lives in Oslo"));
        assert!(
            first.contains("\n\nUser: My dog is called Bolt.\nAssistant: Got it.\n\nList the facts"),
            "{first}"
        );
        assert!(next.contains("\n\n- lives in Oslo\nUser: My dog"), "{next}");
        assert!(asked("kvik-tiny", "").starts_with("Summarise"), "it knows no other request");
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
    fn words_stand_in_the_place_of_a_picture_that_is_told_or_quoted() {
        let image = json!({"type": "image_url", "image_url": {"url": "x"}});
        let parts = |role: &str| json!({"role": role, "content": [{"type": "text", "text": "Look."}, image]});
        let (system, asked) = (parts("system"), parts("user"));
        let (seen, wording) = ("Look.\n[an image, which this model cannot see]", Wording::new(None, "qwen"));
        let words = wording.asking(&[]);
        let told = words.told("- a dog called Bolt", std::slice::from_ref(&system), 1, &[]);
        assert!(told[0]["content"].as_str().unwrap().starts_with(seen), "{told:?}");
        let mut messages = vec![asked.clone()];
        words.quote(&[&[asked, said("assistant", "Got it.")]], &mut messages);
        let quoted = messages[0]["content"].as_str().unwrap();
        assert!(quoted.contains(&format!("User: {seen}\nAssistant: Got it.")), "{quoted}");
        assert!(quoted.ends_with(seen), "{quoted}");
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
        check(
            &FILES[0].replace("facts = \"Conversation:\\n\\n{conversation}", "facts = \""),
            "`facts` must name {conversation}",
        );
        assert!(Words::read(&dir.path().join("none.toml")).is_err());
        std::fs::write(&path, FILES[1]).unwrap();
        assert!(Words::read(&path).is_ok());
    }
}
