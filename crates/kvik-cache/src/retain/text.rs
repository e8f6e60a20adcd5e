//! A retention as text: `POLICY[:KEEP][,option=value]*`, as in `snapkv:0.5` or `h2o:512,budget=all,every=128`.

use std::fmt;
use std::str::FromStr;

use super::amounts::{Budget, Cut, Keep, When};
use super::error::RetentionError;
use super::retention::Retention;

/// The default amount.
const KEEP_DEFAULT: Keep = Keep::Share(0.5);
/// Options that every policy has.
const COMMON: [&str; 7] = ["budget", "cut", "sinks", "recent", "every", "protect", "when"];

impl FromStr for Retention {
    type Err = RetentionError;

    fn from_str(text: &str) -> Result<Retention, RetentionError> {
        let mut parts = text.split(',').map(str::trim);
        let policy = parts.next().unwrap_or_default();
        let (name, keep) = match policy.split_once(':') {
            Some((name, keep)) => (name, keep.parse()?),
            None => (policy, KEEP_DEFAULT),
        };
        let mut retention = Retention::new(name.parse()?, keep);
        for option in parts {
            let (option, value) =
                option.split_once('=').ok_or_else(|| RetentionError::NoValue(option.to_owned()))?;
            retention.set(option.trim(), value.trim())?;
        }
        retention.check_fields()?;
        Ok(retention)
    }
}

impl Retention {
    /// Sets the option of that name, of the policy or of every retention, to `value`.
    ///
    /// # Errors
    /// If there is no such option, or its value cannot be parsed. [`Retention::check`] validates the value.
    pub fn set(&mut self, option: &str, value: &str) -> Result<(), RetentionError> {
        let whole = |field| value.parse().map_err(|_| fault(field, value, "a whole number"));
        match option {
            "budget" => self.budget = value.parse()?,
            "cut" => self.cut = value.parse()?,
            "sinks" => self.sinks = whole("sinks")?,
            "recent" => self.recent = Some(whole("recent")?),
            "every" => self.every = whole("every")?,
            "protect" => self.protect = whole("protect")?,
            "when" => self.when = value.parse()?,
            _ => return self.set_of_policy(option, value),
        }
        Ok(())
    }

    /// The names of its options: those of its policy, and the common ones.
    pub fn option_names(&self) -> Vec<&'static str> {
        let mut policy = self.policy;
        policy.options().iter().map(|(name, _)| *name).chain(COMMON).collect()
    }

    fn set_of_policy(&mut self, option: &str, value: &str) -> Result<(), RetentionError> {
        let policy = self.policy.name();
        let mut options = self.policy.options();
        let found = options.iter_mut().find(|(name, _)| *name == option);
        if let Some((name, slot)) = found {
            return slot.read(value).map_err(|expected| fault(name, value, expected));
        }
        Err(RetentionError::UnknownOption { policy, option: option.to_owned(), known: self.option_names() })
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.policy.name(), self.keep)?;
        let mut usual = Retention::new(self.policy.with_defaults(), self.keep);
        let mut policy = self.policy;
        for ((name, value), (_, default)) in policy.options().into_iter().zip(usual.policy.options()) {
            if value.text() != default.text() {
                write!(f, ",{name}={}", value.text())?;
            }
        }
        if self.budget != usual.budget {
            write!(f, ",budget={}", self.budget)?;
        }
        if self.cut != usual.cut {
            write!(f, ",cut={}", self.cut)?;
        }
        let sinks = Some(self.sinks).filter(|sinks| *sinks != usual.sinks);
        let every = Some(self.every).filter(|every| *every != usual.every);
        let protect = Some(self.protect).filter(|protect| *protect != usual.protect);
        for (name, value) in
            [("sinks", sinks), ("recent", self.recent), ("every", every), ("protect", protect)]
        {
            if let Some(value) = value {
                write!(f, ",{name}={value}")?;
            }
        }
        if self.when != usual.when {
            write!(f, ",when={}", self.when)?;
        }
        Ok(())
    }
}

/// The text of each `when`.
const WHEN: [(&str, When); 3] =
    [("points", When::Points), ("pressure", When::Pressure), ("either", When::Either)];

impl FromStr for When {
    type Err = RetentionError;

    fn from_str(text: &str) -> Result<When, RetentionError> {
        let when = WHEN.iter().find(|(name, _)| *name == text);
        when.map(|(_, when)| *when).ok_or_else(|| fault("when", text, "points, pressure or either"))
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = WHEN.iter().find(|(_, when)| when == self).map(|(name, _)| *name);
        f.write_str(name.expect("each has its name"))
    }
}

/// Units of bytes, the largest first.
const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for Keep {
    type Err = RetentionError;

    /// A number with a decimal point, or 1, is a share; an integer is tokens; a number with a unit is bytes.
    fn from_str(text: &str) -> Result<Keep, RetentionError> {
        let bad = || fault("keep", text, "a share as 0.5, tokens as 512, or bytes as 64MiB");
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes)));
        let keep = if let Some((number, unit)) = unit {
            Keep::Bytes(number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(bad)?)
        } else if text == "1" || text.contains('.') {
            Keep::Share(text.parse().map_err(|_| bad())?)
        } else {
            Keep::Tokens(text.parse().map_err(|_| bad())?)
        };
        keep.check()?;
        Ok(keep)
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Keep::Share(share) => write!(f, "{share}"),
            Keep::Tokens(tokens) => write!(f, "{tokens}"),
            Keep::Bytes(bytes) => {
                let (unit, size) = UNITS.iter().find(|(_, size)| bytes % size == 0).unwrap_or(&("B", 1));
                write!(f, "{}{unit}", bytes / size)
            }
        }
    }
}

/// Default of how much less than the mean the last layer of a pyramid retains, as in kvpress.
const BETA_DEFAULT: f32 = 20.0;
/// Default of the fraction of an equal division that each head of a layer retains, as in AdaKV.
const FLOOR_DEFAULT: f32 = 0.2;

impl FromStr for Budget {
    type Err = RetentionError;

    fn from_str(text: &str) -> Result<Budget, RetentionError> {
        let (name, number) = named("budget", text)?;
        Ok(match (name, number) {
            ("head", None) => Budget::Head,
            ("pyramid", beta) => Budget::Pyramid { beta: beta.unwrap_or(BETA_DEFAULT) },
            ("layer", floor) => Budget::Layer { floor: floor.unwrap_or(FLOOR_DEFAULT) },
            ("all", None) => Budget::All,
            ("calibrated", None) => Budget::Calibrated,
            _ => return Err(fault("budget", text, "head, pyramid[:BETA], layer[:FLOOR], all or calibrated")),
        })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Head => write!(f, "head"),
            Budget::Pyramid { beta } => write!(f, "pyramid:{beta}"),
            Budget::Layer { floor } => write!(f, "layer:{floor}"),
            Budget::All => write!(f, "all"),
            Budget::Calibrated => write!(f, "calibrated"),
        }
    }
}

impl FromStr for Cut {
    type Err = RetentionError;

    fn from_str(text: &str) -> Result<Cut, RetentionError> {
        Ok(match named("cut", text)? {
            ("top", None) => Cut::Top,
            ("threshold", Some(score)) => Cut::Threshold(score),
            ("dynamic", beta) => Cut::Dynamic { beta: beta.unwrap_or(1.0) },
            ("hybrid", recent) => Cut::Hybrid { recent: recent.unwrap_or(0.5) },
            _ => return Err(fault("cut", text, "top, threshold:SCORE, dynamic[:BETA] or hybrid[:RECENT]")),
        })
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Top => write!(f, "top"),
            Cut::Threshold(score) => write!(f, "threshold:{score}"),
            Cut::Dynamic { beta } => write!(f, "dynamic:{beta}"),
            Cut::Hybrid { recent } => write!(f, "hybrid:{recent}"),
        }
    }
}

/// `NAME[:NUMBER]`
fn named<'a>(field: &'static str, text: &'a str) -> Result<(&'a str, Option<f32>), RetentionError> {
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((name, number)) => {
            let number = number.parse().map_err(|_| fault(field, text, "written NAME or NAME:NUMBER"))?;
            Ok((name, Some(number)))
        }
    }
}

fn fault(field: &'static str, value: &str, expected: impl Into<String>) -> RetentionError {
    RetentionError::Value { field, value: value.to_owned(), expected: expected.into() }
}
