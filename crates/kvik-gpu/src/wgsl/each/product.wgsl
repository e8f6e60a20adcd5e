fn changed(x: f32) -> f32 {
    return x * params.factor;
}
