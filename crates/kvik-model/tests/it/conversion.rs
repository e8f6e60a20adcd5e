//! Converting weights gives the same bytes as llama.cpp, which made its files from the same F16 file.

use kvik_kernels::{Pool, WeightType, dequantize, quantize};
use kvik_model::load::LoadedModel;
use kvik_model::{Conversion, Model};
use kvik_testing::golden;

fn open(file: &str) -> LoadedModel {
    LoadedModel::open(&golden(file)).unwrap()
}

#[test]
fn weights_are_quantised_as_llama_cpp_does() {
    let source = open("type-f16.gguf");
    let check = |file: &str, target: WeightType| {
        let quantised = open(file);
        let mut matrices = 0;
        for name in source.tensors.names() {
            let (from, expect) = (source.tensors.get(name).unwrap(), quantised.tensors.get(name).unwrap());
            if from.ty == WeightType::F32 {
                continue; // norms are never quantised
            }
            let mut values = vec![0.0; from.rows * from.cols];
            dequantize(from.ty, from.data, &mut values);
            let mut bytes = vec![0; expect.data.len()];
            quantize(target, &values, &mut bytes);
            assert_eq!(expect.ty, target);
            assert!(bytes == expect.data, "{name} in {target:?} has other bytes");
            matrices += 1;
        }
        assert_eq!(matrices, 9, "{file}");
    };
    check("type-q8_0.gguf", WeightType::Q8_0);
    check("type-q4_0.gguf", WeightType::Q4_0);
    check("type-bf16.gguf", WeightType::Bf16);
}

#[test]
fn half_floats_become_codes_of_14_bits_and_nothing_else_does() {
    let pool = Pool::new(1);
    let load = |file: &str, conversion: Conversion| {
        let LoadedModel { config, tensors, .. } = open(file);
        Model::load(config, tensors, conversion, &pool, &|_, _| {}).unwrap()
    };
    for file in ["type-f16.gguf", "type-bf16.gguf", "type-q8_0.gguf", "type-q4_0.gguf"] {
        let stored = load(file, Conversion::Stored);
        let halves = load(file, Conversion::Halves);
        let is_changed = file == "type-f16.gguf";
        // Another model has another identity; where nothing is changed, caches of it are found again.
        assert_eq!(halves.digest() != stored.digest(), is_changed, "{file}");
        assert_eq!(halves.weight_bytes() < stored.weight_bytes(), is_changed, "{file}: 14.5 bits for 16");
    }
}
