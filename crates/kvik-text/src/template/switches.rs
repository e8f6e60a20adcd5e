//! The template variables that control whether and how much a model reasons.
//!
//! A request states it in one way; templates read it under several names.

use serde_json::{Map, Value, json};

use crate::answer::ReasoningForm;

/// Names of the switch in templates, besides `enable_thinking`.
const SWITCHES: [&str; 2] = ["thinking", "reasoning"];
/// Token budget of reasoning, in templates that have one: zero disables reasoning.
const BUDGET: &str = "thinking_budget";
const EFFORT: &str = "reasoning_effort";

/// Whether a variable of this name switches reasoning, as `enable_thinking` does.
pub fn is_switch(name: &str) -> bool {
    name == BUDGET || SWITCHES.contains(&name)
}

/// Whether the model of a template may reason before it answers: the template has a form of reasoning of its own, begins
/// reasoning, or reads a variable that controls it.
pub fn may_reason(source: &str) -> bool {
    let names = ["enable_thinking", EFFORT, BUDGET, "<think>"];
    // Only Granite's and DeepSeek's switch is a word that texts and fields have too.
    let mut tags = source.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let is_apart = |c: char| !c.is_alphanumeric() && !"_.'\"".contains(c);
    ReasoningForm::of_template(source) != ReasoningForm::default()
        || names.iter().any(|name| source.contains(name))
        || tags.any(|tag| tag.split(is_apart).any(|word| word == "thinking"))
}

/// Adds a request's settings of reasoning to its variables, under the names that this template reads.
pub(super) fn add(
    variables: &mut Map<String, Value>,
    enable_thinking: Option<bool>,
    source: &str,
    form: ReasoningForm,
) {
    if let Some(on) = enable_thinking {
        for name in SWITCHES {
            variables.entry(name).or_insert(json!(on));
        }
        if !on && source.contains(BUDGET) {
            variables.entry(BUDGET).or_insert(json!(0));
        }
    }
    if form == ReasoningForm::Channels {
        let asked = variables.get(EFFORT).and_then(Value::as_str);
        let known = match (asked, enable_thinking) {
            (Some("none" | "minimal"), _) | (None, Some(false)) => Some("low"),
            (Some("xhigh" | "max"), _) => Some("high"),
            _ => None,
        };
        if let Some(known) = known {
            variables.insert(EFFORT.into(), json!(known));
        }
    }
}

/// Whether a template reads `enable_thinking` without checking whether it is set.
pub(super) fn needs_thinking_set(source: &str) -> bool {
    let source: String = source.split_whitespace().collect();
    let asks = ["isdefined", "isnotdefined", "isundefined", "isnotundefined", "isnone", "isnotnone", "|d"];
    let mut uses = source.match_indices("enable_thinking").map(|(at, name)| &source[at + name.len()..]);
    let asked = |rest: &str| asks.iter().any(|question| rest.starts_with(question));
    let assigned = |rest: &str| rest.starts_with('=') && !rest.starts_with("==");
    source.contains("enable_thinking") && !uses.any(|rest| asked(rest) || assigned(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_told_under_their_own_names() {
        let told = |asked: Value, on: Option<bool>, source: &str, form: ReasoningForm| {
            let mut variables = asked.as_object().unwrap().clone();
            add(&mut variables, on, source, form);
            Value::Object(variables)
        };
        let (usual, channels) = (ReasoningForm::default(), ReasoningForm::Channels);
        assert_eq!(told(json!({}), None, "thinking_budget", usual), json!({}));
        assert_eq!(told(json!({}), Some(true), "", usual), json!({"thinking": true, "reasoning": true}));
        let own = json!({"thinking": 3, "reasoning": 4, "thinking_budget": 9});
        assert_eq!(told(own.clone(), Some(false), "thinking_budget", usual), own, "the request's own stay");
        assert_eq!(told(json!({}), Some(false), "thinking_budget", usual)["thinking_budget"], 0);
        for (asked, expect) in [("none", "low"), ("minimal", "low"), ("medium", "medium"), ("max", "high")] {
            let told = told(json!({"reasoning_effort": asked}), None, "", channels);
            assert_eq!(told["reasoning_effort"], expect);
        }
        assert_eq!(told(json!({}), Some(false), "", channels)["reasoning_effort"], "low");
    }

    #[test]
    fn a_template_tells_whether_its_model_may_reason() {
        for (source, expect) in [
            ("{{ messages }}", false),
            ("{{ message.thinking }}{{ m['thinking'] }} is thinking hard {% set no_thinking = 1 %}", false),
            ("{% if enable_thinking is false %}x{% endif %}", true),
            ("Reasoning: {{ reasoning_effort }}", true),
            ("{%- if thinking %}x{%- endif %}", true),
            ("{% if not thinking is defined %}x{% endif %}", true),
            ("{{ thinking_budget }}", true),
            ("{{ 'assistant<think>' }}", true),
            ("[THINK]{{ text }}[/THINK]", true),
            ("<|START_THINKING|>", true),
            (include_str!("golden/tools/channels.jinja"), true),
        ] {
            assert_eq!(may_reason(source), expect, "{source}");
        }
    }
}
