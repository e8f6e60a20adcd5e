fn activate(x: f32, up: f32) -> f32 {
    let positive = max(x, 0.0);
    return positive * positive * up;
}
