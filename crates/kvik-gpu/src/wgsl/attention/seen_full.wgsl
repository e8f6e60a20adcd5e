fn first_visible(len: u32) -> u32 {
    return 0u;
}
