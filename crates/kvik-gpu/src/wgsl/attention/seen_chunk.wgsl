fn first_visible(len: u32) -> u32 {
    return (len - 1u) / params.reach * params.reach;
}
