//! Images in a prompt, which are files that the model would have to see: kvik reads text alone, and says so.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// Endings of files that are images.
const ENDINGS: [&str; 9] = ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "heic"];

/// Refuses a prompt that names an image of this machine: answered without it, it would be answered wrongly.
pub(super) fn refuse(prompt: &str) -> anyhow::Result<()> {
    match named_in(prompt) {
        Some(image) => bail!(
            "the image {} is not shown to the model: kvik reads text alone; describe what is on it, or write its name \
             without the folder",
            image.display()
        ),
        None => Ok(()),
    }
}

/// The first image that a text names by a path with a folder, as a terminal writes it where a file is dropped.
fn named_in(text: &str) -> Option<PathBuf> {
    words(text).into_iter().find_map(|word| {
        let word = word.trim_end_matches(['.', ',', ';', ':', '?', '!', ')']);
        let path = Path::new(word.strip_prefix("file://").unwrap_or(word));
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        let is_image = ENDINGS.contains(&ending.as_str()) && word.contains(['/', '\\']);
        (is_image && path.is_file()).then(|| path.to_owned())
    })
}

/// The words of a text as a shell splits them: spaces may be quoted, or stand behind a backslash.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut quote, mut chars) = (None, text.chars().peekable());
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None) if chars.peek().is_some_and(|next| !next.is_alphanumeric()) => {
                word.extend(chars.next())
            }
            ('"' | '\'', None) if word.is_empty() => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (c, None) if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            (c, _) => word.push(c),
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_however_its_path_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().display();
        for name in ["a.png", "my dog.JPG", "notes.txt"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let check = |text: String, expect: Option<&str>| {
            assert_eq!(named_in(&text), expect.map(|name| dir.path().join(name)), "{text}");
        };
        check(format!("{place}/a.png"), Some("a.png"));
        check(format!("What is on {place}/a.png?"), Some("a.png"));
        check(format!("file://{place}/a.png describe it"), Some("a.png"));
        check(format!("describe '{place}/my dog.JPG'"), Some("my dog.JPG"));
        check(format!("describe {place}/my\\ dog.JPG"), Some("my dog.JPG"));
        check(format!("describe {place}/notes.txt and {place}/gone.png"), None);
        check("Who's the author of a.png?".to_owned(), None);
        check("It's in C:\\pictures".to_owned(), None);
        check(String::new(), None);
    }

    #[test]
    fn a_prompt_with_an_image_is_refused_with_the_reason() {
        let file = tempfile::Builder::new().suffix(".webp").tempfile().unwrap();
        let error = refuse(&format!("What is this? {}", file.path().display())).unwrap_err().to_string();
        assert!(error.contains("text alone") && error.contains(".webp"), "{error}");
        refuse("What is a.webp?").unwrap();
    }
}
