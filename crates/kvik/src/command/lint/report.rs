//! How findings are worded.

use serde_json::{Value, json};

use super::{Finding, Fix};

/// Characters of a sentence that a table shows.
const SHOWN_CHARS: usize = 60;

impl Finding {
    /// For programs.
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

    /// Where it stands: `messages[0] (system)`.
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

/// For people.
pub(crate) fn table(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing found: these requests share their prompts as far as they can".to_owned();
    }
    let mut lines = vec![format!("{:>6}  {:<10}  {:<22}  {:>6}  text", "saves", "what", "where", "offset")];
    for finding in findings {
        let shown: String = finding.text.trim().chars().take(SHOWN_CHARS).map(one_line).collect();
        let Finding { saved_tokens, kind, offset, .. } = finding;
        lines.push(format!("{saved_tokens:>6}  {kind:<10}  {:<22}  {offset:>6}  {shown}", finding.place()));
        lines.push(format!("{:>6}  -> {}", "", finding.advice()));
    }
    let all: usize = findings.iter().map(|finding| finding.saved_tokens).sum();
    lines.push(format!(
        "\n{all} tokens of every later request need not be computed again when all of this is done"
    ));
    lines.join("\n")
}

/// A table has one line for each thing, and shows no control characters.
fn one_line(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}
