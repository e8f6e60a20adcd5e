//! JSON spellings of characters: unescaped, as a short escape, or as UTF-16 code units.
//!
//! All functions return parts of regular expressions.

/// Characters with a short escape, and the character after the backslash.
const SHORT: [(char, char); 8] = [
    ('"', '"'),
    ('\\', '\\'),
    ('/', '/'),
    ('\u{8}', 'b'),
    ('\u{c}', 'f'),
    ('\n', 'n'),
    ('\r', 'r'),
    ('\t', 't'),
];

/// Any character in any spelling, as in RFC 8259, except lone surrogates.
pub(super) const CHARACTER: &str = concat!(
    r#"(?:[^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"#,
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))",
);

/// The first and the last characters of ranges.
pub(super) type Range = (char, char);

/// A character of these ranges in any spelling.
pub(super) fn characters(ranges: &[Range]) -> String {
    let mut ways = Vec::new();
    let raw: String = ranges.iter().flat_map(|range| without_escaped(*range)).map(class_part).collect();
    if !raw.is_empty() {
        ways.push(format!("[{raw}]"));
    }
    let is_in = |c: char| ranges.iter().any(|(first, last)| (*first..=*last).contains(&c));
    ways.extend(SHORT.iter().filter(|(c, _)| is_in(*c)).map(|(_, short)| format!(r"\\{}", escaped(*short))));
    let units: Vec<String> = ranges.iter().flat_map(|range| code_units(*range)).collect();
    ways.push(format!(r"\\u(?:{})", units.join("|")));
    format!("(?:{})", ways.join("|"))
}

/// A known text. Printable ASCII characters are unescaped, so that forced text is known in advance; no model
/// writes another spelling of them.
pub(super) fn known(text: &str) -> String {
    let spell = |c: char| match c {
        ' '..='~' if !SHORT.iter().any(|(short, _)| *short == c) => escaped(c),
        _ => characters(&[(c, c)]),
    };
    text.chars().map(spell).collect()
}

/// Whether a text has exactly one spelling.
pub(super) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| (' '..='~').contains(&c) && !SHORT.iter().any(|(short, _)| *short == c))
}

/// A character as a part of an expression.
fn escaped(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!(r"\x{{{:x}}}", u32::from(c)) }
}

fn class_part((first, last): Range) -> String {
    if first == last { escaped(first) } else { format!("{}-{}", escaped(first), escaped(last)) }
}

/// The parts of a range that may be unescaped.
fn without_escaped((first, last): Range) -> Vec<Range> {
    let unescaped = [(' ', '!'), ('#', '['), (']', char::MAX)];
    let parts = unescaped.iter().map(|&(from, to)| (first.max(from), last.min(to)));
    parts.filter(|(from, to)| from <= to).collect()
}

/// The code units of the characters of a range in four digits each, after the first `\u`.
fn code_units((first, last): Range) -> Vec<String> {
    let (first, last) = (u32::from(first), u32::from(last));
    let mut ways = Vec::new();
    for (from, to) in [(0, 0xd7ff), (0xe000, 0xffff)] {
        let (from, to) = (first.max(from), last.min(to));
        if from <= to {
            ways.extend(digits(from, to, 4));
        }
    }
    if last >= 0x1_0000 {
        ways.extend(pairs(first.max(0x1_0000) - 0x1_0000, last - 0x1_0000));
    }
    ways
}

/// Surrogate pairs of the characters beyond the basic multilingual plane, numbered from its end.
fn pairs(first: u32, last: u32) -> Vec<String> {
    const LOW: u32 = 0x400;
    let (high_first, high_last) = (first / LOW, last / LOW);
    let pair = |high: (u32, u32), low: (u32, u32)| {
        let half = |base: u32, (from, to): (u32, u32)| digits(base + from, base + to, 4).join("|");
        format!(r"(?:{})\\u(?:{})", half(0xd800, high), half(0xdc00, low))
    };
    if high_first == high_last {
        return vec![pair((high_first, high_first), (first % LOW, last % LOW))];
    }
    let mut ways = vec![
        pair((high_first, high_first), (first % LOW, LOW - 1)),
        pair((high_last, high_last), (0, last % LOW)),
    ];
    if high_first + 1 < high_last {
        ways.push(pair((high_first + 1, high_last - 1), (0, LOW - 1)));
    }
    ways
}

/// The numbers from `first` to `last` in this many hexadecimal digits.
fn digits(first: u32, last: u32, count: u32) -> Vec<String> {
    if count == 0 {
        return vec![String::new()];
    }
    let unit = 16u32.pow(count - 1);
    let (mut from, mut to) = (first / unit, last / unit);
    let behind = |digit: u32, first: u32, last: u32| {
        let rest = digits(first, last, count - 1);
        rest.into_iter().map(move |rest| digit_class(digit, digit) + &rest).collect::<Vec<_>>()
    };
    if from == to {
        return behind(from, first % unit, last % unit);
    }
    let mut ways = Vec::new();
    if !first.is_multiple_of(unit) {
        ways.extend(behind(from, first % unit, unit - 1));
        from += 1;
    }
    if last % unit != unit - 1 {
        ways.extend(behind(to, 0, last % unit));
        to -= 1;
    }
    if from <= to {
        let any = "[0-9a-fA-F]".repeat(count as usize - 1);
        ways.push(digit_class(from, to) + &any);
    }
    ways
}

/// A digit from `from` to `to` in either case.
fn digit_class(from: u32, to: u32) -> String {
    let digit = |value: u32| char::from_digit(value, 16).unwrap_or('0');
    let lower: String = (from..=to).map(digit).collect();
    let upper: String =
        lower.chars().filter(char::is_ascii_lowercase).map(|c| c.to_ascii_uppercase()).collect();
    match lower.len() + upper.len() {
        1 => lower,
        _ => format!("[{lower}{upper}]"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use regex_automata::meta::Regex;

    use super::*;

    /// Every JSON spelling of a character.
    pub(in super::super) fn spellings(c: char) -> Vec<String> {
        let mut units = [0; 2];
        let units = c.encode_utf16(&mut units);
        let coded = |upper: bool| -> String {
            let one = |unit: &u16| if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") };
            units.iter().map(one).collect()
        };
        let mut all = vec![coded(false), coded(true)];
        all.extend(SHORT.iter().filter(|(known, _)| *known == c).map(|(_, short)| format!("\\{short}")));
        if c >= ' ' && c != '"' && c != '\\' {
            all.push(c.to_string());
        }
        all
    }

    fn whole(expression: &str) -> Regex {
        Regex::new(&format!("^(?:{expression})$")).unwrap()
    }

    /// All characters, and ranges that just include or exclude each.
    #[test]
    fn a_range_has_every_spelling_of_its_characters_and_no_other() {
        let any = whole(CHARACTER);
        for first in ('\0'..=char::MAX).step_by(if cfg!(debug_assertions) { 97 } else { 1 }) {
            for spelling in spellings(first) {
                assert!(any.is_match(&spelling), "{spelling}");
            }
        }
        for half in
            ["\\ud800", "\\udc00", "\\udc00\\ud800", "\\ud800\\u0041", "\\", "\\x", "\\u12", "\n", "\""]
        {
            assert!(!any.is_match(half), "{half}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]
        #[test]
        fn a_class_has_the_spellings_of_its_characters(a: char, b: char, others in prop::collection::vec(any::<char>(), 20)) {
            let range = (a.min(b), a.max(b));
            let class = whole(&characters(&[range]));
            for c in others.into_iter().chain([a, b]) {
                for spelling in spellings(c) {
                    prop_assert_eq!(class.is_match(&spelling), (range.0..=range.1).contains(&c), "{} in {:?}", spelling, range);
                }
            }
        }

        #[test]
        fn a_known_text_has_the_spellings_of_its_characters(text in "\\PC{0,12}", at in any::<prop::sample::Index>(), way in any::<prop::sample::Index>()) {
            let expression = whole(&known(&text));
            prop_assert!(expression.is_match(serde_json::to_string(&text).unwrap().trim_matches('"')) || text.contains('"'));
            let beyond: Vec<char> = text.chars().filter(|c| !c.is_ascii()).collect();
            if !beyond.is_empty() {
                let c = beyond[at.index(beyond.len())];
                let all = spellings(c);
                let written = text.replace('\\', "\\\\").replace('"', "\\\"").replace(c, &all[way.index(all.len())]);
                prop_assert!(expression.is_match(&written), "{}", written);
            }
        }
    }
}
