fn changed(x: f32) -> f32 {
    return soft_capped(x, params.factor);
}
