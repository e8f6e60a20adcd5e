//! Answers: texts and chats, their pieces while they are generated, and their reports.

use std::ffi::{c_char, c_void};

use kvik_library::{
    Answer, AnswerOptions, Constraint, Finish, LOGIT_BIASES, Message, Piece, REPETITION_PENALTIES, Report,
    Role, SamplingOptions, Token, ToolCall, ToolChoice, tool_choice_from_name, tools_from_json,
};
use serde_json::json;

use crate::model::KvikModel;
use crate::sampling::KVIK_KEEP_ALL;
use crate::status::{Failure, KvikStatus, call};
use crate::text::{list, optional, put, reference, text, word};

/// Options of an answer. A field that is 0 or null has its default, and a null pointer has all defaults: the sampling that
/// the model's makers recommend, up to the end of the context.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikAnswerOptions {
    /// Maximum tokens of the answer; 0 is the rest of the context.
    pub max_tokens: u64,
    /// Minimum tokens of the answer: before them the model cannot end it.
    pub min_tokens: u64,
    /// Sampling temperature; 0 is the model's (`kvik_sampling`), `KVIK_GREEDY` takes the likeliest token at each position.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose probability reaches this; 0 is the model's, 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the likeliest tokens; 0 is the model's, `KVIK_KEEP_ALL` keeps all.
    pub top_k: u32,
    /// Drops tokens below this share of the likeliest one's probability; 0 is the model's, a negative number drops none.
    pub min_p: f32,
    /// Divides the logits of tokens that occurred; 0 is the model's, 1 is off.
    pub repetition_penalty: f32,
    /// Seed of the sampler: the same seed gives the same text; 0 is a random one.
    pub seed: u64,
    /// `stop_count` texts; the answer ends before the first of these.
    pub stop: *const *const c_char,
    /// Number of texts in `stop`.
    pub stop_count: usize,
    /// Tools that a chat may call, in OpenAI's format: a JSON array; null is none.
    pub tools: *const c_char,
    /// `none`, `auto`, `required`, or the name of a tool; null is `auto`.
    pub tool_choice: *const c_char,
    /// A JSON schema that the answer satisfies, or null. At most one of this and the next two is set.
    pub json_schema: *const c_char,
    /// A regular expression that the answer matches, or null.
    pub regex: *const c_char,
    /// A Lark grammar (of llguidance) that accepts the answer, or null.
    pub grammar: *const c_char,
    /// The retention policy of a long prompt, as `keydiff:0.5` (docs/retention.md); null reads the whole prompt.
    pub retention: *const c_char,
    /// Ends an answer that only repeats itself, as small models do.
    pub stop_loops: bool,
    /// Switches reasoning before the answer to a chat on (1) or off (-1), for models that have it; 0 is the template's.
    pub reasoning: i32,
    /// `logit_bias_count` changes of the logits of tokens.
    pub logit_bias: *const KvikLogitBias,
    /// Number of changes in `logit_bias`.
    pub logit_bias_count: usize,
}

/// A change of the logit of a token.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikLogitBias {
    /// The token, as `kvik_tokens` writes it.
    pub token: u32,
    /// Number that is added to its logit, at most 1e9; negative infinity forbids the token.
    pub bias: f32,
}

/// Role of a message.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikRole {
    /// Instructions of the program to the model.
    System = 0,
    /// Input of the user.
    User = 1,
    /// Output of the model.
    Assistant = 2,
    /// Result of a tool call.
    Tool = 3,
}

/// A message of a chat.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikMessage {
    /// One of `KvikRole`.
    pub role: u32,
    /// Text of the message.
    pub content: *const c_char,
    /// Tool calls of the model, a JSON array of the objects of `KVIK_PIECE_KIND_CALL`; null is none.
    pub tool_calls: *const c_char,
    /// Id of the call that a tool's result answers, or null.
    pub tool_call_id: *const c_char,
}

/// Kind of a piece of an answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikPieceKind {
    /// More of the answer.
    Text = 0,
    /// More of the model's reasoning before the answer.
    Reasoning = 1,
    /// A complete tool call: `{"id": "...", "name": "...", "arguments": "..."}`; the arguments are a text that holds JSON.
    Call = 2,
}

/// Receives a piece of an answer: `bytes` bytes of whole characters in UTF-8, and a nul behind them, which are valid until
/// it returns. It is called on the thread that asked. Returning false cancels the answer.
pub type KvikPieceCallback = Option<
    unsafe extern "C" fn(
        kind: KvikPieceKind,
        piece: *const c_char,
        bytes: usize,
        context: *mut c_void,
    ) -> bool,
>;

/// Reason why an answer ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvikFinish {
    /// The model ended it.
    End = 0,
    /// The next text would have been a stop text.
    Stop = 1,
    /// The maximum number of tokens is reached.
    Length = 2,
    /// The answer was cancelled.
    Cancelled = 3,
    /// The answer repeated itself, and `stop_loops` is set.
    Loop = 4,
}

/// Cost of an answer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KvikReport {
    /// Reason for its end.
    pub finish: KvikFinish,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from the cache, including those from disk.
    pub cached_tokens: u64,
    /// Cached tokens that came from disk.
    pub disk_tokens: u64,
    /// Tokens of the answer.
    pub generated_tokens: u64,
    /// Why no more of the prompt came from the cache, as `first_seen`; empty if that is unknown.
    pub reason: [c_char; 32],
    /// Seconds in the queue.
    pub queued_s: f64,
    /// Seconds from admission to the first token.
    pub prefill_s: f64,
    /// Seconds from the first token to the last.
    pub decode_s: f64,
}

/// Continues a text. Names of control tokens in it are parsed as these tokens, so users' texts belong in messages.
///
/// # Safety
/// `model` is an open handle, `prompt` a text, `options` null or valid options, `report` null or writable; `on_piece` is
/// null or may be called with `context` on this thread.
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

/// Answers `count` messages, rendered by the model's chat template. Nothing in them is parsed as a control token.
///
/// # Safety
/// `messages` are `count` valid messages; otherwise as `kvik_generate`.
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
/// `options` is null, or options with `stop_count` texts and `logit_bias_count` changes.
pub(crate) unsafe fn answer_options(options: *const KvikAnswerOptions) -> Result<AnswerOptions, Failure> {
    // SAFETY: the caller promises it.
    let Some(options) = (unsafe { options.as_ref() }) else { return Ok(AnswerOptions::RECOMMENDED) };
    let sampling = sampling_options(options)?;
    // SAFETY: the caller promises it.
    let stop = unsafe { list(options.stop, options.stop_count, "stop")? };
    // SAFETY: the caller promises it.
    let stop = stop.iter().map(|&at| Ok(unsafe { text(at, "stop")? }.to_owned()));
    let stop = stop.collect::<Result<_, Failure>>()?;
    // SAFETY: the caller promises it.
    let biases = unsafe { list(options.logit_bias, options.logit_bias_count, "logit_bias")? };
    let logit_bias = biases.iter().map(logit_bias).collect::<Result<_, Failure>>()?;
    let max_tokens = usize::try_from(options.max_tokens).ok().filter(|&tokens| tokens > 0);
    let min_tokens = usize::try_from(options.min_tokens).unwrap_or(usize::MAX);
    let seed = (options.seed != 0).then_some(options.seed);
    // SAFETY: the caller promises it.
    let form = unsafe { answer_form(options)? };
    let stop_loops = options.stop_loops;
    Ok(AnswerOptions { max_tokens, min_tokens, stop, stop_loops, sampling, logit_bias, seed, ..form })
}

fn logit_bias(&KvikLogitBias { token, bias }: &KvikLogitBias) -> Result<(Token, f32), Failure> {
    match LOGIT_BIASES.contains(&bias) {
        true => Ok((token, bias)),
        false => Err(Failure::argument("logit_bias", "must be numbers of at most 1e9")),
    }
}

/// The settings that the options of an answer set.
fn sampling_options(options: &KvikAnswerOptions) -> Result<SamplingOptions, Failure> {
    let KvikAnswerOptions { temperature, top_p, top_k, min_p, repetition_penalty, .. } = *options;
    if [temperature, top_p, min_p, repetition_penalty].iter().any(|number| !number.is_finite()) {
        return Err(Failure::argument("temperature, top_p, min_p, repetition_penalty", "must be numbers"));
    }
    if top_p < 0.0 {
        return Err(Failure::argument("top_p", "must not be negative"));
    }
    if repetition_penalty != 0.0 && !REPETITION_PENALTIES.contains(&repetition_penalty) {
        return Err(Failure::argument("repetition_penalty", "must be 0 or 0.01 to 100"));
    }
    let set = |number: f32| (number != 0.0).then_some(number);
    let usual = if temperature < 0.0 { SamplingOptions::GREEDY } else { SamplingOptions::NONE };
    Ok(SamplingOptions {
        temperature: set(temperature.max(0.0)).or(usual.temperature),
        top_p: set(top_p),
        top_k: (top_k != 0).then_some(if top_k == KVIK_KEEP_ALL { 0 } else { top_k as usize }),
        min_p: set(min_p).map(|share| share.max(0.0)),
        repetition_penalty: set(repetition_penalty).or(usual.repetition_penalty),
        ..usual
    })
}

/// The options that determine the form of an answer and its prompt.
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
        reasoning: (options.reasoning != 0).then_some(options.reasoning > 0),
        retention: retention
            .map_err(|error| Failure::argument("retention", &format!("is wrong: {error}")))?,
        tools: read(options.tools, "tools")?.map_or(Ok(Vec::new()), tools_from_json)?,
        tool_choice: read(options.tool_choice, "tool_choice")?
            .map_or(ToolChoice::Auto, tool_choice_from_name),
        ..AnswerOptions::RECOMMENDED
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

/// Passes the pieces to the callback until it returns false, and writes the report.
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

impl From<&Report> for KvikReport {
    fn from(report: &Report) -> KvikReport {
        let finish = match report.finish {
            Finish::Stop => KvikFinish::Stop,
            Finish::Length => KvikFinish::Length,
            Finish::Cancelled => KvikFinish::Cancelled,
            Finish::Loop => KvikFinish::Loop,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::KVIK_GREEDY;

    /// Options of which nothing is set.
    fn zeroed() -> KvikAnswerOptions {
        KvikAnswerOptions {
            max_tokens: 0,
            min_tokens: 0,
            temperature: 0.0,
            top_p: 0.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 0.0,
            seed: 0,
            stop: std::ptr::null(),
            stop_count: 0,
            tools: std::ptr::null(),
            tool_choice: std::ptr::null(),
            json_schema: std::ptr::null(),
            regex: std::ptr::null(),
            grammar: std::ptr::null(),
            retention: std::ptr::null(),
            stop_loops: false,
            reasoning: 0,
            logit_bias: std::ptr::null(),
            logit_bias_count: 0,
        }
    }

    #[test]
    fn a_loop_is_ended_where_that_is_set() {
        for stop_loops in [false, true] {
            let options = KvikAnswerOptions { stop_loops, ..zeroed() };
            // SAFETY: the texts are null, and their count is zero.
            let read = unsafe { answer_options(&options) }.unwrap();
            assert_eq!(read.stop_loops, stop_loops);
        }
    }

    #[test]
    fn reasoning_is_switched_by_a_sign() {
        for (reasoning, expect) in [(0, None), (1, Some(true)), (-1, Some(false))] {
            let options = KvikAnswerOptions { reasoning, ..zeroed() };
            // SAFETY: the texts are null, and their count is zero.
            assert_eq!(unsafe { answer_options(&options) }.unwrap().reasoning, expect);
        }
    }

    #[test]
    fn tokens_are_biased_or_forbidden_by_numbers_that_do_not_exceed_a_logit() {
        let read = |bias| {
            let biases = [KvikLogitBias { token: 7, bias }];
            let options = KvikAnswerOptions { logit_bias: biases.as_ptr(), logit_bias_count: 1, ..zeroed() };
            // SAFETY: there is one bias, and the texts are null.
            unsafe { answer_options(&options) }
        };
        for bias in [-2.5, 1e9, f32::NEG_INFINITY] {
            assert_eq!(read(bias).unwrap().logit_bias, [(7, bias)]);
        }
        for bias in [f32::NAN, f32::INFINITY, 1e10] {
            assert!(read(bias).unwrap_err().message.contains("`logit_bias`"), "{bias}");
        }
    }

    #[test]
    fn zero_is_the_models_and_the_rest_is_set() {
        let check = |options: KvikAnswerOptions, expect: SamplingOptions| {
            assert_eq!(sampling_options(&options).unwrap(), expect, "{options:?}");
        };
        let none = SamplingOptions::NONE;
        check(zeroed(), none);
        check(KvikAnswerOptions { temperature: KVIK_GREEDY, ..zeroed() }, SamplingOptions::GREEDY);
        check(
            KvikAnswerOptions { temperature: 0.5, top_p: 1.0, top_k: KVIK_KEEP_ALL, min_p: -1.0, ..zeroed() },
            SamplingOptions {
                temperature: Some(0.5),
                top_p: Some(1.0),
                top_k: Some(0),
                min_p: Some(0.0),
                ..none
            },
        );
        check(
            KvikAnswerOptions { temperature: -2.0, repetition_penalty: 1.5, top_k: 7, ..zeroed() },
            SamplingOptions { repetition_penalty: Some(1.5), top_k: Some(7), ..SamplingOptions::GREEDY },
        );
    }

    #[test]
    fn numbers_that_are_none_are_errors_that_name_the_argument() {
        for (options, name) in [
            (KvikAnswerOptions { temperature: f32::NAN, ..zeroed() }, "temperature"),
            (KvikAnswerOptions { temperature: f32::INFINITY, ..zeroed() }, "temperature"),
            (KvikAnswerOptions { top_p: -0.5, ..zeroed() }, "top_p"),
            (KvikAnswerOptions { repetition_penalty: -1.0, ..zeroed() }, "repetition_penalty"),
            (KvikAnswerOptions { repetition_penalty: 0.001, ..zeroed() }, "repetition_penalty"),
        ] {
            assert!(sampling_options(&options).unwrap_err().message.contains(name), "{name}");
        }
    }
}
