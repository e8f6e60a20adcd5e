//! Answers: texts and chats, their pieces while they are made, and what they took.

use std::ffi::{c_char, c_void};

use kvik_library::{
    Answer, AnswerOptions, Constraint, Finish, Message, Piece, Report, Role, Sampling, ToolCall, ToolChoice,
    tool_choice_from_name, tools_from_json,
};
use serde_json::json;

use crate::model::KvikModel;
use crate::status::{Failure, KvikStatus, call};
use crate::text::{list, optional, put, reference, text};

/// What an answer is asked for with. All zeros are the likeliest tokens up to the end of the context, and so is null.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikAnswerOptions {
    /// Tokens of the answer at most; 0 is the rest of the context.
    pub max_tokens: u64,
    /// Tokens that it has before the model may end it.
    pub min_tokens: u64,
    /// How far from the likeliest tokens it may go; 0 takes these.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose probability reaches this; 0 keeps all.
    pub top_p: f32,
    /// Keeps so many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// The same seed gives the same text.
    pub seed: u64,
    /// `stop_count` texts before the first of which the answer ends.
    pub stop: *const *const c_char,
    /// See `stop`.
    pub stop_count: usize,
    /// Tools that a chat may call, as OpenAI writes them: a JSON array; null are none.
    pub tools: *const c_char,
    /// `none`, `auto`, `required`, or the name of a tool; null is `auto`.
    pub tool_choice: *const c_char,
    /// A JSON schema that the answer satisfies, or null. One of this and the next two at most.
    pub json_schema: *const c_char,
    /// A regular expression that it matches, or null.
    pub regex: *const c_char,
    /// A Lark grammar (of llguidance) that accepts it, or null.
    pub grammar: *const c_char,
    /// By what a long prompt is read in part, as `keydiff:0.5` (docs/retention.md); null reads all of it.
    pub retention: *const c_char,
}

/// Who says a message.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikRole {
    /// The program, to the model.
    System = 0,
    /// The user.
    User = 1,
    /// The model.
    Assistant = 2,
    /// A tool that the model called.
    Tool = 3,
}

/// A message of a chat.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikMessage {
    /// One of `KvikRole`.
    pub role: u32,
    /// What is said.
    pub content: *const c_char,
    /// Calls of the model, a JSON array of what `KVIK_PIECE_KIND_CALL` pieces are; null are none.
    pub tool_calls: *const c_char,
    /// The call that a tool answers, or null.
    pub tool_call_id: *const c_char,
}

/// What a piece of an answer is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikPieceKind {
    /// More of the answer.
    Text = 0,
    /// More of what the model thinks before it answers.
    Reasoning = 1,
    /// A whole call of a tool: `{"id": "...", "name": "...", "arguments": "..."}`, where the arguments are JSON in a text.
    Call = 2,
}

/// Takes a piece of an answer: `bytes` bytes of whole characters in UTF-8, and a nul behind them; they are gone when it
/// returns. It is called on the thread that asked. False cancels the answer.
pub type KvikPieceCallback = Option<
    unsafe extern "C" fn(
        kind: KvikPieceKind,
        piece: *const c_char,
        bytes: usize,
        context: *mut c_void,
    ) -> bool,
>;

/// Why an answer ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikFinish {
    /// The model ended it.
    End = 0,
    /// One of the texts to stop at came next.
    Stop = 1,
    /// It has as many tokens as it may have.
    Length = 2,
    /// It was cancelled.
    Cancelled = 3,
}

/// What an answer took.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikReport {
    /// Why it ended.
    pub finish: KvikFinish,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, tokens that came from the cache.
    pub cached_tokens: u64,
    /// Of these, tokens that came from disk.
    pub disk_tokens: u64,
    /// Tokens of the answer.
    pub generated_tokens: u64,
    /// Why no more of the prompt came from the cache, as `first_seen`; empty where that is not known.
    pub reason: [c_char; 32],
    /// Seconds in the queue.
    pub queued_s: f64,
    /// Seconds from there to the first token.
    pub prefill_s: f64,
    /// Seconds from the first token to the last.
    pub decode_s: f64,
}

/// Continues a text. Names of control tokens in it stand for these tokens: texts of users belong into messages.
///
/// # Safety
/// `model` is an open handle, `prompt` a text, `options` null or options with texts to stop at, `report` null or a place
/// for a report; `on_piece` is null or may be called with `context` on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_generate(
    model: *const KvikModel,
    prompt: *const c_char,
    options: *const KvikAnswerOptions,
    on_piece: KvikPieceCallback,
    context: *mut c_void,
    report: *mut KvikReport,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (model, prompt, options) =
            unsafe { (reference(model, "model")?, text(prompt, "prompt")?, answer_options(options)?) };
        let answer = model.0.generate(prompt, &options)?;
        // SAFETY: the caller promises it.
        unsafe { deliver(answer, (on_piece, context), report) }
    })
}

/// Answers `count` messages, in the form of the model's chat template. Nothing in them is taken for a control token.
///
/// # Safety
/// `messages` are `count` messages with texts; otherwise as `kvik_generate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvik_chat(
    model: *const KvikModel,
    messages: *const KvikMessage,
    count: usize,
    options: *const KvikAnswerOptions,
    on_piece: KvikPieceCallback,
    context: *mut c_void,
    report: *mut KvikReport,
) -> KvikStatus {
    call(|| {
        // SAFETY: the caller promises it.
        let (model, options) = unsafe { (reference(model, "model")?, answer_options(options)?) };
        // SAFETY: the caller promises it.
        let messages = unsafe { read_messages(messages, count)? };
        let answer = model.0.chat(&messages, &options)?;
        // SAFETY: the caller promises it.
        unsafe { deliver(answer, (on_piece, context), report) }
    })
}

/// # Safety
/// `messages` are `count` messages with texts, or null if there are none.
pub(crate) unsafe fn read_messages(
    messages: *const KvikMessage,
    count: usize,
) -> Result<Vec<Message>, Failure> {
    // SAFETY: the caller promises it.
    let messages = unsafe { list(messages, count, "messages")? };
    let read = |message: &KvikMessage| {
        let role = match message.role {
            role if role == KvikRole::System as u32 => Role::System,
            role if role == KvikRole::User as u32 => Role::User,
            role if role == KvikRole::Assistant as u32 => Role::Assistant,
            role if role == KvikRole::Tool as u32 => Role::Tool,
            _ => return Err(Failure::argument("role", "is none of KvikRole")),
        };
        // SAFETY: the caller promises it.
        let (content, calls, id) = unsafe {
            (
                text(message.content, "content")?,
                optional(message.tool_calls, "tool_calls")?,
                optional(message.tool_call_id, "tool_call_id")?,
            )
        };
        let mut said = Message::new(role, content);
        said.tool_calls = calls.map_or(Ok(Vec::new()), read_calls)?;
        said.tool_call_id = id.map(str::to_owned);
        Ok(said)
    };
    messages.iter().map(read).collect()
}

/// # Safety
/// `options` is null, or options with `stop_count` texts.
pub(crate) unsafe fn answer_options(options: *const KvikAnswerOptions) -> Result<AnswerOptions, Failure> {
    // SAFETY: the caller promises it.
    let Some(options) = (unsafe { options.as_ref() }) else { return Ok(AnswerOptions::GREEDY) };
    if !(options.temperature >= 0.0 && options.top_p >= 0.0) {
        return Err(Failure::argument("temperature, top_p", "must not be negative"));
    }
    // SAFETY: the caller promises it.
    let stop = unsafe { list(options.stop, options.stop_count, "stop")? };
    // SAFETY: the caller promises it.
    let stop = stop.iter().map(|&at| Ok(unsafe { text(at, "stop")? }.to_owned()));
    let sampling = Sampling {
        temperature: options.temperature,
        top_p: if options.top_p == 0.0 { 1.0 } else { options.top_p },
        top_k: options.top_k as usize,
        seed: options.seed,
        min_tokens: usize::try_from(options.min_tokens).unwrap_or(usize::MAX),
        ..Sampling::GREEDY
    };
    let max_tokens = usize::try_from(options.max_tokens).ok().filter(|&tokens| tokens > 0);
    // SAFETY: the caller promises it.
    let form = unsafe { answer_form(options)? };
    Ok(AnswerOptions { max_tokens, stop: stop.collect::<Result<_, Failure>>()?, sampling, ..form })
}

/// What of the options holds an answer to a form.
///
/// # Safety
/// The texts of `options` are texts or null.
unsafe fn answer_form(options: &KvikAnswerOptions) -> Result<AnswerOptions, Failure> {
    let read = |at, name| {
        // SAFETY: the caller promises it.
        unsafe { optional(at, name) }
    };
    let forms = [
        read(options.json_schema, "json_schema")?.map(json_schema).transpose()?,
        read(options.regex, "regex")?.map(|regex| Constraint::Regex(regex.to_owned())),
        read(options.grammar, "grammar")?.map(|grammar| Constraint::Lark(grammar.to_owned())),
    ];
    let mut forms = forms.into_iter().flatten();
    let constraint = forms.next();
    if forms.next().is_some() {
        return Err(Failure::argument("json_schema, regex, grammar", "say more than one form"));
    }
    let retention = read(options.retention, "retention")?.map(str::parse).transpose();
    Ok(AnswerOptions {
        constraint,
        retention: retention
            .map_err(|error| Failure::argument("retention", &format!("is wrong: {error}")))?,
        tools: read(options.tools, "tools")?.map_or(Ok(Vec::new()), tools_from_json)?,
        tool_choice: read(options.tool_choice, "tool_choice")?
            .map_or(ToolChoice::Auto, tool_choice_from_name),
        ..AnswerOptions::GREEDY
    })
}

fn json_schema(text: &str) -> Result<Constraint, Failure> {
    let schema = serde_json::from_str(text);
    schema
        .map(Constraint::JsonSchema)
        .map_err(|error| Failure::argument("json_schema", &format!("is no JSON: {error}")))
}

fn read_calls(json: &str) -> Result<Vec<ToolCall>, Failure> {
    let calls = serde_json::from_str(json);
    calls.map_err(|error| Failure::argument("tool_calls", &format!("are no calls: {error}")))
}

/// Gives the pieces to the callback, until it wants no more, and writes the report.
///
/// # Safety
/// The callback may be called with its context; `report` is null or a place for a report.
pub(crate) unsafe fn deliver(
    mut answer: Answer,
    (on_piece, context): (KvikPieceCallback, *mut c_void),
    report: *mut KvikReport,
) -> Result<(), Failure> {
    let mut wanted = true;
    while let Some(piece) = answer.next() {
        let (kind, mut bytes) = match piece? {
            Piece::Reasoning(text) => (KvikPieceKind::Reasoning, text.into_bytes()),
            Piece::Call(call) => (KvikPieceKind::Call, json!(call).to_string().into_bytes()),
            piece => (KvikPieceKind::Text, piece.text().as_bytes().to_vec()),
        };
        let count = bytes.len();
        bytes.push(0);
        if let Some(on_piece) = on_piece.filter(|_| wanted) {
            // SAFETY: the caller promises that it may be called; the piece lives until it returns.
            wanted = unsafe { on_piece(kind, bytes.as_ptr().cast(), count, context) };
            if !wanted {
                answer.cancel();
            }
        }
    }
    if let Some(taken) = answer.report() {
        // SAFETY: the caller promises it.
        unsafe { put(report, taken.into()) };
    }
    Ok(())
}

/// A word in a place of its own, cut where it does not fit, with a nul behind it.
pub(crate) fn word(text: &str) -> [c_char; 32] {
    let mut word = [0; 32];
    for (to, byte) in word[..31].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    word
}

impl From<&Report> for KvikReport {
    fn from(report: &Report) -> KvikReport {
        let finish = match report.finish {
            Finish::Stop => KvikFinish::Stop,
            Finish::Length => KvikFinish::Length,
            Finish::Cancelled => KvikFinish::Cancelled,
            _ => KvikFinish::End,
        };
        KvikReport {
            finish,
            prompt_tokens: report.prompt_tokens as u64,
            cached_tokens: report.cached_tokens as u64,
            disk_tokens: report.disk_tokens as u64,
            generated_tokens: report.generated_tokens as u64,
            reason: word(report.reason.map_or("", |reason| reason.name())),
            queued_s: report.queued.as_secs_f64(),
            prefill_s: report.prefill.as_secs_f64(),
            decode_s: report.decode.as_secs_f64(),
        }
    }
}
