//! Finds stop strings in a stream of bytes (Knuth, Morris, Pratt).

/// A stop string and the length of its beginning that the text ends with.
#[derive(Debug)]
pub(super) struct StopMatcher {
    index: usize,
    pattern: Vec<u8>,
    /// `fallback[n]`: length of the longest proper prefix of the first `n` bytes that is also
    /// their suffix.
    fallback: Vec<usize>,
    matched: usize,
}

/// A stop string at the end of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Complete {
    pub(super) index: usize,
    pub(super) length: usize,
}

impl StopMatcher {
    /// `pattern` is not empty.
    pub(super) fn new(index: usize, pattern: &str) -> StopMatcher {
        let pattern = pattern.as_bytes().to_vec();
        let mut fallback = vec![0; pattern.len() + 1];
        let mut matched = 0;
        for end in 1..pattern.len() {
            while matched > 0 && pattern[matched] != pattern[end] {
                matched = fallback[matched];
            }
            matched += usize::from(pattern[matched] == pattern[end]);
            fallback[end + 1] = matched;
        }
        StopMatcher { index, pattern, fallback, matched: 0 }
    }

    fn advance(&mut self, byte: u8) {
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.pattern[self.matched] == byte);
    }
}

/// Advances all matchers by the bytes of one character; returns the longest complete stop string.
pub(super) fn advance(stops: &mut [StopMatcher], character: &[u8]) -> Option<Complete> {
    for stop in stops.iter_mut() {
        character.iter().for_each(|&byte| stop.advance(byte));
    }
    // Patterns consist of whole characters, so none can be complete in the middle of one.
    let complete = stops.iter().filter(|stop| stop.matched == stop.pattern.len());
    let longest = complete.min_by_key(|stop| (std::cmp::Reverse(stop.pattern.len()), stop.index))?;
    Some(Complete { index: longest.index, length: longest.pattern.len() })
}

/// Bytes at the end of the text that may become a stop string.
pub(super) fn longest_partial(stops: &[StopMatcher]) -> usize {
    stops.iter().map(|stop| stop.matched).max().unwrap_or(0)
}
