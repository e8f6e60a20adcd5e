//! An open model, and what can be asked of it from any thread.

use std::sync::{Mutex, PoisonError, Weak, atomic::AtomicBool};

use kvik_cache::{StopReason, Token};
use kvik_engine::api::{Cached, KeptPrompt, Request, Wants};
use kvik_engine::engine::Engine;
use kvik_engine::text::answer::AnswerParser;

use crate::answer::Answer;
use crate::error::{Error, guard};
use crate::kept::KeptState;
use crate::open::{Opened, open};
use crate::options::{AnswerOptions, Options};
use crate::prompt::{Encoded, Message, Prompt, Purpose};
use crate::stats::{Embedding, Explanation, Stats};

/// An open model. All of its methods may be called from any number of threads at once; answers are computed together.
///
/// Dropping it cancels its answers and stops its threads. [`close`](Model::close) makes sure first that the disk has all
/// that was computed.
pub struct Model {
    opened: Opened,
    /// The answers that may still be running, by what cancels them.
    pub(crate) answers: Mutex<Vec<Weak<AtomicBool>>>,
}

impl Model {
    /// Reads a model and starts its threads.
    ///
    /// # Errors
    /// If the model's files, the directory on disk or the sizes cannot be used.
    pub fn open(options: Options) -> Result<Model, Error> {
        guard(|| Ok(Model { opened: open(options)?, answers: Mutex::default() }))
    }

    /// Continues a text, or answers messages: whatever is known of the prompt's beginning is not computed again.
    ///
    /// # Errors
    /// If the prompt cannot be rendered, does not fit, or too many requests wait.
    pub fn generate(&self, prompt: impl Into<Prompt>, options: &AnswerOptions) -> Result<Answer, Error> {
        let prompt = prompt.into();
        guard(|| {
            let AnswerOptions { reasoning, .. } = *options;
            let Encoded { tokens, start } = self.encode(&prompt, Purpose::Answer { reasoning })?;
            let show = start.as_ref().map(|start| self.opened.tokenizer.controls_in(start.form.texts()));
            let parser = start.map(|start| AnswerParser::new(start, None, ""));
            let request = Request {
                max_tokens: options.max_tokens.unwrap_or(self.opened.context_tokens),
                ignore_eos: false,
                stop: options.stop.clone(),
                sampling: options.sampling.clone(),
                show: show.unwrap_or_default(),
                ..request(tokens)
            };
            let (answer, sink) = Answer::new(parser);
            self.watch(&answer);
            self.engine().submit(request, sink)?;
            Ok(answer)
        })
    }

    /// Answers messages, in the form of the model's chat template.
    ///
    /// # Errors
    /// As [`generate`](Model::generate), and if the model has no template.
    pub fn chat(&self, messages: &[Message], options: &AnswerOptions) -> Result<Answer, Error> {
        self.generate(messages, options)
    }

    /// What a text means to the model: its hidden state after the text, or the mean of all, as the model's files say.
    ///
    /// # Errors
    /// If the text is empty or does not fit.
    pub fn embed(&self, text: &str) -> Result<Embedding, Error> {
        guard(|| {
            let tokens = self.opened.tokenizer.encode(text, true, false);
            let wants = Wants::Embedding(self.opened.pooling);
            let vector = self.engine().vector(Request { wants, ..request(tokens) })?;
            Ok(Embedding::new(vector.vector, vector.report.prompt_tokens, vector.report.cached_tokens))
        })
    }

    /// Tokens of a prompt.
    ///
    /// # Errors
    /// If it cannot be rendered.
    pub fn count_tokens(&self, prompt: impl Into<Prompt>) -> Result<usize, Error> {
        let prompt = prompt.into();
        guard(|| Ok(self.encode(&prompt, Purpose::Answer { reasoning: None })?.tokens.len()))
    }

    /// What a prompt would find in the cache now, and why not more. Computes and changes nothing.
    ///
    /// # Errors
    /// If it cannot be rendered or does not fit.
    pub fn explain(&self, prompt: impl Into<Prompt>) -> Result<Explanation, Error> {
        let prompt = prompt.into();
        guard(|| {
            let Encoded { tokens, .. } = self.encode(&prompt, Purpose::Answer { reasoning: None })?;
            // As for an answer of one token: that reads the last token of the prompt.
            let probe = self.engine().explain(Request { max_tokens: 1, ..request(tokens.clone()) })?;
            let next = tokens.get(probe.known_tokens).filter(|_| probe.stop != StopReason::Complete);
            let stopped_at = next.map(|&token| self.opened.tokenizer.decode(&[token]));
            Ok(Explanation::new(probe, stopped_at))
        })
    }

    /// Computes what other prompts begin with, as far as it is not known, and keeps it under a name until it is forgotten:
    /// in RAM, and on disk, where another process finds it. What the name stood for before is let go.
    ///
    /// # Errors
    /// If it cannot be rendered, does not fit beside what is kept already, or cannot be written down.
    pub fn keep_prompt(&self, id: &str, prompt: impl Into<Prompt>) -> Result<KeptState, Error> {
        let prompt = prompt.into();
        guard(|| {
            let Encoded { tokens, .. } = self.encode(&prompt, Purpose::Kept)?;
            self.opened.kept.check_room(id)?;
            self.engine().cache_system_prompt(&kept(tokens.clone()))?;
            let before = match self.opened.kept.keep(id, &tokens) {
                Ok(before) => before,
                Err(error) => {
                    // What no name stands for would stay pinned for ever.
                    self.release(tokens)?;
                    return Err(error);
                }
            };
            before.map_or(Ok(()), |before| self.release(before))?;
            self.state(tokens)
        })
    }

    /// Whether this is what is kept under a name, and how much of it need not be computed.
    ///
    /// # Errors
    /// If it cannot be rendered.
    pub fn is_kept(&self, id: &str, prompt: impl Into<Prompt>) -> Result<KeptState, Error> {
        let prompt = prompt.into();
        guard(|| {
            let Encoded { tokens, .. } = self.encode(&prompt, Purpose::Kept)?;
            match self.opened.kept.get(id) {
                None => Ok(KeptState::Unknown),
                Some(known) if known != tokens => Ok(KeptState::Changed),
                Some(_) => self.state(tokens),
            }
        })
    }

    /// Lets go what is kept under a name, in RAM and on disk, unless something else needs it. Whether there was such a name.
    ///
    /// # Errors
    /// If that cannot be written down.
    pub fn forget_prompt(&self, id: &str) -> Result<bool, Error> {
        guard(|| match self.opened.kept.remove(id)? {
            None => Ok(false),
            Some(tokens) => self.release(tokens).map(|()| true),
        })
    }

    /// The engine's numbers after its last step.
    pub fn stats(&self) -> Stats {
        self.engine().stats().into()
    }

    /// Tokens of a prompt and its answer together.
    pub fn context_tokens(&self) -> usize {
        self.opened.context_tokens
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.opened.engine
    }

    fn encode(&self, prompt: &Prompt, purpose: Purpose) -> Result<Encoded, Error> {
        prompt.encode(&self.opened.tokenizer, self.opened.template.as_ref(), purpose)
    }

    fn state(&self, tokens: Vec<Token>) -> Result<KeptState, Error> {
        let Cached { tokens, ram, disk, .. } = self.engine().is_cached(&kept(tokens))?;
        Ok(KeptState::Kept { tokens, ram_tokens: ram, disk_tokens: disk })
    }

    /// Lets go tokens, unless a name stands for them.
    fn release(&self, tokens: Vec<Token>) -> Result<(), Error> {
        if !self.opened.kept.has(&tokens) {
            self.engine().invalidate(&kept(tokens))?;
        }
        Ok(())
    }

    /// Remembers what cancels an answer, and forgets those that nobody reads any more.
    fn watch(&self, answer: &Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|answer| answer.strong_count() > 0);
        answers.push(answer.canceller().watch());
    }
}

/// Threads share it.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Model>();
};

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// A prompt of a process without tenants.
fn kept(tokens: Vec<Token>) -> KeptPrompt {
    KeptPrompt { tokens, adapters: None, salt: [0; 16], tenant: Default::default(), retention: None }
}

/// A request that reads a prompt and says nothing.
fn request(tokens: Vec<Token>) -> Request {
    Request { lifetime: Default::default(), ..kept(tokens).request() }
}
