fn changed(x: f32) -> f32 {
    return sigmoid(x);
}
