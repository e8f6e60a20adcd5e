//! `GET /v1/retention`: what `kvik eval` measured that retention policies lose on this model.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use crate::{
    app::state::App,
    measured::{Loss, MeasuredLosses, SettingLosses},
};

/// Lists what was measured until the server started, those that keep least first.
pub(crate) async fn route(State(app): State<Arc<App>>) -> Json<Value> {
    Json(listing(app.serving.retaining.losses()))
}

fn listing(losses: &MeasuredLosses) -> Value {
    let all = losses.all().into_iter();
    let measured: Vec<Value> = all.map(|(setting, loss)| measured(setting, &loss)).collect();
    json!({"object": "retention", "measured": measured})
}

fn measured(setting: &SettingLosses, loss: &Loss) -> Value {
    let Loss { mean, worst, worst_task, cases } = loss;
    json!({
        "policy": setting.retain,
        "kv": setting.kv,
        "question_seen": setting.question_seen,
        "share_kept": setting.kept,
        "mean_percent": mean,
        "worst_percent": worst,
        "worst_task": worst_task,
        "cases": cases,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::TaskLoss;

    #[test]
    fn what_keeps_least_comes_first_with_the_task_that_loses_most() {
        let mut losses = MeasuredLosses::default();
        assert_eq!(listing(&losses), json!({"object": "retention", "measured": []}));
        for (retain, kept, percent) in [("snapkv:0.5", 0.5, 1.0), ("h2o:0.25", 0.25, 8.0)] {
            let task = |percent| TaskLoss { percent, cases: 20, predicts: false };
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
        assert_eq!(listing(&losses)["measured"], json!(expect));
    }
}
