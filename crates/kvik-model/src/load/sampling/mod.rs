//! Sampling where a request sets none: what a model's files recommend, what its family is known for, and kvik's own.
//!
//! A setting is taken from the first source that has it, each on its own:
//!
//! ```text
//! request ▶ flag ▶ file (`general.sampling.*`, generation_config.json) ▶ family (a table) ▶ kvik
//! ```
//!
//! Where a request switches thinking off, the numbers of a family for thinking give way to its others.

mod family;
mod files;

use std::fmt;

use kvik_text::sampler::Sampling;

use crate::ModelConfig;

use family::{Family, family_named, family_of};
pub use files::FileSampling;

/// Settings of the sampler, as far as a source has them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingOptions {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Number of the likeliest tokens that are kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Probability that the kept tokens have together.
    pub top_p: Option<f32>,
    /// Share of the likeliest token's probability that kept tokens have.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that occurred; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once from the logits of generated tokens; 0 is off.
    pub presence_penalty: Option<f32>,
    /// Subtracted per occurrence from the logits of generated tokens; 0 is off.
    pub frequency_penalty: Option<f32>,
    /// Number of tokens that penalties look back on: -1 for all, 0 for no penalties.
    pub penalty_last_n: Option<i64>,
}

impl SamplingOptions {
    /// The likeliest token at each position, without penalties, whatever the model's makers recommend.
    pub const GREEDY: SamplingOptions = SamplingOptions {
        temperature: Some(0.0),
        repetition_penalty: Some(1.0),
        presence_penalty: Some(0.0),
        frequency_penalty: Some(0.0),
        ..SamplingOptions::NONE
    };

    /// No setting.
    pub const NONE: SamplingOptions = SamplingOptions {
        temperature: None,
        top_k: None,
        top_p: None,
        min_p: None,
        repetition_penalty: None,
        presence_penalty: None,
        frequency_penalty: None,
        penalty_last_n: None,
    };

    /// Whether a penalty is set.
    pub fn has_penalty(&self) -> bool {
        let penalties = [self.repetition_penalty, self.presence_penalty, self.frequency_penalty];
        penalties.iter().any(Option::is_some)
    }
}

/// Where a setting comes from, the weakest source first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingSource {
    /// kvik's own default.
    Kvik,
    /// The family of the model, by its name in the table of families.
    Family(&'static str),
    /// The model's own files.
    File,
    /// A flag of the operator, a variable or a key of a configuration file.
    Flag,
    /// The request itself.
    Request,
}

impl SamplingSource {
    /// The source of this name in answers, and of this family; kvik's own where there is none of that name.
    pub fn named(name: &str, family: Option<&str>) -> SamplingSource {
        match name {
            "family" => SamplingSource::Family(family.and_then(family_named).unwrap_or("unknown")),
            "file" => SamplingSource::File,
            "flag" => SamplingSource::Flag,
            "request" => SamplingSource::Request,
            _ => SamplingSource::Kvik,
        }
    }

    /// Its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            SamplingSource::Kvik => "kvik",
            SamplingSource::Family(_) => "family",
            SamplingSource::File => "file",
            SamplingSource::Flag => "flag",
            SamplingSource::Request => "request",
        }
    }
}

impl fmt::Display for SamplingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SamplingSource::Family(family) => write!(f, "family {family}"),
            source => f.write_str(source.name()),
        }
    }
}

/// A setting, and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value in force.
    pub value: T,
    /// Its source.
    pub source: SamplingSource,
}

impl<T> Sourced<T> {
    const fn own(value: T) -> Sourced<T> {
        Sourced { value, source: SamplingSource::Kvik }
    }

    fn under(self, value: Option<T>, source: SamplingSource) -> Sourced<T> {
        value.map_or(self, |value| Sourced { value, source })
    }
}

impl<T: Copy + PartialEq> Sourced<T> {
    /// The setting where thinking is switched off. `other` is recommended then, and replaces `usual`, which is
    /// recommended for thinking, also where the model's files repeat it.
    fn without_thinking(self, usual: Option<T>, other: Option<T>, source: SamplingSource) -> Sourced<T> {
        let gives_way = match self.source {
            SamplingSource::Kvik | SamplingSource::Family(_) => true,
            SamplingSource::File => usual == Some(self.value),
            SamplingSource::Flag | SamplingSource::Request => false,
        };
        self.under(other.filter(|_| gives_way), source)
    }
}

/// The settings of the sampler that are in force where a request sets none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    /// As [`SamplingOptions::temperature`].
    pub temperature: Sourced<f32>,
    /// As [`SamplingOptions::top_k`].
    pub top_k: Sourced<usize>,
    /// As [`SamplingOptions::top_p`].
    pub top_p: Sourced<f32>,
    /// As [`SamplingOptions::min_p`].
    pub min_p: Sourced<f32>,
    /// As [`SamplingOptions::repetition_penalty`].
    pub repetition_penalty: Sourced<f32>,
    /// As [`SamplingOptions::presence_penalty`].
    pub presence_penalty: Sourced<f32>,
    /// As [`SamplingOptions::frequency_penalty`].
    pub frequency_penalty: Sourced<f32>,
    /// As [`SamplingOptions::penalty_last_n`].
    pub penalty_last_n: Sourced<i64>,
    /// The family of the model, which may recommend other settings where thinking is switched off.
    family: Option<&'static Family>,
}

impl Default for SamplingDefaults {
    fn default() -> SamplingDefaults {
        SamplingDefaults::KVIK
    }
}

impl SamplingDefaults {
    /// kvik's own, which are llama.cpp's: a model of which nothing is known answers sensibly with them.
    pub const KVIK: SamplingDefaults = SamplingDefaults {
        temperature: Sourced::own(0.8),
        top_k: Sourced::own(40),
        top_p: Sourced::own(0.95),
        min_p: Sourced::own(0.05),
        repetition_penalty: Sourced::own(1.0),
        presence_penalty: Sourced::own(0.0),
        frequency_penalty: Sourced::own(0.0),
        penalty_last_n: Sourced::own(64),
        family: None,
    };

    /// Those of a model: its files' where they have them, else its family's, else kvik's.
    pub(super) fn of(config: &ModelConfig, files: &FileSampling) -> SamplingDefaults {
        let family = family_of(config.arch, &config.name);
        let known = family.map_or(SamplingDefaults::KVIK, |family| {
            SamplingDefaults::KVIK.under(&family.sampling, SamplingSource::Family(family.name))
        });
        SamplingDefaults { family, ..known.under(&files.options, SamplingSource::File) }
    }

    /// These for an answer whose request switches thinking on or off, or says nothing of it.
    #[must_use]
    pub fn for_thinking(self, thinks: Option<bool>) -> SamplingDefaults {
        match self.family.filter(|_| thinks == Some(false)) {
            Some(family) => self.without_thinking(family),
            None => self,
        }
    }

    fn without_thinking(self, family: &Family) -> SamplingDefaults {
        let Some(other) = family.without_thinking() else { return self };
        let (usual, source) = (&family.sampling, SamplingSource::Family(family.name));
        let penalties = [
            (self.repetition_penalty, usual.repetition_penalty, other.repetition_penalty),
            (self.presence_penalty, usual.presence_penalty, other.presence_penalty),
            (self.frequency_penalty, usual.frequency_penalty, other.frequency_penalty),
        ];
        let [repetition_penalty, presence_penalty, frequency_penalty] =
            penalties.map(|(own, usual, other)| own.without_thinking(usual, other, source));
        SamplingDefaults {
            temperature: self.temperature.without_thinking(usual.temperature, other.temperature, source),
            top_k: self.top_k.without_thinking(usual.top_k, other.top_k, source),
            top_p: self.top_p.without_thinking(usual.top_p, other.top_p, source),
            min_p: self.min_p.without_thinking(usual.min_p, other.min_p, source),
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            ..self
        }
    }

    /// These where `options`, a stronger source, sets nothing.
    #[must_use]
    pub fn under(self, options: &SamplingOptions, source: SamplingSource) -> SamplingDefaults {
        SamplingDefaults {
            temperature: self.temperature.under(options.temperature, source),
            top_k: self.top_k.under(options.top_k, source),
            top_p: self.top_p.under(options.top_p, source),
            min_p: self.min_p.under(options.min_p, source),
            repetition_penalty: self.repetition_penalty.under(options.repetition_penalty, source),
            presence_penalty: self.presence_penalty.under(options.presence_penalty, source),
            frequency_penalty: self.frequency_penalty.under(options.frequency_penalty, source),
            penalty_last_n: self.penalty_last_n.under(options.penalty_last_n, source),
            family: self.family,
        }
    }

    /// The sampler's settings, with seed 0.
    pub fn sampling(&self) -> Sampling {
        let plain = Sampling {
            temperature: self.temperature.value,
            top_k: self.top_k.value,
            top_p: self.top_p.value,
            min_p: self.min_p.value,
            ..Sampling::GREEDY
        };
        match self.penalty_last_n.value {
            0 => plain,
            last_n => Sampling {
                repetition_penalty: self.repetition_penalty.value,
                presence_penalty: self.presence_penalty.value,
                frequency_penalty: self.frequency_penalty.value,
                penalty_last_n: usize::try_from(last_n).unwrap_or(0),
                ..plain
            },
        }
    }
}

impl fmt::Display for SamplingDefaults {
    /// Writes the settings on one line, each with its source; penalties that are off are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SamplingDefaults { temperature, top_k, top_p, min_p, .. } = self;
        write!(f, "temperature {} ({})", temperature.value, temperature.source)?;
        write!(f, ", top_k {} ({})", top_k.value, top_k.source)?;
        write!(f, ", top_p {} ({})", top_p.value, top_p.source)?;
        write!(f, ", min_p {} ({})", min_p.value, min_p.source)?;
        let penalties = [
            ("repetition_penalty", self.repetition_penalty, 1.0),
            ("presence_penalty", self.presence_penalty, 0.0),
            ("frequency_penalty", self.frequency_penalty, 0.0),
        ];
        let on = || penalties.iter().filter(|(_, penalty, off)| penalty.value != *off);
        for (name, penalty, _) in on() {
            write!(f, ", {name} {} ({})", penalty.value, penalty.source)?;
        }
        if on().next().is_none() {
            return Ok(());
        }
        let Sourced { value, source } = self.penalty_last_n;
        write!(f, ", penalty_last_n {value} ({source})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(temperature: f32) -> SamplingOptions {
        SamplingOptions { temperature: Some(temperature), ..SamplingOptions::NONE }
    }

    #[test]
    fn the_strongest_source_that_has_a_setting_decides_it() {
        use SamplingSource::{Family, File, Flag, Kvik, Request};
        let layers = [(0.1, Family("F")), (0.2, File), (0.3, Flag), (1.0, Request)];
        for present in 0..1_u32 << layers.len() {
            let mut defaults = SamplingDefaults::KVIK;
            let mut expect = (0.8, Kvik);
            for (bit, (temperature, source)) in layers.into_iter().enumerate() {
                let is_set = (present >> bit) & 1 == 1;
                let options = if is_set { setting(temperature) } else { SamplingOptions::NONE };
                defaults = defaults.under(&options, source);
                expect = if is_set { (temperature, source) } else { expect };
            }
            let Sourced { value, source } = defaults.temperature;
            assert_eq!((value, source), expect, "{present:04b}");
            // The other settings stay with the source that has them.
            assert_eq!(
                SamplingDefaults { temperature: Sourced::own(0.8), ..defaults },
                SamplingDefaults::KVIK
            );
        }
    }

    #[test]
    fn a_source_is_read_by_its_name() {
        use SamplingSource::{Family, File, Flag, Kvik, Request};
        for source in [Kvik, Family("kvik-tiny"), File, Flag, Request] {
            assert_eq!(SamplingSource::named(source.name(), Some("kvik-tiny")), source);
        }
        assert_eq!(SamplingSource::named("family", Some("none of them")), Family("unknown"));
        assert_eq!(SamplingSource::named("moon", None), Kvik);
    }

    #[test]
    fn settings_are_taken_each_on_its_own() {
        let file = SamplingOptions { top_p: Some(0.9), penalty_last_n: Some(-1), ..setting(0.6) };
        let flags = SamplingOptions { top_k: Some(0), presence_penalty: Some(0.5), ..SamplingOptions::NONE };
        let defaults =
            SamplingDefaults::KVIK.under(&file, SamplingSource::File).under(&flags, SamplingSource::Flag);
        let expect = Sampling {
            temperature: 0.6,
            top_k: 0,
            top_p: 0.9,
            min_p: 0.05,
            presence_penalty: 0.5,
            penalty_last_n: 0,
            ..Sampling::GREEDY
        };
        assert_eq!(defaults.sampling(), expect);
        assert_eq!(
            defaults.to_string(),
            "temperature 0.6 (file), top_k 0 (flag), top_p 0.9 (file), min_p 0.05 (kvik), \
             presence_penalty 0.5 (flag), penalty_last_n -1 (file)"
        );
    }

    /// The defaults of a Qwen3 with these settings in its files.
    fn qwen3(file: SamplingOptions) -> SamplingDefaults {
        let family = family_of(crate::Arch::Qwen3, "Qwen3 0.6B").unwrap();
        let known = SamplingDefaults::KVIK.under(&family.sampling, SamplingSource::Family(family.name));
        SamplingDefaults { family: Some(family), ..known.under(&file, SamplingSource::File) }
    }

    #[test]
    fn numbers_for_thinking_give_way_where_it_is_switched_off() {
        let check = |defaults: SamplingDefaults, expect: (f32, f32, SamplingSource)| {
            for thinks in [None, Some(true)] {
                assert_eq!(defaults.for_thinking(thinks), defaults, "{thinks:?}");
            }
            let off = defaults.for_thinking(Some(false));
            assert_eq!((off.temperature.value, off.top_p.value, off.temperature.source), expect);
        };
        let (family, file) = (SamplingSource::Family("Qwen3"), SamplingSource::File);
        check(qwen3(SamplingOptions::NONE), (0.7, 0.8, family));
        // Its files have the numbers for thinking.
        check(qwen3(SamplingOptions { top_p: Some(0.95), ..setting(0.6) }), (0.7, 0.8, family));
        // Somebody has chosen another number.
        check(qwen3(setting(0.3)), (0.3, 0.8, file));
        let flag = SamplingSource::Flag;
        check(qwen3(SamplingOptions::NONE).under(&setting(0.6), flag), (0.6, 0.8, flag));
        check(SamplingDefaults::KVIK, (0.8, 0.95, SamplingSource::Kvik));
    }

    #[test]
    fn greedy_is_greedy_whatever_is_recommended() {
        let recommended = SamplingOptions { repetition_penalty: Some(1.1), ..setting(0.7) };
        let known = SamplingDefaults::KVIK.under(&recommended, SamplingSource::Family("F"));
        let sampling = known.under(&SamplingOptions::GREEDY, SamplingSource::Request).sampling();
        assert_eq!((sampling.temperature, sampling.repetition_penalty), (0.0, 1.0));
    }

    #[test]
    fn penalties_that_look_back_on_nothing_are_off() {
        let options = SamplingOptions {
            repetition_penalty: Some(1.1),
            presence_penalty: Some(1.0),
            frequency_penalty: Some(1.0),
            penalty_last_n: Some(0),
            ..SamplingOptions::NONE
        };
        let sampling = SamplingDefaults::KVIK.under(&options, SamplingSource::Flag).sampling();
        let penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty);
        assert_eq!(penalties, (1.0, 0.0, 0.0));
    }
}
