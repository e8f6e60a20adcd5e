// Rotates `dim` elements of `vector` by an orthogonal Hadamard matrix, as specified in kvik-kernels: pieces of
// `piece` elements, the largest power of two that divides `dim`; `norm` is 1 / sqrt(piece).
fn rotate(dim: u32, piece: u32, norm: f32, local: u32) {
    for (var half = 1u; half < piece; half *= 2u) {
        workgroupBarrier();
        for (var i = local; i < dim / 2u; i += 64u) {
            let low = i / half * 2u * half + i % half;
            let a = vector[low];
            let b = vector[low + half];
            vector[low] = a + b;
            vector[low + half] = a - b;
        }
    }
    workgroupBarrier();
    for (var i = local; i < dim; i += 64u) {
        vector[i] *= norm;
    }
    workgroupBarrier();
}
