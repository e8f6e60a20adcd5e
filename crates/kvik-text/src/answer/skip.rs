//! Skipping of text in a call that its form does not define: white space, and a word before its arguments.

/// Maximum bytes between the beginning of a call and its arguments.
pub(super) const HEAD_MAX: usize = 512;

/// The result of matching a text against an expected one.
pub(super) enum Skip {
    /// A match up to this byte.
    Past(usize),
    /// A match up to the end of the text, where the expected text continues.
    Incomplete,
    Mismatch,
}

/// Matches a text ignoring white space; an opening bracket of a list may be missing.
pub(super) fn skip_ignoring_space(text: &str, wanted: &str) -> Skip {
    let mut at = 0;
    for c in wanted.chars().filter(|c| !c.is_whitespace()) {
        let rest = text[at..].trim_start();
        match rest.chars().next() {
            None => return Skip::Incomplete,
            Some(found) if found == c => at = text.len() - rest.len() + c.len_utf8(),
            Some(_) if c == '[' => {}
            Some(_) => return Skip::Mismatch,
        }
    }
    Skip::Past(at)
}
