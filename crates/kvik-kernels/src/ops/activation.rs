//! Activations of feed-forward layers, generic over lanes: with scalar lanes, the specification.

use super::elements::{each, update};
use super::{by_rows, kernels};
use crate::Pool;
use crate::f32x16::F32x16;

/// The activation between the matrices of a feed-forward layer, by its usual name.
///
/// Gated activations take two products of the input, `gate` and `up`; the others take one, `up`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `silu(gate) * up`, with `silu(x) = x / (1 + exp(-x))`.
    SwiGlu,
    /// `gelu(gate) * up`, with `gelu` as in [`Activation::Gelu`].
    GeGlu,
    /// SwiGLU of gpt-oss: `gate` limited to 7 and `up` to -7..7, then `gate / (1 + exp(-1.702 gate)) * (up + 1)`.
    SwiGluOai,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, computed as the equivalent `x / (1 + exp(-2 ..))`.
    Gelu,
    /// `max(x, 0)^2`
    ReluSquared,
}

impl Activation {
    /// Whether the activation takes `gate` in addition to `up`.
    pub fn is_gated(self) -> bool {
        match self {
            Activation::SwiGlu | Activation::GeGlu | Activation::SwiGluOai => true,
            Activation::Gelu | Activation::ReluSquared => false,
        }
    }

    /// [`activate`] on the calling thread.
    pub(crate) fn apply(self, x: &mut [f32], up: &[f32]) {
        // SAFETY: the kernels are those of the machine.
        unsafe { (kernels().activate)(self, x, up) };
    }
}

/// Replaces `x` by the activation. If it is gated, `x` is `gate` and `up` is as long as `x`; otherwise `up`
/// is empty.
///
/// # Panics
/// If the lengths do not fit.
pub fn activate(pool: &Pool, activation: Activation, x: &mut [f32], up: &[f32]) {
    let expected = if activation.is_gated() { x.len() } else { 0 };
    assert_eq!(up.len(), expected, "{activation:?} of {} elements", x.len());
    by_rows(pool, x, 1, |start, x| {
        let up = if activation.is_gated() { &up[start..start + x.len()] } else { up };
        activation.apply(x, up);
    });
}

/// `sqrt(8 / pi)`: the argument of gelu's exponential is twice that of its hyperbolic tangent.
const GELU_SCALE: f32 = 1.595_769_2;
const GELU_CUBE: f32 = 0.044_715;
const OAI_ALPHA: f32 = 1.702;
const OAI_LIMIT: f32 = 7.0;

/// # Safety
/// Inlined into a function with the features of `L`.
#[inline(always)]
pub(super) unsafe fn run<L: F32x16>(activation: Activation, x: &mut [f32], up: &[f32]) {
    // SAFETY: the machine has the lanes; the rest is the caller's promise.
    unsafe {
        match activation {
            Activation::SwiGlu => update(
                x,
                up,
                #[inline(always)]
                |gate: L, up| silu(gate).mul(up),
            ),
            Activation::GeGlu => update(
                x,
                up,
                #[inline(always)]
                |gate: L, up| gelu(gate).mul(up),
            ),
            Activation::SwiGluOai => update(x, up, swi_glu_oai::<L>),
            Activation::Gelu => each(x, gelu::<L>),
            Activation::ReluSquared => each(x, relu_squared::<L>),
        }
    }
}

/// `x / (1 + exp(-x))`
#[inline(always)]
pub(crate) fn silu<L: F32x16>(x: L) -> L {
    // SAFETY: `x` exists, so the machine has these lanes.
    let zero = unsafe { L::splat(0.0) };
    x.div(one_plus_exp(zero.sub(x)))
}

#[inline(always)]
fn gelu<L: F32x16>(x: L) -> L {
    // SAFETY: as above.
    let splat = |x: f32| unsafe { L::splat(x) };
    let cubic = x.mul(x).mul_add(splat(GELU_CUBE), splat(1.0));
    x.div(one_plus_exp(x.mul(splat(-GELU_SCALE)).mul(cubic)))
}

#[inline(always)]
fn swi_glu_oai<L: F32x16>(gate: L, up: L) -> L {
    // SAFETY: as above.
    let splat = |x: f32| unsafe { L::splat(x) };
    let (least, most) = (splat(-OAI_LIMIT), splat(OAI_LIMIT));
    let gate = most.select_less(gate, most, gate);
    let up = up.select_less(least, least, most.select_less(up, most, up));
    gate.div(one_plus_exp(gate.mul(splat(-OAI_ALPHA)))).mul(up.add(splat(1.0)))
}

#[inline(always)]
fn relu_squared<L: F32x16>(x: L) -> L {
    // SAFETY: as above.
    let positive = x.max(unsafe { L::splat(0.0) });
    positive.mul(positive)
}

#[inline(always)]
fn one_plus_exp<L: F32x16>(x: L) -> L {
    // SAFETY: as above.
    unsafe { L::splat(1.0) }.add(x.exp())
}
