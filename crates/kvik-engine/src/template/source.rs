//! Changes to a template's text before it is compiled.

/// `{% generation %}` marks what a model is trained on; when rendering it means nothing. The tags
/// become a block that is always taken, with their white-space marks kept.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let inside = &tag[2..];
        match inside.split_once("%}").and_then(|(inside, after)| Some((replacement(inside)?, after))) {
            Some(((open, word, close), after)) => {
                out.push_str(&format!("{{%{open} {word} {close}%}}"));
                rest = after;
            }
            None => {
                out.push_str("{%");
                rest = inside;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The marks and the statement to put for the inside of a tag, when it is one of the two.
fn replacement(inside: &str) -> Option<(&str, &'static str, &str)> {
    let (open, inside) = split_mark(inside, inside.starts_with(['-', '+']));
    let close_at = inside.len() - usize::from(inside.ends_with(['-', '+']));
    let (word, close) = inside.split_at(close_at);
    match word.trim() {
        "generation" => Some((open, "if true", close)),
        "endgeneration" => Some((open, "endif", close)),
        _ => None,
    }
}

fn split_mark(text: &str, marked: bool) -> (&str, &str) {
    text.split_at(usize::from(marked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generation_tags_change() {
        let check = |source: &str, expect: &str| assert_eq!(without_generation_tags(source), expect);
        check("a{% generation %}b{%- endgeneration -%}c", "a{% if true %}b{%- endif -%}c");
        check("{%-generation+%}", "{%- if true +%}");
        check("{% set generation = 1 %}{{ generation }}", "{% set generation = 1 %}{{ generation }}");
        check("{% {% generation %}", "{% {% if true %}");
        check("open {% generation", "open {% generation");
        check("{%%}{%-%}ü{%}", "{%%}{%-%}ü{%}");
    }
}
