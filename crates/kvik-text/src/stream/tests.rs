use proptest::prelude::*;

use super::*;

/// The naive reference, on the whole text: the text before its end, and the stop string that ends it.
fn naive(bytes: &[u8], stops: &[String]) -> (String, Option<usize>) {
    let text = String::from_utf8_lossy(bytes);
    for (start, character) in text.char_indices() {
        let seen = &text[..start + character.len_utf8()];
        let complete = stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty() && seen.ends_with(*stop));
        if let Some((index, stop)) = complete.min_by_key(|(index, stop)| (usize::MAX - stop.len(), *index)) {
            return (seen[..seen.len() - stop.len()].to_owned(), Some(index));
        }
    }
    (text.into_owned(), None)
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|&s| s.to_owned()).collect()
}

/// The output after each token, then at the end.
fn stream(tokens: &[&[u8]], stops: &[&str]) -> Vec<Shown<usize>> {
    let mut stream = TextStream::new(&StopStrings::new(&strings(stops)));
    let mut out = Vec::new();
    for (index, bytes) in tokens.iter().enumerate() {
        out.push(stream.push(index, bytes));
        if out.last().unwrap().stopped.is_some() {
            return out;
        }
    }
    out.push(stream.finish());
    out
}

fn shown(text: &str, tokens: &[usize], stopped: Option<usize>) -> Shown<usize> {
    Shown { text: text.to_owned(), tokens: tokens.to_vec(), stopped }
}

#[test]
fn only_whole_characters_are_sent() {
    assert_eq!(
        stream(&[b"a\xc3", b"\xa6", b"\xf0\x9f", b"\x8c", b"\xb3b"], &[]),
        [
            shown("a", &[], None),
            shown("æ", &[0, 1], None),
            shown("", &[], None),
            shown("", &[], None),
            shown("🌳b", &[2, 3, 4], None),
            shown("", &[], None),
        ]
    );
    assert_eq!(
        stream(&[b"\xff", b"\xc3", b"x\xe2\x82"], &[]),
        [
            shown("\u{fffd}", &[0], None),
            shown("", &[], None),
            shown("\u{fffd}x", &[1], None),
            shown("\u{fffd}", &[2], None),
        ]
    );
}

#[test]
fn beginnings_of_stop_strings_are_held_back() {
    assert_eq!(
        stream(&[b"one E", b"N", b"x", b" END of"], &["END"]),
        [
            shown("one ", &[], None),
            shown("", &[], None),
            shown("ENx", &[0, 1, 2], None),
            shown(" ", &[3], Some(0)),
        ]
    );
    // An incomplete stop string is text.
    assert_eq!(stream(&[b"EN"], &["END"]), [shown("", &[], None), shown("EN", &[0], None)]);
    assert_eq!(stream(&[b"END"], &["END"]), [shown("", &[], Some(0))]);
}

#[test]
fn the_first_complete_stop_string_wins() {
    assert_eq!(stream(&[b"xabcd"], &["abcd", "bc"]), [shown("xa", &[0], Some(1))]);
    assert_eq!(stream(&[b"xabcd"], &["c", "", "abc", "abc"]), [shown("x", &[0], Some(2))]);
}

#[test]
fn texts_that_share_stop_strings_end_each_where_it_does() {
    let stops = StopStrings::new(&strings(&["END", "E!"]));
    let mut streams = [TextStream::new(&stops), TextStream::new(&stops)];
    let mut push = |at: usize, bytes: &[u8]| streams[at].push(0, bytes);
    assert_eq!(push(0, b"a E"), shown("a ", &[], None));
    assert_eq!(push(1, b"ND"), shown("ND", &[0], None), "the beginning was in the other text");
    assert_eq!(push(0, b"ND"), shown("", &[0], Some(0)));
    assert_eq!(push(1, b"E"), shown("", &[], None));
    assert_eq!(push(1, b"!"), shown("", &[], Some(1)));
}

#[test]
fn tokens_without_text_are_reported() {
    assert_eq!(
        stream(&[b"a", b"", b"<", b"", b"|"], &["<|>"]),
        [
            shown("a", &[0], None),
            shown("", &[1], None),
            shown("", &[], None),
            shown("", &[], None),
            shown("", &[], None),
            shown("<|", &[2, 3, 4], None),
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The division into tokens does not change the text, every token is reported exactly once and in
    /// order, and the held text is never longer than a stop string or a character.
    #[test]
    fn equals_the_whole_text(
        tokens in prop::collection::vec(prop_oneof![
            6 => "[abæ🌳]{0,4}".prop_map(String::into_bytes),
            2 => prop::collection::vec(any::<u8>(), 0..3),
            2 => prop::collection::vec(prop_oneof![Just(0xf0u8), Just(0x9f), Just(0x8c), Just(0xb3), Just(0xc3), Just(0xa6)], 0..3),
        ], 0..30),
        stops in prop::collection::vec("[abæ🌳\u{fffd}]{0,4}", 0..4),
    ) {
        let mut stream = TextStream::new(&StopStrings::new(&stops));
        let (mut text, mut reported, mut stopped, mut pushed) = (String::new(), Vec::new(), None, Vec::new());
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        for (index, bytes) in tokens.iter().enumerate() {
            pushed.extend_from_slice(bytes);
            let out = stream.push(index, bytes);
            text += &out.text;
            reported.extend(out.tokens);
            stopped = out.stopped;
            if stopped.is_some() { break; }
            let whole = String::from_utf8_lossy(&pushed).len();
            prop_assert!(whole - text.len() <= longest + 3);
        }
        if stopped.is_none() {
            let out = stream.finish();
            text += &out.text;
            reported.extend(out.tokens);
            stopped = out.stopped;
            if stopped.is_none() { prop_assert_eq!(reported.len(), tokens.len()); }
        }
        let expect = naive(&tokens.concat(), &stops);
        prop_assert_eq!((text, stopped), expect);
        prop_assert!(reported.iter().copied().eq(0..reported.len()));
    }
}
