//! Code shared by `chat` and `run`: the flags of an answer, as fields of a request.

mod set;

use clap::Args;
use kvik_model::load::{SamplingDefaults, SamplingSource};
use serde_json::Value;

use kvik_serving::settings::{logging::say_dimmed, sampling::SamplingArgs};

/// Short name of a model that answers well enough, and runs on any machine.
const RECOMMENDED: &str = "qwen3:0.6b";

/// Flags of the system message and of sampling.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer")]
pub(crate) struct TalkArgs {
    /// The system message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Answer without reasoning first, where the model supports it
    #[arg(long)]
    no_think: bool,
    /// Let an answer go on that only repeats itself, as small models do; otherwise it is ended, and a note says so
    #[arg(long)]
    allow_loops: bool,
    /// Say which sampling is in force, and where each value comes from: a flag, the model's file, its family or kvik
    #[arg(long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Says that the embedded model is a demonstration, where it answers, and how to get another.
pub(crate) fn tell_of_demonstration(is_embedded: bool) {
    if is_embedded {
        say_dimmed(&format!(
            "the embedded model answers: it is a demonstration that knows little; `kvik pull {RECOMMENDED}` fetches a real one, which then answers"
        ));
    }
}

impl TalkArgs {
    /// The sampling in force: that of the flags, else that of `model`.
    pub(crate) fn sampling_of(&self, model: &SamplingDefaults) -> SamplingDefaults {
        let in_force = model.under(&self.sampling.options(), SamplingSource::Flag);
        in_force.for_thinking(self.no_think.then_some(false))
    }

    /// A request to the server's routes: these fields, and those of the flags that are set.
    pub(crate) fn body(&self, mut fields: Value) -> Value {
        let set = self.sampling.options();
        let set_fields = [
            ("temperature", set.temperature.map(Value::from)),
            ("top_k", set.top_k.map(Value::from)),
            ("top_p", set.top_p.map(Value::from)),
            ("min_p", set.min_p.map(Value::from)),
            ("repeat_penalty", set.repetition_penalty.map(Value::from)),
            ("presence_penalty", set.presence_penalty.map(Value::from)),
            ("frequency_penalty", set.frequency_penalty.map(Value::from)),
            ("repeat_last_n", set.penalty_last_n.map(Value::from)),
            ("seed", self.sampling.seed().map(Value::from)),
            ("max_tokens", self.sampling.max_tokens().map(Value::from)),
            ("enable_thinking", self.no_think.then_some(Value::Bool(false))),
        ];
        for (name, value) in set_fields {
            if let Some(value) = value {
                fields[name] = value;
            }
        }
        if !self.allow_loops {
            fields["kvik"]["stop_loops"] = Value::Bool(true);
        }
        fields
    }
}
