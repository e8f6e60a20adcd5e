//! Ends a text at a line that is indented too little.

/// The minimum indentation of the lines of a text after the first.
#[derive(Debug)]
pub struct IndentLimit {
    min: usize,
    /// Spaces and tabs at the beginning of the current line; `None` after them, and in the first line.
    indent: Option<usize>,
}

impl IndentLimit {
    /// A limit of `min` spaces and tabs; none for 0.
    pub fn new(min: usize) -> Option<IndentLimit> {
        (min > 0).then_some(IndentLimit { min, indent: None })
    }

    /// Adds the next part of the text. Returns the byte of it at which the text ends, if a line is indented too little:
    /// after the indentation, as in llama-server. An empty line is not indented at all.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        for (at, character) in text.char_indices() {
            self.indent = match (character, self.indent) {
                (' ' | '\t', Some(indent)) => Some(indent + 1),
                (_, Some(indent)) if indent < self.min => return Some(at),
                ('\n', _) => Some(0),
                _ => None,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text up to its end, if it comes in these parts.
    fn limited(min: usize, parts: &[&str]) -> String {
        let mut limit = IndentLimit::new(min);
        let mut text = String::new();
        for part in parts {
            if let Some(end) = limit.as_mut().and_then(|limit| limit.push(part)) {
                return text + &part[..end];
            }
            text.push_str(part);
        }
        text
    }

    #[test]
    fn a_text_ends_at_a_line_that_is_indented_too_little() {
        let check = |min: usize, text: &str, expect: &str| {
            assert_eq!(limited(min, &[text]), expect, "{text:?}");
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            assert_eq!(limited(min, &characters), expect, "{text:?} by characters");
        };
        check(0, "a\nb", "a\nb");
        check(4, "a\n    b\n\t\t\t\tc\n     d", "a\n    b\n\t\t\t\tc\n     d");
        check(4, "a  b\n    c\n}\nd", "a  b\n    c\n");
        check(4, "a\n  b", "a\n  ");
        check(4, "\n    é\nü", "\n    é\n");
        check(2, "a\n\n  b", "a\n");
        check(2, "a\n  \n  b\n ", "a\n  \n  b\n ");
    }
}
