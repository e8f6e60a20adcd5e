//! Finds stop strings in a stream of bytes (Knuth, Morris, Pratt).

use std::sync::Arc;

/// Stop strings, prepared once for all texts that end at them.
#[derive(Debug, Clone)]
pub struct StopStrings(Arc<[StopString]>);

/// A stop string, to be searched for.
#[derive(Debug)]
struct StopString {
    index: usize,
    pattern: Vec<u8>,
    /// `fallback[n]`: length of the longest proper prefix of the first `n` bytes that is also
    /// their suffix.
    fallback: Vec<u32>,
}

/// The search for stop strings in one text.
#[derive(Debug)]
pub(super) struct StopMatcher {
    stops: StopStrings,
    /// Of each stop string, the length of its beginning that the text ends with.
    matched: Vec<usize>,
}

/// A stop string at the end of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Complete {
    pub(super) index: usize,
    pub(super) length: usize,
}

impl StopStrings {
    /// Prepares `stops`; empty ones are ignored.
    pub fn new(stops: &[String]) -> StopStrings {
        let stops = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        StopStrings(stops.map(|(index, stop)| StopString::new(index, stop)).collect())
    }
}

impl StopString {
    /// `pattern` is not empty.
    fn new(index: usize, pattern: &str) -> StopString {
        let pattern = pattern.as_bytes().to_vec();
        let mut fallback = vec![0_u32; pattern.len() + 1];
        let mut matched = 0;
        for end in 1..pattern.len() {
            while matched > 0 && pattern[matched] != pattern[end] {
                matched = fallback[matched] as usize;
            }
            matched += usize::from(pattern[matched] == pattern[end]);
            fallback[end + 1] = matched as u32;
        }
        StopString { index, pattern, fallback }
    }

    /// The length of its beginning that the text ends with after `byte`, where it was `matched` before.
    fn advance(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.pattern[matched] != byte {
            matched = self.fallback[matched] as usize;
        }
        matched + usize::from(self.pattern[matched] == byte)
    }
}

impl StopMatcher {
    pub(super) fn new(stops: &StopStrings) -> StopMatcher {
        StopMatcher { stops: stops.clone(), matched: vec![0; stops.0.len()] }
    }

    /// Advances by the bytes of one character; returns the longest complete stop string.
    pub(super) fn advance(&mut self, character: &[u8]) -> Option<Complete> {
        for (stop, matched) in self.stops.0.iter().zip(&mut self.matched) {
            *matched = character.iter().fold(*matched, |matched, &byte| stop.advance(matched, byte));
        }
        // Patterns consist of whole characters, so none can be complete in the middle of one.
        let both = self.stops.0.iter().zip(&self.matched);
        let complete = both.filter(|(stop, matched)| **matched == stop.pattern.len()).map(|(stop, _)| stop);
        let longest = complete.min_by_key(|stop| (std::cmp::Reverse(stop.pattern.len()), stop.index))?;
        Some(Complete { index: longest.index, length: longest.pattern.len() })
    }

    /// Forgets what the text ends with.
    pub(super) fn reset(&mut self) {
        self.matched.fill(0);
    }

    /// Bytes at the end of the text that may become a stop string.
    pub(super) fn longest_partial(&self) -> usize {
        self.matched.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of one request may have a megabyte, and its choices are many.
    #[test]
    fn stop_strings_are_prepared_once_for_all_choices() {
        let stops = StopStrings::new(&["a".repeat(4096), String::new(), "aab".to_owned()]);
        let choices: Vec<StopMatcher> = (0..64).map(|_| StopMatcher::new(&stops)).collect();
        assert_eq!(Arc::strong_count(&stops.0), 1 + choices.len());
        assert!(choices.iter().all(|choice| choice.matched == [0; 2]), "an empty one is none");
    }
}
