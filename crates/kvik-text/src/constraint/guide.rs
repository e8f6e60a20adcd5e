//! A compiled constraint, and the state of an answer under it.
//!
//! Compiled grammars are shared: all prompts of a request, its choices and later requests of the
//! same tenant use one [`CompiledGrammar`]. An answer gets its own lexer caches with its first token,
//! so that queued requests hold no more than their grammars.

use std::sync::{Arc, Mutex, PoisonError};

use kvik_cache::Token;
use llguidance::{Matcher, TokenParser};
use toktrie::{SimpleVob, TokEnv, TokTrie, TokenId};

use super::budget::MemoryCharge;
use super::watch::{Watch, Watched};
use crate::sampler::{Sampler, Scratch};

const UNSATISFIABLE: &str = "no answer can satisfy it";
/// Interval in tokens at which a full mask is computed, which renews the budget of the parser. A mask explores
/// all allowed continuations, so it costs more than testing a few tokens at each of these positions.
const MASK_EVERY: usize = 32;

/// A compiled constraint.
pub(super) struct CompiledGrammar {
    matcher: Mutex<Matcher>,
    tokens: TokEnv,
    watch: Watch,
    /// Its approximate size in bytes.
    pub(super) bytes: usize,
    /// Its charge to the memory budget, once it is shared.
    pub(super) charge: Mutex<Option<MemoryCharge>>,
}

/// A constraint together with the answer so far.
pub struct Guide {
    grammar: Arc<CompiledGrammar>,
    /// The answer's own parser, from its first token on.
    matcher: Option<Matcher>,
    /// Tokens of the answer.
    read: usize,
    ahead: Ahead,
}

/// The state of a second parser that looks ahead. Its cost and its failures do not affect the answer.
enum Ahead {
    /// Not requested yet.
    Unasked,
    /// Has the answer's state, except for the `unread` tokens.
    Behind {
        matcher: Box<Matcher>,
        unread: Vec<TokenId>,
        /// The forced text after them, in tokens, once it has looked.
        forced: Option<Vec<TokenId>>,
        /// The second parser is as large as the grammar, and is charged once more.
        _charge: Option<MemoryCharge>,
    },
    Failed,
}

/// Questions of one step; together they may take as long as a mask.
pub struct Questions<'a> {
    guide: &'a mut Guide,
    _watched: Option<Watched>,
}

/// The tokens that a constraint allows next.
pub enum Allowed {
    /// Any of these tokens.
    Tokens(SimpleVob),
    /// None: the answer is complete.
    Nothing,
}

impl CompiledGrammar {
    /// Checks that some answer can satisfy the constraint.
    pub(super) fn new(parser: TokenParser, bytes: usize, watch: &Watch) -> Result<CompiledGrammar, String> {
        let tokens = parser.token_env.clone();
        let mut matcher = Matcher::new(Ok(parser)).into_cancellable();
        match allowed(&mut matcher, watch)? {
            Allowed::Tokens(_) => {}
            Allowed::Nothing => return Err(UNSATISFIABLE.to_owned()),
        }
        let matcher = Mutex::new(matcher);
        Ok(CompiledGrammar { matcher, tokens, watch: watch.clone(), bytes, charge: Mutex::default() })
    }

    /// Whether a token is plain text; for others only a mask can decide whether they are allowed.
    fn is_text(&self, token: TokenId) -> bool {
        let first = self.tokens.tok_trie().token(token).first();
        first.is_some_and(|&byte| byte != TokTrie::SPECIAL_TOKEN_MARKER)
    }

    fn fork(&self) -> Matcher {
        // Cloning changes nothing, so a panic in it leaves the original consistent.
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl Guide {
    pub(super) fn new(grammar: Arc<CompiledGrammar>) -> Guide {
        Guide { grammar, matcher: None, read: 0, ahead: Ahead::Unasked }
    }

    /// The tokens that may come next.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        let (matcher, watch) = self.parts();
        allowed(matcher, watch)
    }

    /// Tests of single tokens, which are much cheaper than [`Guide::allowed`]; `None` if a mask is due.
    pub fn questions(&mut self) -> Option<Questions<'_>> {
        let is_due = self.read.is_multiple_of(MASK_EVERY);
        (!is_due).then(|| self.ask())
    }

    pub(super) fn ask(&mut self) -> Questions<'_> {
        let (matcher, watch) = self.parts();
        let watched = matcher.cancellation_handle().map(|handle| watch.over(handle));
        Questions { guide: self, _watched: watched }
    }

    /// Samples an allowed token: one of the likely ones, or else one of the mask. `None` if no token is allowed.
    pub fn choose(
        &mut self,
        sampler: &Sampler,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<Option<Token>, String> {
        let asked = self
            .questions()
            .map(|mut questions| sampler.sample_likely(logits, scratch, |token| questions.allows(token)))
            .transpose()?;
        if let Some(Some(token)) = asked {
            return Ok(Some(token));
        }
        let Allowed::Tokens(mask) = self.allowed()? else { return Ok(None) };
        Ok(match asked {
            Some(_) => sampler.sample_behind_likely(logits, mask.as_slice(), scratch),
            None => sampler.sample(logits, Some(mask.as_slice()), scratch),
        })
    }

    /// Records the chosen token; returns whether it completes the answer.
    pub fn accept(&mut self, token: Token) -> Result<bool, String> {
        let (matcher, watch) = self.parts();
        let _watched = matcher.cancellation_handle().map(|handle| watch.over(handle));
        matcher.consume_token(token).map_err(|error| describe(matcher, &error.to_string()))?;
        let is_complete = matcher.is_stopped();
        self.read += 1;
        if let Ahead::Behind { unread, forced, .. } = &mut self.ahead {
            unread.push(token);
            *forced = None;
        }
        Ok(is_complete)
    }

    /// At most `most` tokens of the forced text that follows, if there is any. The answer may still divide the
    /// text into other tokens.
    pub fn forced(&mut self, most: usize) -> Vec<Token> {
        if let Ahead::Unasked = self.ahead {
            self.ahead = self.second_parser();
        }
        self.look_ahead();
        let Ahead::Behind { forced: Some(tokens), .. } = &self.ahead else { return Vec::new() };
        tokens[..most.min(tokens.len())].to_vec()
    }

    /// Computes the forced text, if it was requested before: the thread that chose a token does it in advance, in
    /// parallel with the other answers.
    pub fn look_ahead(&mut self) {
        let Ahead::Behind { matcher, unread, forced, .. } = &mut self.ahead else { return };
        if forced.is_some() {
            return;
        }
        let _watched = matcher.cancellation_handle().map(|handle| self.grammar.watch.over(handle));
        let read = matcher.consume_tokens(unread);
        unread.clear();
        let text = matcher.compute_ff_bytes();
        if read.is_err() || matcher.is_error() {
            self.ahead = Ahead::Failed;
            return;
        }
        let (tokens, _) = self.grammar.tokens.tokenize_bytes_marker(&text);
        *forced = Some(tokens);
    }

    /// The second parser; `Failed` if the memory budget does not suffice for it.
    fn second_parser(&self) -> Ahead {
        let shared = self.grammar.charge.lock().unwrap_or_else(PoisonError::into_inner);
        let charge = shared.as_ref().map(MemoryCharge::once_more);
        drop(shared);
        if let Some(None) = charge {
            return Ahead::Failed;
        }
        let matcher = self.matcher.as_ref().map_or_else(|| self.grammar.fork(), Matcher::deep_clone);
        Ahead::Behind {
            matcher: Box::new(matcher),
            unread: Vec::new(),
            forced: None,
            _charge: charge.flatten(),
        }
    }

    /// A copy with its own lexer caches, for another choice.
    pub fn fork(&self) -> Guide {
        let matcher = self.matcher.as_ref().map(Matcher::deep_clone);
        Guide { grammar: self.grammar.clone(), matcher, read: self.read, ahead: Ahead::Unasked }
    }

    /// Charges its grammar to a budget, as the pool does.
    #[cfg(test)]
    pub(super) fn charge(&self, charge: MemoryCharge) {
        self.grammar.charge.lock().unwrap().replace(charge);
    }

    /// Whether the second parser has computed the forced text since the last token.
    #[cfg(test)]
    pub(super) fn has_looked_ahead(&self) -> bool {
        matches!(self.ahead, Ahead::Behind { forced: Some(_), .. })
    }

    /// Whether both share one compiled grammar.
    #[cfg(test)]
    pub(super) fn shares_grammar_with(&self, other: &Guide) -> bool {
        Arc::ptr_eq(&self.grammar, &other.grammar)
    }

    fn parts(&mut self) -> (&mut Matcher, &Watch) {
        (self.matcher.get_or_insert_with(|| self.grammar.fork()), &self.grammar.watch)
    }
}

impl Questions<'_> {
    /// Whether [`Guide::allowed`] contains `token`.
    pub fn allows(&mut self, token: Token) -> Result<bool, String> {
        if !self.guide.grammar.is_text(token) {
            let allowed = self.guide.allowed()?;
            return Ok(matches!(allowed, Allowed::Tokens(mask) if mask.is_allowed(token)));
        }
        let (matcher, _) = self.guide.parts();
        let valid = matcher.validate_tokens(&[token]);
        valid.map(|valid| valid == 1).map_err(|error| describe(matcher, &error.to_string()))
    }
}

fn allowed(matcher: &mut Matcher, watch: &Watch) -> Result<Allowed, String> {
    if matcher.is_stopped() && !matcher.is_error() {
        return Ok(Allowed::Nothing);
    }
    let _watched = matcher.cancellation_handle().map(|handle| watch.over(handle));
    let mask = matcher.compute_mask().map_err(|error| describe(matcher, &error.to_string()))?;
    Ok(if mask.is_zero() { Allowed::Nothing } else { Allowed::Tokens(mask) })
}

fn describe(matcher: &Matcher, error: &str) -> String {
    if matcher.is_cancelled() {
        return "it is too ambiguous: one token took longer than a step of all requests may; write each text in one way only"
            .to_owned();
    }
    if error.starts_with("NoExtension") {
        return UNSATISFIABLE.to_owned();
    }
    first_lines(error)
}

/// The first lines of llguidance's message, without its dump of internal state.
pub(super) fn first_lines(message: &str) -> String {
    let message = ["\n<state>", "\n<non-verbose/>"]
        .iter()
        .fold(message, |message, end| message.find(end).map_or(message, |at| &message[..at]));
    message.chars().take(500).collect::<String>().trim().to_owned()
}

impl Clone for Guide {
    fn clone(&self) -> Guide {
        self.fork()
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").finish_non_exhaustive()
    }
}
