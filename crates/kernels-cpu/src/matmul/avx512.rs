//! AVX-512 with VNNI: a vector holds 16 output rows by four inputs.

use super::format::{Bits, Format, Kind, with_format};
use super::generic::{self, Dot, Planes, Product, Terms};
use super::{Columns, FloatColumns, Int8Columns, Output, Scratch};
use crate::pack::{Codes, PackedMatrix, Scales};
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// The CPU has AVX-512 F, BW, VL, DQ and VNNI; shapes were checked.
pub(super) unsafe fn run(
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
    // SAFETY: the caller's contract.
    unsafe {
        match columns {
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn int8<F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe { generic::int8::<Avx512, F>(product, panels, a, scratch) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn mixed<F: Format>(product: Product<'_>, panels: Range<usize>, a: &FloatColumns<'_>) {
    // SAFETY: the caller's contract.
    unsafe { generic::mixed::<Avx512, F>(product, panels, a) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn floats(codes: Codes, product: Product<'_>, panels: Range<usize>, a: &FloatColumns<'_>) {
    // A constant in each arm, so that the loop is compiled for it.
    // SAFETY: the caller's contract.
    unsafe {
        match codes {
            Codes::F16 => generic::floats::<Avx512>(Codes::F16, product, panels, a),
            Codes::BF16 => generic::floats::<Avx512>(Codes::BF16, product, panels, a),
            _ => generic::floats::<Avx512>(Codes::F32, product, panels, a),
        }
    }
}

/// `codes[g] |= moved & mask` for each group.
macro_rules! or_bits {
    ($codes:ident, $mask:expr, { $($g:literal => $moved:expr),* $(,)? }) => {
        let mask = _mm512_set1_epi8($mask);
        $( $codes[$g] = _mm512_ternarylogic_epi32::<0xf8>($codes[$g], $moved, mask); )*
    };
}

#[derive(Clone, Copy)]
struct Avx512;

// SAFETY (all blocks below): the trait's contract: the instruction set is there, and pointers are
// readable or writable for what is loaded or stored.
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once above")]
impl Dot for Avx512 {
    const ROWS: usize = 16;
    const FEW: usize = 8;
    const PREFETCH_BYTES: usize = 4096;
    const TILES: bool = false;
    type F = __m512;
    type C = __m512i;
    type Acc = [__m512i; 2];
    type X = __m512i;

    #[inline(always)]
    unsafe fn codes<F: Format>(planes: &Planes, b: usize, _part: usize) -> [__m512i; 8] {
        let (low_bytes, high_bytes) = F::CODES.plane_bytes();
        unsafe {
            let low = planes.low.add(b * low_bytes);
            let high = planes.high.add(b * high_bytes);
            if matches!(F::CODES, Codes::Bits5And3) {
                return split_codes(low, high, planes.rest.add(b * F::CODES.rest_bytes()));
            }
            let mut codes = low_codes::<F>(low);
            or_high::<F>(&mut codes, high);
            if F::BOOK {
                let book = _mm_loadu_si128(planes.book.as_ptr().cast());
                let book = _mm_xor_si128(book, _mm_set1_epi8(-128));
                let book = _mm512_broadcast_i32x4(book);
                for code in &mut codes {
                    *code = _mm512_shuffle_epi8(book, *code);
                }
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn get_codes(at: *const u8) -> __m512i {
        unsafe { _mm512_load_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn put_codes(at: *mut u8, codes: __m512i) {
        unsafe { _mm512_store_si512(at.cast(), codes) }
    }

    #[inline(always)]
    unsafe fn terms<F: Format>(planes: &Planes, b: usize, _part: usize) -> Terms<__m512> {
        unsafe {
            Terms {
                scale: scale::<F>(planes, b),
                halves: half_scales::<F>(planes, b),
                mins: mins::<F>(planes, b),
            }
        }
    }

    #[inline(always)]
    unsafe fn inputs(q: *const i8) -> __m512i {
        unsafe { _mm512_set1_epi32(q.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn start<F: Format>(sums: *const i16) -> [__m512i; 2] {
        unsafe {
            let zero = _mm512_setzero_si512();
            if F::UNSIGNED_OFFSET == 0 {
                return [zero; 2];
            }
            let sums = _mm512_set1_epi32(sums.cast::<i32>().read_unaligned());
            let minus = i32::from(-F::UNSIGNED_OFFSET) & 0xffff;
            if F::HALVES {
                let first = _mm512_madd_epi16(sums, _mm512_set1_epi32(minus));
                [first, _mm512_madd_epi16(sums, _mm512_set1_epi32(minus << 16))]
            } else {
                [_mm512_madd_epi16(sums, _mm512_set1_epi32(minus | minus << 16)), zero]
            }
        }
    }

    #[inline(always)]
    unsafe fn step<F: Format>(acc: &mut [__m512i; 2], g: usize, codes: __m512i, x: __m512i) {
        let half = if F::HALVES { g / 4 } else { 0 };
        unsafe { acc[half] = _mm512_dpbusd_epi32(acc[half], codes, x) }
    }

    #[inline(always)]
    unsafe fn sums<F: Format>(acc: [__m512i; 2]) -> [__m512; 2] {
        unsafe { acc.map(|i| _mm512_cvtepi32_ps(i)) }
    }

    #[inline(always)]
    unsafe fn code_float<F: Format>(codes: __m512i, i: usize) -> __m512 {
        unsafe {
            let moved = match i {
                0 => codes,
                1 => _mm512_srli_epi32::<8>(codes),
                2 => _mm512_srli_epi32::<16>(codes),
                _ => _mm512_srli_epi32::<24>(codes),
            };
            let code = _mm512_and_si512(moved, _mm512_set1_epi32(255));
            let offset = _mm512_set1_epi32(i32::from(F::UNSIGNED_OFFSET));
            _mm512_cvtepi32_ps(_mm512_sub_epi32(code, offset))
        }
    }

    #[inline(always)]
    unsafe fn weights(codes: Codes, at: *const u8) -> __m512 {
        unsafe {
            match codes {
                Codes::F16 => half_floats(at),
                Codes::BF16 => {
                    let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
                }
                _ => _mm512_loadu_ps(at.cast()),
            }
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn put(at: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(at, x) }
    }

    #[inline(always)]
    unsafe fn get(at: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

#[inline(always)]
unsafe fn half_floats(p: *const u8) -> __m512 {
    // SAFETY: 16 half floats are readable.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
}

#[inline(always)]
unsafe fn unsigned(p: *const u8) -> __m512 {
    // SAFETY: 16 bytes are readable.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
}

#[inline(always)]
unsafe fn signed(p: *const u8) -> __m512 {
    // SAFETY: 16 bytes are readable.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
}

/// The low planes' codes, as unsigned bytes.
#[inline(always)]
unsafe fn low_codes<F: Format>(low: *const u8) -> [__m512i; 8] {
    // SAFETY: the block lies in the plane.
    unsafe {
        let at = |i: usize| _mm512_loadu_si512(low.add(64 * i).cast());
        let mut codes = [_mm512_setzero_si512(); 8];
        match F::CODES {
            Codes::Bits8 => {
                let flip = _mm512_set1_epi8(if F::UNPACKED { 0 } else { -128 });
                for (g, code) in codes.iter_mut().enumerate() {
                    *code = _mm512_xor_si512(at(g), flip);
                }
            }
            Codes::Bits4 | Codes::Bits5 | Codes::Bits6 => {
                let nibble = _mm512_set1_epi8(15);
                for g in 0..4 {
                    let both = at(g);
                    codes[g] = _mm512_and_si512(both, nibble);
                    codes[g + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
                }
            }
            _ => {
                let pair = _mm512_set1_epi8(3);
                for i in 0..2 {
                    let four = at(i);
                    codes[4 * i] = _mm512_and_si512(four, pair);
                    codes[4 * i + 1] = _mm512_and_si512(_mm512_srli_epi16::<2>(four), pair);
                    codes[4 * i + 2] = _mm512_and_si512(_mm512_srli_epi16::<4>(four), pair);
                    codes[4 * i + 3] = _mm512_and_si512(_mm512_srli_epi16::<6>(four), pair);
                }
            }
        }
        codes
    }
}

/// Split codes put together, as unsigned bytes: bit 7 from the high plane, bits 3 to 6 from the low
/// one, bits 0 to 2 from behind the panels.
#[inline(always)]
unsafe fn split_codes(low: *const u8, high: *const u8, rest: *const u8) -> [__m512i; 8] {
    // SAFETY: the block lies in the planes.
    unsafe {
        let at = |p: *const u8, i: usize| _mm512_loadu_si512(p.add(64 * i).cast());
        // `a` where the mask has ones, else `b`.
        macro_rules! select {
            ($mask:literal, $a:expr, $b:expr) => {
                _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8($mask as i8), $a, $b)
            };
        }
        macro_rules! code {
            ($top:expr, $middle:expr, $rest:expr) => {
                select!(0x78, $middle, select!(0x80u8, $top, $rest))
            };
        }
        let [n0, n1, n2, n3] = [0, 1, 2, 3].map(|i| at(low, i));
        let [r0, r1, r2] = [0, 1, 2].map(|i| at(rest, i));
        let top = at(high, 0);
        let sixth = select!(2, _mm512_srli_epi16::<5>(r1), _mm512_srli_epi16::<4>(r2));
        let seventh = select!(2, _mm512_srli_epi16::<6>(r1), _mm512_srli_epi16::<5>(r2));
        [
            code!(_mm512_slli_epi16::<7>(top), _mm512_slli_epi16::<3>(n0), r0),
            code!(
                _mm512_slli_epi16::<6>(top),
                _mm512_slli_epi16::<3>(n1),
                _mm512_srli_epi16::<3>(r0)
            ),
            code!(_mm512_slli_epi16::<5>(top), _mm512_slli_epi16::<3>(n2), r1),
            code!(
                _mm512_slli_epi16::<4>(top),
                _mm512_slli_epi16::<3>(n3),
                _mm512_srli_epi16::<3>(r1)
            ),
            code!(_mm512_slli_epi16::<3>(top), _mm512_srli_epi16::<1>(n0), r2),
            code!(
                _mm512_slli_epi16::<2>(top),
                _mm512_srli_epi16::<1>(n1),
                _mm512_srli_epi16::<3>(r2)
            ),
            code!(
                _mm512_slli_epi16::<1>(top),
                _mm512_srli_epi16::<1>(n2),
                select!(1, _mm512_srli_epi16::<6>(r0), sixth)
            ),
            code!(top, _mm512_srli_epi16::<1>(n3), select!(1, _mm512_srli_epi16::<7>(r0), seventh)),
        ]
    }
}

/// Adds the high plane's bits to the codes.
#[inline(always)]
unsafe fn or_high<F: Format>(codes: &mut [__m512i; 8], high: *const u8) {
    // SAFETY: the block lies in the plane.
    unsafe {
        let at = |i: usize| _mm512_loadu_si512(high.add(64 * i).cast());
        match F::CODES {
            Codes::Bits3 => {
                let bits = at(0);
                or_bits!(codes, 4, {
                    0 => _mm512_slli_epi16::<2>(bits), 1 => _mm512_slli_epi16::<1>(bits),
                    2 => bits, 3 => _mm512_srli_epi16::<1>(bits),
                    4 => _mm512_srli_epi16::<2>(bits), 5 => _mm512_srli_epi16::<3>(bits),
                    6 => _mm512_srli_epi16::<4>(bits), 7 => _mm512_srli_epi16::<5>(bits),
                });
            }
            Codes::Bits5 => {
                let bits = at(0);
                or_bits!(codes, 16, {
                    0 => _mm512_slli_epi16::<4>(bits), 1 => _mm512_slli_epi16::<3>(bits),
                    2 => _mm512_slli_epi16::<2>(bits), 3 => _mm512_slli_epi16::<1>(bits),
                    4 => bits, 5 => _mm512_srli_epi16::<1>(bits),
                    6 => _mm512_srli_epi16::<2>(bits), 7 => _mm512_srli_epi16::<3>(bits),
                });
            }
            Codes::Bits6 => {
                let (a, b) = (at(0), at(1));
                or_bits!(codes, 48, {
                    0 => _mm512_slli_epi16::<4>(a), 1 => _mm512_slli_epi16::<2>(a),
                    2 => a, 3 => _mm512_srli_epi16::<2>(a),
                    4 => _mm512_slli_epi16::<4>(b), 5 => _mm512_slli_epi16::<2>(b),
                    6 => b, 7 => _mm512_srli_epi16::<2>(b),
                });
            }
            _ => {}
        }
    }
}

/// The block's scale of each row.
#[inline(always)]
unsafe fn scale<F: Format>(planes: &Planes, b: usize) -> __m512 {
    // SAFETY: block `b` and its super block lie in the planes.
    unsafe {
        match F::SCALES {
            Scales::Block | Scales::BlockMin => half_floats(planes.scales.add(32 * b)),
            Scales::Exponent => {
                let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(planes.scales.add(16 * b).cast()));
                let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
                // Exponents 0 and 1 give subnormals: 2^-128 and 2^-127.
                let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
                let is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
                _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small))
            }
            Scales::Super => {
                let sub = signed(planes.scales.add(16 * b));
                _mm512_mul_ps(half_floats(planes.supers.add(32 * (b / 8))), sub)
            }
            Scales::SuperMin => {
                let sub = unsigned(planes.scales.add(16 * b));
                _mm512_mul_ps(half_floats(planes.supers.add(64 * (b / 8))), sub)
            }
            Scales::SuperHalf => half_floats(planes.supers.add(32 * (b / 8))),
            Scales::SuperHalfMin => half_floats(planes.supers.add(64 * (b / 8))),
            Scales::None => unreachable!("float weights have no scales"),
        }
    }
}

/// The integer scales of the two half blocks.
#[inline(always)]
unsafe fn half_scales<F: Format>(planes: &Planes, b: usize) -> [__m512; 2] {
    // SAFETY: block `b` lies in the plane.
    unsafe {
        match F::SCALES {
            Scales::SuperHalf => {
                let at = planes.scales.add(32 * b);
                [signed(at), signed(at.add(16))]
            }
            Scales::SuperHalfMin => {
                let at = planes.scales.add(32 * b);
                [unsigned(at), unsigned(at.add(16))]
            }
            _ => [_mm512_setzero_ps(); 2],
        }
    }
}

/// Minimums, as [`Terms::mins`] says.
#[inline(always)]
unsafe fn mins<F: Format>(planes: &Planes, b: usize) -> [__m512; 3] {
    // SAFETY: block `b` and its super block lie in the planes.
    unsafe {
        let zero = _mm512_setzero_ps();
        let negate = |x: __m512| _mm512_xor_ps(x, _mm512_set1_ps(-0.0));
        match F::SCALES {
            Scales::BlockMin => [half_floats(planes.mins.add(32 * b)), zero, zero],
            Scales::SuperMin => {
                let m = unsigned(planes.mins.add(16 * b));
                let dmin = half_floats(planes.supers.add(64 * (b / 8) + 32));
                [negate(_mm512_mul_ps(dmin, m)), zero, zero]
            }
            Scales::SuperHalfMin => {
                let at = planes.mins.add(32 * b);
                let dmin = half_floats(planes.supers.add(64 * (b / 8) + 32));
                [negate(dmin), unsigned(at), unsigned(at.add(16))]
            }
            _ => [zero; 3],
        }
    }
}
