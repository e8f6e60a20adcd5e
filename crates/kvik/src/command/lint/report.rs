//! Output of findings: JSON and a table.

use serde_json::{Value, json};

use super::{Finding, Fix};

/// Characters of a sentence shown in the table.
const SHOWN_CHARS: usize = 60;

impl Finding {
    /// The finding as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "kind": self.kind,
            "role": self.role,
            "index": self.index,
            "offset": self.offset,
            "text": self.text,
            "saved_tokens": self.saved_tokens,
            "advice": self.advice(),
        })
    }

    /// Its location: `messages[0] (system)`.
    fn place(&self) -> String {
        match (self.role.as_str(), self.index) {
            ("tools", Some(index)) => format!("tools[{index}]"),
            (role, Some(index)) if role != "prompt" => format!("messages[{index}] ({role})"),
            (role, _) => role.to_owned(),
        }
    }

    fn advice(&self) -> &'static str {
        match self.fix {
            Fix::MoveToEnd { .. } => "move this sentence to the end of the last message",
            Fix::OneToolOrder => "send the tools in one order, and their keys too: sort them",
            Fix::OneTool(_) => "keep this out of the tools: they stand before every message",
            Fix::OneTime => {
                "the template prints the time: send a fixed one in `chat_template_kwargs`, or use a template without it"
            }
        }
    }
}

/// The findings in `requests` requests as a table.
pub(crate) fn table(findings: &[Finding], requests: usize) -> String {
    match (findings.is_empty(), requests) {
        (true, ..=1) => return "no findings: nothing looks as if it changed".to_owned(),
        (true, _) => {
            return "no findings: these requests share as much of their prompts as they can".to_owned();
        }
        (false, _) => {}
    }
    let mut lines = vec![format!("{:>6}  {:<10}  {:<22}  {:>6}  text", "saves", "what", "where", "offset")];
    for finding in findings {
        let shown: String = finding.text.trim().chars().take(SHOWN_CHARS).map(one_line).collect();
        let Finding { saved_tokens, kind, offset, .. } = finding;
        lines.push(format!("{saved_tokens:>6}  {kind:<10}  {:<22}  {offset:>6}  {shown}", finding.place()));
        lines.push(format!("{:>6}  -> {}", "", finding.advice()));
    }
    let all: usize = findings.iter().map(|finding| finding.saved_tokens).sum();
    lines.push(match requests {
        // A single request was not compared with another.
        ..=1 => format!(
            "\nIf this changes from request to request, fixing it saves {all} tokens of each; if it does not, nothing is \
             lost. Two requests of a client show which: `kvik lint ONE TWO`"
        ),
        _ => format!("\n{all} tokens of every later request are saved when all of this is fixed"),
    });
    lines.join("\n")
}

/// Replaces line breaks and control characters, which would break the table.
fn one_line(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}
