fn bias_of(expert: u32) -> f32 {
    return 0.0;
}
