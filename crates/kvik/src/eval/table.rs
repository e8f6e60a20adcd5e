//! A report as a table for a terminal.

use kvik_serving::measured::RIGHT_CASES_MIN;

use super::report::{CASES_FEW, EvalReport, RowReport, TaskReport};

/// The tasks, then a table each for unseen and seen questions.
pub(crate) fn text(report: &EvalReport) -> String {
    let mut text = tasks(report);
    for question in ["unseen", "seen"] {
        let rows: Vec<&RowReport> = report.rows.iter().filter(|row| row.question == question).collect();
        // A row that keeps everything deserves a table even alone: it shows the loss of a KV format.
        if rows.iter().any(|row| !row.keeps_everything()) || (question == "unseen" && !rows.is_empty()) {
            text += &format!(
                "\nquestion {question}, in % of everything kept in f32 [interval of 95%]\n{}",
                table(report, &rows)
            );
        }
    }
    if let Some(heads) = &report.heads {
        text += &format!("\n{}", heat(heads));
    }
    text
}

/// A line for each task: cases, lengths, and the result of the exact model.
fn tasks(report: &EvalReport) -> String {
    let mut lines =
        vec![row(["task", "cases", "tokens", "everything kept"].map(str::to_owned), &[14, 6, 12, 0])];
    for task in &report.tasks {
        let exact = report.exact();
        let answers = exact.and_then(|row| row.answers.get(&task.name));
        let texts = exact.and_then(|row| row.texts.get(&task.name));
        let reached = match (answers, texts.and_then(|cell| Some((cell.all.perplexity()?, cell)))) {
            (Some(cell), _) => {
                let (low, high) = cell.interval();
                format!("{:.1}% right [{low:.0}-{high:.0}]", cell.percent())
            }
            (None, Some((all, cell))) => match cell.answers.perplexity() {
                Some(answers) => format!("perplexity {all:.3}, of answers {answers:.3}"),
                None => format!("perplexity {all:.3}"),
            },
            (None, None) => String::new(),
        };
        let (min, max) = task.tokens;
        let cases = format!("{}{}", task.cases, mark(report, task));
        let cells = [task.name.clone(), cases, format!("{min}-{max}"), reached];
        lines.push(row(cells, &[14, 6, 12, 0]));
    }
    if report.tasks.iter().any(|task| task.cases < CASES_FEW) {
        lines.push(format!("* fewer than {CASES_FEW} cases: one answer more or less changes much"));
    }
    if report.tasks.iter().any(|task| report.says_nothing(task)) {
        lines.push(format!(
            "! fewer than {RIGHT_CASES_MIN} right with everything kept: nothing follows from what policies answer there"
        ));
    }
    lines.join("\n") + "\n"
}

/// The marks of a task with few cases.
fn mark(report: &EvalReport, task: &TaskReport) -> String {
    let few = if task.cases < CASES_FEW { " *" } else { "" };
    let nothing = if report.says_nothing(task) { " !" } else { "" };
    format!("{few}{nothing}")
}

fn row<const N: usize>(cells: [String; N], widths: &[usize; N]) -> String {
    let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// A line for each row: the share kept, and the quality in each task.
fn table(report: &EvalReport, rows: &[&RowReport]) -> String {
    let mut lines = vec![header(report)];
    lines.extend(rows.iter().map(|row| cells(report, row)));
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 | 1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

fn header(report: &EvalReport) -> Vec<String> {
    let mut cells: Vec<String> = ["kv", "retain", "kept", "heads", "B/token"].map(str::to_owned).into();
    for task in &report.tasks {
        match task.predicts {
            false => cells.push(format!("{} n={}", task.name, task.cases)),
            true => cells.extend([format!("{} ppl", task.name), "answers".to_owned(), "KL".to_owned()]),
        }
    }
    if report.rows.iter().any(|row| row.speed.is_some()) {
        cells.extend(["read ms", "decode ms"].map(str::to_owned));
    }
    cells
}

fn cells(report: &EvalReport, row: &RowReport) -> Vec<String> {
    let kept = &row.kept;
    let mut cells = vec![
        row.kv.clone(),
        row.retain.clone(),
        format!("{:.0}%", 100.0 * kept.mean),
        format!("{:.0}-{:.0}%", 100.0 * kept.smallest, 100.0 * kept.largest),
        format!("{:.0}", kept.token_bytes),
    ];
    let absent = || "-".to_owned();
    for task in &report.tasks {
        if !task.predicts {
            cells.push(row.recall.get(&task.name).map_or_else(absent, ToString::to_string));
            continue;
        }
        let increase = report.increase(row, &task.name);
        let signed = |value: Option<f64>| value.map_or_else(absent, |value| format!("{value:+.1}%"));
        cells.push(signed(increase.map(|(all, _)| all)));
        cells.push(signed(increase.and_then(|(_, answers)| answers)));
        let kl = row.texts.get(&task.name).and_then(|cell| cell.all.divergence());
        cells.push(kl.map_or_else(absent, |kl| format!("{kl:.4}")));
    }
    if let Some(speed) = row.speed {
        cells.extend([speed.read_ms, speed.decode_ms].map(|ms| format!("{ms:.1}")));
    } else if report.rows.iter().any(|row| row.speed.is_some()) {
        cells.extend([absent(), absent()]);
    }
    cells
}

/// The importance of heads, as shades: a row for each layer, a column for each KV head.
pub(crate) fn heat(heads: &[Vec<f32>]) -> String {
    const SHADES: [char; 5] = ['.', '\u{2591}', '\u{2592}', '\u{2593}', '\u{2588}'];
    let max = heads.iter().flatten().copied().fold(0.0, f32::max).max(f32::MIN_POSITIVE);
    let mut text =
        "importance of KV heads: what right answers lose without one, the worst of each task being 1\n"
            .to_owned();
    for (layer, heads) in heads.iter().enumerate() {
        // The square root keeps small losses visible next to one that is far larger.
        let shade =
            |&loss: &f32| SHADES[(((loss / max).sqrt() * 4.0).round() as usize).min(4)].to_string().repeat(2);
        let shades: Vec<String> = heads.iter().map(shade).collect();
        let losses: Vec<String> = heads.iter().map(|loss| format!("{loss:.3}")).collect();
        text += &format!("layer {layer:>3}  {}  {}\n", shades.join(" "), losses.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::example;
    use super::*;

    #[test]
    fn the_table_says_what_the_report_says() {
        let text = text(&example());
        let line = |start: &str| text.lines().find(|line| line.contains(start)).unwrap().to_owned();
        let recall = line("recall   ");
        assert!(recall.contains("10 * !") && recall.contains("80.0% right [49-94]"), "{text}");
        assert!(line("! fewer than 20 right").contains("nothing follows"), "{text}");
        assert!(line("kv  ").contains("recall n=10"), "{text}");
        let words: Vec<String> = line("keydiff:0.5").split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[..7], ["f32", "keydiff:0.5", "50%", "50-50%", "3072", "88", "[50-112]"], "{text}");
        assert_eq!(words[7], "+28.4%");
        assert!(line("everything  ").contains("100 [61-118]"), "{text}");
        assert!(!text.contains("question seen"), "{text}");
        assert!(text.contains("layer   0  .. \u{2588}\u{2588}"), "{text}");
    }

    #[test]
    fn columns_stand_under_their_headers() {
        let text = text(&example());
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("kv ")).take(4).collect();
        let ends: Vec<usize> = lines.iter().map(|line| line.chars().count()).collect();
        assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }
}
