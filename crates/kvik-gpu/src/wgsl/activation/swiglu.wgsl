fn activate(gate: f32, up: f32) -> f32 {
    return sloped(gate, 1.0) * up;
}
