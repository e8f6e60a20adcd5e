//! Constrained answers: JSON, JSON schema, regular expressions, Lark grammars and tool calls, with
//! llguidance.
//!
//! Grammars are untrusted input. `limits` bounds the cost of one before it is compiled, `pool` compiles
//! on its own threads, `watch` limits the time of each mask, and `budget` the memory of compiled
//! grammars.

mod around;
mod budget;
mod calls;
pub mod gbnf;
mod guide;
#[cfg(test)]
mod hostile;
mod json;
mod limits;
mod literals;
mod notations;
mod objects;
mod pool;
pub mod schema;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use kvik_cache::Token;
use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::stream::{TokenKind, Vocabulary};
use crate::forms::{Constraint, ConstraintError};
use guide::{CompiledGrammar, first_lines};
use schema::{Strictness, normalise};
use watch::Watch;

pub use guide::{Allowed, Guide};
pub use limits::REGEX_BYTES_MAX;
pub use pool::{CompilerPool, Waiter};

/// White space between the parts of JSON: a space, or a new line with its indentation. Without a limit a
/// weak model may write white space until it reaches its maximum of tokens.
const JSON_WHITE_SPACE: &str = r"( |\n[ \t]{0,32})?";

/// Compiles constraints for one vocabulary.
pub struct Compiler {
    vocabulary: Arc<Vocabulary>,
    /// Length of a row of logits, and bits of a mask.
    vocab_len: usize,
    /// Built at the first use: most servers never see a constraint.
    factory: OnceLock<Result<ParserFactory, String>>,
    watch: Watch,
}

/// The message for a constraint on which llguidance panics.
const COMPILER_FAILED: &str = "the compiler failed on it";

impl Compiler {
    /// A compiler for `vocabulary` and a model with `vocab_len` logits.
    pub fn new(vocabulary: Arc<Vocabulary>, vocab_len: usize) -> Compiler {
        Compiler { vocabulary, vocab_len, factory: OnceLock::new(), watch: Watch::default() }
    }

    /// Compiles a constraint on the calling thread. A server uses a pool instead, which has a limit.
    ///
    /// # Errors
    /// If the constraint is malformed, or no answer can satisfy it.
    pub fn compile(&self, constraint: &Constraint) -> Result<Guide, ConstraintError> {
        Ok(Guide::new(Arc::new(self.compile_grammar(constraint)?)))
    }

    /// Compiles a constraint, and checks that some answer can satisfy it.
    fn compile_grammar(&self, constraint: &Constraint) -> Result<CompiledGrammar, ConstraintError> {
        // The input is untrusted: a panic of llguidance counts as a bad constraint.
        catch_unwind(AssertUnwindSafe(|| self.try_compile(constraint)))
            .unwrap_or_else(|_| Err(COMPILER_FAILED.to_owned()))
            .map_err(ConstraintError::Unusable)
    }

    fn try_compile(&self, constraint: &Constraint) -> Result<CompiledGrammar, String> {
        let grammar = self.grammar(constraint)?;
        let factory = self.factory.get_or_init(|| self.build_factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let (env, limits) = (factory.tok_env().clone(), factory.limits().clone());
        let (grammar, lexer) =
            GrammarInit::Serialized(grammar).to_internal(Some(env), limits).map_err(describe)?;
        let lexer_bytes = limits::probe_lexer(&lexer, &factory.extra_lexemes())?;
        let bytes = limits::grammar_bytes(grammar.num_symbols(), lexer_bytes);
        let grammar = GrammarInit::Internal(grammar, lexer);
        let parser = factory.create_parser_from_init_default(grammar).map_err(describe)?;
        CompiledGrammar::new(parser, bytes, &self.watch)
    }

    fn grammar(&self, constraint: &Constraint) -> Result<TopLevelGrammar, String> {
        match constraint {
            Constraint::JsonObject => json_grammar(&json!({ "type": "object" })),
            Constraint::JsonSchema(schema) => json_grammar(&checked_schema(schema)?),
            Constraint::Regex(regex) => {
                limits::check_regex(regex).map(|()| TopLevelGrammar::from_regex(regex))
            }
            Constraint::Lark(lark) => {
                limits::check_lark(lark).map(|()| TopLevelGrammar::from_lark(lark.clone()))
            }
            Constraint::Calls(calls) => {
                let lark = calls::lark(calls, &self.vocabulary)?;
                limits::check_generated(lark.len()).map(|()| TopLevelGrammar::from_lark(lark))
            }
        }
    }

    fn build_factory(&self) -> Result<ParserFactory, String> {
        let trie = self.trie().ok_or("the vocabulary has no end-of-generation token")?;
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| format!("{error:#}"))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser_limits();
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

    /// The bytes of a token for the trie: control tokens get a marker, so that they never count as the
    /// text of their names.
    fn word(&self, token: Token) -> Vec<u8> {
        let bytes = self.vocabulary.bytes(token);
        match self.vocabulary.kind(token) {
            TokenKind::Text => bytes.to_vec(),
            _ if bytes.is_empty() => Vec::new(),
            _ => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        }
    }
}

fn describe(error: impl std::fmt::Display) -> String {
    first_lines(&format!("{error:#}"))
}

/// The normalised schema, within its limits.
fn checked_schema(schema: &Value) -> Result<Value, String> {
    let normal = normalise(schema, Strictness::Lenient).map_err(|error| error.to_string())?;
    Ok(normal.schema)
}

/// The grammar of a normalised schema. llguidance compiles the schema itself if the schema sets options for it,
/// or needs features that our grammar lacks.
fn json_grammar(normal: &Value) -> Result<TopLevelGrammar, String> {
    match own_grammar(normal)? {
        Some(lark) => Ok(TopLevelGrammar::from_lark(lark)),
        None => Ok(TopLevelGrammar::from_json_schema(with_white_space(normal.clone()))),
    }
}

/// [`json_grammar`] as the body of a rule.
fn json_rule(normal: &Value) -> Result<String, String> {
    Ok(match own_grammar(normal)? {
        Some(lark) => format!("%lark {{\n{lark}}}"),
        None => format!("%json {}", with_white_space(normal.clone())),
    })
}

fn own_grammar(normal: &Value) -> Result<Option<String>, String> {
    if normal.get("x-guidance").is_some() {
        return Ok(None);
    }
    let lark = json::grammar(normal)?;
    if let Some(lark) = &lark {
        limits::check_generated(lark.len())?;
    }
    Ok(lark)
}

/// Limits the white space between parts of the JSON, unless the schema sets its own.
fn with_white_space(mut schema: Value) -> Value {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("x-guidance").or_insert(json!({ "whitespace_pattern": JSON_WHITE_SPACE }));
    }
    schema
}

#[cfg(test)]
mod tests {
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

    /// A vocabulary of every byte, a few longer tokens, an end token and a control token.
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
        follows(compiler().compile(constraint).unwrap(), tokens)
    }

    /// Whether `text` completes an answer.
    pub(super) fn accepts_from(guide: Guide, text: &str) -> bool {
        follows(guide, &text.bytes().map(Token::from).collect::<Vec<_>>())
    }

    fn follows(mut guide: Guide, tokens: &[Token]) -> bool {
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
    fn constraints_accept_matching_texts_only() {
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
            assert!(matches!(&error, Some(ConstraintError::Unusable(_))), "{label}: {error:?}");
            let took = started.elapsed();
            assert!(took.as_secs() < 5, "{label} took {took:?}");
        }
    }

    /// The look-ahead parser is charged as well; without memory for it nothing is drafted and the answer is
    /// the same.
    #[test]
    fn who_looks_ahead_takes_its_memory_from_the_budget() {
        let constraint = Constraint::Regex("x\\{\"true\":(1|2)\\}".into());
        let budget = budget::MemoryBudget::default();
        let mebibytes = |count: usize| budget.take(kvik_cache::TenantId(1), count << 20);
        let guide = |held: usize| {
            let guide = compiler().compile(&constraint).unwrap();
            guide.charge(mebibytes(held).unwrap());
            guide
        };
        let (mut fits, mut crowded) = (guide(40), guide(30));
        assert!(!fits.forced(20).is_empty());
        assert!(crowded.forced(20).is_empty() && crowded.allowed().is_ok(), "140 of 128 MiB");
        assert!(mebibytes(19).is_none() && mebibytes(18).is_some());
        drop(fits);
        assert!(mebibytes(98).is_some(), "both are returned");
    }

    #[test]
    fn what_must_come_is_known_ahead_and_changes_nothing() {
        let constraint = Constraint::Regex("x\\{\"true\":(1|2)\\}".into());
        let (mut looks, mut plain) =
            (compiler().compile(&constraint).unwrap(), compiler().compile(&constraint).unwrap());
        let text = |tokens: &[Token]| -> Vec<u8> {
            tokens.iter().flat_map(|&token| compiler().vocabulary.bytes(token).to_vec()).collect()
        };
        assert_eq!(text(&looks.forced(20)), b"x{\"true\":", "as few tokens as there are for it");
        assert_eq!(looks.forced(20).len(), 4);
        assert_eq!(looks.forced(2).len(), 2);
        for (byte, ahead) in
            b"x{\"true\":1}".iter().zip([&b"{\"true\":"[..], b"\"true\":", b"true\":", b"rue\":"])
        {
            let token = Token::from(*byte);
            assert_eq!(looks.accept(token), plain.accept(token));
            assert_eq!(text(&looks.forced(20)), ahead);
            assert_eq!(text(&looks.fork().forced(20)), ahead);
            let (Allowed::Tokens(a), Allowed::Tokens(b)) =
                (looks.allowed().unwrap(), plain.allowed().unwrap())
            else {
                panic!("something is allowed")
            };
            assert!(a == b, "behind {byte}");
        }
    }

    /// The thread that chooses tokens computes the forced text in advance, once it was requested.
    #[test]
    fn the_answer_to_what_must_come_is_there_before_the_question() {
        let constraint = Constraint::Regex("x\\{\"true\":(1|2)\\}".into());
        let (mut asked, mut unasked) =
            (compiler().compile(&constraint).unwrap(), compiler().compile(&constraint).unwrap());
        asked.forced(20);
        for byte in *b"x{\"true\":1}" {
            for guide in [&mut asked, &mut unasked] {
                guide.accept(Token::from(byte)).unwrap();
                assert!(!guide.has_looked_ahead());
                guide.look_ahead();
            }
            assert!(asked.has_looked_ahead() && !unasked.has_looked_ahead());
            assert_eq!(asked.forced(20), unasked.fork().forced(20));
        }
    }

    /// Tests answers of all kinds of tokens, and every token at each of their steps.
    #[test]
    fn a_question_about_a_token_gets_the_answer_of_the_mask() {
        let schema =
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}});
        let constraints = [
            Constraint::JsonObject,
            Constraint::JsonSchema(schema),
            Constraint::Regex("(true|[a-z]+)?[^x]*".into()),
            Constraint::Regex("æ{2,5}".into()),
            Constraint::Lark(format!("start: \"a\" <[{CONTROL}]> b?\nb: /t[a-z]*/ | <[{CONTROL}]> \"}}\"")),
        ];
        for (seed, constraint) in constraints.iter().cycle().take(40).enumerate() {
            let compiled = compiler().compile(constraint).unwrap();
            let (mut asked, mut masked) = (compiled.fork(), compiled);
            for step in 0..40 {
                let Allowed::Tokens(mask) = masked.allowed().unwrap() else { break };
                let allowed: Vec<Token> = (0..300).filter(|&token| mask.is_allowed(token)).collect();
                let mut questions = asked.ask();
                let named: Vec<Token> = (0..300).filter(|&token| questions.allows(token).unwrap()).collect();
                assert_eq!(named, allowed, "{constraint:?} at {step} of {seed}");
                let token = allowed[(seed * 7919 + step * 104_729) % allowed.len()];
                assert_eq!(asked.accept(token), masked.accept(token));
            }
        }
    }

    /// The parser's budget is renewed by every mask.
    #[test]
    fn a_mask_is_made_now_and_then_however_often_single_tokens_do() {
        let mut guide = compiler().compile(&Constraint::Regex("[a-z]*".into())).unwrap();
        let steps: Vec<bool> = (0..80)
            .map(|_| {
                guide.accept(Token::from(b'a')).unwrap();
                guide.questions().is_some()
            })
            .collect();
        let masks: Vec<usize> = (1..).zip(&steps).filter(|(_, asks)| !**asks).map(|(read, _)| read).collect();
        assert_eq!(masks, [32, 64]);
    }

    #[test]
    fn a_fork_is_independent() {
        let mut one = compiler().compile(&Constraint::Regex("ab|cd".into())).unwrap();
        let mut two = one.fork();
        one.accept(Token::from(b'a')).unwrap();
        two.accept(Token::from(b'c')).unwrap();
        assert!(one.accept(Token::from(b'b')).unwrap());
        assert!(two.accept(Token::from(b'd')).unwrap());
        assert!(matches!(one.allowed().unwrap(), Allowed::Nothing));
    }
}
