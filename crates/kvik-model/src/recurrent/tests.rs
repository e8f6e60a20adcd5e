//! Files that lack a tensor of a recurrent layer, or have one of another shape.

use std::collections::BTreeSet;

use kvik_kernels::{Pool, WeightType};
use kvik_testing::golden;
use kvik_text::files::TensorSource;
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::Gguf;
use kvik_text::files::gguf::write::GgufWriter;

use crate::load::LoadedModel;
use crate::{Model, ModelError};

const FILES: [&str; 5] = ["lfm2", "qwen35", "qwen3next", "granitehybrid", "nemotron_h"];

/// Loads a golden file in which `change` gives the shape of each tensor, or `None` to leave it out.
fn load(file: &str, change: impl Fn(&str, [usize; 2]) -> Option<[usize; 2]>) -> Result<Model, ModelError> {
    let LoadedModel { config, tensors, .. } =
        LoadedModel::open(&golden(&format!("arch-{file}.gguf"))).unwrap();
    let mut writer = GgufWriter::new();
    for name in tensors.names() {
        let view = tensors.get(name).unwrap();
        let Some(shape) = change(name, [view.rows, view.cols]) else { continue };
        let zeros = vec![0; 4 * shape[0] * shape[1]];
        let data = if shape == [view.rows, view.cols] { view.data } else { &zeros };
        writer.tensor(name, WeightType::F32, &shape, data);
    }
    let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
    Model::load(config, TensorSource::from_gguf(file), None, &Pool::new(1), &|_, _| {})
}

/// Names of the tensors of the first layer, which is recurrent in all files.
fn of_first_layer(file: &str) -> BTreeSet<String> {
    let loaded = LoadedModel::open(&golden(&format!("arch-{file}.gguf"))).unwrap();
    let names = loaded.tensors.names().filter(|name| name.starts_with("blk.0."));
    names.map(str::to_owned).collect()
}

#[test]
fn a_missing_tensor_is_named() {
    for file in FILES {
        assert!(load(file, |_, shape| Some(shape)).is_ok(), "{file}");
        for missing in of_first_layer(file).iter().filter(|name| !name.ends_with("conv1d.bias")) {
            let error = load(file, |name, shape| (name != missing).then_some(shape)).err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(missing.as_str()), "{file} without {missing}: {error}");
        }
    }
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    for file in FILES {
        for wrong in of_first_layer(file) {
            let widen =
                |name: &str, [rows, cols]: [usize; 2]| Some([rows, cols + usize::from(name == wrong)]);
            let error = load(file, widen).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(wrong.as_str()), "{file} with another {wrong}: {error}");
        }
    }
}
