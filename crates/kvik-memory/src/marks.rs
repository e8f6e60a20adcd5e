//! Marks at the ends of sentences, of all scripts that have their own.

/// Marks at the end of a question: also those of Arabic, of Greek where it has its own, and of Ethiopic.
pub(crate) const QUESTION_MARKS: [char; 9] = ['?', '？', '﹖', '؟', '\u{37E}', '፧', '⁇', '⁈', '⁉'];
/// Further marks at the end of a sentence that are in no number and no name: of Chinese and Japanese, Devanagari, Urdu,
/// Armenian and Ethiopic.
const FULL_STOPS: [char; 8] = ['。', '｡', '！', '।', '॥', '۔', '։', '።'];

/// True for a mark that ends a sentence whatever follows; a Latin one may be in a number, a name or an address.
pub(crate) fn ends_sentence(mark: char) -> bool {
    mark != '?' && (FULL_STOPS.contains(&mark) || QUESTION_MARKS.contains(&mark))
}
