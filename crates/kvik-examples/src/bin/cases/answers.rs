//! Answers: what they are asked for with, and what is said of them.

use kvik_library::{
    Answer, AnswerOptions, Constraint, Finish, Message, Piece, Report, Retention, SamplingOptions,
    ToolChoice, tool_choice_from_name, tools_from_json,
};

use crate::list::{Line, quote};
use crate::{Failure, Result};

/// Arguments of what is asked, and of an answer.
const KNOWN: [&str; 22] = [
    "prompt",
    "times",
    "conversation",
    "system",
    "user",
    "assistant",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "tools",
    "tool_choice",
    "json_schema",
    "regex",
    "grammar",
    "retention",
    "counts",
    "cancel_after",
];

pub(crate) fn messages(line: &Line) -> Vec<Message> {
    let message = |(name, value): &(String, String)| match name.as_str() {
        "system" => Some(Message::system(value)),
        "user" => Some(Message::user(value)),
        "assistant" => Some(Message::assistant(value)),
        _ => None,
    };
    line.arguments.iter().filter_map(message).collect()
}

/// Asks, reads to the end or to where it is cancelled, and says what came.
pub(crate) fn answer(line: &Line, ask: impl FnOnce(&AnswerOptions) -> Result<Answer>) -> Result {
    line.only(&KNOWN);
    let mut answer = ask(&options(line)?)?;
    let cancel_after = line.number("cancel_after").unwrap_or(usize::MAX);
    let mut said = Said::default();
    let mut pieces = 0;
    while let Some(piece) = answer.next() {
        said.push(piece?);
        pieces += 1;
        if pieces == cancel_after {
            answer.cancel();
        }
    }
    let report = answer.report().expect("an answer that has not failed ends with its report");
    let end = format!("finish={} prompt={}", finish(report.finish), report.prompt_tokens);
    if cancel_after < usize::MAX {
        return Ok(end);
    }
    Ok(format!("{} {end} {}", said.fields(), counts(line, report)))
}

/// What an answer has said.
#[derive(Default)]
struct Said {
    text: String,
    reasoning: String,
    calls: String,
}

impl Said {
    fn push(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(more) => self.reasoning += &more,
            Piece::Text(more) => self.text += &more,
            Piece::Call(call) => {
                self.calls += &format!(" call={} arguments={}", quote(&call.name), quote(&call.arguments));
            }
            other => panic!("a piece that this runner does not know: {other:?}"),
        }
    }

    fn fields(&self) -> String {
        let thought = match self.reasoning.as_str() {
            "" => String::new(),
            reasoning => format!(" reasoning={}", quote(reasoning)),
        };
        format!("text={}{thought}{}", quote(&self.text), self.calls)
    }
}

fn counts(line: &Line, report: &Report) -> String {
    let generated = report.generated_tokens;
    if line.find("counts") == Some("no") {
        return format!("generated={generated}");
    }
    let (cached, computed) = (report.cached_tokens, report.computed_tokens);
    let reason = report.reason.map_or("", |reason| reason.name());
    format!("cached={cached} computed={computed} generated={generated} reason={reason}")
}

fn options(line: &Line) -> Result<AnswerOptions> {
    let sampling = SamplingOptions {
        temperature: line.number("temperature"),
        top_p: line.number("top_p"),
        top_k: line.number("top_k"),
        min_p: line.number("min_p"),
        ..SamplingOptions::NONE
    };
    let retention = line.find("retention").map(str::parse::<Retention>).transpose();
    Ok(AnswerOptions {
        max_tokens: line.number("max_tokens"),
        min_tokens: line.number("min_tokens").unwrap_or(0),
        seed: line.number("seed"),
        stop: line.all("stop").map(str::to_owned).collect(),
        sampling,
        tools: line.find("tools").map_or(Ok(Vec::new()), tools_from_json).map_err(Failure::from)?,
        tool_choice: line.find("tool_choice").map_or(ToolChoice::Auto, tool_choice_from_name),
        constraint: constraint(line),
        retention: retention.map_err(|_| Failure::Argument)?,
        ..AnswerOptions::RECOMMENDED
    })
}

fn constraint(line: &Line) -> Option<Constraint> {
    let schema = |text: &str| serde_json::from_str(text).expect("the schema is JSON");
    let schema = line.find("json_schema").map(|text| Constraint::JsonSchema(schema(text)));
    let regex = line.find("regex").map(|text| Constraint::Regex(text.to_owned()));
    schema.or(regex).or(line.find("grammar").map(|text| Constraint::Lark(text.to_owned())))
}

fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::End => "end",
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Cancelled => "cancelled",
        _ => panic!("an end that this runner does not know: {finish:?}"),
    }
}
