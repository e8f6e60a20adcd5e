// 8-bit quantisation of `vector`: the maximum magnitude becomes 127. The scale is stored in word `scale`.
var<workgroup> largest: array<f32, 64>;

fn quantise(dim: u32, scale: u32, local: u32) -> f32 {
    var most = 0.0;
    for (var d = local; d < dim; d += 64u) {
        most = max(most, abs(vector[d]));
    }
    largest[local] = most;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            largest[local] = max(largest[local], largest[local + half]);
        }
    }
    workgroupBarrier();
    most = largest[0];
    if local == 0u {
        atomicStore(&stored[scale], bitcast<u32>(most / 127.0));
    }
    // No finite factor scales smaller numbers to 127: they count as zero.
    return select(0.0, 127.0 / most, most > 3.8e-37);
}

fn byte_of(x: f32, factor: f32) -> u32 {
    return u32(i32(round(clamp(x * factor, -127.0, 127.0)))) & 0xffu;
}
