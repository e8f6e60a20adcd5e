// cap tanh(x / cap): for small numbers by the polynomial of kvik-kernels, for large ones by an exponential, which
// would lose the digits of small ones.
fn soft_capped(x: f32, cap: f32) -> f32 {
    let inner = x / cap;
    let square = inner * inner;
    var p = -5.7049887e-3;
    p = fma(p, square, 2.0639088e-2);
    p = fma(p, square, -5.3739714e-2);
    p = fma(p, square, 1.3331442e-1);
    p = fma(p, square, -3.333328e-1);
    let small = fma(p * square, inner, inner);
    // The bound keeps the exponential finite, and the tangent is 1 long before it.
    let large = 1.0 - 2.0 / (exp(min(2.0 * abs(inner), 80.0)) + 1.0);
    return cap * select(select(large, -large, inner < 0.0), small, abs(inner) < 0.625);
}
