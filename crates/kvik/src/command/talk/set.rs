//! Changes the values of an answer by name, as `/set` of `kvik chat` does.

use std::str::FromStr;

use kvik_model::load::SamplingDefaults;
use kvik_serving::settings::sampling::{REPETITIONS, SHARES, TEMPERATURES};

use super::TalkArgs;

/// Names of the values, as an error lists them.
const NAMES: &str =
    "temperature, top_k, top_p, min_p, repeat_penalty, seed, max_tokens, loops, think, system";

impl TalkArgs {
    /// Sets the value of this name; `default` is the value without a flag.
    ///
    /// # Errors
    /// A message that says which names or values there are.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let share = |value| parsed(name, value, "a number from 0 to 1", |p: &f64| SHARES.contains(p));
        let sampling = &mut self.sampling;
        match name {
            "temperature" | "temp" => {
                let is_valid = |t: &f64| TEMPERATURES.contains(t);
                sampling.temp = parsed(name, value, "a number of at least 0", is_valid)?;
            }
            "top_k" => sampling.top_k = parsed(name, value, "a number of at least 0", |k| *k >= 0)?,
            "top_p" => sampling.top_p = share(value)?,
            "min_p" => sampling.min_p = share(value)?,
            "repeat_penalty" => {
                let is_valid = |penalty: &f64| REPETITIONS.contains(penalty);
                sampling.repeat_penalty = parsed(name, value, "a number from 0.01 to 100", is_valid)?;
            }
            "seed" => sampling.seed = parsed(name, value, "a whole number", |seed| *seed >= 0)?,
            "max_tokens" | "num_predict" => {
                sampling.n_predict = parsed(name, value, "a number of at least 1", |tokens| *tokens > 0)?;
            }
            "loops" => self.allow_loops = switched(name, value, false)?,
            "think" => self.no_think = !switched(name, value, true)?,
            "nothink" if value.is_empty() => self.no_think = true,
            _ => return Err(format!("there is no value {name:?} to set; there are {NAMES}")),
        }
        Ok(())
    }

    /// The values in force for a model with these defaults, a line each.
    pub(crate) fn values(&self, model: &SamplingDefaults) -> Vec<String> {
        let or = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.to_owned());
        let max_tokens = self.sampling.max_tokens().map(|tokens| tokens.to_string());
        let loops = if self.allow_loops { "on" } else { "off: an answer that repeats itself is ended" };
        [
            ("sampling", self.sampling_of(model).to_string()),
            ("seed", or(self.sampling.seed().map(|seed| seed.to_string()), "another one each time")),
            ("max_tokens", or(max_tokens, "the rest of the context")),
            ("loops", loops.to_owned()),
            ("think", if self.no_think { "off" } else { "where the model does" }.to_owned()),
            ("system", or(self.system.clone(), "none")),
        ]
        .map(|(name, value)| format!("{name:12} {value}"))
        .into()
    }
}

/// A value that `is_valid` accepts; `None` for the default.
fn parsed<T: FromStr>(
    name: &str,
    value: &str,
    wanted: &str,
    is_valid: impl Fn(&T) -> bool,
) -> Result<Option<T>, String> {
    match value.parse().ok().filter(|value| is_valid(value)) {
        None if value == "default" => Ok(None),
        None => Err(format!("{name} takes {wanted}, or default, not {value:?}")),
        found => Ok(found),
    }
}

/// Whether a switch is on; it is without a value.
fn switched(name: &str, value: &str, default: bool) -> Result<bool, String> {
    match value {
        "" | "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        "default" => Ok(default),
        _ => Err(format!("{name} takes on or off, not {value:?}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        talk: TalkArgs,
    }

    fn talk() -> TalkArgs {
        Flags::try_parse_from(["kvik"]).unwrap().talk
    }

    fn values(talk: &TalkArgs) -> Vec<String> {
        talk.values(&SamplingDefaults::default())
    }

    #[test]
    fn values_are_set_and_shown() {
        let mut talk = talk();
        let usual = values(&talk);
        let check = |talk: &mut TalkArgs, name: &str, value: &str, expect: &str| {
            talk.set(name, value).unwrap();
            let shown = values(talk).join("\n");
            assert!(shown.contains(expect), "{shown} has {expect}");
        };
        check(&mut talk, "temperature", "0.2", "temperature 0.2 (");
        check(&mut talk, "temp", "1.5", "temperature 1.5 (");
        check(&mut talk, "top_k", "7", "top_k 7 (");
        check(&mut talk, "top_p", "0.5", "top_p 0.5 (");
        check(&mut talk, "min_p", "0.25", "min_p 0.25 (");
        check(&mut talk, "repeat_penalty", "1.5", "repetition_penalty 1.5 (");
        check(&mut talk, "seed", "7", "seed         7");
        check(&mut talk, "max_tokens", "64", "max_tokens   64");
        check(&mut talk, "loops", "on", "loops        on");
        check(&mut talk, "think", "off", "think        off");
        check(&mut talk, "think", "", "think        where");
        check(&mut talk, "nothink", "", "think        off");
        check(&mut talk, "think", "on", "think        where");
        for name in
            ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "max_tokens", "loops"]
        {
            talk.set(name, "default").unwrap();
        }
        assert_eq!(values(&talk), usual);
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_what_can() {
        let mut talk = talk();
        let usual = values(&talk);
        for (name, value, says) in [
            ("temperature", "hot", "at least 0"),
            ("temperature", "-1", "at least 0"),
            ("temperature", "NaN", "at least 0"),
            ("temperature", "1e39", "at least 0"),
            ("top_k", "-1", "at least 0"),
            ("top_p", "1.5", "0 to 1"),
            ("repeat_penalty", "0", "0.01 to 100"),
            ("seed", "-1", "whole number"),
            ("max_tokens", "0", "at least 1"),
            ("max_tokens", "", "at least 1"),
            ("loops", "maybe", "loops takes on or off"),
            ("think", "maybe", "think takes on or off"),
            ("top_q", "1", "top_p, min_p"),
            ("", "", "temperature"),
        ] {
            let error = talk.set(name, value).unwrap_err();
            assert!(error.contains(says), "{error} says {says}");
        }
        assert_eq!(values(&talk), usual);
    }
}
