//! Kernels: WGSL composed of pieces and constants, and the pipelines made of them.

use std::fmt::Write;
use std::hash::{Hash, Hasher};

use crate::{Device, DeviceError};

/// A file of WGSL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// The piece with this path below `wgsl`.
macro_rules! piece {
    ($path:literal) => {
        $crate::kernel::Piece {
            name: $path,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/wgsl/", $path, ".wgsl")),
        }
    };
}
pub(crate) use piece;

// Pieces with different names have different texts.
impl PartialEq for Piece {
    fn eq(&self, other: &Piece) -> bool {
        self.name == other.name
    }
}

impl Eq for Piece {}

impl Hash for Piece {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// A constant declared before the pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    U32(u32),
    Bool(bool),
    /// The bits of the float.
    F32(u32),
}

/// The access of a kernel to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The definition of a pipeline, complete with pieces and constants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) constants: Vec<(&'static str, Constant)>,
    /// Indexed by the number of the binding.
    pub(crate) buffers: &'static [Access],
    /// Size of `params` in bytes.
    pub(crate) params: usize,
}

/// A compiled kernel.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) bindings: wgpu::BindGroupLayout,
}

/// Maximum work groups in the first dimension of a grid; longer grids use the second.
pub(crate) const GRID_X: u32 = 1 << 15;

/// A grid of at least `count` work groups.
pub(crate) fn grid(count: usize) -> [u32; 3] {
    let count = u32::try_from(count).expect("buffers have fewer elements");
    [count.min(GRID_X), count.div_ceil(GRID_X), 1]
}

/// Elements per work group of `wgsl/element`.
const ELEMENTS: usize = 64;

/// A grid with an invocation for each of `count` elements.
pub(crate) fn grid_of_elements(count: usize) -> [u32; 3] {
    grid(count.div_ceil(ELEMENTS))
}

impl Kernel {
    /// The complete source text.
    fn source(&self) -> String {
        let mut source = format!("const GRID_X: u32 = {GRID_X}u;\n");
        for (name, value) in &self.constants {
            let (ty, value) = match value {
                Constant::U32(value) => ("u32", format!("{value}u")),
                Constant::Bool(value) => ("bool", value.to_string()),
                Constant::F32(bits) => ("f32", format!("{:?}f", f32::from_bits(*bits))),
            };
            writeln!(source, "const {name}: {ty} = {value};").expect("a string takes all");
        }
        self.pieces.iter().for_each(|piece| source += piece.text);
        source
    }

    /// The names of its pieces, for errors and the tools of drivers.
    fn name(&self) -> String {
        self.pieces.iter().map(|piece| piece.name).collect::<Vec<_>>().join(" + ")
    }

    /// Its piece with the entry point, the weight format if it reads one, and its number of inputs, for reports.
    pub(crate) fn short_name(&self) -> String {
        let entry = self.pieces.iter().find(|piece| piece.text.contains("fn main("));
        let mut name = entry.map_or("", |piece| piece.name).to_owned();
        let helpers = ["words", "plain", "k_scales"];
        let formats = self.pieces.iter().filter_map(|piece| piece.name.strip_prefix("weights/"));
        for format in formats.filter(|format| !helpers.contains(format)) {
            write!(name, " {format}").expect("a string takes all");
        }
        if let Some((_, Constant::U32(batch))) = self.constants.iter().find(|(name, _)| *name == "BATCH") {
            write!(name, " x{batch}").expect("a string takes all");
        }
        name
    }

    pub(crate) fn compile(&self, device: &Device) -> Result<Pipeline, DeviceError> {
        let name = self.name();
        let (pipeline, error) = device.caught(|| self.build(device.raw(), &name));
        match error {
            None => Ok(pipeline),
            Some(error) => Err(DeviceError::Shader { kernel: name, message: error.to_string() }),
        }
    }

    fn build(&self, device: &wgpu::Device, name: &str) -> Pipeline {
        let entries: Vec<_> =
            (0..).zip(self.buffers).map(|(binding, access)| entry(binding, *access)).collect();
        let label = Some(name);
        let bindings =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: self.params as u32,
        });
        let source = wgpu::ShaderSource::Wgsl(self.source().into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every kernel writes workgroup memory before it reads it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Pipeline { pipeline, bindings }
    }
}

fn entry(binding: u32, access: Access) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: access == Access::Read },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Choice;

    #[test]
    fn constants_stand_before_the_pieces_and_keep_their_bits() {
        let norm = 1.0 / 128f32.sqrt();
        let kernel = Kernel {
            pieces: vec![Piece { name: "a", text: "// a\n" }, Piece { name: "b", text: "// b\n" }],
            constants: vec![
                ("N", Constant::U32(3)),
                ("YES", Constant::Bool(true)),
                ("NORM", Constant::F32(norm.to_bits())),
            ],
            buffers: &[],
            params: 0,
        };
        let source = kernel.source();
        let lines: Vec<_> = source.lines().collect();
        assert_eq!(lines[1..3], ["const N: u32 = 3u;", "const YES: bool = true;"]);
        assert_eq!(lines[4..], ["// a", "// b"]);
        let value = lines[3].strip_prefix("const NORM: f32 = ").and_then(|rest| rest.strip_suffix("f;"));
        assert_eq!(value.and_then(|value| value.parse().ok()), Some(norm));
        assert_eq!(kernel.name(), "a + b");
    }

    #[test]
    fn long_grids_have_a_second_dimension() {
        assert_eq!(grid(7), [7, 1, 1]);
        assert_eq!(grid(32_768), [32_768, 1, 1]);
        assert_eq!(grid(100_000), [32_768, 4, 1]);
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_an_error_with_its_name_and_the_device_goes_on() {
        let Ok(device) = Device::open(Choice::Index(0)) else {
            return kvik_testing::skip("no GPU, nor one of software");
        };
        let kernel = |text| {
            let (pieces, constants) = (vec![Piece { name: "wrong.wgsl", text }], Vec::new());
            Kernel { pieces, constants, buffers: &[], params: 0 }
        };
        let valid = "@compute @workgroup_size(1) fn main() {}\n";
        for text in ["fn main( {\n", "@compute @workgroup_size(1) fn main() { x = 1; }\n", "fn other() {}\n"]
        {
            let error = kernel(text).compile(&device).unwrap_err();
            assert!(
                matches!(&error, DeviceError::Shader { kernel, .. } if kernel == "wrong.wgsl"),
                "{error}"
            );
            assert!(kernel(valid).compile(&device).is_ok());
        }
    }
}
