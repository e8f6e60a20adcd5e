//! Python's methods of strings.

use std::ops::Range;
use std::rc::Rc;

use super::arguments::Args;
use super::display::write_value;
use super::format::str_format;
use super::limits::{Charge, Meter, Result, failed};
use super::operators::iterate;
use super::text::{Builder, Text};
use super::value::Value;

/// Calls a method of a string.
pub(super) fn of_text(text: &Text, name: &str, mut args: Args, meter: &Rc<Meter>) -> Result<Value> {
    meter.spend_bytes(text.as_str().len())?;
    let value = match name {
        "upper" => Value::Text(upper(text, meter)?),
        "lower" | "casefold" => Value::Text(lower(text, meter)?),
        "capitalize" => Value::Text(capitalize(text, meter)?),
        "title" => Value::Text(title(text, meter)?),
        "strip" => strip(text, &mut args, true, true, meter)?,
        "lstrip" => strip(text, &mut args, true, false, meter)?,
        "rstrip" => strip(text, &mut args, false, true, meter)?,
        "removeprefix" => {
            let prefix = args.required_text("prefix")?;
            let cut = if text.as_str().starts_with(prefix.as_str()) { prefix.as_str().len() } else { 0 };
            Value::Text(text.slice(cut..text.as_str().len(), meter)?)
        }
        "removesuffix" => {
            let suffix = args.required_text("suffix")?;
            let kept = text.as_str().strip_suffix(suffix.as_str()).unwrap_or(text.as_str()).len();
            Value::Text(text.slice(0..kept, meter)?)
        }
        "replace" => {
            let (old, new) = (args.required_text("old")?, args.required_text("new")?);
            let count = args.int("count")?.and_then(|count| usize::try_from(count).ok());
            Value::Text(replace(text, &old, &new, count, meter)?)
        }
        "split" | "rsplit" => split(text, &mut args, name == "rsplit", meter)?,
        "splitlines" => split_lines(text, &mut args, meter)?,
        "partition" | "rpartition" => partition(text, &mut args, name == "rpartition", meter)?,
        "startswith" => Value::Bool(affix(&mut args, meter, |affix| text.as_str().starts_with(affix))?),
        "endswith" => Value::Bool(affix(&mut args, meter, |affix| text.as_str().ends_with(affix))?),
        "find" | "rfind" | "index" | "rindex" => find(text, name, &mut args, meter)?,
        "count" => {
            let part = needle(&mut args, "sub", meter)?;
            Value::Int(text.as_str().matches(part.as_str()).count() as i128)
        }
        "join" => Value::Text(join(text, &args.required("iterable")?, meter)?),
        "format" => return str_format(text, args, meter),
        "center" | "ljust" | "rjust" | "zfill" => padded(text, name, &mut args, meter)?,
        _ => match predicate(name) {
            Some(predicate) => Value::Bool(predicate(text.as_str())),
            None => return Err(failed(format!("a string has no method {name:?}"))),
        },
    };
    args.finish()?;
    Ok(value)
}

/// `isdigit` and the like.
fn predicate(name: &str) -> Option<fn(&str) -> bool> {
    fn all(text: &str, is: fn(char) -> bool) -> bool {
        !text.is_empty() && text.chars().all(is)
    }
    Some(match name {
        "isalpha" => |text| all(text, char::is_alphabetic),
        "isalnum" => |text| all(text, char::is_alphanumeric),
        "isdigit" | "isnumeric" | "isdecimal" => |text| all(text, char::is_numeric),
        "isspace" => |text| all(text, char::is_whitespace),
        "isascii" => str::is_ascii,
        "islower" => |text| text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "isupper" => |text| text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        _ => return None,
    })
}

/// Replaces each character; the replacement keeps its origin.
pub(super) fn map_characters(
    text: &Text,
    meter: &Rc<Meter>,
    mut map: impl FnMut(char, &mut String),
) -> Result<Text> {
    let mut out = Builder::new(meter)?;
    for (piece, input) in text.pieces() {
        out.push_mapped(piece, input, &mut map)?;
    }
    Ok(out.finish())
}

pub(super) fn upper(text: &Text, meter: &Rc<Meter>) -> Result<Text> {
    map_characters(text, meter, |c, out| out.extend(c.to_uppercase()))
}

pub(super) fn lower(text: &Text, meter: &Rc<Meter>) -> Result<Text> {
    map_characters(text, meter, |c, out| out.extend(c.to_lowercase()))
}

pub(super) fn capitalize(text: &Text, meter: &Rc<Meter>) -> Result<Text> {
    let mut first = true;
    map_characters(text, meter, |c, out| match std::mem::take(&mut first) {
        true => out.extend(c.to_uppercase()),
        false => out.extend(c.to_lowercase()),
    })
}

/// Capitalises every word; a word ends at a character that is not a letter.
pub(super) fn title(text: &Text, meter: &Rc<Meter>) -> Result<Text> {
    let mut first = true;
    map_characters(text, meter, |c, out| {
        match first {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        first = !c.is_alphabetic();
    })
}

fn strip(text: &Text, args: &mut Args, left: bool, right: bool, meter: &Rc<Meter>) -> Result<Value> {
    let characters = args.text("chars")?;
    trimmed(text, characters.as_ref(), left, right, meter).map(Value::Text)
}

/// Removes these characters, or white space, at the ends.
pub(super) fn trimmed(
    text: &Text,
    characters: Option<&Text>,
    left: bool,
    right: bool,
    meter: &Rc<Meter>,
) -> Result<Text> {
    let whole = text.as_str();
    if let Some(characters) = characters {
        meter.spend(1 + characters.as_str().len() * whole.len() / 64)?;
    }
    let drop = |c: char| match characters {
        Some(characters) => characters.as_str().contains(c),
        None => c.is_whitespace(),
    };
    let from = if left { whole.len() - whole.trim_start_matches(drop).len() } else { 0 };
    let to = if right { from + whole[from..].trim_end_matches(drop).len() } else { whole.len() };
    text.slice(from..to, meter)
}

pub(super) fn replace(
    text: &Text,
    old: &Text,
    new: &Text,
    count: Option<usize>,
    meter: &Rc<Meter>,
) -> Result<Text> {
    meter.spend_bytes(old.as_str().len())?;
    let mut out = Builder::new(meter)?;
    let mut at = 0;
    for (found, part) in text.as_str().match_indices(old.as_str()).take(count.unwrap_or(usize::MAX)) {
        out.push_part(text, at..found)?;
        out.push_text(new)?;
        meter.spend(1)?;
        at = found + part.len();
    }
    out.push_part(text, at..text.as_str().len())?;
    Ok(out.finish())
}

fn split(text: &Text, args: &mut Args, from_end: bool, meter: &Rc<Meter>) -> Result<Value> {
    let separator = args.text("sep")?;
    let limit = args.int("maxsplit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let whole = text.as_str();
    let (mut gaps_found, charge) = match &separator {
        Some(separator) if separator.as_str().is_empty() => return Err(failed("an empty separator")),
        Some(separator) => gaps(whole, separator.as_str(), limit, from_end, meter)?,
        None => return split_blanks(text, limit, from_end, meter),
    };
    if from_end {
        gaps_found.reverse();
    }
    let mut at = 0;
    let mut items = Vec::new();
    for gap in gaps_found {
        items.push(Value::Text(text.slice(at..gap.start, meter)?));
        at = gap.end;
    }
    items.push(Value::Text(text.slice(at..whole.len(), meter)?));
    drop(charge);
    Value::list(items, meter)
}

/// Ranges of the first `limit` separators, and the charge for their memory.
fn gaps(
    whole: &str,
    separator: &str,
    limit: usize,
    from_end: bool,
    meter: &Rc<Meter>,
) -> Result<(Vec<Range<usize>>, Charge)> {
    meter.spend_bytes(separator.len())?;
    let (mut found, mut charge) = (Vec::new(), Charge::new(meter, 0)?);
    let add = |(at, _): (usize, &str)| -> Result<()> {
        charge.grow(size_of::<Range<usize>>())?;
        found.push(at..at + separator.len());
        Ok(())
    };
    match from_end {
        true => whole.rmatch_indices(separator).take(limit).try_for_each(add)?,
        false => whole.match_indices(separator).take(limit).try_for_each(add)?,
    }
    Ok((found, charge))
}

/// Splits at white space.
fn split_blanks(text: &Text, limit: usize, from_end: bool, meter: &Rc<Meter>) -> Result<Value> {
    let whole = text.as_str();
    let mut words: Vec<Value> = Vec::new();
    let (mut start, mut end) = (whole.len() - whole.trim_start().len(), whole.trim_end().len());
    while start < end {
        let rest = &whole[start..end];
        if words.len() == limit {
            // The remaining text keeps the white space on its other side.
            let rest = if from_end { 0..end } else { start..whole.len() };
            words.push(Value::Text(text.slice(rest, meter)?));
            break;
        }
        let cut = if from_end { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let word = match cut {
            None => std::mem::replace(&mut start, end)..end,
            Some(at) if from_end => {
                let blank = rest[at..].chars().next().map_or(1, char::len_utf8);
                let word = start + at + blank..end;
                end = start + rest[..at].trim_end().len();
                word
            }
            Some(at) => {
                let word = start..start + at;
                start = end - rest[at..].trim_start().len();
                word
            }
        };
        words.push(Value::Text(text.slice(word, meter)?));
    }
    if from_end {
        words.reverse();
    }
    Value::list(words, meter)
}

fn split_lines(text: &Text, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let keep = args.bool("keepends")?.unwrap_or(false);
    let mut at = 0;
    let mut lines = Vec::new();
    for line in text.as_str().split_inclusive('\n') {
        let bare = line.strip_suffix('\n').map_or(line, |line| line.strip_suffix('\r').unwrap_or(line));
        let shown = if keep { line } else { bare };
        lines.push(Value::Text(text.slice(at..at + shown.len(), meter)?));
        at += line.len();
    }
    Value::list(lines, meter)
}

fn partition(text: &Text, args: &mut Args, last: bool, meter: &Rc<Meter>) -> Result<Value> {
    let separator = needle(args, "sep", meter)?;
    let whole = text.as_str();
    let found = if last { whole.rfind(separator.as_str()) } else { whole.find(separator.as_str()) };
    let (end, start) = match found {
        Some(at) => (at, at + separator.as_str().len()),
        None if last => (0, 0),
        None => (whole.len(), whole.len()),
    };
    let parts = [0..end, end..start, start..whole.len()];
    let parts = parts.map(|part| text.slice(part, meter).map(Value::Text));
    Value::tuple(parts.into_iter().collect::<Result<_>>()?, meter)
}

/// Whether the text has one of the affixes, given as one string or a tuple.
fn affix(args: &mut Args, meter: &Rc<Meter>, is: impl Fn(&str) -> bool) -> Result<bool> {
    match args.required("prefix")? {
        Value::Text(text) => Ok(is(text.as_str())),
        Value::List(list) => {
            let list = list.get();
            meter.spend(list.items.len())?;
            for affix in list.items.iter().filter_map(Value::as_str) {
                meter.spend_bytes(affix.len())?;
                if is(affix) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => Err(failed(format!("a string cannot begin or end with {}", other.kind()))),
    }
}

/// The index in characters, or -1 if there is none; `index` fails instead.
fn find(text: &Text, name: &str, args: &mut Args, meter: &Meter) -> Result<Value> {
    let part = needle(args, "sub", meter)?;
    let whole = text.as_str();
    let found = match name.starts_with('r') {
        true => whole.rfind(part.as_str()),
        false => whole.find(part.as_str()),
    };
    match found {
        Some(at) => Ok(Value::Int(whole[..at].chars().count() as i128)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(failed("substring not found")),
    }
}

/// The text to search for. A search reads all of it first, even if it is longer than the text that is searched.
fn needle(args: &mut Args, name: &str, meter: &Meter) -> Result<Text> {
    let needle = args.required_text(name)?;
    meter.spend_bytes(needle.as_str().len())?;
    Ok(needle)
}

pub(super) fn join(separator: &Text, items: &Value, meter: &Rc<Meter>) -> Result<Text> {
    let mut out = Builder::new(meter)?;
    for (i, item) in iterate(items, meter)?.items.iter().enumerate() {
        if i > 0 {
            out.push_text(separator)?;
        }
        meter.spend(1)?;
        write_value(item, &mut out)?;
    }
    Ok(out.finish())
}

/// Padding before a centred text, with Python's rule for the extra character of an odd number.
pub(super) fn centred(missing: usize, width: usize) -> usize {
    missing / 2 + (missing & width & 1)
}

fn padded(text: &Text, name: &str, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let width = args.count("width")?.ok_or_else(|| failed("the argument `width` is missing"))?;
    let fill = match name {
        "zfill" => None,
        _ => args.text("fillchar")?,
    };
    let fill = fill.as_ref().map_or(if name == "zfill" { "0" } else { " " }, Text::as_str);
    let missing = width.saturating_sub(text.as_str().chars().count());
    let before = match name {
        "ljust" => 0,
        "center" => centred(missing, width),
        _ => missing,
    };
    let sign = usize::from(name == "zfill" && text.as_str().starts_with(['+', '-']));
    let mut out = Builder::new(meter)?;
    out.push_part(text, 0..sign)?;
    out.pad(fill, before)?;
    out.push_part(text, sign..text.as_str().len())?;
    out.pad(fill, missing - before)?;
    Ok(Value::Text(out.finish()))
}

#[cfg(test)]
mod tests {
    use super::super::limits::{Fault, RenderLimits};
    use super::*;

    #[test]
    fn separators_are_charged_while_they_are_found() {
        let limits = RenderLimits { steps: 10_000, memory_bytes: 1_000, output_bytes: 0 };
        for from_end in [false, true] {
            let found = |text: &str| gaps(text, ",", usize::MAX, from_end, &Meter::new(&limits));
            assert_eq!(found(",a,").unwrap().0.len(), 2);
            assert_eq!(found(&",".repeat(1_000)).err(), Some(Fault::Memory));
        }
    }
}
