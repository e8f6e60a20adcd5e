//! The example request that `kvik serve` prints.
//!
//! The embedded model was trained to triage notifications, so its example is a notification, which it
//! answers correctly. Another model gets a plain question, and one without a chat template a text to continue.

use serde_json::{Value, json};

use kvik_serving::Serving;

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

/// The kind of request that the example sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// A notification that the embedded model sorts.
    Triage,
    /// A question.
    Chat,
    /// The beginning of a text, for a model without a chat template.
    Completion,
}

impl Shows {
    /// The kind that works with this model.
    pub(crate) fn of(serving: &Serving) -> Shows {
        match (serving.model.embedded, &serving.texts.template) {
            (_, None) => Shows::Completion,
            (true, Some(_)) => Shows::Triage,
            (false, Some(_)) => Shows::Chat,
        }
    }

    /// Its route.
    pub(crate) fn path(self) -> &'static str {
        if self == Shows::Completion { "/v1/completions" } else { "/v1/chat/completions" }
    }
}

/// A shell command that asks the server at `url`, and the change to try next.
pub(crate) fn curl(url: &str, model: &str, shows: Shows, key_wanted: bool) -> String {
    let body = body(model, shows);
    let pretty = serde_json::to_string_pretty(&body).unwrap_or_default();
    let key = if key_wanted { " -H 'Authorization: Bearer YOUR_KEY'" } else { "" };
    // A single quote would end the shell's string.
    let body = pretty.replace('\'', "'\\''");
    let next = match shows {
        Shows::Triage => format!("Then send another notification in its place, such as\n\n  {AND_THEN}\n\n"),
        Shows::Chat => "Then paste it again, or ask another question.\n".to_owned(),
        Shows::Completion => "Then paste it again, or go on with its answer.\n".to_owned(),
    };
    let path = shows.path();
    format!(
        "curl -s {url}{path} -H 'Content-Type: application/json'{key} -d '{body}'\n\n{next}`cached_tokens` in the answer counts the reused prompt tokens."
    )
}

/// The body of the request.
pub(crate) fn body(model: &str, shows: Shows) -> Value {
    match shows {
        Shows::Triage => {
            let messages = json!([
                {"role": "system", "content": TRIAGE},
                {"role": "user", "content": NOTIFICATION},
            ]);
            json!({"model": model, "messages": messages, "temperature": 0})
        }
        Shows::Chat => {
            let question = "Why is the sky blue? Answer in one sentence.";
            let messages = json!([{"role": "user", "content": question}]);
            json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": 200})
        }
        Shows::Completion => {
            json!({"model": model, "prompt": "The sky is blue because", "temperature": 0, "max_tokens": 64})
        }
    }
}
