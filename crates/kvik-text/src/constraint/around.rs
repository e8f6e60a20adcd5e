//! The free text of an answer with optional calls: before and after the calls, and reasoning, in which no
//! call begins.

use super::literals::{ControlTokens, Piece, Text, lead, quoted, up_to};
use crate::forms::{ReasoningPlace, ReasoningTexts};

/// The rule `start` and the rules of free text; `section` is the rule of calls.
pub(super) struct Around {
    start: String,
    rules: String,
}

impl Around {
    pub(super) fn rules(self) -> String {
        format!("start: {}\ntext: {}\n{}", self.start, Text::free().some, self.rules)
    }

    /// At most `sections` sections of calls, each of which begins with `trigger`; also returns the number of
    /// bytes of the first call that the trigger covers.
    pub(super) fn trigger(
        trigger: &str,
        sections: usize,
        reasoning: Option<&ReasoningTexts>,
        controls: &ControlTokens<'_>,
    ) -> Result<(Around, usize), String> {
        let later = lead("lead", &Text::free(), trigger, controls)?;
        let Some(reasoning) = reasoning else {
            let start = format!("(lead section){{0,{sections}}} text?");
            return Ok((Around { start, rules: later.rules }, later.skipped));
        };
        let thoughts = Thoughts::of(reasoning, controls)?;
        let first = lead("first_lead", &thoughts.outside, trigger, controls)?;
        let more = match sections {
            0 | 1 => String::new(),
            _ => format!("(lead section){{0,{}}}", sections - 1),
        };
        let calls = match reasoning.place {
            ReasoningPlace::First => format!("(first_lead section {more})?"),
            ReasoningPlace::Anywhere => format!("(first_lead section thoughts){{0,{sections}}}"),
        };
        // Reasoning that is never closed ends the answer.
        let unclosed = match reasoning.place {
            ReasoningPlace::First => "thoughts opened text?".to_owned(),
            ReasoningPlace::Anywhere => format!("thoughts {calls} opened text?"),
        };
        let start = thoughts.begun(&[format!("thoughts {calls} text?"), unclosed]);
        Ok((Around { start, rules: [thoughts.rules, first.rules, later.rules].concat() }, later.skipped))
    }

    /// Calls at the start of the answer, or `other` text.
    pub(super) fn start(
        other: &str,
        reasoning: Option<&ReasoningTexts>,
        controls: &ControlTokens<'_>,
    ) -> Result<Around, String> {
        let other = format!("OTHER: {other}\n");
        let Some(reasoning) = reasoning else {
            return Ok(Around { start: "section | OTHER".to_owned(), rules: other });
        };
        let thoughts = Thoughts::of(reasoning, controls)?;
        let said = ["thoughts section", "thoughts OTHER?", "thoughts opened text?"].map(str::to_owned);
        Ok(Around { start: thoughts.begun(&said), rules: [thoughts.rules, other].concat() })
    }
}

/// Rules of reasoning: `opened` up to its beginning, `inside` up to its end, and `thoughts` for any number of both.
struct Thoughts {
    rules: String,
    /// Text in which no reasoning begins.
    outside: Text,
    begun: bool,
}

impl Thoughts {
    fn of(reasoning: &ReasoningTexts, controls: &ControlTokens<'_>) -> Result<Thoughts, String> {
        let free = Text::free();
        let before = match reasoning.place {
            ReasoningPlace::First => Text { any: r"/\s*/".to_owned(), some: r"/\s+/".to_owned() },
            ReasoningPlace::Anywhere => free.clone(),
        };
        let mut rules = "thoughts: (opened inside)*\n".to_owned();
        rules += &up_to("opened", &before, &reasoning.open, controls)?;
        rules += &up_to("inside", &free, &reasoning.close, controls)?;
        let outside = match controls.split(&reasoning.open).first() {
            Some(Piece::Text(open)) => {
                let opened = format!("({} {} {})", before.any, quoted(open), free.any);
                rules += &format!("OUTSIDE: {} & ~{opened}\n", free.any);
                rules += &format!("OUTSIDE_SOME: {} & ~{opened}\n", free.some);
                Text { any: "OUTSIDE".to_owned(), some: "OUTSIDE_SOME".to_owned() }
            }
            // Free text contains no control tokens.
            _ => free,
        };
        Ok(Thoughts { rules, outside, begun: reasoning.begun })
    }

    /// Alternative continuations, at the beginning of an answer.
    fn begun(&self, ways: &[String]) -> String {
        if !self.begun {
            return ways.join(" | ");
        }
        let closed: Vec<String> = ways.iter().map(|way| format!("inside {way}")).collect();
        [&closed.join(" | "), " | text?"].concat()
    }
}

/// The rules of `thoughts`, any number of which may precede what is required.
pub(super) fn thoughts(reasoning: &ReasoningTexts, controls: &ControlTokens<'_>) -> Result<String, String> {
    let inside = up_to("inside", &Text::free(), &reasoning.close, controls)?;
    Ok(format!("thoughts: ({} inside)*\n{inside}", controls.lark(&reasoning.open)))
}

/// A terminal for all texts that start with none of `beginnings`.
pub(super) fn other_beginnings(beginnings: &[String], controls: &ControlTokens<'_>) -> String {
    let literal = |text: &String| match controls.split(text).first() {
        Some(Piece::Text(text)) => Some(quoted(text)),
        // Free text contains no control tokens.
        _ => None,
    };
    let literals: Vec<String> = beginnings.iter().filter_map(literal).collect();
    let Text { any, some } = Text::free();
    match literals.is_empty() {
        true => some,
        false => format!("{some} & ~(({}) {any})", literals.join(" | ")),
    }
}
