//! Literals of grammars: a control token's name in a text requires that token, because a control token never
//! counts as the text of its name.

use kvik_cache::Token;
use serde_json::Value;

use crate::stream::{TokenKind, Vocabulary};

/// Terminals of text: one that may be empty, and one that may not.
#[derive(Clone)]
pub(super) struct Text {
    pub(super) any: String,
    pub(super) some: String,
}

impl Text {
    /// Free text.
    pub(super) fn free() -> Text {
        Text { any: "/(?s:.*)/".to_owned(), some: "/(?s:.+)/".to_owned() }
    }
}

/// A text as a literal of Lark.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The control tokens of a vocabulary by their texts.
pub(super) struct ControlTokens<'a> {
    controls: Vec<(&'a str, Token)>,
}

/// A part of a text.
pub(super) enum Piece<'t> {
    /// Text without control tokens.
    Text(&'t str),
    /// A control token, and the bytes of its text.
    Control(Token, usize),
}

impl<'a> ControlTokens<'a> {
    pub(super) fn of(vocabulary: &'a Vocabulary) -> ControlTokens<'a> {
        let ids = 0..vocabulary.len() as Token;
        let control = |id: Token| {
            let text = std::str::from_utf8(vocabulary.bytes(id)).ok()?;
            (vocabulary.kind(id) != TokenKind::Text && !text.is_empty()).then_some((text, id))
        };
        ControlTokens { controls: ids.filter_map(control).collect() }
    }

    /// Splits a text at its control tokens.
    pub(super) fn split<'t>(&self, mut text: &'t str) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        while let Some((at, length, token)) = self.first_in(text) {
            if at > 0 {
                pieces.push(Piece::Text(&text[..at]));
            }
            pieces.push(Piece::Control(token, length));
            text = &text[at + length..];
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        pieces
    }

    /// Offset, length and id of the first control token in the text; the longest if several start there.
    fn first_in(&self, text: &str) -> Option<(usize, usize, Token)> {
        let found =
            self.controls.iter().filter_map(|(word, token)| Some((text.find(word)?, word.len(), *token)));
        found.min_by_key(|&(at, length, _)| (at, std::cmp::Reverse(length)))
    }

    /// The control tokens of a text.
    pub(super) fn tokens_in(&self, text: &str) -> Vec<Token> {
        let token = |piece: Piece<'_>| match piece {
            Piece::Control(token, _) => Some(token),
            Piece::Text(_) => None,
        };
        self.split(text).into_iter().filter_map(token).collect()
    }

    /// The text before the first control token.
    pub(super) fn text_at_start<'t>(&self, text: &'t str) -> &'t str {
        match self.split(text).first() {
            Some(Piece::Text(first)) => first,
            _ => "",
        }
    }

    /// The text behind the last control token.
    pub(super) fn text_at_end<'t>(&self, text: &'t str) -> &'t str {
        match self.split(text).last() {
            Some(Piece::Text(last)) => last,
            _ => "",
        }
    }

    /// The text as a Lark sequence.
    pub(super) fn lark(&self, text: &str) -> String {
        let piece = |piece: Piece<'_>| match piece {
            Piece::Text(text) => quoted(text),
            Piece::Control(token, _) => format!("<[{token}]>"),
        };
        self.split(text).into_iter().map(piece).collect::<Vec<_>>().join(" ")
    }
}

/// Text up to a given end.
pub(super) struct Lead {
    pub(super) rules: String,
    pub(super) reference: String,
    /// Bytes of the end that the lead covers.
    pub(super) skipped: usize,
}

/// Text up to `end`, as the rule `name`.
pub(super) fn lead(name: &str, text: &Text, end: &str, controls: &ControlTokens) -> Result<Lead, String> {
    let Text { any, some } = text;
    let (rules, skipped) = match controls.split(end).first() {
        None => return Err("the text that begins a call is empty".to_owned()),
        // A control token ends text by itself.
        Some(Piece::Control(token, length)) => (format!("{name}: {some}? <[{token}]>\n"), *length),
        // Lazy: the text ends where `end` appears first.
        Some(Piece::Text(end)) => (format!("{name}[lazy]: {any} {}\n", quoted(end)), end.len()),
    };
    Ok(Lead { rules, reference: name.to_owned(), skipped })
}

/// Text up to and including `end`, as the rule `name`.
pub(super) fn up_to(name: &str, text: &Text, end: &str, controls: &ControlTokens) -> Result<String, String> {
    let lead = lead(&format!("{name}_lead"), text, end, controls)?;
    Ok(format!("{}{name}: {} {}\n", lead.rules, lead.reference, controls.lark(&end[lead.skipped..])))
}
