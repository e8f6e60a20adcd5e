fn softmax_before(unit: Unit, kv_head: u32) -> Softmax {
    return Softmax(vec4<f32>(NOTHING), vec4<f32>(0.0));
}
