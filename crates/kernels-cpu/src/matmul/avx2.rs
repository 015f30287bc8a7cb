//! AVX2 with FMA and F16C, and AVX-VNNI where the CPU has it: a vector holds 8 output rows by four
//! inputs, half a panel.

use super::format::{Bits, Format, Kind, with_format};
use super::generic::{self, ColumnBlock, Dot, Planes, Product, Terms, tile_steps};
use super::{Columns, FloatColumns, Int8Columns, Output, Scratch};
use crate::isa::CpuFeatures;
use crate::pack::{Codes, PackedMatrix, Scales};
use std::arch::{asm, x86_64::*};
use std::ops::Range;

/// # Safety
/// The CPU has AVX2, FMA and F16C, and AVX-VNNI where `cpu` says so; shapes were checked.
pub(super) unsafe fn run(
    cpu: CpuFeatures,
    bits: Bits,
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    columns: &Columns<'_>,
    out: &Output,
    scratch: &mut Scratch,
) {
    let kind = || Kind::of(w.layout().spec(), bits);
    let split = matches!(columns, Columns::Split(_));
    let product = Product { w, out, split };
    let vnni = cpu.avx_vnni();
    // SAFETY: the caller's contract.
    unsafe {
        match columns {
            Columns::Int8(a) | Columns::Split(a) if vnni => {
                with_format!(kind(), F => int8_vnni::<F>(product, panels, a, scratch))
            }
            Columns::Int8(a) | Columns::Split(a) => {
                with_format!(kind(), F => int8::<F>(product, panels, a, scratch))
            }
            Columns::Float(a) => match w.layout().spec().codes {
                codes @ (Codes::F16 | Codes::BF16 | Codes::F32) => {
                    floats(codes, product, panels, a);
                }
                _ => with_format!(kind(), F => mixed::<F>(product, panels, a)),
            },
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8<F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe { generic::int8::<Avx2<false>, F>(product, panels, a, scratch) }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn int8_vnni<F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe { generic::int8::<Avx2<true>, F>(product, panels, a, scratch) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn mixed<F: Format>(product: Product<'_>, panels: Range<usize>, a: &FloatColumns<'_>) {
    // SAFETY: the caller's contract.
    unsafe { generic::mixed::<Avx2<false>, F>(product, panels, a) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn floats(codes: Codes, product: Product<'_>, panels: Range<usize>, a: &FloatColumns<'_>) {
    // A constant in each arm, so that the loop is compiled for it.
    // SAFETY: the caller's contract.
    unsafe {
        match codes {
            Codes::F16 => generic::floats::<Avx2<false>>(Codes::F16, product, panels, a),
            Codes::BF16 => generic::floats::<Avx2<false>>(Codes::BF16, product, panels, a),
            _ => generic::floats::<Avx2<false>>(Codes::F32, product, panels, a),
        }
    }
}

/// AVX2 vectors; with `VNNI` codes are made unsigned and summed by `vpdpbusd`.
#[derive(Clone, Copy)]
struct Avx2<const VNNI: bool>;

/// Multiply-add steps that an int16 lane takes before it must be widened; the bounds stand in the
/// parent module's documentation.
const fn steps<F: Format>() -> usize {
    if F::SIGNED {
        return 1;
    }
    match F::CODES {
        Codes::Bits6 => 2,
        Codes::Bits5 => 4,
        _ if F::HALVES => 4,
        _ => 8,
    }
}

// SAFETY (all blocks below): the trait's contract: the instruction set is there, and pointers are
// readable or writable for what is loaded or stored.
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once above")]
impl<const VNNI: bool> Dot for Avx2<VNNI> {
    const ROWS: usize = 8;
    const FEW: usize = 4;
    const PREFETCH_BYTES: usize = 2560;
    const TILES: bool = true;
    type F = __m256;
    type C = __m256i;
    /// The halves' int32 sums, and the int16 sums that are not yet widened.
    type Acc = ([__m256i; 2], __m256i);
    type X = __m256i;

    #[inline(always)]
    unsafe fn codes<F: Format>(planes: &Planes, b: usize, part: usize) -> [__m256i; 8] {
        let (low_bytes, high_bytes) = F::CODES.plane_bytes();
        unsafe {
            let low = planes.low.add(b * low_bytes + 32 * part);
            let high = planes.high.add(b * high_bytes + 32 * part);
            let mut codes = low_codes::<F>(low);
            or_high::<F>(&mut codes, high);
            let split = matches!(F::CODES, Codes::Bits5And3);
            if split {
                or_rest(&mut codes, planes.rest.add(b * F::CODES.rest_bytes() + 32 * part));
            }
            if F::BOOK {
                let book =
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(planes.book.as_ptr().cast()));
                for code in &mut codes {
                    *code = _mm256_shuffle_epi8(book, *code);
                }
            }
            // Split codes are unsigned by now, the others signed.
            if F::SIGNED && VNNI != split {
                for code in &mut codes {
                    *code = _mm256_xor_si256(*code, _mm256_set1_epi8(-128));
                }
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn get_codes(at: *const u8) -> __m256i {
        unsafe { _mm256_load_si256(at.cast()) }
    }

    #[inline(always)]
    unsafe fn put_codes(at: *mut u8, codes: __m256i) {
        unsafe { _mm256_store_si256(at.cast(), codes) }
    }

    #[inline(always)]
    unsafe fn terms<F: Format>(planes: &Planes, b: usize, part: usize) -> Terms<__m256> {
        unsafe {
            Terms {
                scale: scale::<F>(planes, b, part),
                halves: half_scales::<F>(planes, b, part),
                mins: mins::<F>(planes, b, part),
            }
        }
    }

    #[inline(always)]
    unsafe fn inputs(q: *const i8) -> __m256i {
        unsafe { _mm256_set1_epi32(q.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn start<F: Format>(sums: *const i16) -> Self::Acc {
        unsafe {
            let zero = _mm256_setzero_si256();
            if F::UNSIGNED_OFFSET == 0 || (F::SIGNED && !VNNI) {
                return ([zero; 2], zero);
            }
            let sums = _mm256_set1_epi32(sums.cast::<i32>().read_unaligned());
            let minus = i32::from(-F::UNSIGNED_OFFSET) & 0xffff;
            let of = |factors: i32| _mm256_madd_epi16(sums, _mm256_set1_epi32(factors));
            if F::HALVES {
                ([of(minus), of(minus << 16)], zero)
            } else {
                ([of(minus | minus << 16), zero], zero)
            }
        }
    }

    #[inline(always)]
    unsafe fn step<F: Format>(acc: &mut Self::Acc, g: usize, codes: __m256i, x: __m256i) {
        let half = if F::HALVES { g / 4 } else { 0 };
        unsafe {
            if VNNI {
                acc.0[half] = _mm256_dpbusd_avx_epi32(acc.0[half], codes, x);
                return;
            }
            let products = if F::SIGNED {
                _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
            } else {
                _mm256_maddubs_epi16(codes, x)
            };
            let steps = const { steps::<F>() };
            acc.1 =
                if g.is_multiple_of(steps) { products } else { _mm256_add_epi16(acc.1, products) };
            if g % steps == steps - 1 {
                let wide = _mm256_madd_epi16(acc.1, _mm256_set1_epi16(1));
                acc.0[half] = _mm256_add_epi32(acc.0[half], wide);
            }
        }
    }

    #[inline(always)]
    unsafe fn tile_sums<F: Format, const C: usize>(
        codes: *const u8,
        columns: &[ColumnBlock; C],
    ) -> [[Self::Acc; C]; 2] {
        unsafe {
            let steps = const { steps::<F>() };
            if VNNI || C != 4 || steps == 1 {
                return tile_steps::<Self, F, C>(codes, columns);
            }
            let mut sums = [std::array::from_fn(|c| Self::start::<F>(columns[c].sums)); 2];
            let q = columns[0].q;
            let stride = columns[1].q as usize - q as usize;
            match steps {
                8 => widen(&mut sums, int16_sums_of_8(codes, q, stride), 0),
                4 => {
                    widen(&mut sums, int16_sums_of_4(codes, q, stride), 0);
                    let second = int16_sums_of_4(codes.add(128), q.add(16), stride);
                    widen(&mut sums, second, usize::from(F::HALVES));
                }
                _ => {
                    for i in 0..4 {
                        let short = int16_sums_of_2(codes.add(64 * i), q.add(8 * i), stride);
                        widen(&mut sums, short, if F::HALVES { i / 2 } else { 0 });
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn sums<F: Format>(acc: Self::Acc) -> [__m256; 2] {
        unsafe { acc.0.map(|i| _mm256_cvtepi32_ps(i)) }
    }

    #[inline(always)]
    unsafe fn code_float<F: Format>(codes: __m256i, i: usize) -> __m256 {
        unsafe {
            if F::SIGNED && !VNNI {
                let up = match i {
                    0 => _mm256_slli_epi32::<24>(codes),
                    1 => _mm256_slli_epi32::<16>(codes),
                    2 => _mm256_slli_epi32::<8>(codes),
                    _ => codes,
                };
                return _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(up));
            }
            let moved = match i {
                0 => codes,
                1 => _mm256_srli_epi32::<8>(codes),
                2 => _mm256_srli_epi32::<16>(codes),
                _ => _mm256_srli_epi32::<24>(codes),
            };
            let code = _mm256_and_si256(moved, _mm256_set1_epi32(255));
            let offset = _mm256_set1_epi32(i32::from(F::UNSIGNED_OFFSET));
            _mm256_cvtepi32_ps(_mm256_sub_epi32(code, offset))
        }
    }

    #[inline(always)]
    unsafe fn weights(codes: Codes, at: *const u8) -> __m256 {
        unsafe {
            match codes {
                Codes::F16 => half_floats(at),
                Codes::BF16 => {
                    let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
                }
                _ => _mm256_loadu_ps(at.cast()),
            }
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn put(at: *mut f32, x: __m256) {
        unsafe { _mm256_storeu_ps(at, x) }
    }

    #[inline(always)]
    unsafe fn get(at: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// Sums of a block of two parts by four columns.
type TileSums<const C: usize> = [[([__m256i; 2], __m256i); C]; 2];

/// Adds the pairwise sums of int16 sums, in [`int16_sums_of_8`]'s order, to half
/// `to`.
#[inline(always)]
unsafe fn widen<const C: usize>(sums: &mut TileSums<C>, short: [__m256i; 8], to: usize) {
    for (i, short) in short.into_iter().enumerate() {
        let acc = &mut sums[i % 2][i / 2].0[to];
        // SAFETY: the caller has AVX2.
        unsafe {
            let wide = _mm256_madd_epi16(short, _mm256_set1_epi16(1));
            *acc = _mm256_add_epi32(*acc, wide);
        }
    }
}

/// One code group of two parts times four columns, each product added to (or, for the first group,
/// put into) its int16 sum. Written out because the compiler, left to itself, hoists loads and
/// spills.
macro_rules! group {
    ($at:literal, $q:literal, $first:tt) => {
        concat!(
            "vmovdqa {w0}, [{codes} + ", $at, "]\n",
            "vmovdqa {w1}, [{codes} + ", $at, " + 256]\n",
            "vpbroadcastd {x0}, [{q} + ", $q, "]\n",
            "vpbroadcastd {x1}, [{q} + {stride} + ", $q, "]\n",
            group!(@add $first, "a0", "w0", "x0", "t0"),
            group!(@add $first, "a1", "w1", "x0", "t1"),
            "vpbroadcastd {x0}, [{q} + 2*{stride} + ", $q, "]\n",
            group!(@add $first, "a2", "w0", "x1", "t0"),
            group!(@add $first, "a3", "w1", "x1", "t1"),
            "vpbroadcastd {x1}, [{q} + {stride3} + ", $q, "]\n",
            group!(@add $first, "a4", "w0", "x0", "t0"),
            group!(@add $first, "a5", "w1", "x0", "t1"),
            group!(@add $first, "a6", "w0", "x1", "t0"),
            group!(@add $first, "a7", "w1", "x1", "t1"),
        )
    };
    (@add true, $a:literal, $w:literal, $x:literal, $t:literal) => {
        concat!("vpmaddubsw {", $a, "}, {", $w, "}, {", $x, "}\n")
    };
    (@add false, $a:literal, $w:literal, $x:literal, $t:literal) => {
        concat!(
            "vpmaddubsw {", $t, "}, {", $w, "}, {", $x, "}\n",
            "vpaddw {", $a, "}, {", $a, "}, {", $t, "}\n",
        )
    };
}

/// A function that sums the named groups; element `2 c + p` of its result is part `p`, column `c`.
macro_rules! int16_sums {
    ($name:ident, $($group:expr),*) => {
        /// # Safety
        /// AVX2; two parts of codes and four columns are readable.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name(codes: *const u8, q: *const i8, stride: usize) -> [__m256i; 8] {
            let (a0, a1, a2, a3): (__m256i, __m256i, __m256i, __m256i);
            let (a4, a5, a6, a7): (__m256i, __m256i, __m256i, __m256i);
            // SAFETY: reads only what the caller's contract says, and writes registers alone.
            unsafe {
                asm!(
                    $($group),*,
                    codes = in(reg) codes, q = in(reg) q,
                    stride = in(reg) stride, stride3 = in(reg) 3 * stride,
                    a0 = out(ymm_reg) a0, a1 = out(ymm_reg) a1,
                    a2 = out(ymm_reg) a2, a3 = out(ymm_reg) a3,
                    a4 = out(ymm_reg) a4, a5 = out(ymm_reg) a5,
                    a6 = out(ymm_reg) a6, a7 = out(ymm_reg) a7,
                    w0 = out(ymm_reg) _, w1 = out(ymm_reg) _,
                    x0 = out(ymm_reg) _, x1 = out(ymm_reg) _,
                    t0 = out(ymm_reg) _, t1 = out(ymm_reg) _,
                    options(nostack, readonly, pure, preserves_flags),
                );
            }
            [a0, a1, a2, a3, a4, a5, a6, a7]
        }
    };
}

int16_sums!(
    int16_sums_of_8,
    group!("0", "0", true),
    group!("32", "4", false),
    group!("64", "8", false),
    group!("96", "12", false),
    group!("128", "16", false),
    group!("160", "20", false),
    group!("192", "24", false),
    group!("224", "28", false)
);
int16_sums!(int16_sums_of_2, group!("0", "0", true), group!("32", "4", false));
int16_sums!(
    int16_sums_of_4,
    group!("0", "0", true),
    group!("32", "4", false),
    group!("64", "8", false),
    group!("96", "12", false)
);

#[inline(always)]
unsafe fn half_floats(p: *const u8) -> __m256 {
    // SAFETY: 8 half floats are readable.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

#[inline(always)]
unsafe fn unsigned(p: *const u8) -> __m256 {
    // SAFETY: 8 bytes are readable.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
}

#[inline(always)]
unsafe fn signed(p: *const u8) -> __m256 {
    // SAFETY: 8 bytes are readable.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
}

/// The low planes' codes: unsigned, or signed where whole bytes are stored.
#[inline(always)]
unsafe fn low_codes<F: Format>(low: *const u8) -> [__m256i; 8] {
    // SAFETY: the part of the block lies in the plane.
    unsafe {
        let at = |i: usize| _mm256_loadu_si256(low.add(64 * i).cast());
        let mut codes = [_mm256_setzero_si256(); 8];
        match F::CODES {
            Codes::Bits8 => {
                for (g, code) in codes.iter_mut().enumerate() {
                    *code = at(g);
                }
            }
            Codes::Bits4 | Codes::Bits5 | Codes::Bits5And3 | Codes::Bits6 => {
                let nibble = _mm256_set1_epi8(15);
                for g in 0..4 {
                    let both = at(g);
                    codes[g] = _mm256_and_si256(both, nibble);
                    codes[g + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble);
                }
            }
            _ => {
                let pair = _mm256_set1_epi8(3);
                for i in 0..2 {
                    let four = at(i);
                    codes[4 * i] = _mm256_and_si256(four, pair);
                    codes[4 * i + 1] = _mm256_and_si256(_mm256_srli_epi16::<2>(four), pair);
                    codes[4 * i + 2] = _mm256_and_si256(_mm256_srli_epi16::<4>(four), pair);
                    codes[4 * i + 3] = _mm256_and_si256(_mm256_srli_epi16::<6>(four), pair);
                }
            }
        }
        codes
    }
}

/// `codes[g] |= moved & mask` for each group.
macro_rules! or_bits {
    ($codes:ident, $mask:expr, { $($g:literal => $moved:expr),* $(,)? }) => {
        let mask = _mm256_set1_epi8($mask);
        $( $codes[$g] = _mm256_or_si256($codes[$g], _mm256_and_si256($moved, mask)); )*
    };
}

/// Adds the high plane's bits to the codes.
#[inline(always)]
unsafe fn or_high<F: Format>(codes: &mut [__m256i; 8], high: *const u8) {
    // SAFETY: the part of the block lies in the plane.
    unsafe {
        let at = |i: usize| _mm256_loadu_si256(high.add(64 * i).cast());
        match F::CODES {
            Codes::Bits3 => {
                let bits = at(0);
                or_bits!(codes, 4, {
                    0 => _mm256_slli_epi16::<2>(bits), 1 => _mm256_slli_epi16::<1>(bits),
                    2 => bits, 3 => _mm256_srli_epi16::<1>(bits),
                    4 => _mm256_srli_epi16::<2>(bits), 5 => _mm256_srli_epi16::<3>(bits),
                    6 => _mm256_srli_epi16::<4>(bits), 7 => _mm256_srli_epi16::<5>(bits),
                });
            }
            Codes::Bits5 | Codes::Bits5And3 => {
                let bits = at(0);
                or_bits!(codes, 16, {
                    0 => _mm256_slli_epi16::<4>(bits), 1 => _mm256_slli_epi16::<3>(bits),
                    2 => _mm256_slli_epi16::<2>(bits), 3 => _mm256_slli_epi16::<1>(bits),
                    4 => bits, 5 => _mm256_srli_epi16::<1>(bits),
                    6 => _mm256_srli_epi16::<2>(bits), 7 => _mm256_srli_epi16::<3>(bits),
                });
            }
            Codes::Bits6 => {
                let (a, b) = (at(0), at(1));
                or_bits!(codes, 48, {
                    0 => _mm256_slli_epi16::<4>(a), 1 => _mm256_slli_epi16::<2>(a),
                    2 => a, 3 => _mm256_srli_epi16::<2>(a),
                    4 => _mm256_slli_epi16::<4>(b), 5 => _mm256_slli_epi16::<2>(b),
                    6 => b, 7 => _mm256_srli_epi16::<2>(b),
                });
            }
            _ => {}
        }
    }
}

/// Puts the three low bits below the five that split codes have in the panel.
#[inline(always)]
unsafe fn or_rest(codes: &mut [__m256i; 8], rest: *const u8) {
    // SAFETY: the part of the block lies behind the panels.
    unsafe {
        let [r0, r1, r2] = [0, 64, 128].map(|i| _mm256_loadu_si256(rest.add(i).cast()));
        let bit = |value: __m256i, mask: i8| _mm256_and_si256(value, _mm256_set1_epi8(mask));
        let or = |a: __m256i, b: __m256i| _mm256_or_si256(a, b);
        let three = |value: __m256i| bit(value, 7);
        let sixth = or(bit(_mm256_srli_epi16::<6>(r0), 1), bit(_mm256_srli_epi16::<5>(r1), 2));
        let seventh = or(bit(_mm256_srli_epi16::<7>(r0), 1), bit(_mm256_srli_epi16::<6>(r1), 2));
        let low = [
            three(r0),
            three(_mm256_srli_epi16::<3>(r0)),
            three(r1),
            three(_mm256_srli_epi16::<3>(r1)),
            three(r2),
            three(_mm256_srli_epi16::<3>(r2)),
            or(sixth, bit(_mm256_srli_epi16::<4>(r2), 4)),
            or(seventh, bit(_mm256_srli_epi16::<5>(r2), 4)),
        ];
        for (code, low) in codes.iter_mut().zip(low) {
            // Five bits moved up by three stay within their byte.
            *code = or(_mm256_slli_epi16::<3>(*code), low);
        }
    }
}

/// The block's scale of each row of a part.
#[inline(always)]
unsafe fn scale<F: Format>(planes: &Planes, b: usize, part: usize) -> __m256 {
    // SAFETY: block `b` and its super block lie in the planes.
    unsafe {
        let bytes = planes.scales.add(16 * b + 8 * part);
        let supers = |size: usize| half_floats(planes.supers.add(size * (b / 8) + 16 * part));
        match F::SCALES {
            Scales::Block | Scales::BlockMin => half_floats(planes.scales.add(32 * b + 16 * part)),
            Scales::Exponent => {
                let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.cast()));
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
                // Exponents 0 and 1 give subnormals: 2^-128 and 2^-127.
                let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
                let is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
                _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, is_normal))
            }
            Scales::Super => _mm256_mul_ps(supers(32), signed(bytes)),
            Scales::SuperMin => _mm256_mul_ps(supers(64), unsigned(bytes)),
            Scales::SuperHalf => supers(32),
            Scales::SuperHalfMin => supers(64),
            Scales::None => unreachable!("float weights have no scales"),
        }
    }
}

/// The integer scales of the two half blocks.
#[inline(always)]
unsafe fn half_scales<F: Format>(planes: &Planes, b: usize, part: usize) -> [__m256; 2] {
    // SAFETY: block `b` lies in the plane.
    unsafe {
        let at = planes.scales.wrapping_add(32 * b + 8 * part);
        match F::SCALES {
            Scales::SuperHalf => [signed(at), signed(at.add(16))],
            Scales::SuperHalfMin => [unsigned(at), unsigned(at.add(16))],
            _ => [_mm256_setzero_ps(); 2],
        }
    }
}

/// Minimums, as [`Terms::mins`] says.
#[inline(always)]
unsafe fn mins<F: Format>(planes: &Planes, b: usize, part: usize) -> [__m256; 3] {
    // SAFETY: block `b` and its super block lie in the planes.
    unsafe {
        let zero = _mm256_setzero_ps();
        let negate = |x: __m256| _mm256_xor_ps(x, _mm256_set1_ps(-0.0));
        let dmin = || half_floats(planes.supers.add(64 * (b / 8) + 32 + 16 * part));
        match F::SCALES {
            Scales::BlockMin => [half_floats(planes.mins.add(32 * b + 16 * part)), zero, zero],
            Scales::SuperMin => {
                let m = unsigned(planes.mins.add(16 * b + 8 * part));
                [negate(_mm256_mul_ps(dmin(), m)), zero, zero]
            }
            Scales::SuperHalfMin => {
                let at = planes.mins.add(32 * b + 8 * part);
                [negate(dmin()), unsigned(at), unsigned(at.add(16))]
            }
            _ => [zero; 3],
        }
    }
}
