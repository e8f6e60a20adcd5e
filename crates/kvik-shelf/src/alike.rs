//! Suggestions of similar names for an unknown one.

/// Maximum number of suggestions.
const SUGGESTED: usize = 3;
/// Maximum number of characters that are compared.
const COMPARED_MAX: usize = 256;
/// Minimum length of a text that counts as part of a name.
const PART_MIN: usize = 3;

/// The distance of a name from a text, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// Only letters' case differs.
    Case,
    /// The tag after `:` differs, or is missing.
    Tag,
    /// The owner before `/` differs, or is missing.
    Owner,
    /// Either is part of the other.
    Part,
    /// Number of characters to insert, delete or replace.
    Edits(usize),
}

/// At most three names that `wanted` may have meant, the most similar first.
pub fn alike<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let distance = |name: &'a str| Some((distance(wanted, name)?, name));
    let mut near: Vec<(Distance, &str)> = names.into_iter().filter_map(distance).collect();
    near.sort();
    near.into_iter().take(SUGGESTED).map(|(_, name)| name).collect()
}

/// A sentence with the suggestions; empty if there are none.
pub(crate) fn suggestion(wanted: &str, names: &[&str]) -> String {
    match alike(wanted, names.iter().copied())[..] {
        [] => String::new(),
        [name] => format!("did you mean `{name}`? "),
        ref names => format!("did you mean one of `{}`? ", names.join("`, `")),
    }
}

fn distance(wanted: &str, name: &str) -> Option<Distance> {
    let [wanted, name] =
        [wanted, name].map(|text| text.chars().take(COMPARED_MAX).collect::<String>().to_lowercase());
    let [(wanted_model, wanted_stem), (name_model, name_stem)] = [&wanted, &name].map(|text| parts(text));
    let is_part = |part: &str, whole: &str| part.chars().count() >= PART_MIN && whole.contains(part);
    if wanted == name {
        Some(Distance::Case)
    } else if wanted_model == name_model {
        Some(Distance::Tag)
    } else if wanted_stem == name_stem {
        Some(Distance::Owner)
    } else if is_part(wanted_stem, &name) || is_part(name_stem, &wanted) {
        Some(Distance::Part)
    } else {
        // A quarter of the characters may be wrong.
        let edits = edits(wanted_stem, name_stem);
        (edits <= wanted_stem.chars().count() / 4).then_some(Distance::Edits(edits))
    }
}

/// A name without its tag, and the part of that after the last `/`.
fn parts(name: &str) -> (&str, &str) {
    let model = name.split(':').next().unwrap_or(name);
    (model, model.rsplit('/').next().unwrap_or(model))
}

/// Number of characters to insert, delete or replace to turn one text into the other (Levenshtein 1966), row by row.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, from) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, &to) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    const NAMES: [&str; 5] =
        ["smollm2:135m", "smollm2:360m", "Qwen/Qwen3-0.6B-GGUF:Q4_K_M", "gemma3", "notes"];

    #[test]
    fn what_was_meant_is_suggested() {
        let check = |wanted: &str, expect: &[&str]| assert_eq!(alike(wanted, NAMES), expect, "{wanted}");
        check("smollm2", &["smollm2:135m", "smollm2:360m"]);
        check("smollm2:1.7b", &["smollm2:135m", "smollm2:360m"]);
        check("SmolLM2:135M", &["smollm2:135m", "smollm2:360m"]);
        check("qwen3-0.6b-gguf", &["Qwen/Qwen3-0.6B-GGUF:Q4_K_M"]);
        check("qwen3", &["Qwen/Qwen3-0.6B-GGUF:Q4_K_M"]);
        check("gema3", &["gemma3"]);
        check("gemma", &["gemma3"]);
        check("not", &["notes"]);
        for nothing in ["", ":", "x", "llama", "mistral-7b"] {
            check(nothing, &[]);
        }
        assert_eq!(alike("smollm2", ["a"; 0]), [""; 0]);
    }

    #[test]
    fn edits_are_counted() {
        for (from, to, expect) in
            [("", "", 0), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2), ("ä", "a", 1)]
        {
            assert_eq!((edits(from, to), edits(to, from)), (expect, expect), "{from} {to}");
        }
    }

    /// A suggestion is one of the names, and long texts are fast.
    #[test]
    fn no_text_is_too_long() {
        let long = "q".repeat(1 << 20);
        assert!(alike(&long, NAMES).len() <= SUGGESTED);
        assert!(alike(&"ä".repeat(1 << 16), NAMES).is_empty());
    }
}
