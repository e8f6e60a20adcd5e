//! Constrained answers: JSON, JSON schema, regular expressions and Lark grammars, by llguidance.
//!
//! A grammar is compiled where the request is submitted, so a bad one is refused there and the
//! thread that runs the model never compiles. Size and compile time are limited.

mod calls;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use kvik_cache::Token;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use toktrie::{ApproximateTokEnv, SimpleVob, TokRxInfo, TokTrie};

use crate::api::{Constraint, RequestError};
use crate::text::{TokenKind, Vocabulary};

/// Bytes of a schema, expression or grammar at most.
const SOURCE_BYTES_MAX: usize = 256 * 1024;
/// Blanks between the parts of JSON: a space, or a new line with its indentation. Without a limit a
/// model that was not taught to stop writes blanks until its tokens are used up.
const JSON_BLANKS: &str = r"( |\n[ \t]{0,32})?";
/// Nesting of a JSON schema at most; deeper ones would exhaust the stack.
const SCHEMA_DEPTH_MAX: usize = 128;
/// Work for building a lexer at most; llguidance does about 50,000 a millisecond.
const LEXER_FUEL_MAX: u64 = 1_000_000;
/// Symbols in the productions of a grammar at most.
const GRAMMAR_SYMBOLS_MAX: usize = 200_000;
/// States of a lexer at most, 1 to 2 KiB each.
const LEXER_STATES_MAX: usize = 50_000;

/// Compiles constraints for one vocabulary.
pub struct Compiler {
    vocabulary: Arc<Vocabulary>,
    /// Length of a row of logits: the masks have as many bits.
    vocab_len: usize,
    /// Built at the first use: most servers never see a constraint.
    factory: OnceLock<Result<ParserFactory, String>>,
}

/// A constraint together with the answer so far.
#[derive(Clone)]
pub struct Guide {
    matcher: Matcher,
}

/// What a constraint says about the next token.
pub enum Allowed {
    /// One of these tokens.
    Tokens(SimpleVob),
    /// Nothing more: the answer is complete.
    Nothing,
}

impl Compiler {
    /// A compiler for `vocabulary` and a model with `vocab_len` logits.
    pub fn new(vocabulary: Arc<Vocabulary>, vocab_len: usize) -> Compiler {
        Compiler { vocabulary, vocab_len, factory: OnceLock::new() }
    }

    /// Compiles a constraint, and makes sure that some answer can satisfy it.
    pub fn compile(&self, constraint: &Constraint) -> Result<Guide, RequestError> {
        // llguidance is fed by strangers here; should it panic, that is a bad constraint too.
        catch_unwind(AssertUnwindSafe(|| self.try_compile(constraint)))
            .unwrap_or_else(|_| Err("the compiler failed on it".to_owned()))
            .map_err(RequestError::BadConstraint)
    }

    fn try_compile(&self, constraint: &Constraint) -> Result<Guide, String> {
        let grammar = self.grammar(constraint)?;
        let factory = self.factory.get_or_init(|| self.build_factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let parser = factory.create_parser(grammar).map_err(|error| first_lines(&format!("{error:#}")))?;
        let mut guide = Guide { matcher: Matcher::new(Ok(parser)) };
        match guide.allowed() {
            Ok(Allowed::Tokens(_)) => Ok(guide),
            Ok(Allowed::Nothing) => Err("no answer can satisfy it".to_owned()),
            Err(error) => Err(first_lines(&error)),
        }
    }

    fn grammar(&self, constraint: &Constraint) -> Result<TopLevelGrammar, String> {
        match constraint {
            Constraint::JsonObject => {
                Ok(TopLevelGrammar::from_json_schema(with_blanks(serde_json::json!({ "type": "object" }))))
            }
            Constraint::JsonSchema(schema) => Ok(TopLevelGrammar::from_json_schema(checked_schema(schema)?)),
            Constraint::Regex(regex) => limit_size(regex).map(|()| TopLevelGrammar::from_regex(regex)),
            Constraint::Lark(lark) => limit_size(lark).map(|()| TopLevelGrammar::from_lark(lark.clone())),
            Constraint::Calls(calls) => {
                let lark = calls::lark(calls, &self.vocabulary)?;
                limit_size(&lark).map(|()| TopLevelGrammar::from_lark(lark))
            }
        }
    }

    fn build_factory(&self) -> Result<ParserFactory, String> {
        let trie = self.trie().ok_or("the vocabulary has no end-of-generation token")?;
        let env: toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| format!("{error:#}"))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = LEXER_FUEL_MAX;
        limits.max_grammar_size = GRAMMAR_SYMBOLS_MAX;
        limits.max_lexer_states = LEXER_STATES_MAX;
        limits.verbose_errors = false;
        Ok(factory)
    }

    fn trie(&self) -> Option<TokTrie> {
        let ids = 0..self.vocab_len as Token;
        let kind = |&id: &Token| self.vocabulary.kind(id) == TokenKind::EndOfGeneration;
        let ends: Vec<Token> = ids.clone().filter(kind).collect();
        let words: Vec<Vec<u8>> = ids.map(|id| self.word(id)).collect();
        let info = TokRxInfo::new(self.vocab_len as u32, *ends.first()?);
        Some(TokTrie::from(&info, &words).with_eos_tokens(&ends))
    }

    /// The bytes of a token as the trie wants them: control tokens are marked, so that they
    /// never count as the text that they are written as.
    fn word(&self, token: Token) -> Vec<u8> {
        let bytes = self.vocabulary.bytes(token);
        match self.vocabulary.kind(token) {
            TokenKind::Text => bytes.to_vec(),
            _ if bytes.is_empty() => Vec::new(),
            _ => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        }
    }
}

impl Guide {
    /// The tokens that may come next.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(Allowed::Nothing);
        }
        let mask = self.matcher.compute_mask().map_err(|error| first_lines(&format!("{error:#}")))?;
        Ok(if mask.is_zero() { Allowed::Nothing } else { Allowed::Tokens(mask) })
    }

    /// Takes note of the token that was chosen; whether the answer is complete with it.
    pub fn accept(&mut self, token: Token) -> Result<bool, String> {
        self.matcher.consume_token(token).map_err(|error| first_lines(&format!("{error:#}")))?;
        Ok(self.matcher.is_stopped())
    }

    /// A copy with its own lexer caches, for another choice.
    pub fn fork(&self) -> Guide {
        Guide { matcher: self.matcher.deep_clone() }
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").finish_non_exhaustive()
    }
}

/// The schema as llguidance is to read it.
fn checked_schema(schema: &serde_json::Value) -> Result<serde_json::Value, String> {
    if depth_exceeds(schema, SCHEMA_DEPTH_MAX) {
        return Err(format!("the schema is nested deeper than {SCHEMA_DEPTH_MAX} levels"));
    }
    limit_size(&schema.to_string())?;
    Ok(with_blanks(schema.clone()))
}

/// Limits the blanks between parts of the JSON, unless the schema says itself which it wants.
fn with_blanks(mut schema: serde_json::Value) -> serde_json::Value {
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("x-guidance").or_insert(serde_json::json!({ "whitespace_pattern": JSON_BLANKS }));
    }
    schema
}

fn limit_size(source: &str) -> Result<(), String> {
    if source.len() <= SOURCE_BYTES_MAX {
        return Ok(());
    }
    Err(format!("it has {} bytes and the limit is {SOURCE_BYTES_MAX}", source.len()))
}

fn depth_exceeds(value: &serde_json::Value, max: usize) -> bool {
    let Some(max) = max.checked_sub(1) else { return true };
    match value {
        serde_json::Value::Array(items) => items.iter().any(|item| depth_exceeds(item, max)),
        serde_json::Value::Object(items) => items.values().any(|item| depth_exceeds(item, max)),
        _ => false,
    }
}

/// The start of a message; the rest of llguidance's is its own state.
fn first_lines(message: &str) -> String {
    let end = message.find("\n<state>").unwrap_or(message.len());
    message[..end].chars().take(500).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EOS: Token = 256;
    /// The control token `<|x|>`.
    pub(super) const CONTROL: Token = 261;

    #[test]
    fn json_has_a_space_or_a_line_between_its_parts_and_no_more() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        for constraint in [Constraint::JsonObject, Constraint::JsonSchema(schema)] {
            for text in ["{\"a\":1}", "{\"a\": 1}", "{\n    \"a\": 1\n}"] {
                assert!(accepts(&constraint, text), "{text:?}");
            }
            for text in ["{  \"a\":1}", "{\"a\":\n\n1}"] {
                assert!(!accepts(&constraint, text), "{text:?}");
            }
        }
    }

    /// Every byte a token, a few longer ones, and an end.
    pub(super) fn compiler() -> Compiler {
        let bytes = (0..=255u8).map(|byte| (vec![byte], TokenKind::Text));
        let end = (b"<|end|>".to_vec(), TokenKind::EndOfGeneration);
        let longer = [&b"true"[..], b"{\"", b"\":", b"}"].map(|word| (word.to_vec(), TokenKind::Text));
        let control = (b"<|x|>".to_vec(), TokenKind::Control);
        let vocabulary = Vocabulary::new(bytes.chain([end]).chain(longer).chain([control]));
        Compiler::new(Arc::new(vocabulary), 300)
    }

    /// Whether `text` is a complete answer.
    pub(super) fn accepts(constraint: &Constraint, text: &str) -> bool {
        accepted_tokens(constraint, &text.bytes().map(Token::from).collect::<Vec<_>>())
    }

    /// Whether these tokens are a complete answer.
    pub(super) fn accepted_tokens(constraint: &Constraint, tokens: &[Token]) -> bool {
        let mut guide = compiler().compile(constraint).unwrap();
        for &token in tokens {
            match guide.allowed().unwrap() {
                Allowed::Tokens(mask) if mask.is_allowed(token) => {}
                _ => return false,
            }
            guide.accept(token).unwrap();
        }
        match guide.allowed().unwrap() {
            Allowed::Tokens(mask) => mask.is_allowed(EOS),
            Allowed::Nothing => true,
        }
    }

    #[test]
    fn accepts_what_it_describes() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
                            "required": ["a"], "additionalProperties": false});
        let cases: &[(Constraint, &str, bool)] = &[
            (Constraint::JsonObject, r#"{"a":[1,"x",{}]}"#, true),
            (Constraint::JsonObject, "[1]", false),
            (Constraint::JsonObject, r#"{"a":"#, false),
            (Constraint::JsonSchema(schema.clone()), r#"{"a":12}"#, true),
            (Constraint::JsonSchema(schema.clone()), r#"{"a":"x"}"#, false),
            (Constraint::JsonSchema(schema), "{}", false),
            (Constraint::Regex("(yes|no)!*".into()), "yes!!", true),
            (Constraint::Regex("(yes|no)!*".into()), "maybe", false),
            (Constraint::Regex("æ+".into()), "ææ", true),
            (
                Constraint::Lark(
                    r#"start: "a" b"c" | "d"
b: "b"*"#
                        .replace("b\"c\"", "b \"c\""),
                ),
                "abbc",
                true,
            ),
            (Constraint::Lark("start: \"d\"".into()), "e", false),
        ];
        for (constraint, text, expect) in cases {
            assert_eq!(accepts(constraint, text), *expect, "{constraint:?} on {text:?}");
        }
    }

    #[test]
    fn control_tokens_are_not_text_and_padding_is_not_allowed() {
        let mut guide = compiler().compile(&Constraint::Regex(".*".into())).unwrap();
        let Allowed::Tokens(mask) = guide.allowed().unwrap() else { panic!("nothing is allowed") };
        assert!(mask.is_allowed(Token::from(b'<')));
        assert!(mask.is_allowed(257));
        assert!(!mask.is_allowed(CONTROL));
        assert!(!mask.is_allowed(299));
        assert!(mask.is_allowed(EOS));
    }

    #[test]
    fn bad_constraints_are_refused() {
        let mut deep = json!({"type": "null"});
        for _ in 0..200 {
            deep = json!({"type": "array", "items": deep});
        }
        let cases = [
            Constraint::JsonSchema(json!({"type": "nonsense"})),
            Constraint::JsonSchema(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})),
            Constraint::JsonSchema(json!(false)),
            Constraint::JsonSchema(json!({"type": "object", "required": ["a"], "properties": {"a": false}})),
            Constraint::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 1})),
            Constraint::JsonSchema(json!({"$ref": "https://example.com/x"})),
            Constraint::JsonSchema(deep),
            Constraint::Regex("(".into()),
            Constraint::Lark("start: nothing".into()),
            Constraint::Lark("x".repeat(300_000)),
        ];
        for constraint in cases {
            let started = std::time::Instant::now();
            let error = compiler().compile(&constraint).err();
            let label = format!("{constraint:?}").chars().take(80).collect::<String>();
            assert!(matches!(&error, Some(RequestError::BadConstraint(_))), "{label}: {error:?}");
            let took = started.elapsed();
            assert!(took.as_secs() < 5, "{label} took {took:?}");
        }
    }

    #[test]
    fn a_fork_goes_its_own_way() {
        let mut one = compiler().compile(&Constraint::Regex("ab|cd".into())).unwrap();
        let mut two = one.fork();
        one.accept(Token::from(b'a')).unwrap();
        two.accept(Token::from(b'c')).unwrap();
        assert!(one.accept(Token::from(b'b')).unwrap());
        assert!(two.accept(Token::from(b'd')).unwrap());
        assert!(matches!(one.allowed().unwrap(), Allowed::Nothing));
    }
}
