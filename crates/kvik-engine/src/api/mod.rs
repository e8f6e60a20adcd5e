//! Requests to the engine and its events: plain data, no behaviour.

mod adapter;
mod fleet;
mod kept;
mod kv_event;
mod outline;
mod pace;
mod wants;

use std::ops::Range;
use std::time::Duration;

use kvik_cache::retain::{Retention, RetentionError};
use kvik_cache::{Eviction, Lifetime, PinLimit, PinScope, StopReason, TenantId, Token};

pub use kvik_text::forms::{
    ArgumentsForm, CallForm, CallStart, Calls, Constraint, ConstraintError, ReasoningPlace, ReasoningTexts,
};
pub use kvik_text::sampler::Sampling;

pub use adapter::{AdapterId, AdapterMix, AdapterUse};
pub use fleet::HotPrefix;
pub use kept::{Cached, Evicted, KeptPrompt, Unpin};
pub use kv_event::{KvEvent, KvListener, KvStored};
pub use outline::{NodeView, TreeNode, TreeView};
pub use pace::Pace;
pub use wants::{Pooling, UnknownPooling, Wants};

/// One request: a prompt and how to continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Prompt, at least one token.
    pub prompt: Vec<Token>,
    /// What of it is wanted. What is not text comes with one choice and no tokens, and all of the prompt is read.
    pub wants: Wants,
    /// Continuations wanted; they share the prompt's blocks.
    pub choices: u32,
    /// Maximum tokens to generate per choice; 0 computes the prompt only.
    pub max_tokens: usize,
    /// Continue after an end-of-generation token.
    pub ignore_eos: bool,
    /// Stop strings: the answer ends before the first of them.
    pub stop: Vec<String>,
    /// How tokens are chosen. Choice `i` uses `seed + i`.
    pub sampling: Sampling,
    /// `Some(k)` returns log-probabilities of the chosen token and of the `k` likeliest.
    pub logprobs: Option<usize>,
    /// Constrains the form of the answer.
    pub constraint: Option<Constraint>,
    /// Keep control tokens (`<|im_end|>` and the like) in the answer's text.
    pub show_special: bool,
    /// Control tokens to keep in the answer's text even when `show_special` is off.
    pub show: Vec<Token>,
    /// Reuse the cached prefix of the prompt, and publish its blocks to the cache.
    pub reuse: bool,
    /// The adapters that it is computed with; the model alone when `None`.
    pub adapters: Option<AdapterMix>,
    /// Separates tenants: prompts are shared only within one salt. Zero without tenants.
    pub salt: [u8; 16],
    /// The tenant that pays with its share of the cache and of the model's time.
    pub tenant: TenantId,
    /// How long the cache keeps the blocks of this request.
    pub lifetime: Lifetime,
    /// Which tokens its sequences go on reading; all of them when `None`.
    pub retention: Option<Retention>,
    /// Leading tokens of the prompt, whole blocks of them, that are read as `retention` keeps them: from the cache,
    /// where it has them so. What follows is kept whole. Without `retention`: as any policy keeps a prefix within them,
    /// where that is known of a longer one than is known exactly.
    pub kept_prefix: Option<usize>,
    /// Say in the report which positions each head kept, where it is not too much to say.
    pub show_kept: bool,
    /// Work of nobody who waits: it takes what others leave, and of their time what it needs where it is behind its pace.
    /// It ends however many they are. `None` where somebody waits.
    pub background: Option<Pace>,
}

impl Request {
    /// One greedy answer of at most so many tokens, as text, shared with everybody and kept as others are.
    pub fn new(prompt: Vec<Token>, max_tokens: usize) -> Request {
        Request {
            prompt,
            wants: Wants::Text,
            choices: 1,
            max_tokens,
            ignore_eos: false,
            stop: Vec::new(),
            sampling: Sampling::GREEDY,
            logprobs: None,
            constraint: None,
            show_special: false,
            show: Vec::new(),
            reuse: true,
            adapters: None,
            salt: [0; 16],
            tenant: TenantId::default(),
            lifetime: Lifetime::default(),
            retention: None,
            kept_prefix: None,
            show_kept: false,
            background: None,
        }
    }
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
    /// Log-probabilities, if requested: of the chosen token, then of the likeliest.
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

/// Token counts and times of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose keys and values came from the cache.
    pub cached_tokens: usize,
    /// Of these, prompt tokens that were in the host's memory when the request arrived, and had to be copied to a device.
    pub host_tokens: usize,
    /// Of these, prompt tokens that were on disk when the request arrived.
    pub disk_tokens: usize,
    /// Of these, prompt tokens that came from the store that nodes share.
    pub remote_tokens: usize,
    /// Prompt tokens computed for this request; with `cached_tokens` the whole prompt.
    pub computed_tokens: usize,
    /// Tokens computed again after a preemption, because their blocks had been evicted.
    pub recomputed_tokens: usize,
    /// Tokens generated, all choices.
    pub generated_tokens: usize,
    /// Tokens drafted for it, all choices.
    pub drafted_tokens: usize,
    /// Of these, tokens that were drawn: each came without a step of its own.
    pub accepted_tokens: usize,
    /// When the request was admitted, on the engine's clock.
    pub admitted_at: Duration,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from admission to the end of the prefill.
    pub prefill: Duration,
    /// Time from the first generated token to the last.
    pub decode: Duration,
    /// Why no more was reused.
    pub cache: Option<StopReason>,
    /// If the next block was evicted: when and why.
    pub evicted: Option<Eviction>,
    /// What the first choice kept at the last point at which it forgot.
    pub retained: Option<Box<Retained>>,
}

impl Report {
    /// Adds the report of another prompt for the same answer.
    pub fn add(&mut self, report: &Report) {
        self.prompt_tokens += report.prompt_tokens;
        self.cached_tokens += report.cached_tokens;
        self.host_tokens += report.host_tokens;
        self.disk_tokens += report.disk_tokens;
        self.remote_tokens += report.remote_tokens;
        self.computed_tokens += report.computed_tokens;
        self.generated_tokens += report.generated_tokens;
        self.recomputed_tokens += report.recomputed_tokens;
        self.drafted_tokens += report.drafted_tokens;
        self.accepted_tokens += report.accepted_tokens;
        self.queued = self.queued.max(report.queued);
        self.prefill += report.prefill;
        self.decode += report.decode;
        self.cache = report.cache;
        self.evicted = report.evicted;
    }
}

/// What a sequence keeps of its tokens, all layers and KV heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Retained {
    /// By what policy.
    pub retention: Retention,
    /// Tokens of the sequence when it forgot last.
    pub tokens: usize,
    /// Positions that it kept then, and those that it did not, of all heads of all layers.
    pub kept: u64,
    /// See `kept`.
    pub dropped: u64,
    /// Positions that the head with fewest kept.
    pub smallest_head: usize,
    /// Positions that the head with most kept.
    pub largest_head: usize,
    /// Tokens of the sequence when memory was short and it forgot for that, ascending.
    pub tightened: Vec<usize>,
    /// Which positions each head kept, where [`Request::show_kept`] asks for it: ranges of them,
    /// `[layers][kv_heads][ranges]`. None beyond 262,144 ranges.
    pub positions: Option<Vec<Vec<Vec<Range<u32>>>>>,
}

/// What a request would find in the cache if it were admitted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens it would not have to compute.
    pub known_tokens: usize,
    /// Of these, prompt tokens in the host's memory that a device would have to be given.
    pub host_tokens: usize,
    /// Of these, prompt tokens on disk only.
    pub disk_tokens: usize,
    /// Why no more are known.
    pub stop: StopReason,
    /// If the next block was evicted: when and why.
    pub evicted: Option<Eviction>,
    /// When the cache was looked up, on the engine's clock.
    pub at: Duration,
}

/// An event of a request, in order. A request ends with `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prefill has reached `done` of `total` prompt tokens.
    Prefill {
        /// Prompt tokens that were reused.
        cached: usize,
        /// Prompt tokens stored so far, reused ones included.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// New text of one choice: whole characters, never the beginning of a stop string.
    Text {
        /// Which choice, from 0.
        choice: u32,
        /// The text; empty while a character or a possible stop string is held back.
        text: String,
        /// Its tokens, in order; each token is reported once.
        tokens: Vec<GeneratedToken>,
    },
    /// What was wanted instead of text: the embedding, `[d_model]`, of whatever length it has; or the logits, in the
    /// order of their tokens.
    Vector(Vec<f32>),
    /// One choice has ended.
    Finished {
        /// Which choice, from 0.
        choice: u32,
        /// Why.
        reason: FinishReason,
    },
    /// All choices have ended.
    Done(Report),
    /// The request failed.
    Failed(RequestError),
}

/// Why a request was refused or failed.
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
    /// An adapter that the engine does not have.
    #[error("there is no adapter {adapter}; {adapters} are loaded, counted from 0 (--lora)")]
    UnknownAdapter {
        /// Its number.
        adapter: u32,
        /// How many there are.
        adapters: usize,
    },
    /// The waiting queue is full.
    #[error("{waiting} requests are waiting, which is the limit; try again in {retry_after_s} s")]
    QueueFull {
        /// Requests waiting now.
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
    /// The request would fit if fewer blocks were pinned.
    #[error(
        "the request needs {needed_blocks} KV blocks and {pinned_blocks} of the {budget_blocks} there are are pinned; shorten it, or unpin some (`kvik cache pins`, `kvik cache unpin`)"
    )]
    Pinned {
        /// Blocks it needs.
        needed_blocks: usize,
        /// Blocks that are pinned.
        pinned_blocks: usize,
        /// Blocks there are.
        budget_blocks: usize,
    },
    /// Pinning the prompt would exceed a limit on pinned blocks.
    #[error("{}", pin_limit(.0))]
    PinLimit(PinLimit),
    /// Its tokens cannot be forgotten as it asks.
    #[error("retain.{0}")]
    Retention(#[from] RetentionError),
    /// The prefix of which a part is to be kept is none.
    #[error(
        "retain.prefix: {prefix} tokens are not a prefix of the prompt, which has {prompt_tokens}, in whole blocks of 16"
    )]
    KeptPrefix {
        /// Tokens of the prefix.
        prefix: usize,
        /// Tokens of the prompt.
        prompt_tokens: usize,
    },
    /// More continuations than one request may have.
    #[error("the request wants {choices} choices; it may have 1 to {choices_max}")]
    BadChoices {
        /// Choices asked for.
        choices: u32,
        /// Choices allowed.
        choices_max: u32,
    },
    /// What is not text is wanted together with what only text has.
    #[error("the request wants an embedding or logits, which come without `{field}`")]
    NotText {
        /// What it asks for besides.
        field: &'static str,
    },
    /// The answer cannot be held to what was asked for.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// What computes has failed: a GPU that is lost, or has no memory left.
    #[error("{0}; ask again")]
    Device(String),
    /// Something failed inside the engine.
    #[error("internal error: {0}")]
    Internal(String),
}

/// The message never reveals how many blocks other tenants have pinned.
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

/// Receives a request's events. Sending must never block the engine.
pub trait EventSink: Send {
    /// Delivers one event; returns `false` when the receiver has disconnected.
    fn send(&mut self, event: Event) -> bool;

    /// Receives the report of a request that ends without `Done`.
    fn given_up(&mut self, _report: &Report) {}

    /// Whether the receiver has disconnected: the next step then ends the request.
    fn is_closed(&self) -> bool;
}
