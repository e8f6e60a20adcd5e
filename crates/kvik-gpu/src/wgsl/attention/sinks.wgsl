// The sink of every query head: a score without a value.
@group(0) @binding(SINKS) var<storage, read> sinks: array<f32>;

fn sink_of(unit: Unit, component: u32, kv_head: u32) -> f32 {
    return sinks[vector_number(unit, component, kv_head) % params.heads];
}

fn softmax_before(unit: Unit, kv_head: u32) -> Softmax {
    let scores = vec4<f32>(
        sink_of(unit, 0u, kv_head),
        sink_of(unit, 1u, kv_head),
        sink_of(unit, 2u, kv_head),
        sink_of(unit, 3u, kv_head),
    );
    return Softmax(scores, vec4<f32>(1.0));
}
