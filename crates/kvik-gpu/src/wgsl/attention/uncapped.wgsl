fn capped(scores: vec4<f32>) -> vec4<f32> {
    return scores;
}
