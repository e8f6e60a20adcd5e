//! Handle to an open model, for calls from any thread.

use std::sync::Arc;

use kvik_cache::{StopReason, Token};
use kvik_engine::api::{Cached, PinnedPrompt, Report, Request, Wants};
use kvik_engine::engine::Engine;
use kvik_model::load::SamplingDefaults;
use kvik_session::{EncodedChat, Session, Texts};
use serde_json::Value;

use crate::answer::{Answer, Follow};
use crate::asked::AskedPrompt;
use crate::core::Core;
use crate::error::{Error, guard};
use crate::kept::KeptState;
use crate::message::Message;
use crate::open::open;
use crate::options::{AnswerOptions, Options};
use crate::prompt::{Asked, Prompt};
use crate::stats::{Embedding, Explanation, Logits, Stats};

/// An open model. All of its methods may be called from any number of threads at once; concurrent answers are computed
/// in batches.
///
/// Dropping it cancels its answers and stops its threads. [`close`](Model::close) first writes all that was computed to
/// the disk.
pub struct Model {
    pub(crate) core: Arc<Core>,
}

impl Model {
    /// Reads a model and starts its threads.
    ///
    /// # Errors
    /// If the model's files, the directory on disk or the sizes cannot be used.
    pub fn open(options: Options) -> Result<Model, Error> {
        guard(|| Ok(Model { core: Core::new(open(options)?) }))
    }

    /// Continues a text, or answers messages: a cached prefix of the prompt is not computed again.
    ///
    /// # Errors
    /// If the prompt cannot be rendered, does not fit, or too many requests wait.
    pub fn generate(&self, prompt: impl Into<Prompt>, options: &AnswerOptions) -> Result<Answer, Error> {
        let prompt = prompt.into();
        guard(|| {
            let asked = options.asked()?;
            let encoded = prompt.encode(self.texts(), &asked)?;
            let reading = encoded.reading.clone();
            let mut request = asked_request(&self.core.opened.session, encoded, (options, &asked));
            let settings = Some(asked.chat(Value::Null));
            let next =
                prompt.messages().map(|messages| self.core.next_turn(&mut request, (settings, messages)));
            let follow = next.map(|next| Follow { write: Box::new(|_| Ok(None)), next });
            self.core.submit(request, &reading, follow)
        })
    }

    /// Answers messages, rendered by the model's chat template.
    ///
    /// # Errors
    /// As [`generate`](Model::generate), and if the model has no template.
    pub fn chat(&self, messages: &[Message], options: &AnswerOptions) -> Result<Answer, Error> {
        self.generate(messages, options)
    }

    /// The sampling of answers whose options set none, each setting with its source: the model's files, its family, or
    /// kvik. `reasoning` is that of the options: some makers recommend other settings where it is switched off.
    pub fn sampling(&self, reasoning: Option<bool>) -> SamplingDefaults {
        self.core.opened.session.sampling.for_thinking(reasoning)
    }

    /// Embedding of a text: the hidden state of its last token, or the mean over all tokens, as the model's files
    /// specify.
    ///
    /// # Errors
    /// If the text is empty or does not fit.
    pub fn embed(&self, text: &str) -> Result<Embedding, Error> {
        guard(|| {
            let tokens = self.texts().tokenizer.encode(text, true, false);
            let wants = Wants::Embedding(self.core.opened.session.embedder.pooling);
            let vector = self.engine().vector(Request { wants, ..request(tokens) })?;
            Ok(Embedding::new(vector.vector, vector.report.prompt_tokens, vector.report.cached_tokens))
        })
    }

    /// Logits `[vocab_len]` of the next token, before sampling.
    ///
    /// # Errors
    /// If the prompt cannot be rendered or does not fit.
    pub fn logits(&self, prompt: impl Into<AskedPrompt>) -> Result<Logits, Error> {
        let all = (0..self.texts().tokenizer.vocab_len()).filter_map(|token| Token::try_from(token).ok());
        self.logits_of(prompt, &all.collect::<Vec<_>>())
    }

    /// Logits of these tokens for the next position, in this order.
    ///
    /// # Errors
    /// As [`logits`](Model::logits), and if a token is not in the vocabulary.
    pub fn logits_of(&self, prompt: impl Into<AskedPrompt>, tokens: &[Token]) -> Result<Logits, Error> {
        let prompt = prompt.into();
        guard(|| {
            let wants = Wants::Logits(tokens.to_vec());
            let asked = self.engine().vector(Request { wants, ..request(prompt.tokens(self.texts())?) })?;
            let Report { prompt_tokens, cached_tokens, .. } = asked.report;
            Ok(Logits { values: asked.vector, prompt_tokens, cached_tokens })
        })
    }

    /// Tokenizes a text on its own. Names of control tokens in it are parsed as these tokens.
    ///
    /// # Errors
    /// Only if the call panics.
    pub fn tokens(&self, text: &str) -> Result<Vec<Token>, Error> {
        guard(|| Ok(self.texts().tokenizer.encode(text, false, true)))
    }

    /// Text of tokens.
    ///
    /// # Errors
    /// Only if the call panics.
    pub fn text_of(&self, tokens: &[Token]) -> Result<String, Error> {
        guard(|| Ok(self.texts().tokenizer.decode(tokens)))
    }

    /// Number of tokens of a prompt.
    ///
    /// # Errors
    /// If it cannot be rendered.
    pub fn count_tokens(&self, prompt: impl Into<AskedPrompt>) -> Result<usize, Error> {
        let prompt = prompt.into();
        guard(|| Ok(prompt.tokens(self.texts())?.len()))
    }

    /// Reports what a prompt would find in the cache now, and why not more. Computes and changes nothing.
    ///
    /// # Errors
    /// If it cannot be rendered or does not fit.
    pub fn explain(&self, prompt: impl Into<AskedPrompt>) -> Result<Explanation, Error> {
        let prompt = prompt.into();
        guard(|| {
            let tokens = prompt.tokens(self.texts())?;
            let retention = prompt.options.retention;
            // A probe as for an answer of one token, which needs the last token of the prompt.
            let mut asked = Request { max_tokens: 1, prompt_is_text: true, retention, ..request(tokens) };
            self.engine().as_generated(&mut asked);
            let tokens = asked.prompt.clone();
            let probe = self.engine().explain(asked)?;
            let next = tokens.get(probe.known_tokens).filter(|_| probe.stop != StopReason::Complete);
            let stopped_at = next.map(|&token| self.texts().tokenizer.decode(&[token]));
            Ok(Explanation::new(probe, stopped_at))
        })
    }

    /// Computes the common prefix of future prompts, unless it is cached, and pins it under a name until it is
    /// forgotten: in RAM, and on disk, where another process finds it. The previous prompt of the name is unpinned, and so
    /// is what this model has pinned under names that other models have changed since. It is the prefix of answers with
    /// the options of the [`AskedPrompt`].
    ///
    /// # Errors
    /// If the prompt cannot be rendered, does not fit in addition to the pinned prompts, or the list cannot be written.
    pub fn keep_prompt(&self, id: &str, prompt: impl Into<AskedPrompt>) -> Result<KeptState, Error> {
        let prompt = prompt.into();
        guard(|| {
            let tokens = prompt.shared_tokens(self.texts())?;
            self.core.opened.kept.check_room(id)?;
            self.engine().cache_system_prompt(&kept(tokens.clone()))?;
            let before = match self.core.opened.kept.keep(id, &tokens) {
                Ok(before) => before,
                Err(error) => {
                    // Tokens without a name would stay pinned for ever.
                    self.release([tokens])?;
                    return Err(error);
                }
            };
            self.release(before)?;
            self.state(tokens)
        })
    }

    /// Compares a prompt with the one that is pinned under a name, and reports how much of it is cached.
    ///
    /// # Errors
    /// If it cannot be rendered.
    pub fn is_kept(&self, id: &str, prompt: impl Into<AskedPrompt>) -> Result<KeptState, Error> {
        let prompt = prompt.into();
        guard(|| {
            let tokens = prompt.shared_tokens(self.texts())?;
            match self.core.opened.kept.get(id) {
                None => Ok(KeptState::Unknown),
                Some(known) if known != tokens => Ok(KeptState::Changed),
                Some(_) => self.state(tokens),
            }
        })
    }

    /// Unpins the prompt of a name, in RAM and on disk, unless another name has the same whole blocks. Returns whether
    /// the name existed.
    ///
    /// # Errors
    /// If the list cannot be written.
    pub fn forget_prompt(&self, id: &str) -> Result<bool, Error> {
        guard(|| {
            let before = self.core.opened.kept.remove(id)?;
            let existed = before.is_some();
            self.release(before).map(|()| existed)
        })
    }

    /// Statistics of the engine after its last step.
    pub fn stats(&self) -> Stats {
        self.engine().stats().into()
    }

    /// True if conversations are stored on the disk; false if they end with the model: without a directory for them, or
    /// because another process stores its conversations there.
    pub fn conversations_are_stored(&self) -> bool {
        self.core.opened.conversations.records.is_some()
    }

    /// Maximum tokens of a prompt and its answer together.
    pub fn context_tokens(&self) -> usize {
        self.texts().context_tokens
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.core.engine()
    }

    fn texts(&self) -> &Texts {
        &self.core.opened.session.texts
    }

    fn state(&self, tokens: Vec<Token>) -> Result<KeptState, Error> {
        let Cached { tokens, ram, disk, .. } = self.engine().is_cached(&kept(tokens))?;
        Ok(KeptState::Kept { tokens, ram_tokens: ram, disk_tokens: disk })
    }

    /// Unpins these tokens, and all that this model has pinned, unless a name has their whole blocks.
    fn release(&self, tokens: impl IntoIterator<Item = Vec<Token>>) -> Result<(), Error> {
        for unnamed in self.core.opened.kept.take_unnamed(tokens) {
            self.engine().invalidate(&kept(unnamed))?;
        }
        Ok(())
    }
}

/// Compile-time check: threads can share a model.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Model>();
};

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// A prompt to pin, for a process without tenants.
fn kept(tokens: Vec<Token>) -> PinnedPrompt {
    PinnedPrompt { tokens, adapters: None, salt: [0; 16], tenant: Default::default(), retention: None }
}

/// A request that reads a prompt and generates nothing.
fn request(tokens: Vec<Token>) -> Request {
    Request { lifetime: Default::default(), ..kept(tokens).request() }
}

/// The request for an answer to a prompt.
pub(crate) fn asked_request(
    session: &Session,
    encoded: EncodedChat,
    (options, asked): (&AnswerOptions, &Asked),
) -> Request {
    let EncodedChat { tokens, constraint, show, .. } = encoded;
    Request {
        max_tokens: options.max_tokens.unwrap_or(session.texts.context_tokens),
        ignore_eos: false,
        stop: options.stop.clone(),
        stop_loops: options.stop_loops,
        sampling: options.sampling_over(session.sampling, asked.reasons(&session.texts)),
        show,
        constraint,
        retention: options.retention,
        prompt_is_text: true,
        ..request(tokens)
    }
}
