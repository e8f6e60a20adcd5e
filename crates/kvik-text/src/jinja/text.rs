//! Strings that track which of their bytes came from the template and which from the request.
//!
//! The tokenizer needs this: `<|im_end|>` is a control token if the template wrote it, and plain text if
//! the request did. Every operation on strings keeps the origin of each byte.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::limits::{Charge, Meter, Result};

/// A string; cloning shares its bytes.
#[derive(Debug, Clone)]
pub(super) struct Text {
    bytes: Bytes,
    origin: Origin,
}

#[derive(Debug, Clone)]
enum Bytes {
    /// A literal of the template.
    Constant(Arc<str>),
    Made(Rc<(String, Charge)>),
}

#[derive(Debug, Clone)]
enum Origin {
    Template,
    Input,
    /// In order, without gaps; adjacent runs differ.
    Mixed(Rc<[Run]>),
}

/// Bytes that are written before they are charged.
const MAPPED_BYTES: usize = 4 << 10;

/// Bytes of one origin, from the end of the previous run.
#[derive(Debug, Clone, Copy)]
struct Run {
    end: usize,
    input: bool,
}

impl Text {
    /// A literal of the template.
    pub(super) fn constant(text: &Arc<str>) -> Text {
        Text { bytes: Bytes::Constant(text.clone()), origin: Origin::Template }
    }

    /// Text computed by the template.
    pub(super) fn template(text: &str, meter: &Rc<Meter>) -> Result<Text> {
        Text::of(text, false, meter)
    }

    /// Text of the request.
    pub(super) fn input(text: &str, meter: &Rc<Meter>) -> Result<Text> {
        Text::of(text, true, meter)
    }

    fn of(text: &str, input: bool, meter: &Rc<Meter>) -> Result<Text> {
        let charge = Charge::new(meter, text.len())?;
        let origin = if input { Origin::Input } else { Origin::Template };
        Ok(Text { bytes: Bytes::Made(Rc::new((text.to_owned(), charge))), origin })
    }

    pub(super) fn as_str(&self) -> &str {
        match &self.bytes {
            Bytes::Constant(text) => text,
            Bytes::Made(made) => &made.0,
        }
    }

    /// Part of the text; the range lies on boundaries of characters.
    pub(super) fn slice(&self, range: Range<usize>, meter: &Rc<Meter>) -> Result<Text> {
        if range == (0..self.as_str().len()) {
            return Ok(self.clone());
        }
        let mut builder = Builder::new(meter)?;
        builder.push_part(self, range)?;
        Ok(builder.finish())
    }

    /// The text split where its origin changes; `true` marks text from the request.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (&str, bool)> {
        self.pieces_of(0..self.as_str().len())
    }

    fn pieces_of(&self, range: Range<usize>) -> impl Iterator<Item = (&str, bool)> {
        let whole = |input| vec![Run { end: range.end, input }];
        let runs = match &self.origin {
            Origin::Template => whole(false),
            Origin::Input => whole(true),
            Origin::Mixed(runs) => {
                let first = runs.partition_point(|run| run.end <= range.start);
                let last = runs.partition_point(|run| run.end < range.end);
                runs[first..(last + 1).min(runs.len())].to_vec()
            }
        };
        let mut start = range.start;
        runs.into_iter().map(move |run| {
            let end = run.end.min(range.end);
            let piece = &self.as_str()[start..end];
            start = end;
            (piece, run.input)
        })
    }
}

/// Builds a text.
#[derive(Debug)]
pub(super) struct Builder {
    text: String,
    runs: Vec<Run>,
    charge: Charge,
}

impl Builder {
    pub(super) fn new(meter: &Rc<Meter>) -> Result<Builder> {
        Ok(Builder { text: String::new(), runs: Vec::new(), charge: Charge::new(meter, 0)? })
    }

    pub(super) fn meter(&self) -> &Rc<Meter> {
        self.charge.meter()
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Adds bytes of one origin.
    pub(super) fn push(&mut self, text: &str, input: bool) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let run = if self.runs.last().is_some_and(|run| run.input == input) { 0 } else { size_of::<Run>() };
        self.charge.grow(text.len() + run)?;
        self.text.push_str(text);
        let end = self.text.len();
        match self.runs.last_mut() {
            Some(last) if last.input == input => last.end = end,
            _ => self.runs.push(Run { end, input }),
        }
        Ok(())
    }

    /// Adds what `map` writes for each character of a text of one origin. It may be several times as long as the text,
    /// so it is charged part by part.
    pub(super) fn push_mapped(
        &mut self,
        text: &str,
        input: bool,
        mut map: impl FnMut(char, &mut String),
    ) -> Result<()> {
        let mut mapped = String::with_capacity(text.len().min(MAPPED_BYTES));
        for c in text.chars() {
            map(c, &mut mapped);
            if mapped.len() >= MAPPED_BYTES {
                self.push(&mapped, input)?;
                mapped.clear();
            }
        }
        self.push(&mapped, input)
    }

    /// Adds text of the template.
    pub(super) fn push_template(&mut self, text: &str) -> Result<()> {
        self.push(text, false)
    }

    /// Adds a text with its origins.
    pub(super) fn push_text(&mut self, text: &Text) -> Result<()> {
        self.push_part(text, 0..text.as_str().len())
    }

    /// Adds part of a text.
    pub(super) fn push_part(&mut self, text: &Text, range: Range<usize>) -> Result<()> {
        text.pieces_of(range).try_for_each(|(piece, input)| self.push(piece, input))
    }

    /// Adds a text `times` times. Checks the memory for all repetitions first.
    pub(super) fn push_repeated(&mut self, text: &Text, times: usize) -> Result<()> {
        let whole = text.as_str();
        Charge::new(self.charge.meter(), whole.len().saturating_mul(times))?;
        match text.origin {
            Origin::Template => self.push(&whole.repeat(times), false),
            Origin::Input => self.push(&whole.repeat(times), true),
            Origin::Mixed(_) if whole.is_empty() => Ok(()),
            Origin::Mixed(_) => (0..times).try_for_each(|_| self.push_text(text)),
        }
    }

    /// Adds text of the template `times` times.
    pub(super) fn pad(&mut self, fill: &str, times: usize) -> Result<()> {
        Charge::new(self.charge.meter(), fill.len().saturating_mul(times))?;
        self.push_template(&fill.repeat(times))
    }

    pub(super) fn finish(self) -> Text {
        let origin = match self.runs[..] {
            [] | [Run { input: false, .. }] => Origin::Template,
            [Run { input: true, .. }] => Origin::Input,
            _ => Origin::Mixed(self.runs.into()),
        };
        Text { bytes: Bytes::Made(Rc::new((self.text, self.charge))), origin }
    }

    /// The text, and its ranges that came from the request.
    pub(super) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        let mut start = 0;
        let mut inputs = Vec::new();
        for run in &self.runs {
            if run.input {
                inputs.push(start..run.end);
            }
            start = run.end;
        }
        (self.text, inputs)
    }
}
