//! What the engine is asked and what it answers: plain data, no behaviour.

mod kept;

use std::time::Duration;

use kvik_cache::{Eviction, PinLimit, PinScope, Retain, StopReason, TenantId, Token};

pub use kept::{Cached, Evicted, KeptPrompt, Unpin};

/// How the next token is chosen. Neutral values switch a rule off.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `k` likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set whose probability reaches `p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below `p` times the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of seen tokens; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from every generated token; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from every generated token; 0 is off.
    pub frequency_penalty: f32,
    /// Tokens that the penalties look back on; 0 means all.
    pub penalty_last_n: usize,
    /// Added to the logits of single tokens; negative infinity forbids one.
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens before which an answer does not end by itself; a constraint that allows nothing but the
    /// end still ends it.
    pub min_tokens: usize,
    /// Seed of the sampler; the same seed gives the same text whatever else is running.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token, with every rule off.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_last_n: 0,
        logit_bias: Vec::new(),
        min_tokens: 0,
        seed: 0,
    };
}

/// What the answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that satisfies a schema.
    JsonSchema(serde_json::Value),
    /// Text that matches a regular expression.
    Regex(String),
    /// Text that a Lark grammar (llguidance dialect) accepts.
    Lark(String),
    /// Calls of tools, and text beside them.
    Calls(Calls),
}

/// Calls of tools, written in the form that the model was taught.
///
/// Where a text names a control token of the vocabulary, that token is meant.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// When calls begin.
    pub start: CallStart,
    /// One for each tool; every call has one of these forms.
    pub tools: Vec<CallForm>,
    /// Text before the first call; may be empty, as the next two.
    pub opening: String,
    /// Text between two calls.
    pub separator: String,
    /// Text after the last call.
    pub closing: String,
    /// Calls in one answer at most.
    pub calls_max: usize,
}

/// How a call of one tool is written.
#[derive(Debug, Clone, PartialEq)]
pub struct CallForm {
    /// Text before the JSON.
    pub begin: String,
    /// Schema of the JSON: the arguments, or a whole call with its name.
    pub schema: serde_json::Value,
    /// Text after the JSON.
    pub end: String,
}

/// When an answer becomes a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallStart {
    /// At once; with `after`, behind free text that ends with it (`</think>`).
    Forced {
        /// The end of the free text.
        after: Option<String>,
    },
    /// As soon as the model writes `trigger`; text is free before it and after the calls.
    Lazy {
        /// The beginning of `opening` and `begin` of every tool.
        trigger: String,
    },
    /// When the answer starts with `trigger`; every other answer is free text.
    LazyAtStart {
        /// The beginning of `opening` and `begin` of every tool.
        trigger: String,
    },
}

/// One request: a prompt and how to continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Prompt, at least one token.
    pub prompt: Vec<Token>,
    /// Continuations wanted; they share the prompt's blocks.
    pub choices: u32,
    /// Tokens to generate at most, per choice; 0 computes the prompt only.
    pub max_tokens: usize,
    /// Go on after an end-of-generation token.
    pub ignore_eos: bool,
    /// End when the text contains one of these; it is not part of the answer.
    pub stop: Vec<String>,
    /// How tokens are chosen. Choice `i` uses `seed + i`.
    pub sampling: Sampling,
    /// Log-probabilities wanted: `Some(k)` gives the chosen token's and the `k` likeliest.
    pub logprobs: Option<usize>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Keep control tokens (`<|im_end|>` and the like) in the answer's text.
    pub show_special: bool,
    /// Control tokens to keep in the answer's text though others are not.
    pub show: Vec<Token>,
    /// Look for the prompt in the cache and leave it there.
    pub reuse: bool,
    /// Separates tenants: prompts are shared only within one salt. Zero when there are none.
    pub salt: [u8; 16],
    /// Who asks: their share of the cache and their turn.
    pub tenant: TenantId,
    /// How long the cache keeps what it leaves there.
    pub retain: Retain,
}

/// Log-probability of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: Token,
    /// Its bytes; may be part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability, before temperature and truncation.
    pub logprob: f32,
}

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Token id.
    pub token: Token,
    /// Log-probabilities, when asked for: the chosen token, then the likeliest.
    pub logprob: Option<(TokenLogprob, Vec<TokenLogprob>)>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its answer.
    Eos,
    /// A stop string appeared; its index in [`Request::stop`].
    StopString(usize),
    /// `max_tokens` were generated, or the context is full.
    Length,
    /// The constraint is satisfied and allows nothing more.
    ConstraintDone,
}

/// What was computed and how long it took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose keys and values came from the cache.
    pub cached_tokens: usize,
    /// Of these, prompt tokens that were on disk when the request came.
    pub disk_tokens: usize,
    /// Prompt tokens computed for this request; with `cached_tokens` the whole prompt.
    pub computed_tokens: usize,
    /// Tokens computed again after a preemption, because the cache had lost them.
    pub recomputed_tokens: usize,
    /// Tokens generated, all choices.
    pub generated_tokens: usize,
    /// When it was admitted, on the engine's clock.
    pub admitted_at: Duration,
    /// Waiting for admission.
    pub queued: Duration,
    /// From admission to the end of the prefill.
    pub prefill: Duration,
    /// From the first generated token to the last.
    pub decode: Duration,
    /// Why reuse stopped where it did.
    pub cache: Option<StopReason>,
    /// When that is because what comes next was evicted: how that came about.
    pub evicted: Option<Eviction>,
}

/// What a request would find in the cache if it were admitted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that it would not have to compute.
    pub known_tokens: usize,
    /// Of these, prompt tokens that are on disk only.
    pub disk_tokens: usize,
    /// Why it is not more.
    pub stop: StopReason,
    /// When that is because what comes next was evicted: how that came about.
    pub evicted: Option<Eviction>,
    /// When this was found out, on the engine's clock.
    pub at: Duration,
}

/// What happens to a request, in order. A request ends with `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prefill has reached `done` of `total` prompt tokens.
    Prefill {
        /// Prompt tokens stored so far, reused ones included.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// New text of one choice: whole characters, never the head of a stop string.
    Text {
        /// Which choice, from 0.
        choice: u32,
        /// The text; empty while a character or a possible stop string is held back.
        text: String,
        /// The tokens behind it, in order; each token is reported once.
        tokens: Vec<GeneratedToken>,
    },
    /// One choice has ended.
    Finished {
        /// Which choice, from 0.
        choice: u32,
        /// Why.
        reason: FinishReason,
    },
    /// All choices have ended.
    Done(Report),
    /// The request was given up.
    Failed(RequestError),
}

/// Why a request was refused or given up.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The prompt does not fit the context.
    #[error(
        "this model's maximum context length is {context_tokens} tokens and the prompt has {prompt_tokens}, which exceeds the available context size; shorten the prompt or start kvik with a larger --context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens the server's context holds.
        context_tokens: usize,
    },
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: Token,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The waiting queue is full.
    #[error("{waiting} requests are waiting, which is the limit; try again in {retry_after_s} s")]
    QueueFull {
        /// Requests that wait now.
        waiting: usize,
        /// Seconds after which to try again.
        retry_after_s: u64,
    },
    /// The request needs more KV blocks than the budget has in all.
    #[error(
        "the request needs {needed_blocks} KV blocks and the budget holds {budget_blocks}; raise --cache-ram or shorten it"
    )]
    OverBudget {
        /// Blocks it needs.
        needed_blocks: usize,
        /// Blocks there are.
        budget_blocks: usize,
    },
    /// The request could run if less were pinned.
    #[error(
        "the request needs {needed_blocks} KV blocks and {pinned_blocks} of the {budget_blocks} there are are pinned; shorten it, or unpin some (`kvik cache pins`, `kvik cache unpin`)"
    )]
    Pinned {
        /// Blocks it needs.
        needed_blocks: usize,
        /// Blocks that pins keep.
        pinned_blocks: usize,
        /// Blocks there are.
        budget_blocks: usize,
    },
    /// The prompt cannot be pinned: too much is.
    #[error("{}", pin_limit(.0))]
    PinLimit(PinLimit),
    /// More continuations than one request may have.
    #[error("the request wants {choices} choices; it may have 1 to {choices_max}")]
    BadChoices {
        /// Choices asked for.
        choices: u32,
        /// Choices allowed.
        choices_max: u32,
    },
    /// The grammar or schema is not usable.
    #[error("the constraint cannot be used: {0}")]
    BadConstraint(String),
    /// Too many constraints wait to be compiled, or those in use take too much memory.
    #[error("too many constraints are in use at the same time; try again in {retry_after_s} s")]
    ConstraintsBusy {
        /// Seconds after which to try again.
        retry_after_s: u64,
    },
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// Something failed inside the engine.
    #[error("internal error: {0}")]
    Internal(String),
}

/// What others have pinned is not said.
fn pin_limit(limit: &PinLimit) -> String {
    let PinLimit { needed, pinned, limit, scope } = limit;
    match scope {
        PinScope::Tenant => format!(
            "pinning this prompt takes {needed} more KV blocks; {pinned} of the {limit} that may be pinned are; unpin some (`kvik cache pins`, `kvik cache unpin`) or raise the limit (--cache-pin, or `pin` in the tenants file)"
        ),
        PinScope::All => format!(
            "pinning this prompt takes {needed} more KV blocks, and of the {limit} that may be pinned in all fewer are left; unpin some (`kvik cache pins`, `kvik cache unpin`) or raise --cache-pin"
        ),
    }
}

/// Where a request's events go. Sending must never block the engine.
pub trait EventSink: Send {
    /// Delivers one event; `false` when nobody listens any more.
    fn send(&mut self, event: Event) -> bool;

    /// Takes what was computed for a request that ends without `Done`.
    fn given_up(&mut self, _report: &Report) {}

    /// Whether the listener has gone: the request is then ended at the next step.
    fn is_closed(&self) -> bool;
}
