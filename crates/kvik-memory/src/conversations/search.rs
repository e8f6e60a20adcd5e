//! Search for a text in the names and messages of conversations, ignoring case and form.
//!
//! Messages are read from the records, those of the most recently changed conversations first, and no more than a few
//! megabytes for one request: the next request continues where this one ended.

use std::ops::Range;

use serde_json::Value;
use unicode_normalization_alignments::UnicodeNormalization;

use super::error::ConversationError;
use super::head::{ConversationHead, ConversationKey};
use super::store::Conversations;
use crate::context::chain::text_of;

/// Maximum bytes of the text to search for.
pub const SEARCHED_MAX: usize = 256;
/// Bytes of conversations after which a request stops. It reads the last conversation to its end, so it exceeds this by
/// at most the largest conversation.
pub(super) const READ_BYTES: u64 = 8 << 20;
/// Characters of context that are shown before a match (and after it, below).
const SHOWN_BEFORE: usize = 30;
const SHOWN_AFTER: usize = 90;

/// Query of one request.
#[derive(Debug)]
pub struct Search {
    /// In the form that is compared; not empty.
    folded: String,
    /// Id of the conversation after which the search begins.
    pub after: Option<String>,
    /// Maximum number of conversations to return, at least one.
    pub limit: usize,
    /// Bytes of conversations after which the search stops.
    pub read_bytes: u64,
}

/// Results of one request.
#[derive(Debug)]
pub struct Findings {
    /// Matches, the most recently changed conversations first.
    pub found: Vec<FoundConversation>,
    /// Id of the last conversation that was searched, if others follow.
    pub next: Option<String>,
}

/// A conversation that contains the text.
#[derive(Debug)]
pub struct FoundConversation {
    /// Key of the conversation.
    pub key: ConversationKey,
    /// Metadata of the conversation.
    pub head: ConversationHead,
    /// The last message that contains it; `None` if only the name does.
    pub place: Option<FoundPlace>,
}

/// Position of a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPlace {
    /// Index of the message.
    pub message: usize,
    /// Text before the match, the match as it is written in the message, and the text after it.
    pub before: String,
    pub text: String,
    pub after: String,
}

impl Search {
    /// Creates a search for a text, trimmed of whitespace; `None` if the text is empty or too long.
    pub fn new(text: &str, after: Option<String>, limit: usize) -> Option<Search> {
        let text = text.trim();
        let is_one = (1..=SEARCHED_MAX).contains(&text.len());
        is_one.then(|| Search { folded: folded(text), after, limit, read_bytes: READ_BYTES })
    }

    /// Finds the last message that contains the text.
    fn place(&self, messages: &[Value]) -> Option<FoundPlace> {
        let places = messages.iter().enumerate().rev();
        places.map(|(index, message)| (index, text_of(message))).find_map(|(message, text)| {
            let [before, text, after] = around(&text, &self.folded)?;
            Some(FoundPlace { message, before, text, after })
        })
    }
}

impl Conversations {
    /// Searches a tenant's conversations. The messages of a damaged conversation are skipped; reading it reports the
    /// damage.
    ///
    /// # Errors
    /// If the conversation after which the search begins does not exist, the records cannot be read, or `goes_on`,
    /// which is called before each conversation, returns an error.
    pub fn search<E: From<ConversationError>>(
        &self,
        tenant: &str,
        search: &Search,
        goes_on: impl Fn() -> Result<(), E>,
    ) -> Result<Findings, E> {
        self.refresh(tenant);
        let mut left = self.keys_behind(tenant, search.after.as_deref())?.into_iter();
        let (mut found, mut read, mut last) = (Vec::new(), 0, None);
        while found.len() < search.limit
            && read < search.read_bytes
            && let Some(key) = left.next()
        {
            goes_on()?;
            last = Some(key.id.clone());
            // One that was deleted meanwhile is not found any more.
            let Some(head) = self.shelf.heads().all.get(&key).cloned() else { continue };
            read += head.bytes;
            if let Some(place) = self.found_in(&key, &head, search)? {
                found.push(FoundConversation { key, head, place });
            }
        }
        Ok(Findings { found, next: last.filter(|_| left.len() > 0) })
    }

    /// Keys of the conversations of a tenant after the one with the id `after`, the most recently changed first. Their
    /// heads are copied one at a time, as they are searched.
    fn keys_behind(
        &self,
        tenant: &str,
        after: Option<&str>,
    ) -> Result<Vec<ConversationKey>, ConversationError> {
        let heads = self.shelf.heads();
        Ok(heads.newest_first(tenant, after)?.into_iter().map(|(key, _)| key.clone()).collect())
    }

    /// Searches one conversation: `Some` if it contains the text, with the match in a message if there is one.
    fn found_in(
        &self,
        key: &ConversationKey,
        head: &ConversationHead,
        search: &Search,
    ) -> Result<Option<Option<FoundPlace>>, ConversationError> {
        if let Some(sharing) = self.shelf.sharing() {
            sharing.refresh(key)?;
        }
        let messages = match self.shelf.said(key) {
            Err(ConversationError::Damaged(_)) => Vec::new(),
            said => said?,
        };
        let place = search.place(&messages);
        let is_named = head.name.as_deref().is_some_and(|name| folded(name).contains(&search.folded));
        Ok((is_named || place.is_some()).then_some(place))
    }
}

/// The first occurrence of a folded text, with its context.
fn around(text: &str, wanted: &str) -> Option<[String; 3]> {
    let at = folded(text).find(wanted)?;
    let Range { start, end } = original(text, at..at + wanted.len());
    let before = text[..start].char_indices().rev().take(SHOWN_BEFORE).last().map_or(start, |(from, _)| from);
    let after = text[end..].char_indices().nth(SHOWN_AFTER).map_or(text.len(), |(until, _)| end + until);
    Some([&text[before..start], &text[start..end], &text[end..after]].map(str::to_owned))
}

/// The range of a text that these bytes of its folded form come from.
fn original(text: &str, wanted: Range<usize>) -> Range<usize> {
    // Bytes of the folded form and characters of the text so far, and the characters that are wanted.
    let (mut bytes, mut read, mut first, mut end) = (0, 0_usize, 0, 0);
    for (c, change) in text.nfkc() {
        if bytes >= wanted.end {
            break;
        }
        // A change of 1 is a further part of the character before; one below 0 is of so many characters after this one.
        let begin = if change > 0 { read.saturating_sub(1) } else { read };
        read += (1 - change).unsigned_abs();
        if bytes <= wanted.start {
            first = begin;
        }
        bytes += lower(c).map(char::len_utf8).sum::<usize>();
        end = read;
    }
    let byte = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    byte(first)..byte(end)
}

/// A text in the form that is compared: equal for what looks the same (NFKC, as for quotes), and in lower case.
fn folded(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.nfkc().flat_map(|(c, _)| lower(c)).collect()
}

/// The lower case of a character on its own, so that a sigma has one lower case wherever it stands.
fn lower(c: char) -> impl Iterator<Item = char> {
    c.to_lowercase().map(|c| if c == 'ς' { 'σ' } else { c })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Few letters, so that matches are frequent; some have a lower case of another length in characters or bytes.
    const SAID: &str = "[aAbİßẞK éςΣ\u{301}]{0,12}";
    const WANTED: &str = "[aAbİßẞK éςΣ\u{301}]{1,3}";

    fn texts() -> impl Strategy<Value = Vec<Vec<String>>> {
        prop::collection::vec(prop::collection::vec(SAID, 0..4), 0..7)
    }

    /// What is compared, with the lower case of a whole text.
    fn plain(text: &str) -> String {
        text.nfkc().map(|(c, _)| c).collect::<String>().to_lowercase().replace('ς', "σ")
    }

    fn message(text: &str) -> Value {
        json!({"role": "user", "content": [{"type": "text", "text": text}]})
    }

    fn goes_on() -> Result<(), ConversationError> {
        Ok(())
    }

    fn begin(store: &Arc<Conversations>, tenant: &str, name: Option<&str>, said: &[String]) -> String {
        let mut held = store.begin(tenant, name).unwrap();
        held.append(&said.iter().map(|text| message(text)).collect::<Vec<Value>>()).unwrap();
        held.key().id.clone()
    }

    fn ids_of(all: &[FoundConversation]) -> Vec<&str> {
        all.iter().map(|found| found.key.id.as_str()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn pages_of_a_search_are_all_that_say_it(
            said in texts(), wanted in WANTED, limit in 1..4_usize, read_bytes in 1..400_u64
        ) {
            let store = Conversations::open(None);
            let ids: Vec<String> = said.iter().map(|said| begin(&store, "a", None, said)).collect();
            begin(&store, "b", Some(&format!("x{wanted}")), std::slice::from_ref(&wanted));
            let Some(mut search) = Search::new(&wanted, None, limit) else { return Ok(()) };
            search.read_bytes = read_bytes;
            let has = |text: &String| plain(text).contains(&plain(wanted.trim()));
            let mut all: Vec<FoundConversation> = Vec::new();
            loop {
                let Findings { found, next } = store.search("a", &search, goes_on).unwrap();
                prop_assert!(found.len() <= limit);
                all.extend(found);
                if next.is_none() {
                    break;
                }
                prop_assert!(next != search.after, "it goes on");
                search.after = next;
            }
            let expect = said.iter().zip(&ids).rev().filter(|(said, _)| said.iter().any(has));
            prop_assert_eq!(ids_of(&all), expect.map(|(_, id)| id.as_str()).collect::<Vec<&str>>());
            for found in &all {
                let said = &said[ids.iter().position(|id| *id == found.key.id).unwrap()];
                let place = found.place.as_ref().unwrap();
                prop_assert_eq!(Some(place.message), said.iter().rposition(has));
                prop_assert!(plain(&place.text).contains(&plain(wanted.trim())));
                let shown = [&place.before[..], &place.text, &place.after].concat();
                prop_assert!(said[place.message].contains(&shown));
            }
        }
    }

    #[test]
    fn what_surrounds_a_text_is_short_and_a_name_is_found_alone() {
        let store = Conversations::open(None);
        let long = format!("{} Oslo {}", "ä".repeat(500), "ö".repeat(500));
        let id = begin(&store, "a", Some("Norway"), &[long]);
        let find = |text: &str| {
            let search = Search::new(text, None, 9).unwrap();
            store.search("a", &search, goes_on).unwrap().found
        };
        let place = find("OSLO")[0].place.clone().unwrap();
        assert_eq!(place.text, "Oslo");
        assert_eq!((place.before.chars().count(), place.after.chars().count()), (SHOWN_BEFORE, SHOWN_AFTER));
        let named = find("norway");
        assert_eq!((ids_of(&named), &named[0].place), (vec![id.as_str()], &None));
        assert!(find("Bergen").is_empty());
        assert!(Search::new(" ", None, 9).is_none() && Search::new(&"x".repeat(257), None, 9).is_none());
    }

    #[test]
    fn case_and_form_make_no_difference() {
        for (said, wanted, expect) in [
            ("Πού είναι ο δρόμος;", "ΔΡΌΜΟΣ", "δρόμος"),
            ("Ο ΔΡΌΜΟΣ", "ο δρόμος", "Ο ΔΡΌΜΟΣ"),
            ("In Ko\u{308}ln.", "KÖLN", "Ko\u{308}ln"),
            ("In Köln.", "ko\u{308}ln", "Köln"),
            ("\u{1112}\u{1161}\u{11ab}글", "한", "\u{1112}\u{1161}\u{11ab}"),
        ] {
            let found = around(said, &folded(wanted)).unwrap();
            assert_eq!((found[1].as_str(), found.concat()), (expect, said.to_owned()), "{wanted}");
        }
        assert_eq!(around("Ko\u{308}ln", "o"), None, "a part of a letter is another one");
        let [_, ligature, _] = around("ＡＢ ﬁne", &folded("ab F")).unwrap();
        assert_eq!(ligature, "ＡＢ ﬁ");
    }

    #[test]
    fn a_search_ends_when_its_client_has_left() {
        let store = Conversations::open(None);
        begin(&store, "a", None, &["Oslo".to_owned()]);
        let left = || Err(ConversationError::NotFound("whoever asked".to_owned()));
        assert!(store.search("a", &Search::new("Oslo", None, 9).unwrap(), left).is_err());
    }
}
