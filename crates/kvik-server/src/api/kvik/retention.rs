//! `GET /v1/retention`: the loss of retention policies on this model, as measured by `kvik eval`.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::Serialize;

use crate::{app::state::App, described::JsonSchema, http::answer::words};
use kvik_serving::measured::{Loss, MeasuredLosses, SettingLosses};

words! {
    RetentionWord = "retention";
}

/// What was measured.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RetentionList {
    object: RetentionWord,
    measured: Vec<Measured>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MeasuredRetention")]
struct Measured {
    policy: String,
    kv: String,
    question_seen: bool,
    share_kept: f64,
    mean_percent: f64,
    worst_percent: f64,
    worst_task: String,
    cases: usize,
}

/// Lists the measurements that existed when the server started, smallest share of kept positions first.
pub(crate) async fn route(State(app): State<Arc<App>>) -> Json<RetentionList> {
    Json(listing(app.serving.retaining.losses()))
}

fn listing(losses: &MeasuredLosses) -> RetentionList {
    let all = losses.all().into_iter();
    let measured = all.map(|(setting, loss)| measured(setting, loss)).collect();
    RetentionList { object: RetentionWord, measured }
}

fn measured(setting: &SettingLosses, loss: Loss) -> Measured {
    let Loss { mean, worst, worst_task, cases, .. } = loss;
    Measured {
        policy: setting.retain.clone(),
        kv: setting.kv.clone(),
        question_seen: setting.question_seen,
        share_kept: setting.kept,
        mean_percent: mean,
        worst_percent: worst,
        worst_task,
        cases,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::answer::value;
    use kvik_serving::measured::TaskLoss;

    #[test]
    fn what_keeps_least_comes_first_with_the_task_that_loses_most() {
        let mut losses = MeasuredLosses::default();
        assert_eq!(value(&listing(&losses)), json!({"object": "retention", "measured": []}));
        for (retain, kept, percent) in [("snapkv:0.5", 0.5, 1.0), ("h2o:0.25", 0.25, 8.0)] {
            let task = |percent| TaskLoss { percent, cases: 20, right: 20, predicts: false };
            let tasks =
                [("needle".to_owned(), task(3.0 * percent)), ("recall".to_owned(), task(percent))].into();
            let (kv, retain, command) = ("q8".to_owned(), retain.to_owned(), String::new());
            losses.record(SettingLosses { kv, retain, question_seen: true, kept, tasks, date: 0, command });
        }
        let row = |policy: &str, kept: f64, mean: f64, worst: f64| {
            json!({
                "policy": policy, "kv": "q8", "question_seen": true, "share_kept": kept, "mean_percent": mean,
                "worst_percent": worst, "worst_task": "needle", "cases": 40,
            })
        };
        let expect = [row("h2o:0.25", 0.25, 16.0, 24.0), row("snapkv:0.5", 0.5, 2.0, 3.0)];
        assert_eq!(value(&listing(&losses))["measured"], json!(expect));
    }
}
