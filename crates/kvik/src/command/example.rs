//! The example request that `kvik serve` prints.
//!
//! The embedded model was trained to triage notifications, so its example is a notification, which it
//! answers correctly. Another model gets a plain question.

use serde_json::{Value, json};

/// The system prompt of the embedded model, in the form of its training data: a description, then its folder.
pub(crate) const TRIAGE: &str = "Sort each notification of the user. Choose one folder and one priority.

Folders:
- parcels, couriers and shipping updates: Deliveries
- doctor, pharmacy and test results: Health
- sales, coupons and marketing: Offers
- chats with friends and plans for going out: Buddies
- electricity, water, rent and phone bills: Bills
- all that does not fit above: Other

Priority:
urgent, act now = 1
needs an answer today = 2
normal, this week = 3
whenever there is time = 4
no action needed = 5

Output one line of JSON with the keys \"folder\" and \"priority\".";

/// A notification to triage.
pub(crate) const NOTIFICATION: &str =
    "App: ClinicOne\nTitle: Vaccine\nBody: Your vaccination is on Tuesday. Urgent: act at once!";

/// The next notification, which shows that the system prompt is reused.
const AND_THEN: &str =
    "App: ParcelGo\\nTitle: Delivered\\nBody: Your package was left at the door. Please see to it this week.";

/// A shell command that asks the server at `url`, and the change to try next.
pub(crate) fn curl(url: &str, model: &str, embedded: bool, key_wanted: bool) -> String {
    let body = body(model, embedded);
    let pretty = serde_json::to_string_pretty(&body).unwrap_or_default();
    let key = if key_wanted { " -H 'Authorization: Bearer YOUR_KEY'" } else { "" };
    // A single quote would end the shell's string.
    let body = pretty.replace('\'', "'\\''");
    let next = if embedded {
        format!("Then send another notification in its place, such as\n\n  {AND_THEN}\n\n")
    } else {
        "Then paste it again, or ask another question.\n".to_owned()
    };
    format!(
        "curl -s {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'\n\n{next}`cached_tokens` in the answer counts the reused prompt tokens."
    )
}

/// The body of the request.
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
