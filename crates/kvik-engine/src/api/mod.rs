//! Requests to the engine and its events: plain data, no behaviour.

mod fleet;
mod kept;
mod kv_event;
mod line_limits;
mod outline;
mod pace;
mod retokenised;
mod wants;

use std::ops::Range;
use std::time::Duration;

use kvik_cache::retain::{Retention, RetentionError};
use kvik_cache::tier::ByLevel;
use kvik_cache::{Eviction, Lifetime, PinLimit, PinScope, StopReason, TenantId, Token};
use kvik_model::batch::RunnerFault;

pub use kvik_model::{AdapterId, AdapterMix, AdapterUse};
pub use kvik_text::forms::{
    ArgumentsForm, CallForm, CallStart, Calls, Constraint, ConstraintError, ReasoningPlace, ReasoningTexts,
};
pub use kvik_text::repetition::Repetition;
pub use kvik_text::sampler::Sampling;

pub use fleet::HotPrefix;
pub use kept::{Cached, Evicted, PinnedPrompt, Unpin};
pub use kv_event::{KvEvent, KvListener, KvStored};
pub use line_limits::LineLimits;
pub use outline::{NodeView, TreeNode, TreeView};
pub use pace::Pace;
pub use retokenised::{AnswerKey, AnswerOwner, Retokenised, UsedAnswer};
pub use wants::{Pooling, UnknownPooling, Wants};

/// A request: a prompt and how to continue it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Prompt, at least one token.
    pub prompt: Vec<Token>,
    /// Whether a tokenizer chose these tokens for a text, so that answers in it may have those that were generated.
    pub prompt_is_text: bool,
    /// What is known of answers in the prompt; set by [`Engine::as_generated`](crate::engine::Engine::as_generated).
    pub retokenised: Option<Retokenised>,
    /// The output. Outputs other than text require one choice and no generated tokens, and the whole prompt is read.
    pub wants: Wants,
    /// Number of continuations; they share the prompt's blocks.
    pub choices: u32,
    /// Maximum number of tokens to generate per choice; 0 computes the prompt only.
    pub max_tokens: usize,
    /// Continue after an end-of-generation token.
    pub ignore_eos: bool,
    /// Stop strings: the answer ends before the first of them.
    pub stop: Vec<String>,
    /// End an answer that only repeats itself.
    pub stop_loops: bool,
    /// End an answer at a line that is indented too little, or after a time.
    pub line_limits: LineLimits,
    /// How tokens are chosen. Choice `i` uses `seed + i`.
    pub sampling: Sampling,
    /// `Some(k)` returns log-probabilities of the chosen token and of the `k` most likely ones.
    pub logprobs: Option<usize>,
    /// Constrains the form of the answer.
    pub constraint: Option<Constraint>,
    /// Keep control tokens (`<|im_end|>` and the like) in the answer's text.
    pub show_special: bool,
    /// Control tokens to keep in the answer's text even when `show_special` is off.
    pub show: Vec<Token>,
    /// Reuse the cached prefix of the prompt, and publish its blocks to the cache.
    pub reuse: bool,
    /// The adapters that the request is computed with; `None` for the model alone.
    pub adapters: Option<AdapterMix>,
    /// Separates tenants: prompts are shared only within one salt. Zero without tenants.
    pub salt: [u8; 16],
    /// The tenant whose share of the cache and of the model's time is charged.
    pub tenant: TenantId,
    /// How long the cache keeps the blocks of this request.
    pub lifetime: Lifetime,
    /// The policy that selects the positions its sequences continue to attend to; all of them if `None`.
    pub retention: Option<Retention>,
    /// Number of leading tokens of the prompt, in whole blocks, that are read in the form that `retention` compresses
    /// them to: from the cache if it has that form. The tokens after them are all retained. Without `retention`, the
    /// cache may provide a prefix of them compressed by any policy, if that is longer than the exact match.
    pub kept_prefix: Option<usize>,
    /// Report which positions each head retains, up to a size limit.
    pub show_kept: bool,
    /// Marks a background request: it uses the capacity that other requests leave, and takes time from them if it lags
    /// behind its pace. It always ends, however many they are. `None` for a foreground request.
    pub background: Option<Pace>,
}

impl Request {
    /// A request for one greedy answer of at most `max_tokens` tokens, as text, shared with all and cached as usual.
    pub fn new(prompt: Vec<Token>, max_tokens: usize) -> Request {
        Request {
            prompt,
            prompt_is_text: false,
            retokenised: None,
            wants: Wants::Text,
            choices: 1,
            max_tokens,
            ignore_eos: false,
            stop: Vec::new(),
            stop_loops: false,
            line_limits: LineLimits::default(),
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

    /// Whether it reads a compressed prefix where one is listed, whichever policy made it.
    pub(crate) fn chooses_part(&self) -> bool {
        self.retention.is_none() && self.kept_prefix.is_some() && self.choices == 1
    }

    /// Tokens of the prompt that are those of an answer as it was generated, where a tokenizer would have chosen others.
    pub(crate) fn retokenised_tokens(&self) -> usize {
        self.retokenised.as_ref().map_or(0, |retokenised| retokenised.tokens)
    }
}

/// Log-probability of a token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: Token,
    /// Its bytes, for a control token its name; may be part of a character.
    pub bytes: Vec<u8>,
    /// Whether the text of the answer has these bytes: not of a control token, unless the request shows it.
    pub shown: bool,
    /// Natural logarithm of its probability, before temperature and truncation.
    pub logprob: f32,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Token id.
    pub token: Token,
    /// Log-probabilities, if requested: of the chosen token, then of the most likely ones.
    pub logprob: Option<(TokenLogprob, Vec<TokenLogprob>)>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its answer.
    Eos,
    /// A stop string appeared; its index in [`Request::stop`].
    StopString(usize),
    /// `max_tokens` were generated, the context is full, pinned prompts leave no more room, or one of the
    /// [`Request::line_limits`] is reached.
    Length,
    /// The constraint is satisfied and allows nothing more.
    ConstraintDone,
    /// The answer only repeats itself, and [`Request::stop_loops`] is set.
    Loop(Repetition),
}

/// Token counts and times of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose keys and values came from the cache.
    pub cached_tokens: usize,
    /// Cached tokens that were in a tier below RAM when the request arrived.
    pub loaded: ByLevel,
    /// Prompt tokens that are those of an answer as it was generated, where a tokenizer would have chosen others.
    pub retokenised: usize,
    /// Prompt tokens computed for this request; with `cached_tokens` the whole prompt.
    pub computed_tokens: usize,
    /// Tokens recomputed after a preemption, because their blocks had been evicted.
    pub recomputed_tokens: usize,
    /// Tokens generated, all choices.
    pub generated_tokens: usize,
    /// Those of them after the first one of their choice, which take the time `decode`.
    pub decoded_tokens: usize,
    /// Tokens drafted for it, all choices.
    pub drafted_tokens: usize,
    /// Draft tokens that were accepted: each came without a step of its own.
    pub accepted_tokens: usize,
    /// Tokens of each choice, as far as they have any; not in a sum of reports.
    pub choices: Vec<ChoiceTokens>,
    /// When the request was admitted, on the clock of `evicted`.
    pub admitted_at: Duration,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from admission to the end of the prefill.
    pub prefill: Duration,
    /// Its share of the model's time for prompt tokens: by rows, where several requests were computed together.
    pub prompt_time: Duration,
    /// Time from the first generated token to the last.
    pub decode: Duration,
    /// Why no more was reused.
    pub cache: Option<StopReason>,
    /// If the next block was evicted: when and why.
    pub evicted: Option<Eviction>,
    /// The positions that the first choice retained after the last pass of its retention policy.
    pub retained: Option<Box<Retained>>,
}

impl Report {
    /// Adds the report of another prompt for the same answer.
    pub fn add(&mut self, report: &Report) {
        self.prompt_tokens += report.prompt_tokens;
        self.cached_tokens += report.cached_tokens;
        self.loaded += report.loaded;
        self.retokenised += report.retokenised;
        self.computed_tokens += report.computed_tokens;
        self.generated_tokens += report.generated_tokens;
        self.decoded_tokens += report.decoded_tokens;
        self.recomputed_tokens += report.recomputed_tokens;
        self.drafted_tokens += report.drafted_tokens;
        self.accepted_tokens += report.accepted_tokens;
        self.admitted_at = report.admitted_at;
        self.queued = self.queued.max(report.queued);
        self.prefill += report.prefill;
        self.prompt_time += report.prompt_time;
        self.decode += report.decode;
        self.cache = report.cache;
        self.evicted = report.evicted;
    }
}

/// Token counts of one choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChoiceTokens {
    /// As [`Report::generated_tokens`].
    pub generated: usize,
    /// As [`Report::decoded_tokens`].
    pub decoded: usize,
    /// As [`Report::drafted_tokens`].
    pub drafted: usize,
    /// As [`Report::accepted_tokens`].
    pub accepted: usize,
}

/// The retained positions of a sequence, over all layers and KV heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Retained {
    /// The policy.
    pub retention: Retention,
    /// Tokens of the sequence at the last pass.
    pub tokens: usize,
    /// Positions retained by that pass, over all heads of all layers.
    pub kept: u64,
    /// Positions dropped by then, over all heads of all layers.
    pub dropped: u64,
    /// Number of positions of the head that retained fewest.
    pub smallest_head: usize,
    /// Number of positions of the head that retained most.
    pub largest_head: usize,
    /// Numbers of tokens at which memory pressure caused a pass, ascending.
    pub tightened: Vec<usize>,
    /// The retained positions of each head, if [`Request::show_kept`] asks for them, as ranges:
    /// `[layers][kv_heads][ranges]`. `None` beyond 262,144 ranges.
    pub positions: Option<Vec<Vec<Vec<Range<u32>>>>>,
}

/// The match that a request would find in the cache if it were admitted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens it would not have to compute.
    pub known_tokens: usize,
    /// Known tokens that would have to be loaded from a tier of this node below RAM.
    pub loaded: ByLevel,
    /// Prompt tokens that are those of an answer as it was generated, where a tokenizer would have chosen others.
    pub retokenised: usize,
    /// Why the match is not longer.
    pub stop: StopReason,
    /// If the next block was evicted: when and why.
    pub evicted: Option<Eviction>,
    /// When the cache was looked up, on the clock of `evicted`.
    pub at: Duration,
}

/// An event of a request, in order. A request ends with `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Comes before all others if the answer is not held to the request's constraint, which was to guide the calls that
    /// the model starts by itself: with the reason.
    Unconstrained(ConstraintError),
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
        /// The choice, from 0.
        choice: u32,
        /// The text; empty while a character or a possible stop string is held back.
        text: String,
        /// Its tokens, in order; each token is reported once.
        tokens: Vec<GeneratedToken>,
    },
    /// The result of a request for an output other than text: the embedding, `[d_model]`, not normalised; or the
    /// logits, in the order of their tokens.
    Vector(Vec<f32>),
    /// A choice has ended.
    Finished {
        /// The choice, from 0.
        choice: u32,
        /// Why it ended.
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
        /// Its id.
        adapter: u32,
        /// Number of adapters loaded.
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
    /// The request needs more KV blocks than the whole budget has.
    #[error(
        "the request needs {needed_blocks} KV blocks and the budget holds {budget_blocks}; raise --cache-ram or shorten it"
    )]
    OverBudget {
        /// Number of blocks it needs.
        needed_blocks: usize,
        /// Number of blocks in the budget.
        budget_blocks: usize,
    },
    /// The request would fit if fewer blocks were pinned.
    #[error(
        "the request needs {needed_blocks} KV blocks and {} of the {budget_blocks} there are are pinned; shorten it, or unpin some (`kvik cache pins`, `kvik cache unpin`)",
        pinned(*.pinned_blocks, *.scope)
    )]
    Pinned {
        /// Number of blocks it needs.
        needed_blocks: usize,
        /// Number of pinned blocks.
        pinned_blocks: usize,
        /// Number of blocks in the budget.
        budget_blocks: usize,
        /// Whether all of these are pins of its own tenant.
        scope: PinScope,
    },
    /// Pinning the prompt would exceed a limit on pinned blocks.
    #[error("{}", pin_limit(.0))]
    PinLimit(PinLimit),
    /// Its retention policy is not possible.
    #[error("retain.{0}")]
    Retention(#[from] RetentionError),
    /// The prefix to be compressed is invalid.
    #[error(
        "retain.prefix: {prefix} tokens are not a prefix of the prompt, which has {prompt_tokens}, in whole blocks of 16"
    )]
    KeptPrefix {
        /// Tokens of the prefix.
        prefix: usize,
        /// Tokens of the prompt.
        prompt_tokens: usize,
    },
    /// More continuations than a request may have.
    #[error("the request wants {choices} choices; it may have 1 to {choices_max}")]
    BadChoices {
        /// Number of choices requested.
        choices: u32,
        /// Maximum number of choices.
        choices_max: u32,
    },
    /// A request for an output other than text has an option that applies only to text.
    #[error("the request wants an embedding or logits, which come without `{field}`")]
    NotText {
        /// The option.
        field: &'static str,
    },
    /// The constraint cannot be applied.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The compute device has failed: a GPU that is lost or has no memory left.
    #[error("{0}; ask again")]
    Device(String),
    /// Something failed inside the engine.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<RunnerFault> for RequestError {
    fn from(fault: RunnerFault) -> RequestError {
        RequestError::Device(fault.message)
    }
}

/// How many blocks are pinned, which never reveals how many other tenants have pinned.
fn pinned(blocks: usize, scope: PinScope) -> String {
    match scope {
        PinScope::Tenant => blocks.to_string(),
        PinScope::All => "too many".to_owned(),
    }
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
    /// Delivers an event; returns `false` when the receiver has disconnected.
    fn send(&mut self, event: Event) -> bool;

    /// Receives the report of a request that ends without `Done`.
    fn given_up(&mut self, _report: &Report) {}

    /// Whether the receiver has disconnected: the next step then ends the request.
    fn is_closed(&self) -> bool;
}

/// The event sink of a request that has no client, and goes on to its end.
pub(crate) struct Nobody;

impl EventSink for Nobody {
    fn send(&mut self, _: Event) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        false
    }
}
