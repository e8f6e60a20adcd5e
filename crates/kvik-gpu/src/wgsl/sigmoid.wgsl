// The bound keeps the exponential finite.
fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(min(-x, 87.0)));
}
