//! Which instructions this machine has, found once.

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
    /// aarch64 NEON without dot products.
    Neon,
    /// NEON with `dotprod` (ARMv8.2 and later).
    NeonDot,
    /// As `NeonDot`, with `i8mm` (ARMv8.6 and later).
    NeonI8mm,
}

impl Isa {
    /// The best family of this machine, or the one that `KVIK_ISA` names if the machine has it.
    pub fn current() -> Isa {
        static CURRENT: OnceLock<Isa> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let available = Isa::available();
            let wanted = std::env::var("KVIK_ISA").unwrap_or_default();
            let named = available.iter().find(|isa| isa.name() == wanted);
            *named.or(available.last()).expect("Scalar is always available")
        })
    }

    /// All families that this machine executes, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut isas = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
            isas.extend(avx2.then_some(Isa::Avx2));
            isas.extend((avx2 && has!("avxvnni")).then_some(Isa::AvxVnni));
            let avx512 = avx2 && avx512 && has!("avx512vnni");
            isas.extend(avx512.then_some(Isa::Avx512));
            isas.extend((avx512 && has!("avx512bf16")).then_some(Isa::Avx512Bf16));
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
            Isa::Neon => "neon",
            Isa::NeonDot => "neondot",
            Isa::NeonI8mm => "neoni8mm",
        }
    }
}
