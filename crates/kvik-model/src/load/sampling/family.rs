//! Sampling that the makers of model families recommend, for files that say nothing.
//!
//! Numbers are those of the model card, or of the family's `generation_config.json` where the card has none. A setting
//! that the makers leave open is left open here. To add a family, add a row: the first row that matches decides.

use super::SamplingOptions;
use crate::Arch;

/// A family of models.
#[derive(Debug, PartialEq)]
pub(super) struct Family {
    /// Its name.
    pub(super) name: &'static str,
    /// Its architectures; any where there are none.
    archs: &'static [Arch],
    /// Parts of its models' names, in lower case and without spaces, hyphens and underscores; any where there are none.
    names: &'static [&'static str],
    /// The recommended settings.
    pub(super) sampling: SamplingOptions,
}

impl Family {
    /// The settings that its makers recommend where thinking is switched off, if these are others.
    pub(super) fn without_thinking(&self) -> Option<&'static SamplingOptions> {
        WITHOUT_THINKING.iter().find(|(name, _)| *name == self.name).map(|(_, sampling)| sampling)
    }
}

/// The family of a model by its architecture and its name.
pub(super) fn family_of(arch: Arch, name: &str) -> Option<&'static Family> {
    let name = plain(name);
    let is_named = |parts: &[&str]| parts.is_empty() || parts.iter().any(|part| name.contains(part));
    FAMILIES
        .iter()
        .find(|family| (family.archs.is_empty() || family.archs.contains(&arch)) && is_named(family.names))
}

/// The name of a family, as the table has it.
pub(super) fn family_named(name: &str) -> Option<&'static str> {
    FAMILIES.iter().map(|family| family.name).find(|found| *found == name)
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).flat_map(char::to_lowercase).collect()
}

const NONE: SamplingOptions = SamplingOptions::NONE;

/// Temperature and top-p alone.
const fn pair(temperature: f32, top_p: f32) -> SamplingOptions {
    SamplingOptions { temperature: Some(temperature), top_p: Some(top_p), ..NONE }
}

/// Temperature, top-p and top-k, without min-p.
const fn triple(temperature: f32, top_p: f32, top_k: usize) -> SamplingOptions {
    SamplingOptions { top_k: Some(top_k), min_p: Some(0.0), ..pair(temperature, top_p) }
}

/// Qwen3 and its successors, dense and with experts.
const QWEN3: &[Arch] = &[Arch::Qwen3, Arch::Qwen3Moe, Arch::Qwen3Next];

/// All families; those with narrower names stand before those with wider ones.
static FAMILIES: &[Family] = &[
    // models/tiny/MODEL.md: measured greedily, and too small to be sampled.
    Family {
        name: "kvik-tiny",
        archs: &[Arch::Qwen3],
        names: &["kviktiny"],
        sampling: SamplingOptions { temperature: Some(0.0), ..NONE },
    },
    // deepseek-ai/DeepSeek-R1, "Usage Recommendations": 0.5 to 0.7, 0.6 recommended, top-p 0.95; also its distillates.
    Family { name: "DeepSeek-R1", archs: &[], names: &["deepseekr1"], sampling: pair(0.6, 0.95) },
    // deepseek-ai/DeepSeek-V3 and -V3.1, generation_config.json.
    Family {
        name: "DeepSeek-V3",
        archs: &[Arch::DeepSeek2],
        names: &["deepseekv3"],
        sampling: pair(0.6, 0.95),
    },
    // deepseek-ai/DeepSeek-V2-Lite-Chat, generation_config.json.
    Family {
        name: "DeepSeek-V2",
        archs: &[Arch::DeepSeek2],
        names: &["deepseekv2", "deepseekcoderv2"],
        sampling: pair(0.3, 0.95),
    },
    // Qwen/Qwen3-Coder-30B-A3B-Instruct, "Best Practices".
    Family {
        name: "Qwen3-Coder",
        archs: QWEN3,
        names: &["qwen3coder"],
        sampling: SamplingOptions { repetition_penalty: Some(1.05), ..triple(0.7, 0.8, 20) },
    },
    // Qwen/Qwen3-4B-Instruct-2507 and Qwen3-Next-80B-A3B-Instruct, "Best Practices": these do not think.
    Family {
        name: "Qwen3 without thinking",
        archs: QWEN3,
        names: &["instruct2507", "qwen3next80ba3binstruct"],
        sampling: triple(0.7, 0.8, 20),
    },
    // Qwen/Qwen3-0.6B and Qwen3-4B-Thinking-2507, "Best Practices", thinking mode: models that may think do by default.
    Family { name: "Qwen3", archs: QWEN3, names: &["qwen3"], sampling: triple(0.6, 0.95, 20) },
    // Qwen/Qwen3.5-35B-A3B, "Best Practices", thinking mode for general tasks.
    Family {
        name: "Qwen3.5",
        archs: &[Arch::Qwen35, Arch::Qwen35Moe],
        names: &["qwen3.5", "qwen3.6"],
        sampling: SamplingOptions { presence_penalty: Some(1.5), ..triple(1.0, 0.95, 20) },
    },
    // Qwen/QwQ-32B, "Usage Guidelines".
    Family { name: "QwQ", archs: &[Arch::Qwen2], names: &["qwq"], sampling: triple(0.6, 0.95, 40) },
    // Qwen/Qwen2.5-0.5B-Instruct and -Coder-0.5B-Instruct, generation_config.json: 1.1 in the smallest, else 1.05.
    Family {
        name: "Qwen2.5 0.5B",
        archs: &[Arch::Qwen2],
        names: &["qwen2.50.5b", "qwen2.5coder0.5b"],
        sampling: SamplingOptions { top_k: Some(20), repetition_penalty: Some(1.1), ..pair(0.7, 0.8) },
    },
    // Qwen/Qwen2.5-7B-Instruct, generation_config.json.
    Family {
        name: "Qwen2.5",
        archs: &[Arch::Qwen2],
        names: &["qwen2.5"],
        sampling: SamplingOptions { top_k: Some(20), repetition_penalty: Some(1.05), ..pair(0.7, 0.8) },
    },
    // meta-llama/Llama-3.2-1B-Instruct and Llama-4-Scout-17B-16E-Instruct, generation_config.json.
    Family { name: "Llama 3", archs: &[Arch::Llama], names: &["llama3"], sampling: pair(0.6, 0.9) },
    Family { name: "Llama 4", archs: &[Arch::Llama4], names: &[], sampling: pair(0.6, 0.9) },
    // HuggingFaceTB/SmolLM2-135M-Instruct, "How to use".
    Family { name: "SmolLM2", archs: &[Arch::Llama], names: &["smollm2"], sampling: pair(0.2, 0.9) },
    // HuggingFaceTB/SmolLM3-3B, "How to use".
    Family { name: "SmolLM3", archs: &[Arch::SmolLm3], names: &[], sampling: pair(0.6, 0.95) },
    // google/gemma-3-1b-it, generation_config.json, and the Gemma team's temperature of 1; also of 3n and 4.
    Family {
        name: "Gemma 3",
        archs: &[Arch::Gemma3, Arch::Gemma3n, Arch::Gemma4],
        names: &[],
        sampling: triple(1.0, 0.95, 64),
    },
    // mistralai/Magistral-Small-2506, "Sampling parameters".
    Family {
        name: "Magistral",
        archs: &[Arch::Llama, Arch::Mistral3],
        names: &["magistral"],
        sampling: pair(0.7, 0.95),
    },
    // mistralai/Mistral-Small-3.2-24B-Instruct-2506 and Devstral-Small-2507, "Usage": "a relatively low temperature".
    Family {
        name: "Mistral Small",
        archs: &[Arch::Llama, Arch::Mistral3],
        names: &["mistralsmall", "devstral"],
        sampling: SamplingOptions { temperature: Some(0.15), ..NONE },
    },
    // mistralai/Ministral-3-3B-Instruct-2512, "Recommended Settings": a temperature below 0.1.
    Family {
        name: "Ministral 3",
        archs: &[Arch::Mistral3],
        names: &["ministral"],
        sampling: SamplingOptions { temperature: Some(0.1), ..NONE },
    },
    // mistralai/Mistral-Nemo-Instruct-2407: "smaller temperatures. We recommend to use a temperature of 0.3."
    Family {
        name: "Mistral Nemo",
        archs: &[Arch::Llama],
        names: &["mistralnemo"],
        sampling: SamplingOptions { temperature: Some(0.3), ..NONE },
    },
    // microsoft/Phi-4-reasoning and Phi-4-mini-reasoning, "Usage"; cards of other Phi models recommend nothing.
    Family {
        name: "Phi-4-reasoning",
        archs: &[Arch::Phi3],
        names: &["phi4reasoning", "phi4minireasoning"],
        sampling: SamplingOptions { top_k: Some(50), ..pair(0.8, 0.95) },
    },
    // openai/gpt-oss, README, "Recommended Sampling Parameters": the whole distribution.
    Family { name: "gpt-oss", archs: &[Arch::GptOss], names: &[], sampling: triple(1.0, 1.0, 0) },
    // ibm-granite/granite-4.0-h-tiny: IBM recommends greedy answers.
    Family {
        name: "Granite 4",
        archs: &[Arch::Granite, Arch::GraniteMoe, Arch::GraniteHybrid],
        names: &["granite4"],
        sampling: SamplingOptions { temperature: Some(0.0), ..NONE },
    },
    // LiquidAI/LFM2.5-1.2B-Instruct, "Generation parameters".
    Family {
        name: "LFM2.5",
        archs: &[Arch::Lfm2, Arch::Lfm2Moe],
        names: &["lfm2.5"],
        sampling: SamplingOptions { top_k: Some(50), repetition_penalty: Some(1.05), ..pair(0.1, 0.1) },
    },
    // LiquidAI/LFM2-1.2B, "Generation parameters".
    Family {
        name: "LFM2",
        archs: &[Arch::Lfm2, Arch::Lfm2Moe],
        names: &[],
        sampling: SamplingOptions {
            temperature: Some(0.3),
            min_p: Some(0.15),
            repetition_penalty: Some(1.05),
            ..NONE
        },
    },
    // allenai/Olmo-3-7B-Think, "Inference & Recommended Settings".
    Family {
        name: "Olmo 3 Think",
        archs: &[Arch::Olmo2],
        names: &["olmo37bthink", "olmo332bthink"],
        sampling: pair(0.6, 0.95),
    },
];

/// Families with other settings where thinking is switched off.
static WITHOUT_THINKING: &[(&str, SamplingOptions)] = &[
    // Qwen/Qwen3-0.6B, "Best Practices", non-thinking mode.
    ("Qwen3", triple(0.7, 0.8, 20)),
    // Qwen/Qwen3.5-35B-A3B, "Best Practices", non-thinking mode for general tasks.
    ("Qwen3.5", SamplingOptions { presence_penalty: Some(1.5), ..triple(0.7, 0.8, 20) }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_of_the_family_that_their_architecture_and_name_say() {
        let check = |arch, name: &str, expect: Option<&str>| {
            assert_eq!(family_of(arch, name).map(|family| family.name), expect, "{arch:?} {name}");
        };
        check(Arch::Qwen3, "kvik-tiny", Some("kvik-tiny"));
        check(Arch::Qwen3, "Qwen3 0.6B", Some("Qwen3"));
        check(Arch::Qwen3, "Qwen3-4B-Thinking-2507", Some("Qwen3"));
        check(Arch::Qwen3, "Qwen3 4B Instruct 2507", Some("Qwen3 without thinking"));
        check(Arch::Qwen3Moe, "Qwen3-30B-A3B-Instruct-2507", Some("Qwen3 without thinking"));
        check(Arch::Qwen3Moe, "Qwen3-Coder-30B-A3B-Instruct", Some("Qwen3-Coder"));
        check(Arch::Qwen3Next, "Qwen3-Next-80B-A3B-Instruct", Some("Qwen3 without thinking"));
        check(Arch::Qwen3, "DeepSeek-R1-0528-Qwen3-8B", Some("DeepSeek-R1"));
        check(Arch::Qwen3, "somebody's own model", None);
        check(Arch::Qwen35, "Qwen3.5-0.8B", Some("Qwen3.5"));
        check(Arch::Qwen2, "Qwen2.5 Coder 0.5B Instruct", Some("Qwen2.5 0.5B"));
        check(Arch::Qwen2, "qwen2.5-7b-instruct", Some("Qwen2.5"));
        check(Arch::Qwen2, "Qwen2-7B-Instruct", None);
        check(Arch::Qwen2, "QwQ 32B", Some("QwQ"));
        check(Arch::Qwen2, "DeepSeek R1 Distill Qwen 1.5B", Some("DeepSeek-R1"));
        check(Arch::Llama, "DeepSeek-R1-Distill-Llama-8B", Some("DeepSeek-R1"));
        check(Arch::DeepSeek2, "DeepSeek-V3-0324", Some("DeepSeek-V3"));
        check(Arch::DeepSeek2, "DeepSeek-Coder-V2-Lite-Instruct", Some("DeepSeek-V2"));
        check(Arch::Llama, "Meta Llama 3.1 8B Instruct", Some("Llama 3"));
        check(Arch::Llama, "Llama-3.2-1B-Instruct", Some("Llama 3"));
        check(Arch::Llama4, "Llama-4-Scout-17B-16E-Instruct", Some("Llama 4"));
        check(Arch::Llama, "SmolLM2 135M Instruct", Some("SmolLM2"));
        check(Arch::Llama, "stories260K", None);
        check(Arch::SmolLm3, "SmolLM3 3B", Some("SmolLM3"));
        check(Arch::Gemma3, "Gemma 3 1b It", Some("Gemma 3"));
        check(Arch::Gemma2, "Gemma 2 2b It", None);
        check(Arch::Llama, "Mistral-Nemo-Instruct-2407", Some("Mistral Nemo"));
        check(Arch::Llama, "Mistral Small 3.2 24B Instruct 2506", Some("Mistral Small"));
        check(Arch::Mistral3, "Ministral-3-3B-Instruct-2512", Some("Ministral 3"));
        check(Arch::Phi3, "Phi 4 Mini Reasoning", Some("Phi-4-reasoning"));
        check(Arch::Phi3, "Phi-3.5-mini-instruct", None);
        check(Arch::GptOss, "gpt-oss-20b", Some("gpt-oss"));
        check(Arch::GraniteHybrid, "Granite 4.0 H Tiny", Some("Granite 4"));
        check(Arch::Granite, "granite-3.3-2b-instruct", None);
        check(Arch::Lfm2, "LFM2.5-1.2B-Instruct", Some("LFM2.5"));
        check(Arch::Lfm2, "LFM2 350M", Some("LFM2"));
        check(Arch::Olmo2, "Olmo-3-7B-Think", Some("Olmo 3 Think"));
    }

    #[test]
    fn every_row_without_thinking_is_of_a_family() {
        for (name, sampling) in WITHOUT_THINKING {
            let family = FAMILIES.iter().find(|family| family.name == *name).unwrap();
            assert_eq!(family.without_thinking(), Some(sampling));
            assert_ne!(family.sampling, *sampling, "{name}");
        }
        assert_eq!(FAMILIES[0].without_thinking(), None);
    }

    #[test]
    fn every_row_can_match_and_recommends_what_the_sampler_takes() {
        for (index, family) in FAMILIES.iter().enumerate() {
            let arch = family.archs.first().copied().unwrap_or(Arch::Llama);
            let name = family.names.first().copied().unwrap_or("x");
            let found = family_of(arch, name).unwrap();
            assert!(
                std::ptr::eq(found, family),
                "row {index} ({}) stands behind {}",
                family.name,
                found.name
            );
            assert!(family.names.iter().all(|part| plain(part) == **part), "{:?}", family.names);
            let SamplingOptions { temperature, top_p, min_p, repetition_penalty, .. } = family.sampling;
            assert!(temperature.is_some_and(|temperature| (0.0..=2.0).contains(&temperature)), "{index}");
            let mut shares = [top_p, min_p].into_iter().flatten();
            assert!(shares.all(|share| (0.0..=1.0).contains(&share)), "{index}");
            assert!(repetition_penalty.is_none_or(|penalty| (1.0..=1.3).contains(&penalty)), "{index}");
        }
    }
}
