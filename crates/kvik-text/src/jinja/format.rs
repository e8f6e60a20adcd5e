//! Python's two kinds of formatting: `'%s' % x` and `'{}'.format(x)`.

use std::rc::Rc;

use super::arguments::Args;
use super::display::{python_float, write_value};
use super::limits::{Meter, Result, failed};
use super::text::{Builder, Text};
use super::value::Value;

/// Maximum digits after the decimal point.
const PRECISION_MAX: usize = 400;

/// The format of one value.
#[derive(Debug)]
struct Spec {
    fill: String,
    /// `<`, `>`, `^` or `=`
    align: Option<char>,
    /// `-`, `+` or a space
    sign: char,
    alternate: bool,
    zeros: bool,
    commas: bool,
    width: usize,
    precision: Option<usize>,
    /// The letter of the conversion; a space without one.
    kind: char,
}

impl Spec {
    fn new() -> Spec {
        Spec {
            fill: " ".into(),
            align: None,
            sign: '-',
            alternate: false,
            zeros: false,
            commas: false,
            width: 0,
            precision: None,
            kind: ' ',
        }
    }
}

/// `format % arguments`; a tuple holds several arguments, a mapping named ones.
pub(super) fn printf(format: &Text, arguments: &Value, meter: &Rc<Meter>) -> Result<Value> {
    let tuple = match arguments {
        Value::List(list) => Some(list.get()).filter(|list| list.is_tuple),
        _ => None,
    };
    let by_name = match arguments {
        Value::Map(map) => Some(map.get()),
        _ => None,
    };
    let mut positional = tuple.as_ref().map_or(std::slice::from_ref(arguments), |tuple| &tuple.items).iter();
    let mut out = Builder::new(meter)?;
    let source = format.as_str();
    meter.spend_bytes(source.len())?;
    let mut at = 0;
    while let Some(found) = source[at..].find('%') {
        out.push_part(format, at..at + found)?;
        let mut rest = &source[at + found + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push_template("%")?;
            at = source.len() - after.len();
            continue;
        }
        let named = match rest.strip_prefix('(').and_then(|inside| inside.split_once(')')) {
            Some((name, after)) => {
                rest = after;
                Some(name)
            }
            None => None,
        };
        let spec = printf_spec(&mut rest, &mut positional)?;
        let value = match (named, &by_name) {
            (Some(name), Some(map)) => map.get(name, meter)?,
            (Some(_), None) => None,
            (None, _) => positional.next(),
        };
        let value = value.ok_or_else(|| failed("not enough arguments for the format"))?;
        write(&spec, value, '>', &mut out)?;
        at = source.len() - rest.len();
    }
    out.push_part(format, at..source.len())?;
    if positional.next().is_some() && by_name.is_none() {
        return Err(failed("too many arguments for the format"));
    }
    Ok(Value::Text(out.finish()))
}

fn printf_spec<'v>(rest: &mut &str, arguments: &mut impl Iterator<Item = &'v Value>) -> Result<Spec> {
    let mut spec = Spec::new();
    while let Some(flag) = rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
        match flag {
            '-' => spec.align = Some('<'),
            '#' => spec.alternate = true,
            '0' => spec.zeros = true,
            sign => spec.sign = if spec.sign == '+' { '+' } else { sign },
        }
        *rest = &rest[1..];
    }
    let mut size = |rest: &mut &str| -> Result<usize> {
        if let Some(after) = rest.strip_prefix('*') {
            *rest = after;
            let value = arguments.next().and_then(Value::as_int).and_then(|n| usize::try_from(n).ok());
            return value.ok_or_else(|| failed("`*` in a format needs a number"));
        }
        digits(rest)
    };
    spec.width = size(rest)?;
    if let Some(after) = rest.strip_prefix('.') {
        *rest = after;
        spec.precision = Some(size(rest)?);
    }
    *rest = rest.trim_start_matches(['h', 'l', 'L']);
    spec.kind = rest.chars().next().ok_or_else(|| failed("the format ends inside of a conversion"))?;
    *rest = &rest[spec.kind.len_utf8()..];
    if !"sradiufFeEgGxXoc".contains(spec.kind) {
        return Err(failed(format!("a format has no conversion {:?}", spec.kind)));
    }
    Ok(spec)
}

/// The number at the start of the text; 0 without one.
fn digits(rest: &mut &str) -> Result<usize> {
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at(length);
    *rest = after;
    if number.is_empty() { Ok(0) } else { number.parse().map_err(|_| failed("a width is too large")) }
}

/// `format.format(..)`
pub(super) fn str_format(format: &Text, mut args: Args, meter: &Rc<Meter>) -> Result<Value> {
    let positional = args.rest();
    let named = args.rest_named();
    let mut next = 0;
    let mut out = Builder::new(meter)?;
    let source = format.as_str();
    let mut at = 0;
    while let Some(found) = source[at..].find(['{', '}']) {
        let brace = at + found;
        let character = &source[brace..brace + 1];
        out.push_part(format, at..brace)?;
        if source[brace + 1..].starts_with(character) {
            out.push_part(format, brace..brace + 1)?;
            at = brace + 2;
            continue;
        }
        let inside = source[brace + 1..].split_once('}').filter(|_| character == "{");
        let (inside, _) = inside.ok_or_else(|| failed("a brace in a format is not closed"))?;
        let (name, spec) = inside.split_once(':').unwrap_or((inside, ""));
        let index = match name {
            "" => {
                next += 1;
                Some(next - 1)
            }
            name => name.parse().ok(),
        };
        let value = match index {
            Some(index) => positional.get(index),
            None => {
                meter.spend_search(named.len(), name.len())?;
                named.iter().find(|(known, _)| &**known == name).map(|(_, value)| value)
            }
        };
        let value = value.ok_or_else(|| failed(format!("the format has no argument {name:?}")))?;
        write(&format_spec(spec)?, value, '<', &mut out)?;
        at = brace + 1 + inside.len() + 1;
    }
    out.push_part(format, at..source.len())?;
    Ok(Value::Text(out.finish()))
}

/// `[[fill]align][sign][#][0][width][,][.precision][type]`
fn format_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::new();
    let mut rest = text;
    let is_align = |c: char| "<>^=".contains(c);
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(fill), Some(align)) if is_align(align) => {
            (spec.fill, spec.align) = (fill.to_string(), Some(align));
            rest = &text[fill.len_utf8() + 1..];
        }
        (Some(align), _) if is_align(align) => {
            spec.align = Some(align);
            rest = &text[1..];
        }
        _ => {}
    }
    if let Some(sign) = rest.chars().next().filter(|c| "+- ".contains(*c)) {
        spec.sign = sign;
        rest = &rest[1..];
    }
    let mut take = |mark: char| match rest.strip_prefix(mark) {
        Some(after) => {
            rest = after;
            true
        }
        None => false,
    };
    spec.alternate = take('#');
    spec.zeros = take('0');
    spec.width = digits(&mut rest)?;
    if let Some(after) = rest.strip_prefix([',', '_']) {
        spec.commas = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        spec.precision = Some(digits(&mut rest)?);
    }
    spec.kind = rest.chars().next().unwrap_or(' ');
    match rest.len() > 1 || !" sdfFeEgGxXobcn%".contains(spec.kind) {
        true => Err(failed(format!("a format cannot be {text:?}"))),
        false => Ok(spec),
    }
}

/// Writes a value; `align` is the default alignment of texts.
fn write(spec: &Spec, value: &Value, align: char, out: &mut Builder) -> Result<()> {
    if spec.precision.is_some_and(|precision| precision > PRECISION_MAX) && !"sra ".contains(spec.kind) {
        return Err(failed(format!("a format has at most {PRECISION_MAX} digits behind the point")));
    }
    let is_text = "sra".contains(spec.kind)
        || (spec.kind == ' ' && (value.as_float().is_none() || matches!(value, Value::Bool(_))));
    if !is_text {
        let (sign, digits) = number(spec, value)?;
        return write_number(spec, sign, &digits, out);
    }
    let mut text = Builder::new(out.meter())?;
    write_value(value, &mut text)?;
    let text = text.finish();
    let shown = match spec.precision {
        Some(precision) => {
            let end = text.as_str().char_indices().nth(precision).map_or(text.as_str().len(), |(at, _)| at);
            text.slice(0..end, out.meter())?
        }
        None => text,
    };
    let missing = spec.width.saturating_sub(shown.as_str().chars().count());
    let before = match spec.align.unwrap_or(align) {
        '>' => missing,
        '^' => missing / 2,
        _ => 0,
    };
    out.pad(&spec.fill, before)?;
    out.push_text(&shown)?;
    out.pad(&spec.fill, missing - before)
}

fn write_number(spec: &Spec, sign: &str, digits: &str, out: &mut Builder) -> Result<()> {
    let missing = spec.width.saturating_sub(sign.len() + digits.chars().count());
    let align = spec.align.unwrap_or(if spec.zeros { '=' } else { '>' });
    let fill = if spec.zeros && spec.align.is_none() { "0" } else { &spec.fill };
    let before = match align {
        '>' => missing,
        '^' => missing / 2,
        _ => 0,
    };
    out.pad(fill, before)?;
    out.push_template(sign)?;
    if align == '=' {
        out.pad(fill, missing)?;
        return out.push_template(digits);
    }
    out.push_template(digits)?;
    out.pad(fill, missing - before)
}

/// Sign and digits of a number.
fn number(spec: &Spec, value: &Value) -> Result<(&'static str, String)> {
    let wrong = || failed(format!("{} cannot be formatted as {:?}", value.kind(), spec.kind));
    if spec.kind == 'c' {
        let character = match value {
            Value::Text(text) => text.as_str().chars().next(),
            other => other.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32),
        };
        return Ok(("", character.ok_or_else(wrong)?.to_string()));
    }
    let whole = match (value, spec.kind) {
        // `%d` truncates a float.
        (Value::Float(value), 'd' | 'i' | 'u') if value.is_finite() => Some(*value as i128),
        (value, 'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'b' | 'n') => Some(value.as_int().ok_or_else(wrong)?),
        (value, ' ') => value.as_int(),
        _ => None,
    };
    if let Some(value) = whole {
        return Ok((sign(spec, value < 0), integer(spec, value.unsigned_abs())));
    }
    let value = value.as_float().ok_or_else(wrong)?;
    Ok((sign(spec, value.is_sign_negative()), real(spec, value.abs())))
}

fn sign(spec: &Spec, negative: bool) -> &'static str {
    match (negative, spec.sign) {
        (true, _) => "-",
        (false, '+') => "+",
        (false, ' ') => " ",
        (false, _) => "",
    }
}

fn integer(spec: &Spec, value: u128) -> String {
    match (spec.kind, spec.alternate) {
        ('x', false) => format!("{value:x}"),
        ('x', true) => format!("{value:#x}"),
        ('X', false) => format!("{value:X}"),
        ('X', true) => format!("0X{value:X}"),
        ('o', false) => format!("{value:o}"),
        ('o', true) => format!("{value:#o}"),
        ('b', false) => format!("{value:b}"),
        ('b', true) => format!("{value:#b}"),
        _ if spec.commas => grouped(&value.to_string()),
        _ => value.to_string(),
    }
}

/// `1234567` as `1,234,567`.
fn grouped(digits: &str) -> String {
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

fn real(spec: &Spec, value: f64) -> String {
    if !value.is_finite() {
        let text = python_float(value);
        return if spec.kind.is_uppercase() { text.to_uppercase() } else { text };
    }
    let precision = spec.precision.unwrap_or(6);
    let text = match spec.kind {
        ' ' if spec.precision.is_none() => python_float(value),
        'e' | 'E' => exponential(value, precision),
        'g' | 'G' | ' ' | 'n' => general(value, precision.max(1), spec.alternate),
        '%' => format!("{:.precision$}%", value * 100.0),
        _ => format!("{value:.precision$}"),
    };
    let text = if spec.kind.is_uppercase() { text.to_uppercase() } else { text };
    match text.split_once('.').filter(|_| spec.commas) {
        Some((whole, fraction)) => format!("{}.{fraction}", grouped(whole)),
        None => text,
    }
}

/// `1.5e+03`
fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').expect("{:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("{:e} writes a small exponent");
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `precision` significant digits, without trailing zeros.
fn general(value: f64, precision: usize, keep_zeros: bool) -> String {
    let text = exponential(value, precision - 1);
    let (digits, exponent) = text.split_once('e').expect("written with an exponent");
    let exponent: i32 = exponent.parse().expect("written with a small exponent");
    let trim = |digits: &str| match keep_zeros || !digits.contains('.') {
        true => digits.to_owned(),
        false => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
    };
    if (-4..precision as i32).contains(&exponent) {
        let decimals = (precision as i32 - 1 - exponent) as usize;
        return trim(&format!("{value:.decimals$}"));
    }
    format!("{}{}", trim(digits), &text[digits.len()..])
}
