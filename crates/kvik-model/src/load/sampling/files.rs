//! The sampling that a model's files recommend: `general.sampling.*` of GGUF, `generation_config.json` of Hugging Face.
//!
//! `do_sample` is not read, as llama.cpp and vLLM do not read it: it says what `generate` of the transformers library
//! does without arguments, and many files with recommended numbers leave it out.

use kvik_text::files::gguf::Gguf;
use serde_json::Value;

use super::SamplingOptions;

/// Settings of the sampler in a model's files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FileSampling {
    /// The settings.
    pub options: SamplingOptions,
    /// Settings that are not used, each with the reason.
    pub notes: Vec<String>,
}

/// Prefix of llama.cpp's keys.
const GGUF_PREFIX: &str = "general.sampling.";
/// Highest temperature of a recommendation: OpenAI's bound. A file with a higher one is damaged or hostile.
const TEMPERATURE_MAX: f64 = 2.0;
/// Bounds of a recommended repetition penalty; published ones are from 1 to 1.3.
const REPETITION: (f64, f64) = (0.5, 2.0);
/// Bounds of the other penalties, as in OpenAI's API.
const PENALTY: (f64, f64) = (-2.0, 2.0);
/// Largest count: far more than a vocabulary or a context has.
const COUNT_MAX: f64 = 1e9;

impl FileSampling {
    /// Reads llama.cpp's keys.
    pub(in crate::load) fn from_gguf(file: &Gguf) -> FileSampling {
        // A value that is no number is read as one that is out of every range.
        let number = |key: &str| file.number(&format!("{GGUF_PREFIX}{key}")).unwrap_or(Some(f64::NAN));
        let mut reader = Reader { number: &number, prefix: GGUF_PREFIX, notes: Vec::new() };
        let options = SamplingOptions {
            temperature: reader.real("temp", (0.0, TEMPERATURE_MAX)),
            top_k: reader.top_k("top_k"),
            top_p: reader.real("top_p", (0.0, 1.0)),
            min_p: reader.real("min_p", (0.0, 1.0)),
            repetition_penalty: reader.real("penalty_repeat", REPETITION),
            penalty_last_n: reader.count("penalty_last_n"),
            ..SamplingOptions::NONE
        };
        ["mirostat", "xtc_probability"].iter().for_each(|key| reader.note_missing(key));
        FileSampling { options, notes: reader.notes }
    }

    /// Reads the numbers of a `generation_config.json`.
    pub(in crate::load) fn from_generation_config(config: &Value) -> FileSampling {
        let number = |key: &str| match config.get(key)? {
            Value::Null => None,
            value => Some(value.as_f64().unwrap_or(f64::NAN)),
        };
        let mut reader = Reader { number: &number, prefix: "generation_config.json: ", notes: Vec::new() };
        let options = SamplingOptions {
            temperature: reader.real("temperature", (0.0, TEMPERATURE_MAX)),
            top_k: reader.top_k("top_k"),
            top_p: reader.real("top_p", (0.0, 1.0)),
            min_p: reader.real("min_p", (0.0, 1.0)),
            repetition_penalty: reader.real("repetition_penalty", REPETITION),
            presence_penalty: reader.real("presence_penalty", PENALTY),
            frequency_penalty: reader.real("frequency_penalty", PENALTY),
            penalty_last_n: None,
        };
        FileSampling { options, notes: reader.notes }
    }
}

/// Reads numbers by key, and notes those that no sampler can use.
struct Reader<'a> {
    /// The number under a key, not a number where the value is none; `None` where the key is absent.
    number: &'a dyn Fn(&str) -> Option<f64>,
    /// Put before the keys in notes.
    prefix: &'static str,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn real(&mut self, key: &str, bounds: (f64, f64)) -> Option<f32> {
        self.within(key, bounds, "a number", |_| true).map(|number| number as f32)
    }

    fn count(&mut self, key: &str) -> Option<i64> {
        let whole = |number: f64| number.fract() == 0.0;
        self.within(key, (-1.0, COUNT_MAX), "a whole number", whole).map(|number| number as i64)
    }

    /// The number of kept tokens: 0 and -1 are all.
    fn top_k(&mut self, key: &str) -> Option<usize> {
        self.count(key).map(|count| usize::try_from(count).unwrap_or(0))
    }

    fn within(
        &mut self,
        key: &str,
        (min, max): (f64, f64),
        kind: &str,
        is_kind: impl Fn(f64) -> bool,
    ) -> Option<f64> {
        let number = (self.number)(key)?;
        if (min..=max).contains(&number) && is_kind(number) {
            return Some(number);
        }
        let found = if number.is_nan() { "no number".to_owned() } else { (number as f32).to_string() };
        self.notes.push(format!(
            "{}{key} is {found}, and can be {kind} from {min} to {max}; it is not used",
            self.prefix
        ));
        None
    }

    /// Notes a sampler that is recommended and that kvik does not have.
    fn note_missing(&mut self, key: &str) {
        if (self.number)(key).is_some_and(|number| number != 0.0) {
            self.notes.push(format!("{}{key} asks for a sampler that kvik does not have", self.prefix));
        }
    }
}

#[cfg(test)]
mod tests {
    use kvik_text::files::bytes::FileBytes;
    use kvik_text::files::gguf::write::GgufWriter;
    use serde_json::json;

    use super::*;

    fn gguf(write: impl Fn(&mut GgufWriter)) -> FileSampling {
        let mut writer = GgufWriter::new();
        write(&mut writer);
        FileSampling::from_gguf(&Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap())
    }

    #[test]
    fn gguf_names_its_settings_as_llama_cpp_does() {
        let read = gguf(|writer| {
            writer
                .f32("general.sampling.temp", 0.6)
                .u32("general.sampling.top_k", 20)
                .f32("general.sampling.top_p", 0.95)
                .f32("general.sampling.min_p", 0.0)
                .f32("general.sampling.penalty_repeat", 1.05)
                .u32("general.sampling.penalty_last_n", 128)
                .u32("general.sampling.mirostat", 0);
        });
        let options = SamplingOptions {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
            penalty_last_n: Some(128),
            ..SamplingOptions::NONE
        };
        assert_eq!(read, FileSampling { options, notes: Vec::new() });
        assert_eq!(gguf(|_| {}), FileSampling::default());
        // -1 stands for all, in both.
        let all = gguf(|writer| {
            writer.f32("general.sampling.top_k", -1.0).f32("general.sampling.penalty_last_n", -1.0);
        });
        assert_eq!((all.options.top_k, all.options.penalty_last_n), (Some(0), Some(-1)));
    }

    #[test]
    fn hostile_values_of_gguf_are_refused_with_a_note() {
        let check = |write: &dyn Fn(&mut GgufWriter), key: &str, found: &str| {
            let FileSampling { options, notes } = gguf(write);
            assert_eq!(options, SamplingOptions::NONE, "{key}");
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(notes[0].starts_with(&format!("general.sampling.{key} {found}")), "{notes:?}");
            assert!(notes[0].len() < 200, "{notes:?}");
        };
        for (key, bad) in [
            ("temp", vec![f32::NAN, f32::INFINITY, -0.1, 2.5, 1e30]),
            ("top_p", vec![f32::NAN, -1.0, 1.1]),
            ("min_p", vec![f32::NEG_INFINITY, 1.5]),
            ("top_k", vec![f32::NAN, 2.5, -2.0, 1e30]),
            ("penalty_repeat", vec![0.0, -1.0, 1e9]),
            ("penalty_last_n", vec![0.5, -2.0, f32::INFINITY]),
        ] {
            for bad in bad {
                let full = format!("general.sampling.{key}");
                check(&|writer| _ = writer.f32(&full, bad), key, "is ");
                check(&|writer| _ = writer.text(&full, &"0.7".repeat(1 << 16)), key, "is no number");
                check(&|writer| _ = writer.f32s(&full, &[0.7; 9]), key, "is no number");
                check(&|writer| _ = writer.boolean(&full, true), key, "is no number");
            }
        }
        for key in ["mirostat", "xtc_probability"] {
            let full = format!("general.sampling.{key}");
            check(&|writer| _ = writer.f32(&full, 2.0), key, "asks for a sampler");
        }
    }

    #[test]
    fn a_generation_config_names_its_settings_as_transformers_does() {
        let read = FileSampling::from_generation_config(&json!({
            "bos_token_id": 1, "do_sample": true, "temperature": 1, "top_k": 64, "top_p": 0.95, "min_p": null,
            "repetition_penalty": 1.1, "transformers_version": "4.51.0"
        }));
        let options = SamplingOptions {
            temperature: Some(1.0),
            top_k: Some(64),
            top_p: Some(0.95),
            repetition_penalty: Some(1.1),
            ..SamplingOptions::NONE
        };
        assert_eq!(read, FileSampling { options, notes: Vec::new() });
        for nothing in [json!(null), json!([]), json!("x"), json!(3), json!({}), json!({"do_sample": false})]
        {
            assert_eq!(FileSampling::from_generation_config(&nothing), FileSampling::default(), "{nothing}");
        }
    }

    #[test]
    fn hostile_values_of_a_generation_config_are_refused_with_a_note() {
        for (key, bad) in [
            ("temperature", vec![json!(-1), json!(3), json!(1e300), json!("hot"), json!([0.7]), json!({})]),
            ("top_p", vec![json!(1.01), json!(-0.5), json!(true)]),
            ("min_p", vec![json!(2), json!("0.05")]),
            ("top_k", vec![json!(-2), json!(0.5), json!(u64::MAX), json!("20")]),
            ("repetition_penalty", vec![json!(0), json!(-3), json!(1e9)]),
            ("presence_penalty", vec![json!(2.5), json!("x")]),
            ("frequency_penalty", vec![json!(-2.5), json!([])]),
        ] {
            for bad in bad {
                let FileSampling { options, notes } =
                    FileSampling::from_generation_config(&json!({key: bad, "seed": 3}));
                assert_eq!(options, SamplingOptions::NONE, "{key} {bad}");
                assert_eq!(notes.len(), 1, "{key} {bad}: {notes:?}");
                assert!(notes[0].starts_with(&format!("generation_config.json: {key} is ")), "{notes:?}");
                assert!(notes[0].len() < 200, "{notes:?}");
            }
        }
    }
}
