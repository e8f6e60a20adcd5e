use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// The naive reference, on all tokens: the smallest period of which they are a loop.
fn naive(tokens: &[Piece]) -> Option<Repetition> {
    let loops = |period: &usize| {
        let repeated = repetition(tokens, *period);
        if repeated < REPEATED_MIN {
            return false;
        }
        let mut words = Words::default();
        tokens[tokens.len() - period..].iter().for_each(|&piece| words.add(piece));
        repeated >= repeated_max(*period, &words)
    };
    let period = (1..=PERIOD_MAX.min(tokens.len())).find(loops)?;
    let start = tokens.len() - period - repetition(tokens, period);
    let surplus = tokens.iter().skip(start + 2 * period);
    Some(Repetition { period, start, surplus_bytes: surplus.map(|piece| piece.bytes as usize).sum() })
}

fn repetition(tokens: &[Piece], period: usize) -> usize {
    let ends = (period..tokens.len()).rev();
    ends.take_while(|&end| tokens[end] == tokens[end - period]).count()
}

/// A token of the tests: words are even.
fn piece(token: Token) -> Piece {
    Piece { token, is_word: token.is_multiple_of(2), bytes: 1 + token % 3 }
}

fn push(detector: &mut LoopDetector, piece: Piece) -> Option<Repetition> {
    let text = if piece.is_word { "abc" } else { "..." };
    detector.push(piece.token, &text.as_bytes()[..piece.bytes as usize])
}

/// Where a text is found to loop, and the loop: its words, digits and signs are the tokens.
fn found(text: &str) -> Option<(usize, Repetition)> {
    let mut detector = LoopDetector::default();
    let mut known = HashMap::new();
    for (index, word) in split(text).into_iter().enumerate() {
        let next = known.len() as Token;
        let token = *known.entry(word).or_insert(next);
        if let Some(found) = detector.push(token, word.as_bytes()) {
            return Some((index + 1, found));
        }
    }
    None
}

/// Words with the space before them, and all other characters alone: more tokens than a tokenizer makes.
fn split(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let space = usize::from(first == ' ');
        let letters = rest[space..].find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len() - space);
        let end = if letters > 0 { space + letters } else { first.len_utf8() };
        words.push(&rest[..end]);
        rest = &rest[end..];
    }
    words
}

const SENTENCE: &str = "I am a helpful assistant, and I am here to help you with anything that you need. ";
const PARAGRAPH: &str = "The old lighthouse stood at the end of the pier, and its keeper had not spoken to anybody \
    for eleven years. Every evening he climbed the stairs, counted them under his breath, and lit the lamp. The ships \
    that passed saw only the light; none of them knew that he had once been a sailor too, and had lost his brother \
    on the rocks that the lamp now shows to others.\n\n";

#[test]
fn texts_that_repeat_themselves_for_a_reason_are_no_loops() {
    let row = format!("[{}],\n", ["0"; 20].join(", "));
    let table = format!("| Name | Size |\n| --- | --- |\n{}", "| none | 0 |\n".repeat(30));
    let object = r#"{"name": "string", "value": 0, "enabled": true}, "#;
    let test = "    assert_eq!(parse(\"\"), None);\n";
    let counted: String =
        (1..200).map(|n| format!("{n}. The cat sat on the mat, and the dog ran.\n")).collect();
    let csv: String = (0..500).map(|n| format!("{n},{},{}\n", n * n % 97, n * 7 % 13)).collect();
    let art = format!("{}\n", " *".repeat(10)).repeat(20);
    let log = "2026-11-29 01:02:03 ERROR connection refused, trying again in 5 seconds\n";
    for (name, text) in [
        ("dashes", "-".repeat(1500)),
        ("spaces", format!("{}\n", " ".repeat(200)).repeat(8)),
        ("zeros in base64", "A".repeat(1500)),
        ("a matrix of zeros", row.repeat(20)),
        ("art", art),
        ("a table", table),
        ("objects", object.repeat(40)),
        ("lines of code", test.repeat(60)),
        ("a log", log.repeat(30)),
        ("a song", "na na na, nananana, nananana, hey Jude ".repeat(18)),
        ("laughter", "ha ".repeat(400)),
        ("a punishment", "I will not talk in class.\n".repeat(25)),
        ("a sentence a few times", SENTENCE.repeat(10)),
        ("a paragraph twice", PARAGRAPH.repeat(3)),
        ("a list that counts", counted),
        ("numbers", csv),
    ] {
        assert_eq!(found(&text), None, "{name}");
    }
}

#[test]
fn loops_are_found_with_their_period_and_beginning() {
    let check = |name: &str, before: &str, unit: &str, tokens_max: usize| {
        let start = split(before).len();
        // A space at the end of the unit is part of the next copy's first word.
        let period = split(&unit.repeat(2)).len() - split(unit).len();
        let said = format!("{before}{}", unit.repeat(tokens_max / period + 2));
        let (end, found) = found(&said).expect(name);
        assert_eq!(found.period, period, "{name}");
        assert!(found.start.abs_diff(start) <= 2, "{name}: {found:?}, not from {start}");
        let unit_bytes = unit.len() * (end - found.start - 2 * period) / period;
        assert!(
            found.surplus_bytes.abs_diff(unit_bytes) <= unit.len(),
            "{name}: {found:?}, not {unit_bytes}"
        );
        assert!(end - start <= tokens_max, "{name}: {} tokens of it", end - start);
    };
    check("a sentence", "Hello! How can I help? ", SENTENCE, 320);
    check("a short sentence", "", "I am happy. ", 750);
    check("a paragraph", "Once upon a time. ", PARAGRAPH, 650);
    check("a word", "It is ", "very ", 2100);
    check("a line of code", "fn main() {\n", "    println!(\"Hello, world!\");\n", 2200);
    check("line ends", "The end.", "\n", 2100);
    check("Chinese", "", "我喜欢学习,因为学习很有趣。", 2100);
    check("Russian", "", "Я люблю учиться, потому что это очень интересно. ", 330);
}

#[test]
fn a_loop_that_begins_late_is_found_where_it_begins() {
    let mut detector = LoopDetector::default();
    let said = (0..20_000).map(|n| piece(n % 7919)).chain((0..).map(|n| piece(20_000 + n % 20)));
    let found = said.into_iter().find_map(|piece| push(&mut detector, piece)).unwrap();
    assert_eq!((found.period, found.start), (20, 20_000));
}

proptest! {
    /// Any token is followed by copies of any unit, with an error in them or none.
    #[test]
    fn the_search_finds_what_the_naive_one_finds(
        before in prop::collection::vec(0..6u32, 0..300),
        unit in prop::collection::vec(0..40u32, 1..120),
        copies in 1..40usize,
        error in prop::option::of(0..1500usize),
    ) {
        let mut tokens = before;
        unit.iter().cycle().take(unit.len() * copies).for_each(|&token| tokens.push(token));
        tokens.truncate(1500);
        if let Some(wrong) = error.and_then(|at| tokens.get_mut(at)) {
            *wrong += 1;
        }
        let mut detector = LoopDetector::default();
        let mut said = Vec::new();
        for piece in tokens.into_iter().map(piece) {
            said.push(piece);
            let found = push(&mut detector, piece);
            let is_search = said.len() >= REPEATED_MIN && said.len().is_multiple_of(SEARCH_EVERY);
            prop_assert_eq!(found, if is_search { naive(&said) } else { None });
        }
    }
}
