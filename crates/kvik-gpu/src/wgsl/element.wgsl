// The element of an invocation, in a grid of groups of 64.
fn element(group: vec3<u32>, local: u32) -> u32 {
    return (group.x + group.y * GRID_X) * 64u + local;
}

