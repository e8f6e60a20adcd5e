//! Finds the parts of a text that look as if they change at every request.

use std::{ops::Range, sync::LazyLock};

use regex_automata::meta::Regex;

use crate::marks::ends_sentence;

/// The kind of a volatile piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A point in time: date and time, a time of day, seconds since 1970.
    Timestamp,
    /// A calendar date.
    Date,
    /// 8-4-4-4-12 hexadecimal digits.
    Uuid,
    /// A number that counts requests, messages, calls.
    Counter,
    /// A build or a version with a random or dated tail.
    Version,
    /// Hexadecimal digits, a long number, a token of mixed characters.
    Id,
}

/// A volatile piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volatile {
    /// Kind of the piece.
    pub kind: Kind,
    /// Its byte range in the text.
    pub range: Range<usize>,
}

/// Patterns by kind; of two matches at the same offset the earlier pattern wins.
const PATTERNS: [(Kind, &str); 15] = [
    (Kind::Uuid, r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\b"),
    (Kind::Timestamp, r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"),
    (Kind::Date, r"\b(?:19|20)\d\d[-/]\d\d[-/]\d\d\b"),
    (Kind::Date, r"\b\d{1,2}[./]\d{1,2}[./](?:19|20)\d\d\b"),
    (
        Kind::Date,
        concat!(
            r"\b(?:\d{1,2}\.? )?(?:Jan|Feb|Mar|Mär|Apr|May|Mai|Jun|Jul|Aug|Sep|Oct|Okt|Nov|Dec|Dez|",
            r"янв|фев|мар|апр|мая|июн|июл|авг|сен|окт|ноя|дек)[a-zа-я]*\.?",
            r"(?: \d{1,2}(?:st|nd|rd|th)?)?,? (?:19|20)\d\d\b",
        ),
    ),
    (Kind::Date, r"\b(?:19|20)\d\d ?[年년] ?\d{1,2} ?[月월] ?\d{1,2} ?[日号號일]"),
    (Kind::Timestamp, r"\b\d{1,2} ?[点點时時시] ?\d{1,2} ?[分분]"),
    (Kind::Timestamp, r"\b\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?\b"),
    (Kind::Timestamp, r"\b1[5-9]\d{8}(?:\.\d+|\d{3})?\b"),
    (
        Kind::Counter,
        r"(?i)\b(?:request|message|attempt|session|conversation|call|turn|visit)s? ?(?:number|no\.|count|#|id)[ :=#]*\d+\b",
    ),
    (Kind::Version, r"\bv?\d+\.\d+\.\d+[-+.][0-9A-Za-z][0-9A-Za-z.-]{3,}\b"),
    (
        Kind::Version,
        r"(?i)\b(?:build|revision|commit|nonce|cachebuster)[ :=#]+[0-9A-Za-z._-]*\d[0-9A-Za-z._-]*\b",
    ),
    (Kind::Id, r"\b[0-9a-f]{12,}\b"),
    (Kind::Id, r"\b\d{9,}\b"),
    (Kind::Id, r"\b[A-Za-z0-9_-]{20,}\b"),
];

/// A boundary of words in the patterns: also between letters of other scripts and ASCII, because no blank separates
/// a date from them in Chinese, Japanese and Korean.
const BOUNDARY: &str = r"(?:\b|(?-u:\b))";

/// Marks around a sentence, behind the mark at its end.
const CLOSING_MARKS: [char; 7] = ['」', '』', '”', '’', '）', '》', '】'];

static REGEX: LazyLock<Regex> = LazyLock::new(|| {
    let patterns: Vec<String> =
        PATTERNS.iter().map(|(_, pattern)| pattern.replace(r"\b", BOUNDARY)).collect();
    Regex::new_many(&patterns).expect("the patterns are constants, and a test builds them")
});

/// The volatile pieces of a text, in order, without overlaps.
pub fn find(text: &str) -> Vec<Volatile> {
    let found = REGEX.find_iter(text).map(|found| {
        let (kind, _) = PATTERNS[found.pattern().as_usize()];
        Volatile { kind, range: found.range() }
    });
    found.filter(|found| found.kind != Kind::Id || is_random(&text[found.range.clone()])).collect()
}

/// True if the text looks random: random ids contain digits; words and names_with_underscores consist of
/// letters.
fn is_random(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    digits >= 4 && (digits == text.len() || text.bytes().any(|byte| byte.is_ascii_alphabetic()))
}

/// Replaces the digits in the volatile pieces of a text, as the next request might.
pub fn twin(text: &str) -> String {
    let mut twin = String::with_capacity(text.len());
    let mut done = 0;
    for Volatile { range, .. } in find(text) {
        twin.push_str(&text[done..range.start]);
        twin.extend(text[range.clone()].chars().map(next_digit));
        done = range.end;
    }
    twin + &text[done..]
}

fn next_digit(character: char) -> char {
    match character {
        '0'..='8' => (character as u8 + 1) as char,
        '9' => '0',
        other => other,
    }
}

/// Range of the sentence that contains a piece, with the blanks after it. A sentence ends at a line break, or
/// at a full stop, exclamation or question mark, which is followed by a blank if it is a Latin one.
pub fn sentence(text: &str, piece: &Range<usize>) -> Range<usize> {
    let ends = sentences(text);
    let start = ends.iter().take_while(|end| **end <= piece.start).last().copied().unwrap_or(0);
    let end = ends.iter().find(|end| **end >= piece.end).copied().unwrap_or(text.len());
    start..end
}

/// Byte offsets at which the sentences of a text end, including the last one.
pub fn sentences(text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((_, c)) = chars.next() {
        let stops = match c {
            '\n' => true,
            '.' | '!' | '?' => chars.peek().is_some_and(|&(_, next)| next == ' '),
            mark => ends_sentence(mark),
        };
        if stops {
            let is_mark = |next: char| CLOSING_MARKS.contains(&next) || ends_sentence(next);
            while ends_sentence(c) && chars.next_if(|&(_, next)| is_mark(next)).is_some() {}
            while chars.next_if(|&(_, next)| matches!(next, ' ' | '\n' | '\u{3000}')).is_some() {}
            ends.push(chars.peek().map_or(text.len(), |&(at, _)| at));
        }
    }
    if ends.last() != Some(&text.len()) {
        ends.push(text.len());
    }
    ends
}

impl Kind {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Timestamp => "timestamp",
            Kind::Date => "date",
            Kind::Uuid => "uuid",
            Kind::Counter => "counter",
            Kind::Version => "version",
            Kind::Id => "id",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(text: &str) -> Vec<(Kind, &str)> {
        find(text).into_iter().map(|found| (found.kind, &text[found.range])).collect()
    }

    #[test]
    fn volatile_pieces_are_found() {
        let check = |text: &str, kind: Kind, piece: &str| assert_eq!(found(text), [(kind, piece)], "{text}");
        check("Now: 2026-11-21T13:05:59.123Z.", Kind::Timestamp, "2026-11-21T13:05:59.123Z");
        check("Now: 2026-11-21 13:05 (local)", Kind::Timestamp, "2026-11-21 13:05");
        check("It is 1:05 PM here.", Kind::Timestamp, "1:05 PM");
        check("ts=1763730000", Kind::Timestamp, "1763730000");
        check("ts=1763730000123", Kind::Timestamp, "1763730000123");
        check("Today is 2026-11-21.", Kind::Date, "2026-11-21");
        check("Heute ist der 21.11.2026.", Kind::Date, "21.11.2026");
        check("Today is 21 November 2026.", Kind::Date, "21 November 2026");
        check("Today Date: Nov 21, 2026", Kind::Date, "Nov 21, 2026");
        for date in ["21. März 2026", "5. Mai 2026", "3. Oktober 2026", "3. Dezember 2026", "21 ноября 2026"]
        {
            check(&format!("({date})"), Kind::Date, date);
        }
        check("今天是2026-11-21。", Kind::Date, "2026-11-21");
        check("今天是2026年11月21日，请", Kind::Date, "2026年11月21日");
        check("오늘은 2026-11-21입니다", Kind::Date, "2026-11-21");
        check("오늘은 2026년 11월 21일입니다", Kind::Date, "2026년 11월 21일");
        check("现在是13:05，请", Kind::Timestamp, "13:05");
        check("現在は13時05分です", Kind::Timestamp, "13時05分");
        check("الساعة ١٣:٠٥ الآن", Kind::Timestamp, "١٣:٠٥");
        check("Id 123e4567-e89b-12d3-a456-426614174000!", Kind::Uuid, "123e4567-e89b-12d3-a456-426614174000");
        check("You answer request #4711 now.", Kind::Counter, "request #4711");
        check("Session ID: 17", Kind::Counter, "Session ID: 17");
        check("agent v2.3.1-7f3a9b2c", Kind::Version, "v2.3.1-7f3a9b2c");
        check("build 20261121.3", Kind::Version, "build 20261121.3");
        check("key 9f86d081884c7d65 here", Kind::Id, "9f86d081884c7d65");
        check("order 123456789012", Kind::Id, "123456789012");
        check("token dGhpc2lzYXRlc3Q0NzEx8 here", Kind::Id, "dGhpc2lzYXRlc3Q0NzEx8");
    }

    #[test]
    fn stable_pieces_are_not_found() {
        for text in [
            "You are a helpful assistant. Answer in 3 sentences, with at most 200 words.",
            "Step 1: read. Step 2: think. Step 10: answer.",
            "Use Python 3.12 and version 1.2.3 of the library.",
            "call get_the_current_weather_of_a_city or internationalization_of_everything",
            "The ratio is 16:9, the port 8080, the year 1984.",
            "a decade of facade defaced",
            "每年3月5日，共12点",
            "",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    #[test]
    fn a_sentence_ends_at_a_line_or_a_full_stop() {
        let text = "Be brief. Today is 2026-11-21. Be kind.\nBye";
        let piece = find(text).remove(0).range;
        assert_eq!(&text[sentence(text, &piece)], "Today is 2026-11-21. ");
        assert_eq!(&text[sentence(text, &(0..2))], "Be brief. ");
        assert_eq!(&text[sentence(text, &(text.len() - 1..text.len()))], "Bye");
    }

    #[test]
    fn a_sentence_ends_at_the_marks_of_other_scripts_without_a_blank() {
        for expect in [
            vec!["你是助手。", "今天是2026-11-21。", "明白吗？", "好"],
            vec!["他说「今天是周一。」", "真的吗？！", "是。\u{3000}", "见a.b"],
            vec!["यह एक है। ", "दो"],
            vec!["أين؟ ", "هنا۔", "x"],
        ] {
            let text = expect.concat();
            assert_eq!(crate::alignment::sentences(&text), expect);
        }
    }

    proptest! {
        #[test]
        fn a_twin_differs_in_the_pieces_alone(text in "[a-z .:0-9#-]{0,80}") {
            let twin = twin(&text);
            prop_assert_eq!(twin.len(), text.len());
            let pieces = find(&text);
            for (at, (a, b)) in text.bytes().zip(twin.bytes()).enumerate() {
                let inside = pieces.iter().any(|piece| piece.range.contains(&at));
                prop_assert_eq!(a != b, inside && a.is_ascii_digit());
            }
        }

        #[test]
        fn sentences_are_the_text(text in "[a-cÜ .!?。」？\u{3000}\n]{0,60}") {
            let ends = sentences(&text);
            prop_assert!(ends.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(ends.last().copied().unwrap_or(0), text.len());
            prop_assert!(ends.iter().all(|&end| text.is_char_boundary(end)));
        }
    }
}
