//! The answer of one choice so far, and how it continues: constraint, sampler, text, limits.

use std::sync::Arc;

use kvik_cache::Token;
use kvik_model::batch::NO_TOKEN;
use kvik_text::constraint::Guide;
use kvik_text::repetition::LoopDetector;
use kvik_text::sampler::{Sampler, Scratch, logprobs};
use kvik_text::stream::{IndentLimit, Shown, StopStrings, TextStream, TokenKind, Vocabulary};

use crate::api::{ConstraintError, FinishReason, GeneratedToken, Request, RequestError, TokenLogprob, Wants};

/// The answer of one choice.
#[derive(Debug)]
pub(super) struct Answer {
    rules: Arc<Rules>,
    sampler: Sampler,
    guide: Option<Guide>,
    text: TextStream<GeneratedToken>,
    /// Present if the answer ends when it repeats itself.
    loops: Option<LoopDetector>,
    /// Present if the answer ends at a line that is indented too little.
    indents: Option<IndentLimit>,
    generated: usize,
}

/// The settings that all choices of a request share.
#[derive(Debug)]
pub(super) struct Rules {
    request: Request,
    /// Maximum number of tokens of an answer: as requested, or as the context allows.
    tokens_max: usize,
    /// Tokens that end an answer.
    ends: Vec<Token>,
    /// Texts that end an answer.
    stops: StopStrings,
}

/// The model's prediction of the next token.
#[derive(Debug, Clone, Copy)]
pub(super) enum Prediction<'a> {
    /// `[vocab]`
    Logits(&'a [f32]),
    /// The most likely token, if its answer [takes that](Answer::takes_the_likeliest), or [`NO_TOKEN`].
    Likeliest(Token),
}

/// A step of an answer.
#[derive(Debug)]
pub(super) struct Step {
    /// The token chosen, or `None` if the constraint allows none.
    pub(super) token: Option<Token>,
    /// Text that may be shown now.
    pub(super) text: String,
    /// The tokens of that text.
    pub(super) tokens: Vec<GeneratedToken>,
    /// Set when the answer ends here.
    pub(super) end: Option<FinishReason>,
}

impl Rules {
    pub(super) fn new(request: Request, tokens_max: usize, vocabulary: &Vocabulary) -> Arc<Rules> {
        let (ends, stops) = (vocabulary.end_tokens().to_vec(), StopStrings::new(&request.stop));
        Arc::new(Rules { request, tokens_max, ends, stops })
    }
}

impl Answer {
    /// The answer of the first choice after `prompt`.
    pub(super) fn new(rules: &Arc<Rules>, prompt: &[Token], guide: Option<Guide>) -> Answer {
        let sampler = Sampler::new(&rules.request.sampling, 0, prompt).holding_back(&rules.ends);
        Answer::begin(rules, sampler, guide)
    }

    fn begin(rules: &Arc<Rules>, sampler: Sampler, guide: Option<Guide>) -> Answer {
        Answer {
            sampler,
            text: TextStream::new(&rules.stops),
            loops: rules.request.stop_loops.then(LoopDetector::default),
            indents: IndentLimit::new(rules.request.line_limits.indent_min),
            rules: rules.clone(),
            guide,
            generated: 0,
        }
    }

    /// Another choice of the same request that has generated nothing yet; `self` must not have generated anything
    /// either.
    pub(super) fn sibling(&self, choice: u32) -> Answer {
        Answer::begin(&self.rules, self.sampler.sibling(choice), self.guide.as_ref().map(Guide::fork))
    }

    /// The request without its prompt.
    pub(super) fn request(&self) -> &Request {
        &self.rules.request
    }

    /// Whether tokens are to be generated at all.
    pub(super) fn is_wanted(&self) -> bool {
        self.rules.tokens_max > 0
    }

    /// Whether the last prompt token must be computed: for its logits, or for its hidden state.
    pub(super) fn needs_the_last(&self) -> bool {
        self.is_wanted() || self.request().wants != Wants::Text
    }

    /// Whether a constraint restricts the answer.
    pub(super) fn is_guided(&self) -> bool {
        self.guide.is_some()
    }

    /// Number of tokens that may still be generated.
    pub(super) fn tokens_left(&self) -> usize {
        self.rules.tokens_max - self.generated
    }

    /// Tokens that the constraint forces next, at most `most`; `None` if there are none.
    pub(super) fn forced(&mut self, most: usize) -> Option<Vec<Token>> {
        let forced = self.guide.as_mut()?.forced(most);
        (!forced.is_empty()).then_some(forced)
    }

    /// Computes forced tokens in advance, if they were asked for before.
    pub(super) fn look_ahead(&mut self) {
        if let Some(guide) = &mut self.guide {
            guide.look_ahead();
        }
    }

    /// True if the most likely token is always taken and no log probabilities are reported.
    pub(super) fn takes_the_likeliest(&self) -> bool {
        let Request { wants, logprobs, .. } = self.request();
        *wants == Wants::Text
            && logprobs.is_none()
            && self.guide.is_none()
            && self.sampler.takes_the_likeliest()
    }

    /// Chooses the next token from a prediction.
    pub(super) fn advance(
        &mut self,
        predicted: Prediction<'_>,
        vocabulary: &Vocabulary,
        scratch: &mut Scratch,
    ) -> Result<Step, RequestError> {
        self.step(predicted, vocabulary, scratch).map(|step| self.indented(step))
    }

    /// The same without the limit on the indentation of lines.
    fn step(
        &mut self,
        predicted: Prediction<'_>,
        vocabulary: &Vocabulary,
        scratch: &mut Scratch,
    ) -> Result<Step, RequestError> {
        let Some(token) = self.choose(predicted, scratch)? else {
            return Ok(self.end(None, nothing_shown(), FinishReason::ConstraintDone));
        };
        self.sampler.accept(token);
        self.generated += 1;
        if vocabulary.kind(token) == TokenKind::EndOfGeneration && !self.rules.request.ignore_eos {
            return Ok(self.end(Some(token), nothing_shown(), FinishReason::Eos));
        }
        let complete = self.accept(token)?;
        let generated = self.describe(token, predicted, vocabulary, scratch);
        let bytes = self.shown_bytes(token, vocabulary);
        let looped = self.loops.as_mut().and_then(|loops| loops.push(token, bytes));
        let shown = self.text.push(generated, bytes);
        let end = match shown.stopped {
            Some(index) => Some(FinishReason::StopString(index)),
            None if complete => Some(FinishReason::ConstraintDone),
            None if looped.is_some() => looped.map(FinishReason::Loop),
            None if self.tokens_left() == 0 => Some(FinishReason::Length),
            None => None,
        };
        Ok(match end {
            Some(reason) => self.end(Some(token), shown, reason),
            None => Step { token: Some(token), text: shown.text, tokens: shown.tokens, end },
        })
    }

    /// The next token; `None` when the constraint allows nothing.
    fn choose(
        &mut self,
        predicted: Prediction<'_>,
        scratch: &mut Scratch,
    ) -> Result<Option<Token>, RequestError> {
        let logits = match predicted {
            Prediction::Logits(logits) => logits,
            Prediction::Likeliest(NO_TOKEN) => return Err(no_usable_logits()),
            Prediction::Likeliest(token) => return Ok(Some(token)),
        };
        let Some(guide) = &mut self.guide else {
            return self.sampler.sample(logits, None, scratch).map(Some).ok_or_else(no_usable_logits);
        };
        guide.choose(&self.sampler, logits, scratch).map_err(unusable)
    }

    /// Advances the constraint; returns whether it is satisfied and allows no further token.
    fn accept(&mut self, token: Token) -> Result<bool, RequestError> {
        match &mut self.guide {
            Some(guide) => guide.accept(token).map_err(unusable),
            None => Ok(false),
        }
    }

    /// Ends a step at a line that is indented too little. Text held back comes after that line, so it is dropped.
    fn indented(&mut self, mut step: Step) -> Step {
        if let Some(end) = self.indents.as_mut().and_then(|indents| indents.push(&step.text)) {
            step.text.truncate(end);
            step.end = Some(FinishReason::Length);
            // A token is reported only if part of its text is.
            if end == 0 {
                step.tokens.clear();
            }
        }
        step
    }

    /// Ends the answer after its tokens so far, unless what is held back of its text ends it for a reason of its own.
    pub(super) fn cut(&mut self, reason: FinishReason) -> Step {
        let step = self.end(None, nothing_shown(), reason);
        self.indented(step)
    }

    /// Ends the answer. Text held back is emitted, unless a stop string ended the answer.
    fn end(&mut self, token: Option<Token>, shown: Shown<GeneratedToken>, reason: FinishReason) -> Step {
        let Shown { mut text, mut tokens, stopped } = shown;
        let mut reason = reason;
        if stopped.is_none() {
            let rest = self.text.finish();
            text.push_str(&rest.text);
            tokens.extend(rest.tokens);
            reason = rest.stopped.map_or(reason, FinishReason::StopString);
        }
        Step { token, text, tokens, end: Some(reason) }
    }

    /// The bytes that a token adds to the text of the answer.
    fn shown_bytes<'v>(&self, token: Token, vocabulary: &'v Vocabulary) -> &'v [u8] {
        let request = &self.rules.request;
        vocabulary.answer_bytes(token, request.show_special || request.show.contains(&token))
    }

    fn describe(
        &self,
        token: Token,
        predicted: Prediction<'_>,
        vocabulary: &Vocabulary,
        scratch: &mut Scratch,
    ) -> GeneratedToken {
        let describe = |(token, logprob): (Token, f32)| TokenLogprob {
            token,
            bytes: vocabulary.bytes(token).to_vec(),
            shown: !self.shown_bytes(token, vocabulary).is_empty(),
            logprob,
        };
        let Prediction::Logits(logits) = predicted else { return GeneratedToken { token, logprob: None } };
        let logprob = self.rules.request.logprobs.map(|count| {
            let (chosen, top) = logprobs(logits, token, count, scratch);
            (describe((token, chosen)), top.into_iter().map(describe).collect())
        });
        GeneratedToken { token, logprob }
    }
}

fn unusable(why: String) -> RequestError {
    ConstraintError::Unusable(why).into()
}

fn no_usable_logits() -> RequestError {
    RequestError::Internal("the model gave no usable logits".to_owned())
}

fn nothing_shown() -> Shown<GeneratedToken> {
    Shown { text: String::new(), tokens: Vec::new(), stopped: None }
}
