fn activate(gate: f32, up: f32) -> f32 {
    return sloped(min(gate, 7.0), 1.702) * (clamp(up, -7.0, 7.0) + 1.0);
}
