//! A report as one HTML page: charts and tables, without scripts or external files, readable on a phone.

mod chart;

use kvik_serving::measured::RIGHT_CASES_MIN;

use super::report::{CASES_FEW, EvalReport, RowReport, TaskReport};
use chart::{Axis, Chart, Curve, colour, number};

const STYLE: &str = include_str!("report.css");

/// The page.
pub(crate) fn page(report: &EvalReport) -> String {
    let title = format!("kvik eval: {}", escape(&report.model));
    let policies = policies(report);
    let mut body = format!("<h1>{title}</h1>\n{}", about(report));
    for question in ["unseen", "seen"] {
        let charts = charts(report, &policies, question);
        if !charts.is_empty() {
            body += &format!("<h2>Question {question}</h2>\n<div class=\"charts\">{charts}</div>\n");
        }
    }
    body += &legend(&policies);
    body += &costs(report, &policies);
    body += &report.heads.as_deref().map(heat).unwrap_or_default();
    if !report.rows.is_empty() {
        body += &format!("<h2>All figures</h2>\n{}", table(report));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

/// Text escaped for HTML elements and attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The tasks, and their numbers of cases.
fn about(report: &EvalReport) -> String {
    let tasks = report.tasks.iter().map(|task| {
        let few = match (report.says_nothing(task), task.cases < CASES_FEW) {
            (true, _) => format!(
                " (fewer than {RIGHT_CASES_MIN} right with everything kept: nothing follows from them)"
            ),
            (false, true) => " (few: differences mean little)".to_owned(),
            (false, false) => String::new(),
        };
        let (min, max) = task.tokens;
        let reached = match report.exact().and_then(|row| row.answers.get(&task.name)) {
            Some(cell) => {
                let (low, high) = cell.interval();
                format!(", {:.1}% [{low:.0}-{high:.0}] right with everything kept", cell.percent())
            }
            None => String::new(),
        };
        format!(
            "<li><b>{}</b>: {} cases{few}, {min} to {max} tokens{reached}</li>",
            escape(&task.name),
            task.cases
        )
    });
    format!(
        "<p><code>{}</code></p>\n<p>kvik {}, model {}, seed {}</p>\n<ul>{}</ul>\n",
        escape(&report.command),
        escape(&report.kvik),
        escape(&report.digest),
        report.seed,
        tasks.collect::<String>()
    )
}

/// Policies with their KV format, without duplicates, in the order of the rows.
fn policies(report: &EvalReport) -> Vec<String> {
    let mut policies = Vec::new();
    for label in report.rows.iter().skip(1).map(|row| label(report, row)) {
        if !policies.contains(&label) {
            policies.push(label);
        }
    }
    policies
}

/// A policy, with its KV format if there are several.
fn label(report: &EvalReport, row: &RowReport) -> String {
    let one = report.rows.iter().skip(1).all(|other| other.kv == row.kv);
    if one { row.policy.clone() } else { format!("{} {}", row.kv, row.policy) }
}

/// Quality against the share kept: a chart for each task.
fn charts(report: &EvalReport, policies: &[String], question: &str) -> String {
    let share = || Axis { label: "% of positions kept".to_owned(), max: 100.0 };
    let kept = |row: &RowReport| 100.0 * row.kept.mean;
    let mut charts = String::new();
    for task in &report.tasks {
        let what = if task.predicts { "perplexity, % higher" } else { "% of right answers" };
        let curves = curves(report, policies, question, &kept, &|row| quality(report, row, task));
        if curves.iter().any(|curve| !curve.points.is_empty()) {
            let values = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1));
            let y = Axis::fitting(what, values);
            charts += &Chart { title: &task.name, x: share(), y, curves }.svg();
        }
    }
    charts
}

/// The result of a row in a task: percent of right answers, or the increase of its perplexity in percent.
fn quality(report: &EvalReport, row: &RowReport, task: &TaskReport) -> Option<f64> {
    match task.predicts {
        false => row.recall.get(&task.name).map(|recall| recall.percent),
        true => report.increase(row, &task.name).map(|(all, _)| all),
    }
}

/// A curve for each policy that has values.
fn curves(
    report: &EvalReport,
    policies: &[String],
    question: &str,
    x: &dyn Fn(&RowReport) -> f64,
    y: &dyn Fn(&RowReport) -> Option<f64>,
) -> Vec<Curve> {
    let rows = || report.rows.iter().skip(1).filter(|row| row.question == question);
    let curve = |(number, policy): (usize, &String)| {
        let own = rows().filter(|row| label(report, row) == *policy);
        let mut points: Vec<(f64, f64)> = own.filter_map(|row| Some((x(row), y(row)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve { label: policy.clone(), number, points }
    };
    policies.iter().enumerate().map(curve).collect()
}

fn legend(policies: &[String]) -> String {
    let entry = |(number, policy): (usize, &String)| {
        format!(
            "<li {}><svg viewBox=\"0 0 30 8\"><path class=\"curve\" d=\"M0 4H30\"/></svg>{}</li>",
            colour(number),
            escape(policy)
        )
    };
    format!("<ul class=\"legend\">{}</ul>\n", policies.iter().enumerate().map(entry).collect::<String>())
}

/// Memory against quality, and times if they were measured.
fn costs(report: &EvalReport, policies: &[String]) -> String {
    let bytes = |row: &RowReport| row.kept.token_bytes;
    let quality = |row: &RowReport| report.mean_percent(row);
    let curves_of = |x: &dyn Fn(&RowReport) -> f64, y: &dyn Fn(&RowReport) -> Option<f64>| {
        curves(report, policies, "unseen", x, y)
    };
    let chart = |title, x: &str, y: &str, curves: Vec<Curve>| {
        let values = |index: usize| {
            let points = curves.iter().flat_map(|curve| &curve.points);
            points.map(|&(x, y)| [x, y][index]).collect::<Vec<f64>>()
        };
        let (x, y) = (Axis::fitting(x, values(0).into_iter()), Axis::fitting(y, values(1).into_iter()));
        if values(0).is_empty() { String::new() } else { Chart { title, x, y, curves }.svg() }
    };
    let kept = |row: &RowReport| 100.0 * row.kept.mean;
    let charts = [
        chart("Memory", "bytes a token", "% of right answers, all tasks", curves_of(&bytes, &quality)),
        chart(
            "Decode",
            "% of positions kept",
            "ms a step",
            curves_of(&kept, &|row| Some(row.speed?.decode_ms)),
        ),
        chart("Reading", "% of positions kept", "ms", curves_of(&kept, &|row| Some(row.speed?.read_ms))),
    ];
    match charts.concat() {
        charts if charts.is_empty() => String::new(),
        charts => format!("<h2>Memory and speed</h2>\n<div class=\"charts\">{charts}</div>\n"),
    }
}

/// The importance of heads: a row for each layer.
fn heat(heads: &[Vec<f32>]) -> String {
    let max = heads.iter().flatten().copied().fold(0.0, f32::max).max(f32::MIN_POSITIVE);
    let cell = |loss: &f32| {
        format!("<td style=\"--heat:{:.2}\">{}</td>", (loss / max).sqrt(), number(f64::from(*loss)))
    };
    let row = |(layer, heads): (usize, &Vec<f32>)| {
        format!("<tr><th>layer {layer}</th>{}</tr>\n", heads.iter().map(cell).collect::<String>())
    };
    format!(
        "<h2>Heads</h2>\n<p>Importance of KV heads: what right answers lose without one, which keeps only its first and \
         last positions; the worst of each task being 1.</p>\n<div class=\"wide\"><table class=\"heat\">{}</table></div>\n",
        heads.iter().enumerate().map(row).collect::<String>()
    )
}

/// All figures, as in the terminal's table.
fn table(report: &EvalReport) -> String {
    let headers =
        report.tasks.iter().map(|task| format!("<th>{}</th>", escape(&task.name))).collect::<String>();
    let rows = report.rows.iter().map(|row| {
        let cells = report.tasks.iter().map(|task| {
            let text = match task.predicts {
                false => row.recall.get(&task.name).map(|recall| format!("{recall} of {}", recall.cases)),
                true => quality(report, row, task).map(|value| format!("{value:+.1}%")),
            };
            format!("<td>{}</td>", text.unwrap_or_else(|| "-".to_owned()))
        });
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.0}%</td><td>{:.0}</td>{}</tr>\n",
            escape(&row.kv),
            escape(&row.retain),
            escape(&row.question),
            100.0 * row.kept.mean,
            row.kept.token_bytes,
            cells.collect::<String>()
        )
    });
    format!(
        "<div class=\"wide\"><table><tr><th>kv</th><th>retain</th><th>question</th><th>kept</th><th>B/token</th>{headers}</tr>\n{}</table></div>\n",
        rows.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::example;
    use super::*;

    #[test]
    fn text_of_the_outside_is_escaped() {
        assert_eq!(escape("<a href='x'>\"&\"</a>"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;&quot;&lt;/a&gt;");
        let mut report = example();
        report.rows[1].policy = "<b>".to_owned();
        report.tasks[0].name = "<i>".to_owned();
        let page = page(&report);
        assert!(page.contains("&lt;model&gt; &amp; &quot;co&quot;"));
        assert!(!page.contains("<model>") && !page.contains("<b>k") && !page.contains("<i>"));
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page(&example());
        for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        // Two tasks, memory; two policies in the legend.
        assert_eq!(page.matches("<figure>").count(), 3);
        assert_eq!(page.matches("<li class=\"policy\"").count(), 2);
        assert!(page.contains("88 [50-112] of 10") && page.contains("80.0% [49-94] right"), "{page}");
        assert!(page.contains("fewer than 20 right with everything kept"), "{page}");
        assert!(page.contains("the worst of each task being 1"), "shares, as the table says: {page}");
        assert!(page.contains("prefers-color-scheme") && page.contains("viewport"));
    }
}
