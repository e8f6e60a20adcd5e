//! Settings to measure: retention policies with their shares, and whether they see the question.

use std::fmt;

use kvik_cache::retain::Retention;

/// Whether a policy sees the question before it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    /// Only the context is compressed, then the question is read: many questions may follow.
    Unseen,
    /// Context and question are compressed together.
    Seen,
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sight::Unseen => "unseen",
            Sight::Seen => "seen",
        })
    }
}

/// A retention to measure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setting {
    /// The retention; `None` keeps everything.
    pub(crate) retention: Option<Retention>,
    /// Whether the policy sees the question.
    pub(crate) sight: Sight,
}

impl Setting {
    /// The setting that keeps everything.
    pub(crate) const EVERYTHING: Setting = Setting { retention: None, sight: Sight::Unseen };

    /// The retention's text, under which results are stored.
    pub(crate) fn text(&self) -> String {
        self.retention.map_or_else(|| "everything".to_owned(), |retention| retention.to_string())
    }
}

/// Parses retentions such as `snapkv` and `h2o:0.5,budget=all`; one without a share is expanded to each of `keeps`.
///
/// # Errors
/// If a text is not a valid retention: names the text and the field.
pub(crate) fn retentions(texts: &[String], keeps: &[String]) -> anyhow::Result<Vec<Retention>> {
    let mut retentions: Vec<Retention> = Vec::new();
    for text in texts {
        for text in expanded(text, keeps) {
            let retention: Retention =
                text.parse().map_err(|error| anyhow::anyhow!("--retain {text}: {error}"))?;
            if !retentions.contains(&retention) {
                retentions.push(retention);
            }
        }
    }
    Ok(retentions)
}

/// A text with each of `keeps`, unless it contains a share itself.
fn expanded(text: &str, keeps: &[String]) -> Vec<String> {
    let (policy, options) = match text.split_once(',') {
        Some((policy, options)) => (policy.trim(), format!(",{options}")),
        None => (text.trim(), String::new()),
    };
    match policy.contains(':') {
        true => vec![text.to_owned()],
        false => keeps.iter().map(|keep| format!("{policy}:{keep}{options}")).collect(),
    }
}

/// Every retention under every sight, grouped by sight.
pub(crate) fn settings(retentions: &[Retention], sights: &[Sight]) -> Vec<Setting> {
    let under = |&sight: &Sight| {
        retentions.iter().map(move |&retention| Setting { retention: Some(retention), sight })
    };
    sights.iter().flat_map(under).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_policy_without_a_keep_takes_each() {
        let found = |given: &[&str]| {
            let retentions = retentions(&texts(given), &texts(&["0.5", "0.25"])).unwrap();
            retentions.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(&["keydiff"]), ["keydiff:0.5", "keydiff:0.25"]);
        assert_eq!(found(&["keydiff:0.3,budget=all"]), ["keydiff:0.3,budget=all"]);
        assert_eq!(found(&["keydiff,budget=all"]), ["keydiff:0.5,budget=all", "keydiff:0.25,budget=all"]);
        assert_eq!(found(&["keydiff:0.5", "keydiff"]), ["keydiff:0.5", "keydiff:0.25"]);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let check = |text: &str, said: &[&str]| {
            let error = retentions(&texts(&[text]), &texts(&["0.5"])).unwrap_err().to_string();
            for part in said.iter().chain(&["--retain"]) {
                assert!(error.contains(part), "{text}: {error}");
            }
        };
        check("nonsense", &["policy", "nonsense"]);
        check("keydiff:0.0", &["keep"]);
        check("keydiff:1.5", &["keep"]);
        check("keydiff,budgets=all", &["budgets"]);
        check("keydiff,budget=some", &["budget", "some"]);
    }
}
