//! The device that computes a model: the processor, a GPU, or a GPU for its last layers.

use std::str::FromStr;

use anyhow::bail;

/// The device to compute a model on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The GPU that is probably the fastest; the processor if there is no GPU, or it does not support the requested
    /// features.
    Auto,
    /// The processor.
    Cpu,
    /// A GPU: that of a number, or the one that is probably the fastest.
    Gpu(Option<usize>),
}

/// The number of a model's layers that a GPU computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuLayers {
    /// All of them.
    All,
    /// The last ones, up to this number, and the output matrix.
    Last(usize),
}

impl GpuLayers {
    /// The number for a model with `layers` layers.
    #[cfg(any(feature = "gpu", test))]
    pub fn of(self, layers: usize) -> usize {
        match self {
            GpuLayers::All => layers,
            GpuLayers::Last(count) => count.min(layers),
        }
    }

    /// The device of a command that computes on the processor, unless a number of layers asks for a GPU.
    pub fn usual_device(self) -> DeviceChoice {
        match self {
            GpuLayers::All => DeviceChoice::Cpu,
            GpuLayers::Last(_) => DeviceChoice::Auto,
        }
    }
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuLayers, String> {
        match text {
            "all" => Ok(GpuLayers::All),
            digits => digits.parse().map(GpuLayers::Last).map_err(|_| {
                format!("{text:?} is no number of layers; write how many of the last a GPU computes, or all")
            }),
        }
    }
}

impl DeviceChoice {
    /// The device for this number of layers on the GPU: the processor if that is zero.
    ///
    /// # Errors
    /// If they contradict each other.
    pub fn with(self, layers: GpuLayers) -> anyhow::Result<DeviceChoice> {
        match (self, layers) {
            (DeviceChoice::Cpu, GpuLayers::Last(count)) if count > 0 => bail!(
                "--gpu-layers {count} puts layers on a GPU, and --device cpu computes on the processor; leave one of them out"
            ),
            (_, GpuLayers::Last(0)) => Ok(DeviceChoice::Cpu),
            (device, _) => Ok(device),
        }
    }
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

    #[test]
    fn layers_are_counted_or_all() {
        let check = |text: &str, expect| assert_eq!(text.parse::<GpuLayers>().ok(), expect, "{text}");
        check("all", Some(GpuLayers::All));
        check("0", Some(GpuLayers::Last(0)));
        check("99", Some(GpuLayers::Last(99)));
        for text in ["", "-1", "ALL", "1.5", "99999999999999999999"] {
            check(text, None);
        }
        assert_eq!(
            [GpuLayers::All, GpuLayers::Last(99), GpuLayers::Last(3)].map(|layers| layers.of(28)),
            [28, 28, 3]
        );
    }

    #[test]
    fn no_layer_on_a_gpu_is_the_processor() {
        let gpu = DeviceChoice::Gpu(Some(1));
        for device in [DeviceChoice::Auto, DeviceChoice::Cpu, gpu] {
            assert_eq!(device.with(GpuLayers::Last(0)).unwrap(), DeviceChoice::Cpu);
            assert_eq!(device.with(GpuLayers::All).unwrap(), device);
        }
        assert_eq!(gpu.with(GpuLayers::Last(4)).unwrap(), gpu);
        let usual = |layers: GpuLayers| layers.usual_device().with(layers).unwrap();
        assert_eq!(
            [GpuLayers::All, GpuLayers::Last(0), GpuLayers::Last(4)].map(usual),
            [DeviceChoice::Cpu, DeviceChoice::Cpu, DeviceChoice::Auto]
        );
        let error = DeviceChoice::Cpu.with(GpuLayers::Last(4)).unwrap_err().to_string();
        assert!(error.contains("--gpu-layers 4") && error.contains("--device cpu"), "{error}");
    }
}
