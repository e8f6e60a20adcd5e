// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), with tanh as an exponential: also for GeGLU.
fn activate(x: f32, up: f32) -> f32 {
    return sloped(x, 1.5957692 * fma(x * x, 0.044715, 1.0)) * up;
}
