fn changed(x: f32) -> f32 {
    return activate(x, 1.0);
}
