fn weight_of(is_query: bool, i: u32) -> f32 {
    return 1.0;
}
