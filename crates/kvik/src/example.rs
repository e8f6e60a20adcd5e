//! The request that `kvik serve` prints to paste.
//!
//! The model inside was trained on notifications to triage, so that is what it is asked; the
//! answer is a right one. Another model gets a plain question.

use serde_json::{Value, json};

/// What the model inside is told: a description first, then its folder, as it knows it.
pub(crate) const TRIAGE: &str = "Sort each notification of the user. Choose one folder and one priority.

Folders:
- parcels, couriers and shipping updates: Deliveries
- doctor, pharmacy and test results: Health
- adverts, discounts and special offers: Adverts
- chats with friends and plans for going out: Friends
- anything that fits nowhere else: Other

Priority:
urgent, act now = 1
needs an answer today = 2
normal, this week = 3
whenever there is time = 4
no action needed = 5

Output one line of JSON with the keys \"folder\" and \"priority\".";

/// A notification for it.
pub(crate) const NOTIFICATION: &str =
    "App: ClinicOne\nTitle: Vaccine\nBody: Your vaccination is on Tuesday. Urgent: act at once!";

/// A shell command that asks the server at `url`.
pub(crate) fn curl(url: &str, model: &str, embedded: bool, key_wanted: bool) -> String {
    let body = body(model, embedded);
    let pretty = serde_json::to_string_pretty(&body).unwrap_or_default();
    let key = if key_wanted { " -H 'Authorization: Bearer YOUR_KEY'" } else { "" };
    // A single quote would end the shell's string.
    let body = pretty.replace('\'', "'\\''");
    format!("curl -s {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'")
}

/// The request itself.
pub(crate) fn body(model: &str, embedded: bool) -> Value {
    let messages = if embedded {
        json!([
            {"role": "system", "content": TRIAGE},
            {"role": "user", "content": NOTIFICATION},
        ])
    } else {
        json!([{"role": "user", "content": "Why is the sky blue? Answer in one sentence."}])
    };
    let mut body = json!({"model": model, "messages": messages, "temperature": 0});
    if !embedded {
        body["max_tokens"] = json!(200);
    }
    body
}
