//! Mutations that know the structure of a body: fields, their names, and hostile values.

use kvik_testing::fuzz::Random;
use serde_json::{Map, Number, Value, json};

/// Maximum bytes of repeated values.
const REPEATED_BYTES_MAX: usize = 256 << 10;

/// Fields and values of all seeds, to be inserted in other positions.
pub(super) struct Vocabulary {
    names: Vec<String>,
    values: Vec<Value>,
}

impl Vocabulary {
    pub(super) fn of<'a>(bodies: impl Iterator<Item = &'a [u8]>) -> Vocabulary {
        let mut vocabulary = Vocabulary { names: Vec::new(), values: Vec::new() };
        for body in bodies {
            if let Ok(value) = serde_json::from_slice(body) {
                vocabulary.learn(&value);
            }
        }
        vocabulary
    }

    fn learn(&mut self, value: &Value) {
        self.values.push(value.clone());
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                self.names.push(name.clone());
                self.learn(value);
            }),
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            _ => {}
        }
    }
}

/// Changes a body in one to four ways; one in eight is invalid JSON afterwards.
pub(super) fn mutate(body: &[u8], vocabulary: &Vocabulary, random: &mut Random) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else { return body.to_vec() };
    for _ in 0..1 + random.below(4) {
        let steps = random.below(12);
        change(&mut value, steps, vocabulary, random);
    }
    let mut bytes = value.to_string().into_bytes();
    if random.below(8) == 0 {
        damage(&mut bytes, random);
    }
    bytes
}

/// Descends at most `steps` levels at random and changes the value found.
fn change(value: &mut Value, steps: usize, vocabulary: &Vocabulary, random: &mut Random) {
    let stays = steps == 0 || random.below(4) == 0;
    match value {
        Value::Object(fields) if !stays && !fields.is_empty() => {
            let at = random.below(fields.len());
            if let Some(inner) = fields.values_mut().nth(at) {
                change(inner, steps - 1, vocabulary, random);
            }
        }
        Value::Array(items) if !stays && !items.is_empty() => {
            let at = random.below(items.len());
            change(&mut items[at], steps - 1, vocabulary, random);
        }
        Value::Object(fields) if random.below(3) > 0 => change_fields(fields, vocabulary, random),
        Value::Array(items) if random.below(2) > 0 && !items.is_empty() => {
            let item = items[random.below(items.len())].clone();
            let bytes = item.to_string().len();
            items.extend(vec![item; times(bytes, random)]);
        }
        Value::String(text) if random.below(2) > 0 => *text = text.repeat(times(text.len(), random)),
        _ => *value = hostile(vocabulary, random),
    }
}

/// A number of repetitions of a value of `bytes` bytes: 1 to 2,048, bounded in total size.
fn times(bytes: usize, random: &mut Random) -> usize {
    (1 << random.below(12)).min(1 + REPEATED_BYTES_MAX / bytes.max(1))
}

fn change_fields(fields: &mut Map<String, Value>, vocabulary: &Vocabulary, random: &mut Random) {
    let names: Vec<String> = fields.keys().cloned().collect();
    if !names.is_empty() && random.below(3) == 0 {
        fields.remove(random.pick(&names));
    } else {
        fields.insert(random.pick(&vocabulary.names).clone(), hostile(vocabulary, random));
    }
}

/// A value that fields do not expect: other types, bounds of numbers, long texts, deep nesting, and values of other
/// fields.
fn hostile(vocabulary: &Vocabulary, random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 | 3 => number(random),
        4 => json!(""),
        5 => json!("\u{0}<|im_end|>\u{10ffff}\u{feff}"),
        6 => json!("a ".repeat(1 << random.below(16))),
        7 => (0..1 << random.below(8)).fold(json!(1), |inner, _| json!([inner])),
        8 => (0..random.below(64))
            .fold(json!({}), |inner, _| json!({"type": "object", "properties": {"a": inner}})),
        9 => json!({}),
        _ => random.pick(&vocabulary.values).clone(),
    }
}

fn number(random: &mut Random) -> Value {
    const WHOLE: [i64; 10] = [0, 1, -1, 2, 64, 65, 1 << 31, i32::MIN as i64 - 1, i64::MAX, i64::MIN];
    const REAL: [f64; 7] = [0.5, -0.0, 1e-320, 1e308, -1e308, 1e15, 1.5e-7];
    match random.below(3) {
        0 => json!(u64::MAX),
        1 => json!(*random.pick(&WHOLE)),
        _ => Number::from_f64(*random.pick(&REAL)).map_or(Value::Null, Value::Number),
    }
}

/// Damages bytes as a broken client might.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(4) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes.insert(at, random.below(256) as u8),
        _ => bytes.splice(at..at, *b"\\ud800").for_each(drop),
    }
}
