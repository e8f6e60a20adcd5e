//! The search for tags in text that is held back, so that it is not searched again with every token.

/// How far a text that grows has been searched for tags.
#[derive(Debug, Default)]
pub(super) struct TagSearch {
    /// Byte before which none of the tags begins.
    searched: usize,
}

impl TagSearch {
    /// A search that begins at this byte.
    pub(super) fn after(searched: usize) -> TagSearch {
        TagSearch { searched }
    }

    /// Finds the first of the tags, and the byte at which it begins. Searches hardly any byte twice while the text
    /// grows at its end and the tags are the same.
    pub(super) fn find<'t>(&mut self, text: &str, tags: &[&'t str]) -> Option<(usize, &'t str)> {
        let rest = &text[self.searched..];
        let found = tags.iter().filter_map(|tag| Some((self.searched + rest.find(tag)?, *tag))).min();
        let longest = tags.iter().map(|tag| tag.len()).max().unwrap_or(0);
        let tail = text.floor_char_boundary(text.len().saturating_sub(longest));
        self.searched = found.map_or(tail.max(self.searched), |(at, _)| at);
        found
    }

    /// Notes that this many bytes were removed from the beginning of the text.
    pub(super) fn removed(&mut self, bytes: usize) {
        self.searched = self.searched.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_grows_is_searched_from_where_it_was_not() {
        let (tags, text) = (["<end>", "é|"], "é<en é🦙<end é| <end> é|");
        let mut search = TagSearch::default();
        for (at, _) in text.char_indices() {
            let expect = text[..at].find(tags[1]).map(|found| (found, tags[1]));
            assert_eq!(search.find(&text[..at], &tags), expect, "{:?}", &text[..at]);
            assert!(expect.is_some() || at - search.searched <= tags[0].len() + 3, "{at}: {search:?}");
        }
        let (first, _) = search.find(text, &tags).unwrap();
        let rest = &text[first + tags[1].len()..];
        search.removed(first + tags[1].len());
        assert_eq!(search.find(rest, &tags), Some((1, tags[0])));
    }
}
