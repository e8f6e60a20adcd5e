//! The diagnoses as a table and as JSON.

use serde_json::{Map, Value, json};

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    /// Works, but could be better.
    Note,
    /// The server would not start, or not as its flags request.
    Wrong,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Diagnosis {
    pub(super) subject: &'static str,
    pub(super) verdict: Verdict,
    /// The findings, and the choices that depend on them.
    pub(super) found: String,
    /// The remedy if something is not in order.
    pub(super) remedy: Option<String>,
    /// Counts and measurements for programs; their names include the units.
    pub(super) figures: Map<String, Value>,
}

impl Diagnosis {
    pub(super) fn ok(subject: &'static str, found: impl Into<String>) -> Diagnosis {
        Diagnosis { subject, verdict: Verdict::Ok, found: found.into(), remedy: None, figures: Map::new() }
    }

    pub(super) fn note(
        subject: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Diagnosis {
        Diagnosis { verdict: Verdict::Note, remedy: Some(remedy.into()), ..Diagnosis::ok(subject, found) }
    }

    pub(super) fn wrong(
        subject: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Diagnosis {
        Diagnosis { verdict: Verdict::Wrong, ..Diagnosis::note(subject, found, remedy) }
    }

    pub(super) fn with(mut self, name: &str, figure: impl Into<Value>) -> Diagnosis {
        self.figures.insert(name.to_owned(), figure.into());
        self
    }

    fn json(&self) -> Value {
        json!({
            "subject": self.subject,
            "verdict": self.verdict.name(),
            "found": self.found,
            "remedy": self.remedy,
            "figures": self.figures,
        })
    }
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Wrong => "wrong",
        }
    }
}

/// The results of all checks.
pub(super) struct Report(pub(super) Vec<Diagnosis>);

impl Report {
    pub(super) fn is_wrong(&self) -> bool {
        self.0.iter().any(|diagnosis| diagnosis.verdict == Verdict::Wrong)
    }

    pub(super) fn json(&self) -> Value {
        let all: Vec<Value> = self.0.iter().map(Diagnosis::json).collect();
        json!({"version": env!("CARGO_PKG_VERSION"), "wrong": self.is_wrong(), "diagnoses": all})
    }

    /// A line for each check, and one below it for a remedy.
    pub(super) fn table(&self) -> String {
        let width = self.0.iter().map(|diagnosis| diagnosis.subject.len()).max().unwrap_or(0);
        let mut text = format!("kvik {}\n\n", env!("CARGO_PKG_VERSION"));
        for Diagnosis { subject, verdict, found, remedy, .. } in &self.0 {
            text += &format!("{:5}  {subject:width$}  {found}\n", verdict.name());
            if let Some(remedy) = remedy {
                text += &format!("{:5}  {:width$}  -> {remedy}\n", "", "");
            }
        }
        text + &self.end()
    }

    fn end(&self) -> String {
        let count = |verdict| self.0.iter().filter(|diagnosis| diagnosis.verdict == verdict).count();
        match (count(Verdict::Wrong), count(Verdict::Note)) {
            (0, 0) => "\nnothing is wrong\n".to_owned(),
            (0, notes) => format!("\nnothing is wrong; {notes} of these could be better\n"),
            (wrong, _) => {
                format!("\n{wrong} of these must be put right before `kvik serve` does what is asked\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_decides_and_each_has_its_lines() {
        let ok = Diagnosis::ok("disk", "fast").with("read_bytes_per_s", 7);
        let note = Diagnosis::note("huge pages", "off", "turn them on");
        let wrong = Diagnosis::wrong("port", "taken", "take another");
        let check = |all: &[&Diagnosis], is_wrong: bool, end: &str| {
            let report = Report(all.iter().copied().cloned().collect());
            assert_eq!(report.is_wrong(), is_wrong);
            assert_eq!(report.json()["wrong"], is_wrong);
            assert!(report.table().trim_end().ends_with(end), "{}", report.table());
        };
        check(&[&ok], false, "nothing is wrong");
        check(&[&ok, &note], false, "nothing is wrong; 1 of these could be better");
        check(
            &[&wrong, &note, &ok],
            true,
            "1 of these must be put right before `kvik serve` does what is asked",
        );
        let report = Report(vec![ok, note, wrong]);
        let table = report.table();
        let lines: Vec<&str> = table.lines().skip(2).take(5).collect();
        assert_eq!(
            lines,
            [
                "ok     disk        fast",
                "note   huge pages  off",
                "                   -> turn them on",
                "wrong  port        taken",
                "                   -> take another",
            ]
        );
        assert_eq!(report.json()["diagnoses"][0]["figures"]["read_bytes_per_s"], 7);
        assert_eq!(report.json()["diagnoses"][2]["remedy"], "take another");
    }
}
