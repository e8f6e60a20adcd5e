//! An answer that a constraint makes one call: `{"name": ..., "arguments": {...}}`.

use super::AnswerDelta;
use super::json::{Balance, parse_call, split_value};

/// Parses the one call that an answer consists of, as it arrives.
#[derive(Debug)]
pub struct ForcedCallParser {
    id: String,
    at: At,
}

#[derive(Debug)]
enum At {
    /// Before the arguments; the text so far.
    Head(String),
    /// In the arguments, which are emitted as they arrive.
    Arguments(Balance),
    End,
}

impl ForcedCallParser {
    /// A parser of a call that gets this id.
    pub(super) fn new(id: String) -> ForcedCallParser {
        ForcedCallParser { id, at: At::Head(String::new()) }
    }

    /// Adds text; returns the parts that it completes.
    pub(super) fn push(&mut self, text: &str) -> Vec<AnswerDelta> {
        let At::Head(head) = &mut self.at else {
            let new = Some(self.of_arguments(text)).filter(|text| !text.is_empty());
            return new.into_iter().map(|text| AnswerDelta::Arguments { index: 0, text }).collect();
        };
        head.push_str(text);
        let Some((name, begin)) = begun(head) else { return Vec::new() };
        let behind = head.split_off(begin);
        self.at = At::Arguments(Balance::default());
        let arguments = self.of_arguments(&behind);
        vec![self.call(name, arguments)]
    }

    /// Ends the answer. What is not known to be a call is content.
    pub(super) fn finish(&mut self) -> Vec<AnswerDelta> {
        let At::Head(head) = std::mem::replace(&mut self.at, At::End) else { return Vec::new() };
        match parse_call(&head) {
            Some((name, arguments)) => vec![self.call(name, arguments)],
            // Nothing was generated, as `max_tokens` 0 asks for.
            None if head.is_empty() => Vec::new(),
            None => vec![AnswerDelta::Content(head)],
        }
    }

    /// Bytes at the end of the text so far that are in no delta yet.
    pub(super) fn held_bytes(&self) -> usize {
        match &self.at {
            At::Head(head) => head.len(),
            At::Arguments(_) | At::End => 0,
        }
    }

    /// The part of a text that belongs to the arguments, after which only their object's end follows.
    fn of_arguments(&mut self, text: &str) -> String {
        let At::Arguments(balance) = &mut self.at else { return String::new() };
        let (part, is_whole) = balance.part_of(text);
        if is_whole {
            self.at = At::End;
        }
        part.to_owned()
    }

    fn call(&self, name: String, arguments: String) -> AnswerDelta {
        AnswerDelta::ToolCall { index: 0, id: self.id.clone(), name, arguments }
    }
}

/// The name of a call, and the byte at which its arguments begin, once both are there in the constraint's order.
fn begun(text: &str) -> Option<(String, usize)> {
    let name = behind_key(text.trim_start().strip_prefix('{')?, "name")?;
    let (name, rest) = split_value::<String>(name)?;
    let arguments = behind_key(rest.trim_start().strip_prefix(',')?, "arguments")?;
    arguments.starts_with('{').then(|| (name, text.len() - arguments.len()))
}

/// The text from the value of this key on, if it is the first one of `text`.
fn behind_key<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let (found, rest) = split_value::<String>(text)?;
    let value = rest.trim_start().strip_prefix(':')?.trim_start();
    (found == key).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::tests::show;
    use super::*;

    /// The deltas of an answer that arrives in these pieces.
    fn read<'t>(pieces: impl Iterator<Item = &'t str>) -> String {
        let mut parser = ForcedCallParser::new("call".to_owned());
        let mut deltas: Vec<AnswerDelta> = pieces.flat_map(|piece| parser.push(piece)).collect();
        deltas.extend(parser.finish());
        show(&deltas)
    }

    #[test]
    fn a_call_is_told_as_far_as_it_was_generated() {
        for (head, arguments, tail) in [
            (r#"{"name": "f", "arguments": "#, r#"{"n": 12345678901234567890123}"#, "}"),
            ("{\n  \"name\" : \"f\",\"arguments\":\t", r#"{ "t" : "}\"é" ,"l":[{}] }"#, " \n}\n"),
        ] {
            let text = [head, arguments, tail].concat();
            for (end, _) in text.char_indices().chain([(text.len(), ' ')]) {
                let cut = &text[..end];
                let expect = match cut.get(head.len()..) {
                    None | Some("") if cut.is_empty() => String::new(),
                    None | Some("") => format!("C({cut})"),
                    Some(begun) => format!("T(0:f:{})", &begun[..begun.len().min(arguments.len())]),
                };
                assert_eq!(read([cut].into_iter()), expect);
                assert_eq!(read(cut.split_inclusive(|_: char| true)), expect);
            }
        }
    }

    #[test]
    fn what_is_no_such_call_is_read_at_the_end() {
        let check = |text: &str, expect: &str| assert_eq!(read([text].into_iter()), expect);
        check(r#"{"arguments": {"n": 1e400}, "name": "f"}"#, r#"T(0:f:{"n": 1e400})"#);
        check(r#"{"name": "f"}"#, "T(0:f:{})");
        check(r#"{"arguments": {"n": 1}}"#, r#"C({"arguments": {"n": 1}})"#);
        check("I look.", "C(I look.)");
    }
}
