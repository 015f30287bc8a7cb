//! Which instruction set the kernels use.
//!
//! Every kernel gives the same bits on every instruction set, so the choice changes speed alone.
//! A [`CpuFeatures`] value is the proof that its instruction set exists on this CPU: it can only be
//! had from detection, which is what makes the kernels' public functions safe to call.

use crate::KernelError;
use std::{fmt, str::FromStr};

/// The environment variable that overrides detection.
pub const ISA_VARIABLE: &str = "DUNLIN_ISA";

/// A family of vector instructions that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, on any CPU: the reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI (and all of [`Isa::Avx2`]).
    Avx512,
    /// AArch64 with Advanced SIMD.
    Neon,
}

impl Isa {
    /// Every instruction set, the plainest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// The name that [`ISA_VARIABLE`] takes.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    /// Whether this CPU has it.
    pub fn is_supported(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => has_avx512(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns, reason = "which arms exist depends on the target")]
            _ => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = KernelError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Isa::ALL
            .into_iter()
            .find(|i| i.name() == s)
            .ok_or_else(|| KernelError::UnknownIsa { value: s.to_owned() })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

/// The instruction set in use and the optional instructions beside it. Its existence proves that
/// this CPU has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuFeatures {
    isa: Isa,
    avx_vnni: bool,
    dotprod: bool,
    i8mm: bool,
}

impl CpuFeatures {
    /// The best instruction set of this CPU, or the one that [`ISA_VARIABLE`] names.
    ///
    /// # Errors
    /// The variable names no instruction set, or one that this CPU lacks.
    pub fn detect() -> Result<Self, KernelError> {
        match std::env::var(ISA_VARIABLE) {
            // A named set is that set alone, so that a newer CPU can stand in for an older one.
            Ok(name) if !name.is_empty() => Ok(Self::for_isa(name.parse()?)?.without_extras()),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(Self::best()),
            Err(std::env::VarError::NotUnicode(name)) => {
                Err(KernelError::UnknownIsa { value: name.to_string_lossy().into_owned() })
            }
        }
    }

    /// The best instruction set of this CPU, whatever the environment says.
    pub fn best() -> Self {
        let best = Isa::ALL.into_iter().rev().find(|i| i.is_supported());
        Self::with_flags(best.unwrap_or(Isa::Scalar))
    }

    /// The named instruction set.
    ///
    /// # Errors
    /// This CPU lacks it.
    pub fn for_isa(isa: Isa) -> Result<Self, KernelError> {
        if isa.is_supported() {
            Ok(Self::with_flags(isa))
        } else {
            Err(KernelError::UnsupportedIsa { isa, best: Self::best().isa })
        }
    }

    /// Every instruction set of this CPU, the plainest first: what tests compare.
    pub fn available() -> Vec<Self> {
        Isa::ALL.into_iter().filter(|i| i.is_supported()).map(Self::with_flags).collect()
    }

    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(unused_mut, reason = "there is nothing to detect")
    )]
    fn with_flags(isa: Isa) -> Self {
        let mut f = CpuFeatures { isa, avx_vnni: false, dotprod: false, i8mm: false };
        #[cfg(target_arch = "x86_64")]
        {
            f.avx_vnni = isa != Isa::Scalar && is_x86_feature_detected!("avxvnni");
        }
        #[cfg(target_arch = "aarch64")]
        {
            f.dotprod = isa == Isa::Neon && std::arch::is_aarch64_feature_detected!("dotprod");
            f.i8mm = isa == Isa::Neon && std::arch::is_aarch64_feature_detected!("i8mm");
        }
        f
    }

    /// The instruction set.
    pub fn isa(self) -> Isa {
        self.isa
    }

    /// AVX-VNNI: byte dot products on 256-bit vectors without AVX-512.
    pub fn avx_vnni(self) -> bool {
        self.avx_vnni
    }

    /// AVX-512 VNNI: byte dot products on 512-bit vectors.
    pub fn avx512_vnni(self) -> bool {
        self.isa == Isa::Avx512
    }

    /// AArch64 dot-product instructions.
    pub fn dotprod(self) -> bool {
        self.dotprod
    }

    /// AArch64 int8 matrix-multiply instructions.
    pub fn i8mm(self) -> bool {
        self.i8mm
    }

    /// The same instruction set without its optional instructions: for comparing kernels.
    pub fn without_extras(self) -> Self {
        CpuFeatures { isa: self.isa, avx_vnni: false, dotprod: false, i8mm: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<Isa>().unwrap(), isa);
        }
        let e = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(e.contains("sse9") && e.contains("avx512"), "{e}");
    }

    #[test]
    fn only_supported_sets_can_be_had() {
        for isa in Isa::ALL {
            assert_eq!(CpuFeatures::for_isa(isa).is_ok(), isa.is_supported());
        }
        assert!(CpuFeatures::available().iter().any(|f| f.isa() == Isa::Scalar));
        assert!(CpuFeatures::available().contains(&CpuFeatures::best()));
    }
}
