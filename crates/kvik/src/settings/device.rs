//! Where a model is computed: on the processor or on a GPU.

use std::str::FromStr;

/// Where a model is to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// On the GPU that is probably the fastest; where there is none, or it cannot do what is asked for, on the processor.
    Auto,
    /// On the processor.
    Cpu,
    /// On a GPU: that of a number, or the one that is probably the fastest.
    Gpu(Option<usize>),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let number = |digits: &str| digits.parse().ok().map(|number| DeviceChoice::Gpu(Some(number)));
        let choice = match text {
            "auto" => Some(DeviceChoice::Auto),
            "cpu" => Some(DeviceChoice::Cpu),
            "gpu" => Some(DeviceChoice::Gpu(None)),
            _ => text.strip_prefix("gpu:").and_then(number),
        };
        choice.ok_or_else(|| {
            format!("{text:?} is no device; there are auto, cpu, gpu and gpu:0, gpu:1 and so on")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named() {
        let check = |text: &str, expect| assert_eq!(text.parse::<DeviceChoice>().ok(), expect, "{text}");
        check("auto", Some(DeviceChoice::Auto));
        check("cpu", Some(DeviceChoice::Cpu));
        check("gpu", Some(DeviceChoice::Gpu(None)));
        check("gpu:12", Some(DeviceChoice::Gpu(Some(12))));
        for text in ["", "GPU", "gpu:", "gpu:-1", "gpu:x", "gpu:0:1", "cuda"] {
            check(text, None);
        }
    }
}
