//! Which conversations have a text in their name or in a message. Case does not matter.
//!
//! What was said is read from the records, those conversations first that were changed last, and no more than a few
//! megabytes for one request: the next one goes on where it ended.

use crate::context::chain::text_of;
use serde_json::Value;

use super::error::ConversationError;
use super::head::{ConversationHead, ConversationKey};
use super::store::Conversations;

/// Bytes of a text that is looked for, at most.
pub const SEARCHED_MAX: usize = 256;
/// Bytes of conversations after which a request stops. The last one is read to its end, so it reads at most the
/// largest conversation more.
pub(super) const READ_BYTES: u64 = 8 << 20;
/// Characters that are shown before and behind what was found.
const SHOWN_BEFORE: usize = 30;
const SHOWN_AFTER: usize = 90;

/// What one request looks for.
#[derive(Debug)]
pub struct Search {
    /// In lower case; not empty.
    lower: String,
    /// The id of the conversation behind which it begins.
    pub after: Option<String>,
    /// Conversations that are given at most, at least one.
    pub limit: usize,
    /// Bytes of conversations after which it stops.
    pub read_bytes: u64,
}

/// What a request has found.
#[derive(Debug)]
pub struct Findings {
    /// Those changed last first.
    pub found: Vec<FoundConversation>,
    /// The id of the last conversation that was looked at, where there are others behind it.
    pub next: Option<String>,
}

/// A conversation that has the text.
#[derive(Debug)]
pub struct FoundConversation {
    /// Which conversation.
    pub key: ConversationKey,
    /// What is known of it.
    pub head: ConversationHead,
    /// Where it was said last; none where the name alone has it.
    pub place: Option<FoundPlace>,
}

/// Where a text was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPlace {
    /// The index of the message.
    pub message: usize,
    /// What stands before it, itself as it is written there, and what stands behind it.
    pub before: String,
    pub text: String,
    pub after: String,
}

impl Search {
    /// A search for a text without what surrounds it; none where it is empty or too long.
    pub fn new(text: &str, after: Option<String>, limit: usize) -> Option<Search> {
        let text = text.trim();
        let is_one = (1..=SEARCHED_MAX).contains(&text.len());
        is_one.then(|| Search { lower: lower(text), after, limit, read_bytes: READ_BYTES })
    }

    /// The last message that has the text.
    fn place(&self, messages: &[Value]) -> Option<FoundPlace> {
        let places = messages.iter().enumerate().rev();
        places.map(|(index, message)| (index, text_of(message))).find_map(|(message, text)| {
            let [before, text, after] = around(&text, &self.lower)?;
            Some(FoundPlace { message, before, text, after })
        })
    }
}

impl Conversations {
    /// Looks through a tenant's conversations. One of which a message is damaged says so when it is read; here it is
    /// passed over.
    ///
    /// # Errors
    /// When the conversation behind which it begins is not there, when the records cannot be read, and what `goes_on`
    /// says before each conversation.
    pub fn search<E: From<ConversationError>>(
        &self,
        tenant: &str,
        search: &Search,
        goes_on: impl Fn() -> Result<(), E>,
    ) -> Result<Findings, E> {
        let all = self.of(tenant);
        let (mut found, mut read) = (Vec::new(), 0);
        let mut left = all[first_behind(&all, search.after.as_deref())?..].iter();
        let mut last = None;
        while found.len() < search.limit
            && read < search.read_bytes
            && let Some((key, head)) = left.next()
        {
            goes_on()?;
            read += head.bytes;
            last = Some(key);
            if let Some(place) = self.found_in(key, head, search)? {
                found.push(FoundConversation { key: key.clone(), head: head.clone(), place });
            }
        }
        let next = last.filter(|_| left.len() > 0).map(|key| key.id.clone());
        Ok(Findings { found, next })
    }

    /// Whether a conversation has the text, and the message that has it.
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
        let is_named = head.name.as_deref().is_some_and(|name| lower(name).contains(&search.lower));
        Ok((is_named || place.is_some()).then_some(place))
    }
}

/// Where the conversations behind this one begin.
pub fn first_behind(
    all: &[(ConversationKey, ConversationHead)],
    after: Option<&str>,
) -> Result<usize, ConversationError> {
    let Some(after) = after else { return Ok(0) };
    let place = all.iter().position(|(key, _)| key.id == after);
    Ok(place.ok_or_else(|| ConversationError::NothingBehind(after.to_owned()))? + 1)
}

/// The first occurrence of a text in lower case, with what surrounds it.
fn around(text: &str, wanted: &str) -> Option<[String; 3]> {
    let at = lower(text).find(wanted)?;
    let (start, end) = (original(text, at), original(text, at + wanted.len() - 1) + 1);
    let end = text.ceil_char_boundary(end);
    let before = text[..start].char_indices().rev().take(SHOWN_BEFORE).last().map_or(start, |(from, _)| from);
    let after = text[end..].char_indices().nth(SHOWN_AFTER).map_or(text.len(), |(until, _)| end + until);
    Some([&text[before..start], &text[start..end], &text[end..after]].map(str::to_owned))
}

/// Where in a text the character begins that has this byte in lower case.
fn original(text: &str, lower_byte: usize) -> usize {
    let mut bytes = 0;
    let mut characters = text.char_indices();
    characters
        .find(|(_, character)| {
            bytes += character.to_lowercase().map(char::len_utf8).sum::<usize>();
            bytes > lower_byte
        })
        .map_or(text.len(), |(at, _)| at)
}

/// Each character for itself, so that what a text begins with does not depend on what follows.
fn lower(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Few letters, so that texts are found often; some whose lower case is longer or another number of bytes.
    const SAID: &str = "[aAbİßẞK é]{0,12}";
    const WANTED: &str = "[aAbİßẞK é]{1,3}";

    fn texts() -> impl Strategy<Value = Vec<Vec<String>>> {
        prop::collection::vec(prop::collection::vec(SAID, 0..4), 0..7)
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
            let has = |text: &String| lower(text).contains(&lower(wanted.trim()));
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
                prop_assert!(lower(&place.text).contains(&lower(wanted.trim())));
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
    fn a_search_ends_when_its_client_has_left() {
        let store = Conversations::open(None);
        begin(&store, "a", None, &["Oslo".to_owned()]);
        let left = || Err(ConversationError::NotFound("whoever asked".to_owned()));
        assert!(store.search("a", &Search::new("Oslo", None, 9).unwrap(), left).is_err());
    }
}
