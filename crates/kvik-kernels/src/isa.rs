//! The instruction sets of this machine, detected once.

use std::sync::OnceLock;

/// A family of kernels that one machine can execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Portable Rust: the specification.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// As `Avx2`, with AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ and VNNI (Ice Lake, Zen 4 and later).
    Avx512,
    /// As `Avx512`, with AVX-512 BF16 (Zen 4, Sapphire Rapids and later).
    Avx512Bf16,
    /// As `Avx512Bf16`, with the matrix units for bytes (Sapphire Rapids and later), where the system grants them.
    Amx,
    /// aarch64 NEON without dot products.
    Neon,
    /// NEON with `dotprod` (ARMv8.2 and later).
    NeonDot,
    /// As `NeonDot`, with `i8mm` (ARMv8.6 and later).
    NeonI8mm,
}

/// `KVIK_ISA` names no family that this machine executes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "KVIK_ISA is {found:?}, and this machine has {available}; use one of these, or unset it for the best"
)]
pub struct UnknownIsa {
    /// The value of the variable.
    pub found: String,
    /// The valid names, slowest first.
    pub available: String,
}

/// Whether this build has the portable kernels. They are the reference for tests and the fallback on other
/// architectures; every aarch64 processor has NEON, so an application there saves 0.4 MB.
const HAS_SCALAR: bool = cfg!(any(test, not(target_arch = "aarch64")));

impl Isa {
    /// The family of the kernels in use: that of [`Isa::chosen`], or the best if that is an error.
    ///
    /// A program should call [`Isa::chosen`] first and report its error, which this function ignores.
    pub fn current() -> Isa {
        static CURRENT: OnceLock<Isa> = OnceLock::new();
        *CURRENT.get_or_init(|| Isa::chosen().unwrap_or_else(|_| best(&Isa::available())))
    }

    /// The family that `KVIK_ISA` names; the best of this machine if the variable is empty or not set.
    ///
    /// # Errors
    /// If the name is unknown, or is that of a family that this machine does not execute.
    pub fn chosen() -> Result<Isa, UnknownIsa> {
        let wanted = std::env::var_os("KVIK_ISA").unwrap_or_default();
        choose(&wanted.to_string_lossy(), &Isa::available())
    }

    /// The families that machines of this architecture may support.
    #[cfg(test)]
    pub(crate) const OF_THIS_ARCHITECTURE: &[Isa] = if cfg!(target_arch = "x86_64") {
        &[Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx]
    } else if cfg!(target_arch = "aarch64") {
        &[Isa::Scalar, Isa::Neon, Isa::NeonDot, Isa::NeonI8mm]
    } else {
        &[Isa::Scalar]
    };

    /// All families that this machine executes, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut isas = if HAS_SCALAR { vec![Isa::Scalar] } else { Vec::new() };
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
            isas.extend(avx2.then_some(Isa::Avx2));
            isas.extend((avx2 && has!("avxvnni")).then_some(Isa::AvxVnni));
            let avx512 = avx2 && avx512 && has!("avx512vnni");
            isas.extend(avx512.then_some(Isa::Avx512));
            let bf16 = avx512 && has!("avx512bf16");
            isas.extend(bf16.then_some(Isa::Avx512Bf16));
            isas.extend((bf16 && crate::x86::amx::usable()).then_some(Isa::Amx));
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as has;
            let dotprod = has!("dotprod");
            isas.push(Isa::Neon);
            isas.extend(dotprod.then_some(Isa::NeonDot));
            isas.extend((dotprod && has!("i8mm")).then_some(Isa::NeonI8mm));
        }
        isas
    }

    /// The name used by `KVIK_ISA` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonDot => "neondot",
            Isa::NeonI8mm => "neoni8mm",
        }
    }
}

fn best(available: &[Isa]) -> Isa {
    *available.last().expect("Scalar is always available")
}

fn choose(wanted: &str, available: &[Isa]) -> Result<Isa, UnknownIsa> {
    if wanted.is_empty() {
        return Ok(best(available));
    }
    let named = available.iter().copied().find(|isa| isa.name() == wanted);
    named.ok_or_else(|| {
        let names: Vec<&str> = available.iter().map(|isa| isa.name()).collect();
        UnknownIsa { found: wanted.to_owned(), available: names.join(", ") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_obeyed_or_refused() {
        let available = [Isa::Scalar, Isa::Avx2, Isa::Avx512];
        assert_eq!(choose("", &available), Ok(Isa::Avx512));
        assert_eq!(choose("scalar", &available), Ok(Isa::Scalar));
        assert_eq!(choose("avx2", &available), Ok(Isa::Avx2));
        for wrong in ["avx3", "AVX2", " avx2", "neon", "avxvnni"] {
            let error = choose(wrong, &available).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("scalar, avx2, avx512"), "{error}");
        }
    }

    #[test]
    fn every_family_of_this_machine_has_a_name_that_chooses_it() {
        let available = Isa::available();
        for isa in &available {
            assert_eq!(choose(isa.name(), &available), Ok(*isa));
            assert!(Isa::OF_THIS_ARCHITECTURE.contains(isa));
        }
    }
}
