//! Images in a prompt, which are files that the model would have to see: kvik reads text alone, and says so.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::bail;
use kvik_serving::settings::home;

/// Endings of files that are images.
const ENDINGS: [&str; 12] =
    ["png", "jpg", "jpeg", "jfif", "webp", "gif", "bmp", "tif", "tiff", "heic", "heif", "avif"];
/// What a sentence may have before and behind a path.
const BEFORE: [char; 9] = ['(', '[', '{', '<', '"', '\'', '`', '“', '‘'];
const BEHIND: [char; 15] = ['.', ',', ';', ':', '?', '!', ')', ']', '}', '>', '"', '\'', '`', '”', '’'];
/// What makes a path an owner: "its colours".
const OWNERS: [&str; 2] = ["'s", "’s"];

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

/// The first image that a text names by a path with a folder: as a terminal writes it where a file is dropped, or as a word
/// of a sentence.
fn named_in(text: &str) -> Option<PathBuf> {
    let plain = text.split_whitespace().map(str::to_owned);
    shell_words(text).into_iter().chain(plain).find_map(|word| image(&word))
}

/// The image whose path a word is, without the marks of the sentence around it.
fn image(word: &str) -> Option<PathBuf> {
    let word = word.trim_end_matches(BEHIND);
    let owner = OWNERS.into_iter().find_map(|end| word.strip_suffix(end));
    let word = owner.unwrap_or(word).trim_end_matches(BEHIND);
    let link = word.rsplit_once("](").map_or(word, |(_, link)| link);
    [link, link.trim_start_matches(BEFORE)].into_iter().map(path).find(|path| is_image(path))
}

fn path(written: &str) -> PathBuf {
    match written.strip_prefix("file://") {
        Some(encoded) => decoded(encoded).into(),
        None => home::path(written.into()),
    }
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default().to_ascii_lowercase();
    let has_folder = path.parent().is_some_and(|folder| !folder.as_os_str().is_empty());
    has_folder && ENDINGS.contains(&ending.as_str()) && path.is_file()
}

/// The path of an address: `%20` is a space.
fn decoded(encoded: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), encoded.as_bytes());
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).filter(|_| *first == b'%');
        let byte = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The words of a text as a shell splits them: spaces may be quoted, or stand behind a backslash. A quote that nothing
/// closes is a character.
fn shell_words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut quote, mut chars) = (None, text.chars().peekable());
    while let Some(c) = chars.next() {
        let begins = || word.trim_start_matches(BEFORE).is_empty();
        match (c, quote) {
            ('\\', None) if chars.peek().is_some_and(|next| !next.is_alphanumeric()) => {
                word.extend(chars.next())
            }
            ('"' | '\'', None) if begins() && chars.clone().any(|other| other == c) => quote = Some(c),
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
        std::fs::create_dir(dir.path().join("[2024]")).unwrap();
        for name in ["a.png", "my dog.JPG", "notes.txt", "[2024]/b.avif", "c.heif", "d.jfif"] {
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
        check(format!("Compare the '90s photo {place}/a.png with now"), Some("a.png"));
        check(format!("It isn't the '90s photo {place}/a.png, is it? I don't know"), Some("a.png"));
        check(format!("He wrote \"look at {place}/a.png\"."), Some("a.png"));
        check(format!("one photo ({place}/a.png), one ('{place}/gone.png')"), Some("a.png"));
        check(format!("one photo (\"{place}/my dog.JPG\")"), Some("my dog.JPG"));
        check(format!("[x]({place}/a.png) and [my dog]({place}/gone.png)"), Some("a.png"));
        check(format!("![]({place}/a.png)"), Some("a.png"));
        check(format!("<{place}/a.png>"), Some("a.png"));
        check(format!("`{place}/a.png`'s colours"), Some("a.png"));
        check(format!("{place}/a.png's colours"), Some("a.png"));
        check(format!("file://{place}/my%20dog.JPG"), Some("my dog.JPG"));
        check(format!("file://{place}/%61.png"), Some("a.png"));
        check(format!("file://{place}/100%.png"), None);
        check(format!("{place}/[2024]/b.avif"), Some("[2024]/b.avif"));
        check(format!("{place}/c.heif or {place}/d.jfif"), Some("c.heif"));
        check("Who's the author of a.png?".to_owned(), None);
        check("It's in C:\\pictures".to_owned(), None);
        check(String::new(), None);
    }

    #[test]
    fn a_path_may_begin_in_the_home_directory() {
        let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) else { return };
        assert_eq!(path("~/a.png"), Path::new(&home).join("a.png"));
        assert_eq!(path("a~/a.png"), Path::new("a~/a.png"));
    }

    #[test]
    fn a_prompt_with_an_image_is_refused_with_the_reason() {
        let file = tempfile::Builder::new().suffix(".webp").tempfile().unwrap();
        let error = refuse(&format!("What is this? {}", file.path().display())).unwrap_err().to_string();
        assert!(error.contains("text alone") && error.contains(".webp"), "{error}");
        refuse("What is a.webp?").unwrap();
    }
}
