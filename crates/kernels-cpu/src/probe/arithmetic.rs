//! How many operations a second the vector units do when nothing else is in their way.
//!
//! Each loop keeps its operands in registers and has enough independent sums to hide latency.
//! They are written in assembly, since a compiler may drop, merge or spill what has no use.

use super::timed;
use crate::CpuFeatures;
#[cfg(target_arch = "x86_64")]
use crate::Isa;
use std::time::Duration;

/// Operations a second over all threads (a multiplication and an addition count as two), each the
/// best of a few short runs; `None` where the instruction set has no such loop.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ArithmeticRates {
    /// f32 fused multiply-add.
    pub f32_fma: Option<f64>,
    /// int8 products summed in pairs to int16, then to int32, then added: what 8-bit weights need
    /// without dot-product instructions ("limit A").
    pub int8_a: Option<f64>,
    /// The same with two pair sums added in int16 before they are widened, as weights of fewer bits
    /// allow ("limit B").
    pub int8_b: Option<f64>,
    /// Dot-product instructions of four int8 products into int32 (VNNI).
    pub int8_dot: Option<f64>,
}

impl ArithmeticRates {
    /// The limit of products with weights of `bits` bits by int8 activations: the best loop that is
    /// exact for them.
    pub fn int8_limit(&self, bits: u32) -> Option<f64> {
        let narrow = if bits <= 6 { self.int8_b } else { None };
        [self.int8_a, narrow, self.int8_dot].into_iter().flatten().reduce(f64::max)
    }
}

/// Measures the instruction set's loops on `threads` threads; about 0.1 s.
pub fn arithmetic(features: CpuFeatures, threads: usize) -> ArithmeticRates {
    match features.isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => ArithmeticRates {
            f32_fma: rate(threads, x86::F32_OPS_256, |n| x86::f32_256(features, n)),
            int8_a: rate(threads, x86::A_OPS_256, |n| x86::int8_a_256(features, n)),
            int8_b: rate(threads, x86::B_OPS_256, |n| x86::int8_b_256(features, n)),
            int8_dot: features
                .avx_vnni()
                .then(|| rate(threads, x86::DOT_OPS_256, |n| x86::int8_dot_256(features, n)))
                .flatten(),
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => ArithmeticRates {
            f32_fma: rate(threads, x86::F32_OPS_512, |n| x86::f32_512(features, n)),
            int8_a: rate(threads, x86::A_OPS_512, |n| x86::int8_a_512(features, n)),
            int8_b: rate(threads, x86::B_OPS_512, |n| x86::int8_b_512(features, n)),
            int8_dot: rate(threads, x86::DOT_OPS_512, |n| x86::int8_dot_512(features, n)),
        },
        _ => ArithmeticRates {
            f32_fma: rate(threads, PLAIN_OPS, f32_plain),
            ..ArithmeticRates::default()
        },
    }
}

/// Operations a second of `work(rounds)`, which does `ops` a round: the best of five runs, each
/// long enough for the clock to matter little.
fn rate(threads: usize, ops: u64, work: impl Fn(u64) + Sync) -> Option<f64> {
    let mut rounds = 1 << 12;
    let mut time = timed(threads, |_| work(rounds));
    while time < Duration::from_millis(4) && rounds < 1 << 40 {
        rounds *= 2;
        time = timed(threads, |_| work(rounds));
    }
    let best = (0..4).map(|_| timed(threads, |_| work(rounds))).fold(time, Duration::min);
    let all = (rounds * ops) as f64 * threads.max(1) as f64;
    let rate = all / best.as_secs_f64();
    rate.is_finite().then_some(rate)
}

/// Lanes of the loop without intrinsics.
const PLAIN_LANES: usize = 64;
const PLAIN_OPS: u64 = 2 * PLAIN_LANES as u64;

/// f32 multiply-add as the compiler vectorizes it for the target. Fused where the target always has
/// it; elsewhere `mul_add` would be a function call.
fn f32_plain(rounds: u64) {
    let (a, b) = std::hint::black_box((0.999_f32, 0.001_f32));
    let mut sums = [0.0f32; PLAIN_LANES];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
                sum.mul_add(a, b)
            } else {
                *sum * a + b
            };
        }
    }
    std::hint::black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::{CpuFeatures, Isa};
    use std::arch::asm;

    // Operations of one round: sums, lanes, a multiplication and an addition.
    pub const F32_OPS_256: u64 = 12 * 8 * 2;
    pub const F32_OPS_512: u64 = 12 * 16 * 2;
    pub const A_OPS_256: u64 = 6 * 32 * 2;
    pub const A_OPS_512: u64 = 6 * 64 * 2;
    pub const B_OPS_256: u64 = 4 * 2 * 32 * 2;
    pub const B_OPS_512: u64 = 4 * 2 * 64 * 2;
    pub const DOT_OPS_256: u64 = 12 * 32 * 2;
    pub const DOT_OPS_512: u64 = 12 * 64 * 2;

    /// The instructions of one step, with `y` or `z` registers: operands in 12 and 13, ones in 14.
    macro_rules! step {
        (f32, $r:literal, $sum:literal) => {
            concat!("vfmadd231ps ", $r, "mm", $sum, ", ", $r, "mm12, ", $r, "mm13\n")
        };
        (int8_a, $r:literal, $sum:literal, $t:literal) => {
            concat!(
                "vpmaddubsw ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm12, ",
                $r,
                "mm13\n",
                "vpmaddwd ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm14\n",
                "vpaddd ",
                $r,
                "mm",
                $sum,
                ", ",
                $r,
                "mm",
                $sum,
                ", ",
                $r,
                "mm",
                $t,
                "\n",
            )
        };
        (int8_b, $r:literal, $sum:literal, $t:literal, $u:literal) => {
            concat!(
                "vpmaddubsw ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm12, ",
                $r,
                "mm13\n",
                "vpmaddubsw ",
                $r,
                "mm",
                $u,
                ", ",
                $r,
                "mm13, ",
                $r,
                "mm12\n",
                "vpaddw ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm",
                $u,
                "\n",
                "vpmaddwd ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm",
                $t,
                ", ",
                $r,
                "mm14\n",
                "vpaddd ",
                $r,
                "mm",
                $sum,
                ", ",
                $r,
                "mm",
                $sum,
                ", ",
                $r,
                "mm",
                $t,
                "\n",
            )
        };
        (int8_dot, $r:literal, $prefix:literal, $sum:literal) => {
            concat!($prefix, "vpdpbusd ", $r, "mm", $sum, ", ", $r, "mm12, ", $r, "mm13\n")
        };
    }

    /// A round: as many independent steps as hide the latency.
    macro_rules! round {
        (int8_a, $r:literal) => {
            concat!(
                step!(int8_a, $r, "0", "6"), step!(int8_a, $r, "1", "7"),
                step!(int8_a, $r, "2", "8"), step!(int8_a, $r, "3", "9"),
                step!(int8_a, $r, "4", "10"), step!(int8_a, $r, "5", "11"),
            )
        };
        (int8_b, $r:literal) => {
            concat!(
                step!(int8_b, $r, "0", "4", "8"), step!(int8_b, $r, "1", "5", "9"),
                step!(int8_b, $r, "2", "6", "10"), step!(int8_b, $r, "3", "7", "11"),
            )
        };
        // Twelve steps of one instruction each.
        ($kind:ident, $($head:literal),+) => {
            concat!(
                step!($kind, $($head),+, "0"), step!($kind, $($head),+, "1"),
                step!($kind, $($head),+, "2"), step!($kind, $($head),+, "3"),
                step!($kind, $($head),+, "4"), step!($kind, $($head),+, "5"),
                step!($kind, $($head),+, "6"), step!($kind, $($head),+, "7"),
                step!($kind, $($head),+, "8"), step!($kind, $($head),+, "9"),
                step!($kind, $($head),+, "10"), step!($kind, $($head),+, "11"),
            )
        };
    }

    /// A function that repeats a round. `$operand` fills the operands, 32 bits repeated.
    macro_rules! looped {
        ($name:ident, $isa:expr, $r:literal, $operand:expr, $round:expr) => {
            pub fn $name(features: CpuFeatures, rounds: u64) {
                assert!(features.isa() >= $isa, "checked by the caller");
                // SAFETY: a `CpuFeatures` of this instruction set exists only where the CPU has it.
                // The code touches the registers that it declares and no memory.
                unsafe {
                    asm!(
                        "vmovd xmm12, {operand:e}",
                        concat!("vpbroadcastd ", $r, "mm12, xmm12"),
                        concat!("vpbroadcastd ", $r, "mm13, xmm12"),
                        "vmovd xmm14, {ones:e}",
                        concat!("vpbroadcastd ", $r, "mm14, xmm14"),
                        "2:",
                        $round,
                        "dec {n}",
                        "jnz 2b",
                        "vzeroupper",
                        n = inout(reg) rounds.max(1) => _,
                        operand = in(reg) $operand,
                        ones = in(reg) 0x0001_0001_u32,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack),
                    );
                }
            }
        };
    }

    /// 1.0: sums stay finite for any number of rounds.
    const ONE: u32 = 0x3f80_0000;
    /// Bytes that are small both as signed and as unsigned: no sum saturates.
    const BYTES: u32 = 0x0703_0501;

    looped!(f32_256, Isa::Avx2, "y", ONE, round!(f32, "y"));
    looped!(f32_512, Isa::Avx512, "z", ONE, round!(f32, "z"));
    looped!(int8_a_256, Isa::Avx2, "y", BYTES, round!(int8_a, "y"));
    looped!(int8_a_512, Isa::Avx512, "z", BYTES, round!(int8_a, "z"));
    looped!(int8_b_256, Isa::Avx2, "y", BYTES, round!(int8_b, "y"));
    looped!(int8_b_512, Isa::Avx512, "z", BYTES, round!(int8_b, "z"));
    looped!(int8_dot_vex, Isa::Avx2, "y", BYTES, round!(int8_dot, "y", "{{vex}} "));
    looped!(int8_dot_512, Isa::Avx512, "z", BYTES, round!(int8_dot, "z", ""));

    /// Runs nothing where the CPU lacks AVX-VNNI.
    pub fn int8_dot_256(features: CpuFeatures, rounds: u64) {
        if features.avx_vnni() {
            int8_dot_vex(features, rounds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn every_instruction_set_has_its_loops() {
        for features in CpuFeatures::available() {
            let rates = arithmetic(features, 1);
            let isa = features.isa();
            assert!(rates.f32_fma.is_some_and(|r| r > 1e6), "{isa}: {rates:?}");
            let int8 = matches!(isa, Isa::Avx2 | Isa::Avx512);
            assert_eq!(rates.int8_a.is_some(), int8, "{isa}: {rates:?}");
            assert_eq!(rates.int8_b.is_some(), int8, "{isa}: {rates:?}");
            let dot = features.avx512_vnni() || (isa == Isa::Avx2 && features.avx_vnni());
            assert_eq!(rates.int8_dot.is_some(), dot, "{isa}: {rates:?}");
        }
    }

    #[test]
    fn narrow_weights_may_use_the_loop_with_fewer_widenings() {
        let rates = ArithmeticRates {
            f32_fma: Some(1.0),
            int8_a: Some(2.0),
            int8_b: Some(3.0),
            int8_dot: None,
        };
        assert_eq!(rates.int8_limit(4), Some(3.0));
        assert_eq!(rates.int8_limit(6), Some(3.0));
        assert_eq!(rates.int8_limit(8), Some(2.0));
        assert_eq!(ArithmeticRates { int8_dot: Some(5.0), ..rates }.int8_limit(8), Some(5.0));
        assert_eq!(ArithmeticRates::default().int8_limit(4), None);
    }
}
