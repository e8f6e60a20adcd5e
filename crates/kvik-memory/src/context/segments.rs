//! Boundaries of the segments of a conversation.
//!
//! Messages are dropped in steps of [`MemorySettings::trigger_discard`] tokens, counted from the end of the summary: a
//! boundary is a function of the messages before it, so it does not move while the conversation grows, and the KV cache
//! of the messages after it is reused turn by turn.

use std::ops::Range;

use serde_json::Value;

use super::settings::MemorySettings;

/// Number of leading system messages, with the role `system` or `developer`.
pub fn leading_systems(messages: &[Value]) -> usize {
    let is_system = |message: &&Value| {
        matches!(message.get("role").and_then(Value::as_str), Some("system" | "developer"))
    };
    messages.iter().take_while(is_system).count()
}

/// Exchanges of a conversation: each runs from a user's message up to the next. A tool's call and its result are in the
/// same exchange; messages before the first user's message form an exchange of their own.
pub fn exchanges(messages: &[Value]) -> Vec<Range<usize>> {
    let starts: Vec<usize> = (0..messages.len()).filter(|&at| begins_exchange(messages, at)).collect();
    let ends = starts.iter().skip(1).copied().chain([messages.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

fn begins_exchange(messages: &[Value], at: usize) -> bool {
    at == 0 || (is_user(&messages[at]) && !is_user(&messages[at - 1]))
}

/// The question of the exchange that a boundary `at` cuts, which is read although it lies before that; empty if the
/// boundary is between exchanges.
pub fn question_before(messages: &[Value], at: usize) -> &[Value] {
    if at >= messages.len() || begins_exchange(messages, at) {
        return &[];
    }
    let Some(last) = messages[..at].iter().rposition(is_user) else { return &[] };
    let first = messages[..last].iter().rposition(|message| !is_user(message)).map_or(0, |before| before + 1);
    &messages[first..=last]
}

fn is_user(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("user")
}

/// Number of results that calls still lack after a message, if they lacked `before` of them before it.
fn awaited_after(message: &Value, before: usize) -> usize {
    if is_result(message) {
        return before.saturating_sub(1);
    }
    message.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len)
}

fn is_result(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("tool")
}

/// Parts of the conversation after its summary, with their sizes: exchanges, and of an exchange that is longer than a
/// step the parts that end with the last result of calls. One question may be followed by any number of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments {
    /// End of each part, as an index into these messages.
    ends: Vec<usize>,
    /// Cumulative tokens up to each end.
    tokens: Vec<usize>,
}

/// The first of these messages, which are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Let {
    /// Number of dropped messages.
    pub messages: usize,
    /// Tokens of the dropped messages.
    pub tokens: usize,
}

impl Segments {
    /// * `messages`: the messages after the summarised ones
    /// * `sizes`: tokens of each
    pub fn new(messages: &[Value], sizes: &[usize], settings: &MemorySettings) -> Segments {
        let (mut ends, mut tokens, mut all) = (Vec::new(), Vec::new(), 0);
        for exchange in exchanges(messages) {
            let (before, end, mut awaited) = (all, exchange.end, 0);
            for index in exchange {
                let message = &messages[index];
                let is_last_result = is_result(message) && awaited == 1;
                awaited = awaited_after(message, awaited);
                all += sizes[index];
                if index + 1 == end || (is_last_result && all - before >= settings.trigger_discard) {
                    ends.push(index + 1);
                    tokens.push(all);
                }
            }
        }
        Segments { ends, tokens }
    }

    /// Tokens of all messages.
    pub fn tokens(&self) -> usize {
        self.tokens.last().copied().unwrap_or(0)
    }

    /// Tokens in excess of the recent messages to keep: a new summary is due when these reach the trigger.
    pub fn discarded(&self, settings: &MemorySettings) -> usize {
        self.tokens().saturating_sub(settings.recent_max)
    }

    /// Messages to add to the next summary, if one is due: as many whole steps as exceed the recent messages to keep.
    pub fn due(&self, settings: &MemorySettings) -> Option<Let> {
        let steps = self.discarded(settings) / settings.trigger_discard;
        self.after_steps(steps, settings)
    }

    /// How close the messages are to being dropped without a summary: 0 where one becomes due, 1 where they fill
    /// `room`.
    pub fn pressure(&self, room: usize, settings: &MemorySettings) -> f64 {
        let due = settings.recent_max + settings.trigger_discard;
        let beyond = self.tokens().saturating_sub(due) as f64;
        (beyond / room.saturating_sub(due).max(1) as f64).min(1.0)
    }

    /// Messages to drop without a summary so that at most `room` tokens are left: the fewest whole steps that suffice.
    /// The last part is always kept, whatever its size.
    pub fn forced(&self, room: usize, settings: &MemorySettings) -> Option<Let> {
        let beyond = self.tokens().checked_sub(room).filter(|&beyond| beyond > 0)?;
        self.after_steps(beyond.div_ceil(settings.trigger_discard), settings)
    }

    /// The fewest parts with at least the tokens of `steps` steps, always without the last one.
    fn after_steps(&self, steps: usize, settings: &MemorySettings) -> Option<Let> {
        let least = steps.saturating_mul(settings.trigger_discard);
        let last = self.ends.len().checked_sub(1)?;
        let index = self.tokens.partition_point(|&tokens| tokens < least).min(last.checked_sub(1)?);
        (steps > 0).then(|| Let { messages: self.ends[index], tokens: self.tokens[index] })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const SETTINGS: MemorySettings = MemorySettings {
        recent_max: 40,
        summary_max: 10,
        trigger_discard: 20,
        quotes_max: 10,
        protect_first: false,
    };

    fn message(role: &str) -> Value {
        json!({"role": role, "content": "x"})
    }

    #[test]
    fn pressure_grows_from_where_a_summary_is_due_to_where_it_is_missed() {
        let pressure = |count, room| {
            let (messages, sizes) = turns(count);
            Segments::new(&messages, &sizes, &SETTINGS).pressure(room, &SETTINGS)
        };
        assert_eq!((pressure(2, 100), pressure(6, 100), pressure(8, 100)), (0.0, 0.0, 0.5));
        assert_eq!((pressure(10, 100), pressure(30, 100), pressure(7, 20)), (1.0, 1.0, 1.0));
    }

    /// `count` turns of 10 tokens: a question, a call, its result and an answer.
    fn turns(count: usize) -> (Vec<Value>, Vec<usize>) {
        let roles = ["user", "assistant", "tool", "assistant"];
        let messages = (0..count).flat_map(|_| roles.map(message)).collect();
        (messages, [2, 3, 4, 1].repeat(count))
    }

    #[test]
    fn a_conversation_begins_with_its_system_messages() {
        let messages = ["system", "developer", "user", "system"].map(message);
        assert_eq!(
            [leading_systems(&messages), leading_systems(&messages[2..]), leading_systems(&[])],
            [2, 0, 0]
        );
        assert_eq!(leading_systems(&[json!({"content": "x"}), json!(7)]), 0, "what has no role");
    }

    #[test]
    fn an_exchange_holds_its_calls_and_results() {
        let (messages, _) = turns(2);
        assert_eq!(exchanges(&messages), [0..4, 4..8]);
        assert_eq!(exchanges(&messages[1..]), [0..3, 3..7], "what stands before the first user's message");
        let two = [message("user"), message("user"), message("assistant")];
        assert_eq!(exchanges(&two).len(), 1, "two questions at once");
        assert!(exchanges(&[]).is_empty());
    }

    /// A question and its calls: one, two at once, one without a result, and one.
    fn loop_of_calls() -> Vec<Value> {
        let calls = |count: usize| json!({"role": "assistant", "tool_calls": vec![json!({}); count]});
        let (result, said) = (message("tool"), message("assistant"));
        let rounds = [calls(1), result.clone(), calls(2), result.clone(), result.clone(), calls(1), said];
        [&[message("user")][..], &rounds, &[calls(1), result]].concat()
    }

    #[test]
    fn a_long_exchange_is_divided_behind_the_results_of_its_calls() {
        let messages = loop_of_calls();
        let ends = |size: usize| Segments::new(&messages, &vec![size; messages.len()], &SETTINGS).ends;
        assert_eq!(ends(10), [3, 6, 10]);
        assert_eq!(ends(4), [6, 10], "a part is a step at least");
        assert_eq!(ends(1), [10]);
        let behind = Segments::new(&messages[3..], &[10; 7], &SETTINGS);
        assert_eq!(behind.ends, [3, 7], "behind a summary of its beginning");
    }

    #[test]
    fn the_question_of_a_divided_exchange_is_found() {
        let messages = [&[message("assistant"), message("user")][..], &loop_of_calls()].concat();
        let question = |at: usize| question_before(&messages, at).len();
        assert_eq!([0, 1, 12].map(question), [0, 0, 0], "between exchanges");
        assert_eq!([2, 3, 5, 8, 11].map(question), [1, 2, 2, 2, 2], "two questions at once");
        assert!(question_before(&messages[4..], 2).is_empty(), "it is not among these messages");
    }

    #[test]
    fn a_summary_is_due_at_the_trigger_and_covers_whole_steps() {
        let due = |count: usize| {
            let (messages, sizes) = turns(count);
            Segments::new(&messages, &sizes, &SETTINGS).due(&SETTINGS)
        };
        assert_eq!((due(5), due(0)), (None, None));
        assert_eq!(due(6), Some(Let { messages: 8, tokens: 20 }));
        assert_eq!(due(7), due(6), "the boundary stays where it is");
        assert_eq!(due(8), Some(Let { messages: 16, tokens: 40 }));
    }

    proptest! {
        #[test]
        fn boundaries_stay_and_the_last_exchange_is_never_let_go(
            sizes in prop::collection::vec(1..30_usize, 1..40),
            room in 0..400_usize,
        ) {
            let messages: Vec<Value> =
                (0..sizes.len()).map(|i| message(if i % 2 == 0 { "user" } else { "assistant" })).collect();
            let mut before: Option<Let> = None;
            for end in 1..=sizes.len() {
                let segments = Segments::new(&messages[..end], &sizes[..end], &SETTINGS);
                let all: usize = sizes[..end].iter().sum();
                prop_assert_eq!(segments.tokens(), all);
                let due = segments.due(&SETTINGS);
                // The boundary moves only when another step is complete, and never back.
                prop_assert!(before.is_none_or(|before| due.is_some_and(|due| due.messages >= before.messages)));
                before = due;
                for part in [due, segments.forced(room, &SETTINGS)].into_iter().flatten() {
                    prop_assert!(part.messages < end && part.messages % 2 == 0);
                    prop_assert_eq!(part.tokens, sizes[..part.messages].iter().sum::<usize>());
                }
                match segments.forced(room, &SETTINGS) {
                    None => prop_assert!(all <= room || end <= 2),
                    Some(part) => prop_assert!(all > room && (all - part.tokens <= room || end - part.messages <= 2)),
                }
            }
        }
    }
}
