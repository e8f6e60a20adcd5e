fn capped(scores: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        soft_capped(scores.x, params.cap),
        soft_capped(scores.y, params.cap),
        soft_capped(scores.z, params.cap),
        soft_capped(scores.w, params.cap),
    );
}
