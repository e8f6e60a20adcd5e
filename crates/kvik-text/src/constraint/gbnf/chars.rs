//! Sets of characters and of bytes.

use regex_syntax::is_meta_character;

/// The first and last surrogate, which no text contains.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// A set of characters: sorted inclusive ranges of code points, neither adjacent nor including surrogates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CharSet(Vec<(u32, u32)>);

impl CharSet {
    /// Every character.
    pub(super) fn all() -> CharSet {
        CharSet::of(vec![(0, char::MAX as u32)])
    }

    /// A single character.
    pub(super) fn one(c: char) -> CharSet {
        CharSet(vec![(c as u32, c as u32)])
    }

    /// The characters of these ranges, which may overlap.
    pub(super) fn of(mut ranges: Vec<(u32, u32)>) -> CharSet {
        ranges = ranges.into_iter().flat_map(without_surrogates).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        CharSet(merged)
    }

    /// The characters that are not in it.
    pub(super) fn negated(&self) -> CharSet {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for &(low, high) in &self.0 {
            if next < low {
                ranges.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= char::MAX as u32 {
            ranges.push((next, char::MAX as u32));
        }
        CharSet::of(ranges)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains a character.
    #[cfg(test)]
    pub(super) fn contains(&self, c: char) -> bool {
        self.0.iter().any(|&(low, high)| (low..=high).contains(&(c as u32)))
    }

    /// Number of ranges, which determines the cost of operations.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the sets intersect.
    pub(super) fn meets(&self, other: &CharSet) -> bool {
        let (mut one, mut two) = (self.0.as_slice(), other.0.as_slice());
        while let ([a, rest_one @ ..], [b, rest_two @ ..]) = (one, two) {
            if a.1 < b.0 {
                one = rest_one;
            } else if b.1 < a.0 {
                two = rest_two;
            } else {
                return true;
            }
        }
        false
    }

    /// The first bytes of its characters in UTF-8.
    pub(super) fn first_bytes(&self) -> ByteSet {
        let mut bytes = ByteSet::default();
        for &(low, high) in &self.0 {
            // First bytes increase with the code point; none is in 0x80..=0xC1.
            let all = first_byte(low)..=first_byte(high);
            all.filter(|byte| !(0x80..0xC2).contains(byte)).for_each(|byte| bytes.add(byte));
        }
        bytes
    }

    /// The set as a class of a regular expression.
    pub(super) fn regex(&self) -> String {
        // No range begins or ends with a surrogate.
        let edge = |code: u32| char::from_u32(code).map(character).unwrap_or_default();
        let range = |&(low, high): &(u32, u32)| match low == high {
            true => edge(low),
            false => [&*edge(low), "-", &*edge(high)].concat(),
        };
        format!("[{}]", self.0.iter().map(range).collect::<String>())
    }
}

/// A character of a regular expression, within a class or outside of one. Whatever may stand as it is does: an escape is
/// several times as long, and a grammar is limited in its bytes.
pub(super) fn character(c: char) -> String {
    match c {
        c if c.is_control() => format!("\\x{{{:X}}}", c as u32),
        // The slash ends an expression in Lark.
        c if c == '/' || is_meta_character(c) => format!("\\{c}"),
        c => c.to_string(),
    }
}

fn without_surrogates((low, high): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
    let below = (low, high.min(SURROGATES.0 - 1));
    let above = (low.max(SURROGATES.1 + 1), high);
    let parts = if high < SURROGATES.0 { [Some((low, high)), None] } else { [Some(below), Some(above)] };
    parts.into_iter().flatten().filter(|(low, high)| low <= high)
}

/// The first byte of a code point in UTF-8.
fn first_byte(code: u32) -> u8 {
    let byte = match code {
        0..0x80 => code,
        0x80..0x800 => 0xC0 | (code >> 6),
        0x800..0x1_0000 => 0xE0 | (code >> 12),
        _ => 0xF0 | (code >> 18),
    };
    byte as u8
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) fn add(&mut self, byte: u8) {
        self.0[usize::from(byte) / 64] |= 1 << (byte % 64);
    }

    /// Adds the bytes of another set; returns whether any was new.
    pub(super) fn extend(&mut self, other: ByteSet) -> bool {
        let before = *self;
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
        *self != before
    }

    /// Whether the sets intersect.
    pub(super) fn meets(self, other: ByteSet) -> bool {
        self.0.iter().zip(other.0).any(|(mine, theirs)| mine & theirs != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex_automata::meta::Regex;

    use super::*;

    /// As a text and as a class.
    #[test]
    fn a_character_of_an_expression_is_itself() {
        let beyond = ['\u{94d}', 'ก', '北', '\u{3000}', '\u{d7ff}', '\u{e000}', '😀', char::MAX];
        let all: Vec<char> = ('\0'..='\u{ff}').chain(beyond).collect();
        for &c in &all {
            for expression in [character(c), CharSet::one(c).regex()] {
                let regex = Regex::new(&format!("^{expression}$")).unwrap();
                for other in &all {
                    assert_eq!(regex.is_match(&other.to_string()), *other == c, "{expression} on {other:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(kvik_testing::effort(64, 256)))]

        #[test]
        fn sets_agree_with_their_members(
            ranges in prop::collection::vec((0u32..0x300, 0u32..0x40), 1..5),
            more in prop::collection::vec((0xD7F0u32..0x1_0040, 0u32..0x900), 1..4),
        ) {
            let spans = |ranges: &[(u32, u32)]| ranges.iter().map(|&(low, n)| (low, low + n)).collect::<Vec<_>>();
            let (one, two) = (CharSet::of(spans(&ranges)), CharSet::of(spans(&more)));
            let within = |c: char, ranges: &[(u32, u32)]| {
                ranges.iter().any(|&(low, n)| (low..=low + n).contains(&(c as u32)))
            };
            let mut first = ByteSet::default();
            for c in (0..0x1_1000).filter_map(char::from_u32) {
                prop_assert_eq!(one.contains(c), within(c, &ranges));
                prop_assert_eq!(one.negated().contains(c), !within(c, &ranges));
                prop_assert_eq!(two.contains(c), within(c, &more));
                if within(c, &ranges) {
                    first.add(c.to_string().as_bytes()[0]);
                }
            }
            prop_assert_eq!(one.first_bytes(), first);
            let both = (0..0x400).filter_map(char::from_u32).any(|c| one.contains(c) && two.contains(c));
            prop_assert_eq!(one.meets(&two), both);
            prop_assert_eq!(one.negated().negated(), one);
        }
    }
}
