fn first_visible(len: u32) -> u32 {
    return len - min(len, params.reach);
}
