//! A compiled constraint, and the state of an answer under it.
//!
//! Compiled grammars are shared: all prompts of a request, its choices and later requests of the
//! same tenant use one [`CompiledGrammar`]. An answer gets its own lexer caches with its first token,
//! so that queued requests hold no more than their grammars.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};
use toktrie::{SimpleVob, TokEnv, TokenId};

use super::budget::MemoryCharge;
use super::watch::Watch;

const UNSATISFIABLE: &str = "no answer can satisfy it";

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
    ahead: Ahead,
}

/// A second parser that looks ahead. What it needs, and whether it fails, is nothing to the answer.
enum Ahead {
    /// Nobody has asked for it yet.
    Unasked,
    /// It stands where the answer is, once it has read these tokens too.
    Behind {
        matcher: Box<Matcher>,
        unread: Vec<TokenId>,
        /// The text that must come after them, in tokens, once it has looked.
        forced: Option<Vec<TokenId>>,
        /// It is as large as the grammar, and counts as one more.
        _charge: Option<MemoryCharge>,
    },
    Failed,
}

/// The tokens that a constraint allows next.
pub enum Allowed {
    /// One of these tokens.
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

    fn fork(&self) -> Matcher {
        // Cloning changes nothing, so a panic in it leaves the original consistent.
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl Guide {
    pub(super) fn new(grammar: Arc<CompiledGrammar>) -> Guide {
        Guide { grammar, matcher: None, ahead: Ahead::Unasked }
    }

    /// The tokens that may come next.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        let (matcher, watch) = self.parts();
        allowed(matcher, watch)
    }

    /// Records the chosen token; returns whether it completes the answer.
    pub fn accept(&mut self, token: kvik_cache::Token) -> Result<bool, String> {
        let (matcher, watch) = self.parts();
        let _watched = matcher.cancellation_handle().map(|handle| watch.over(handle));
        matcher.consume_token(token).map_err(|error| describe(matcher, &error.to_string()))?;
        let is_complete = matcher.is_stopped();
        if let Ahead::Behind { unread, forced, .. } = &mut self.ahead {
            unread.push(token);
            *forced = None;
        }
        Ok(is_complete)
    }

    /// At most `most` tokens of the text that must come next, if any must. The answer may still divide it into other
    /// tokens.
    pub fn forced(&mut self, most: usize) -> Vec<kvik_cache::Token> {
        if let Ahead::Unasked = self.ahead {
            self.ahead = self.second_parser();
        }
        self.look_ahead();
        let Ahead::Behind { forced: Some(tokens), .. } = &self.ahead else { return Vec::new() };
        tokens[..most.min(tokens.len())].to_vec()
    }

    /// Looks for text that must come next, if anybody has asked for it before: whoever chose a token does that for who
    /// will ask, beside the other answers.
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

    /// The second parser; none where the memory of constraints does not suffice for it.
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
        Guide { grammar: self.grammar.clone(), matcher, ahead: Ahead::Unasked }
    }

    /// Charges its grammar to a budget, as the pool does.
    #[cfg(test)]
    pub(super) fn charge(&self, charge: MemoryCharge) {
        self.grammar.charge.lock().unwrap().replace(charge);
    }

    /// Whether it has looked for what must come next since the last token.
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
