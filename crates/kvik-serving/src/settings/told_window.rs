//! The window that clients assume under a name of the model: `claude-sonnet-4=200k`.

use std::{ops::RangeInclusive, str::FromStr};

use crate::means;

/// A name of the model, and the window that clients assume under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldWindow {
    /// The name.
    pub name: String,
    /// Tokens of the window.
    pub tokens: usize,
}

/// Units of windows, decimal as makers of models write them.
const UNITS: [(&str, usize); 3] = [("", 1), ("k", 1_000), ("m", 1_000_000)];
/// Tokens of a window.
const TOKENS: RangeInclusive<usize> = 16..=1 << 30;

impl ToldWindow {
    /// The window of `all` that belongs to the name in a request.
    pub fn under<'a>(all: &'a [ToldWindow], name: &str) -> Option<&'a ToldWindow> {
        all.iter().find(|told| means(name, &told.name))
    }
}

impl FromStr for ToldWindow {
    type Err = String;

    fn from_str(text: &str) -> Result<ToldWindow, String> {
        let read = text
            .rsplit_once('=')
            .filter(|(name, _)| !name.is_empty())
            .and_then(|(name, window)| Some(ToldWindow { name: name.to_owned(), tokens: tokens(window)? }));
        read.ok_or_else(|| {
            let (min, max) = TOKENS.into_inner();
            format!("{text:?} is no name with a window of {min} to {max} tokens; write it like claude-sonnet-4=200k")
        })
    }
}

/// The tokens of a window as it is written.
fn tokens(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (_, unit) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&text[end..]))?;
    text[..end].parse::<usize>().ok()?.checked_mul(*unit).filter(|tokens| TOKENS.contains(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_read_as_makers_write_it() {
        let check = |text: &str, name: &str, tokens: usize| {
            assert_eq!(text.parse(), Ok(ToldWindow { name: name.to_owned(), tokens }), "{text}");
        };
        check("claude-sonnet-4=200k", "claude-sonnet-4", 200_000);
        check("a=b=1M", "a=b", 1_000_000);
        check("x:latest=131072", "x:latest", 131_072);
        for text in [
            "",
            "a",
            "a=",
            "=200k",
            "a=k",
            "a=15",
            "a=2g",
            "a=-1",
            "a=1.5k",
            "a=2000m",
            "a=99999999999999999999k",
        ] {
            let error = text.parse::<ToldWindow>().unwrap_err();
            assert!(error.contains("claude-sonnet-4=200k"), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_finds_its_window_also_as_ollamas_clients_write_it() {
        let all = ["a=4k", "b=8k"].map(|text| text.parse().unwrap());
        let found = |name: &str| ToldWindow::under(&all, name).map(|told| told.tokens);
        assert_eq!((found("b"), found("a:latest"), found("c")), (Some(8_000), Some(4_000), None));
    }
}
