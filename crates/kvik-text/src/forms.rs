//! Constraints on the form of an answer, as plain data.

/// Constrains the form of the answer.
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
    /// Tool calls, and free text around them.
    Calls(Calls),
}

/// Tool calls in the form that the model was trained on.
///
/// A control token's name in a text represents that token.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// The condition on which calls begin.
    pub start: CallStart,
    /// A form for each tool; every call has one of these forms, unless it is free. None if the answer is `instead` and no
    /// call.
    pub tools: Vec<CallForm>,
    /// Text before the first call; this and the next two may be empty.
    pub opening: String,
    /// Text between two calls.
    pub separator: String,
    /// Text after the last call.
    pub closing: String,
    /// Maximum calls in one answer.
    pub calls_max: usize,
    /// The reasoning that an answer may have; no call begins in it. Before a call or a JSON text that is required, it is
    /// allowed if its place is anywhere and the answer may be JSON.
    pub reasoning: Option<ReasoningTexts>,
}

/// The texts around reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningTexts {
    /// Text before it.
    pub open: String,
    /// Text after it.
    pub close: String,
    /// The place where reasoning may occur.
    pub place: ReasoningPlace,
    /// Whether the answer begins inside reasoning.
    pub begun: bool,
}

/// The places where an answer may have reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningPlace {
    /// Before all other text.
    First,
    /// Anywhere, any number of times.
    Anywhere,
}

/// The form of a call of one tool.
#[derive(Debug, Clone, PartialEq)]
pub struct CallForm {
    /// Text before the arguments.
    pub begin: String,
    /// The notation of the arguments.
    pub arguments: ArgumentsForm,
    /// Schema of the arguments, or, if they are JSON, of a whole call with its name.
    pub schema: serde_json::Value,
    /// Text after the arguments.
    pub end: String,
}

/// The form of the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgumentsForm {
    /// A JSON object.
    Json,
    /// A sequence of a key and a value with text around them.
    Parameters {
        /// Text before a key, between it and its value, and after the value.
        key: String,
        /// See `key`.
        value: String,
        /// See `key`.
        end: String,
    },
    /// `(a=1, b='x')`, in Python's notation.
    Python,
    /// `{a:1,b:<|"|>x<|"|>}`, in Gemma's notation.
    Dict {
        /// Text around strings.
        quote: String,
    },
}

impl ArgumentsForm {
    /// The texts between the parts of arguments.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            ArgumentsForm::Parameters { key, value, end } => vec![&**key, &**value, &**end],
            ArgumentsForm::Dict { quote } => vec![&**quote],
            ArgumentsForm::Json | ArgumentsForm::Python => Vec::new(),
        }
    }
}

/// The condition on which an answer becomes a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallStart {
    /// Immediately; with `after`, following free text that ends with it (`</think>`).
    Forced {
        /// The end of the free text.
        after: Option<String>,
        /// A JSON text that the answer may be in place of calls.
        instead: Option<Box<JsonText>>,
    },
    /// As `Forced`, with calls whose form has parts that the model chooses. What follows the beginning of a call is free,
    /// and may have the control tokens of the form.
    Free {
        /// The end of free text before a call.
        after: Option<String>,
        /// The tag with which a call begins.
        trigger: String,
        /// A JSON text that the answer may be in place of calls.
        instead: Box<JsonText>,
    },
    /// When the model writes `trigger`; text is free before it and after the calls.
    Lazy {
        /// The beginning of `opening` and `begin` of every tool.
        trigger: String,
    },
    /// When the answer starts with all that precedes the arguments of a tool, including its name; every other
    /// answer is free text.
    LazyAtStart,
}

/// A JSON text that is the content of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText {
    /// Its schema.
    pub schema: serde_json::Value,
    /// The texts before and after it, in each way in which the model may write it; empty ones where nothing marks it.
    pub around: Vec<[String; 2]>,
}

/// The reason why a constraint cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The grammar or schema is not usable, or no answer satisfies it.
    #[error("the constraint cannot be used: {0}")]
    Unusable(String),
    /// This build lacks the feature `grammars`.
    #[error(
        "this build of kvik has no grammars, which constraints take; build it with the feature `grammars`"
    )]
    NoGrammars,
    /// Too many constraints wait for compilation, or those in use take too much memory.
    #[error("too many constraints are in use at the same time; try again in {retry_after_s} s")]
    Busy {
        /// Seconds after which to try again.
        retry_after_s: u64,
    },
    /// The thread for compilation could not be started.
    #[error("internal error: no thread to compile a constraint on: {0}")]
    NoThread(String),
}
