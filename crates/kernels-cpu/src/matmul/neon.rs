//! AArch64 Advanced SIMD: a vector holds 4 output rows by four inputs, a quarter of a panel.
//!
//! Three ways to sum bytes exactly: multiplications widening to int16 on any CPU; dot products
//! (`sdot`); and products of small matrices (`smmla`), which take two rows of eight inputs by two
//! columns and serve the many-column kernel. Codes stay unsigned where they fit a signed byte
//! (their offset is taken back through the sums of the inputs) and are signed bytes otherwise.
//! The two newer instructions are written in assembly, since their intrinsics are not stable yet.

use super::format::{Bits, Format, Kind, with_format};
use super::generic::{self, ColumnBlock, Dot, Planes, Product, Terms};
use super::{Columns, FloatColumns, Int8Columns, Output, Scratch};
use crate::isa::CpuFeatures;
use crate::pack::{Codes, PackedMatrix, Scales};
use crate::simd::neon::{f32_of_f16, prefetch};
use std::arch::{aarch64::*, asm};
use std::ops::Range;

/// # Safety
/// The CPU has Advanced SIMD and what else `cpu` says; shapes were checked.
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
    let a = match columns {
        Columns::Int8(a) | Columns::Split(a) => a,
        Columns::Float(a) => {
            // SAFETY: the caller's contract.
            return unsafe {
                match w.layout().spec().codes {
                    codes @ (Codes::F16 | Codes::BF16 | Codes::F32) => {
                        floats(codes, product, panels, a);
                    }
                    _ => with_format!(kind(), F => mixed::<F>(product, panels, a)),
                }
            };
        }
    };
    macro_rules! run {
        ($kernel:ident) => {
            with_format!(kind(), F => $kernel::<F>(product, panels, a, scratch))
        };
    }
    // SAFETY: the caller's contract.
    unsafe {
        if cpu.dotprod() && cpu.i8mm() {
            run!(int8_i8mm)
        } else if cpu.dotprod() {
            run!(int8_dotprod)
        } else {
            run!(int8)
        }
    }
}

#[target_feature(enable = "neon")]
unsafe fn int8<F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe { generic::int8::<Neon<WIDEN>, F>(product, panels, a, scratch) }
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn int8_dotprod<F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe { generic::int8::<Neon<DOT>, F>(product, panels, a, scratch) }
}

#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn int8_i8mm<F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe { generic::int8::<Neon<MATRIX>, F>(product, panels, a, scratch) }
}

#[target_feature(enable = "neon")]
unsafe fn mixed<F: Format>(product: Product<'_>, panels: Range<usize>, a: &FloatColumns<'_>) {
    // SAFETY: the caller's contract.
    unsafe { generic::mixed::<Neon<WIDEN>, F>(product, panels, a) }
}

#[target_feature(enable = "neon")]
unsafe fn floats(codes: Codes, product: Product<'_>, panels: Range<usize>, a: &FloatColumns<'_>) {
    // A constant in each arm, so that the loop is compiled for it.
    // SAFETY: the caller's contract.
    unsafe {
        match codes {
            Codes::F16 => generic::floats::<Neon<WIDEN>>(Codes::F16, product, panels, a),
            Codes::BF16 => generic::floats::<Neon<WIDEN>>(Codes::BF16, product, panels, a),
            _ => generic::floats::<Neon<WIDEN>>(Codes::F32, product, panels, a),
        }
    }
}

/// Multiplications that widen to int16.
const WIDEN: u8 = 0;
/// `sdot`.
const DOT: u8 = 1;
/// `sdot` for few columns, `smmla` for tiles.
const MATRIX: u8 = 2;

/// Advanced SIMD vectors; `BYTES` says how bytes are multiplied.
#[derive(Clone, Copy)]
struct Neon<const BYTES: u8>;

/// Sums in progress.
#[derive(Clone, Copy)]
struct Sums {
    /// The halves' sums; the first alone where halves have no scales. Where products widen to
    /// int16, of rows 0 and 1 only, each in two parts.
    wide: [int32x4_t; 2],
    /// Then, the same for rows 2 and 3.
    wide_high: [int32x4_t; 2],
    /// Sums that are not yet widened, of rows 0 and 1 and of rows 2 and 3.
    narrow: [int16x8_t; 2],
}

/// Multiply-add steps that an int16 lane takes before it must be widened; a lane adds one product
/// a step, so twice what the parent module's documentation says for pairs.
const fn steps<F: Format>() -> usize {
    match F::CODES {
        _ if F::SIGNED => 2,
        Codes::Bits6 => 4,
        _ if F::HALVES => 4,
        _ => 8,
    }
}

/// `sum + ` the dot product of each row's four codes with its four inputs.
///
/// # Safety
/// The CPU has dot products.
#[inline(always)]
unsafe fn sdot(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the caller's contract; registers alone.
    unsafe {
        asm!("sdot {sum:v}.4s, {codes:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum + rows * columns`: two rows of eight codes by two columns of eight inputs; the results of
/// a row stand side by side.
///
/// # Safety
/// The CPU has int8 matrix products.
#[inline(always)]
unsafe fn smmla(sum: int32x4_t, rows: int8x16_t, columns: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the caller's contract; registers alone.
    unsafe {
        asm!("smmla {sum:v}.4s, {rows:v}.16b, {columns:v}.16b",
            sum = inout(vreg) sum, rows = in(vreg) rows, columns = in(vreg) columns,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

// SAFETY (all blocks below): the trait's contract: the instruction set is there, and pointers are
// readable or writable for what is loaded or stored.
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once above")]
impl<const BYTES: u8> Dot for Neon<BYTES> {
    const ROWS: usize = 4;
    const FEW: usize = 4;
    const PREFETCH_BYTES: usize = 2560;
    const TILES: bool = true;
    type F = float32x4_t;
    type C = int8x16_t;
    type Acc = Sums;
    type X = int8x16_t;

    #[inline(always)]
    unsafe fn codes<F: Format>(planes: &Planes, b: usize, part: usize) -> [int8x16_t; 8] {
        let (low_bytes, high_bytes) = F::CODES.plane_bytes();
        unsafe {
            let mut codes = low_codes::<F>(planes.low.add(b * low_bytes + 16 * part));
            or_high::<F>(&mut codes, planes.high.wrapping_add(b * high_bytes + 16 * part));
            if matches!(F::CODES, Codes::Bits5And3) {
                or_rest(&mut codes, planes.rest.add(b * F::CODES.rest_bytes() + 16 * part));
            }
            if F::BOOK {
                let book = vld1q_s8(planes.book.as_ptr());
                return codes.map(|code| vqtbl1q_s8(book, code));
            }
            codes.map(|code| vreinterpretq_s8_u8(code))
        }
    }

    #[inline(always)]
    unsafe fn get_codes(at: *const u8) -> int8x16_t {
        unsafe { vld1q_s8(at.cast()) }
    }

    #[inline(always)]
    unsafe fn put_codes(at: *mut u8, codes: int8x16_t) {
        unsafe { vst1q_s8(at.cast(), codes) }
    }

    #[inline(always)]
    unsafe fn terms<F: Format>(planes: &Planes, b: usize, part: usize) -> Terms<float32x4_t> {
        unsafe {
            Terms {
                scale: scale::<F>(planes, b, part),
                halves: half_scales::<F>(planes, b, part),
                mins: mins::<F>(planes, b, part),
            }
        }
    }

    #[inline(always)]
    unsafe fn inputs(q: *const i8) -> int8x16_t {
        unsafe { vreinterpretq_s8_s32(vdupq_n_s32(q.cast::<i32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn start<F: Format>(sums: *const i16) -> Sums {
        unsafe {
            let zero = vdupq_n_s32(0);
            let mut start =
                Sums { wide: [zero; 2], wide_high: [zero; 2], narrow: [vdupq_n_s16(0); 2] };
            if F::UNSIGNED_OFFSET != 0 && !F::SIGNED {
                let (first, second) = (i32::from(*sums), i32::from(*sums.add(1)));
                let offset = -i32::from(F::UNSIGNED_OFFSET);
                let of = |sum: i32| match BYTES {
                    // Rows have two lanes each, which are added in the end: one starts at zero.
                    WIDEN => {
                        vsetq_lane_s32::<2>(offset * sum, vsetq_lane_s32::<0>(offset * sum, zero))
                    }
                    _ => vdupq_n_s32(offset * sum),
                };
                start.wide =
                    if F::HALVES { [of(first), of(second)] } else { [of(first + second), zero] };
                start.wide_high = start.wide;
            }
            start
        }
    }

    #[inline(always)]
    unsafe fn step<F: Format>(acc: &mut Sums, g: usize, codes: int8x16_t, x: int8x16_t) {
        let half = if F::HALVES { g / 4 } else { 0 };
        unsafe {
            if BYTES != WIDEN {
                acc.wide[half] = sdot(acc.wide[half], codes, x);
                return;
            }
            let steps = const { steps::<F>() };
            let (low, x_low) = (vget_low_s8(codes), vget_low_s8(x));
            acc.narrow = if g.is_multiple_of(steps) {
                [vmull_s8(low, x_low), vmull_high_s8(codes, x)]
            } else {
                [vmlal_s8(acc.narrow[0], low, x_low), vmlal_high_s8(acc.narrow[1], codes, x)]
            };
            if g % steps == steps - 1 {
                acc.wide[half] = vpadalq_s16(acc.wide[half], acc.narrow[0]);
                acc.wide_high[half] = vpadalq_s16(acc.wide_high[half], acc.narrow[1]);
            }
        }
    }

    #[inline(always)]
    unsafe fn sums<F: Format>(acc: Sums) -> [float32x4_t; 2] {
        unsafe {
            match BYTES {
                WIDEN => [0, 1].map(|h| vcvtq_f32_s32(vpaddq_s32(acc.wide[h], acc.wide_high[h]))),
                _ => acc.wide.map(|i| vcvtq_f32_s32(i)),
            }
        }
    }

    #[inline(always)]
    unsafe fn code_float<F: Format>(codes: int8x16_t, i: usize) -> float32x4_t {
        unsafe {
            let codes = vreinterpretq_s32_s8(codes);
            let up = match i {
                0 => vshlq_n_s32::<24>(codes),
                1 => vshlq_n_s32::<16>(codes),
                2 => vshlq_n_s32::<8>(codes),
                _ => codes,
            };
            let code = vshrq_n_s32::<24>(up);
            if F::SIGNED {
                return vcvtq_f32_s32(code);
            }
            vcvtq_f32_s32(vsubq_s32(code, vdupq_n_s32(i32::from(F::UNSIGNED_OFFSET))))
        }
    }

    #[inline(always)]
    unsafe fn weights(codes: Codes, at: *const u8) -> float32x4_t {
        unsafe {
            match codes {
                Codes::F16 => half_floats(at),
                Codes::BF16 => {
                    let bits = vld1_u16(at.cast());
                    vreinterpretq_f32_u32(vshll_n_u16::<16>(bits))
                }
                _ => vld1q_f32(at.cast()),
            }
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn put(at: *mut f32, x: float32x4_t) {
        unsafe { vst1q_f32(at, x) }
    }

    #[inline(always)]
    unsafe fn get(at: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(at) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        prefetch(at);
    }

    #[inline(always)]
    unsafe fn for_tile(codes: [int8x16_t; 8]) -> [int8x16_t; 8] {
        if BYTES != MATRIX {
            return codes;
        }
        // Two groups of four inputs become eight inputs of rows 0 and 1, and those of 2 and 3.
        let words = codes.map(|code| unsafe { vreinterpretq_s32_s8(code) });
        std::array::from_fn(|i| unsafe {
            let (first, second) = (words[i & !1], words[i | 1]);
            vreinterpretq_s8_s32(match i % 2 {
                0 => vzip1q_s32(first, second),
                _ => vzip2q_s32(first, second),
            })
        })
    }

    #[inline(always)]
    unsafe fn tile_sums<F: Format, const C: usize>(
        codes: *const u8,
        columns: &[ColumnBlock; C],
    ) -> [[Sums; C]; 2] {
        unsafe {
            match BYTES {
                MATRIX => matrix_sums::<F, C>(codes, columns),
                WIDEN => [0, 128].map(|part| widen_sums::<F, C>(codes.add(part), columns)),
                _ => generic::tile_steps::<Self, F, C>(codes, columns),
            }
        }
    }
}

/// The exact sums of one block of one part of a tile: the sums of both parts at once, each in four
/// registers, would not fit.
///
/// # Safety
/// `codes` are eight groups, and the columns have the block.
#[inline(always)]
unsafe fn widen_sums<F: Format, const C: usize>(
    codes: *const u8,
    columns: &[ColumnBlock; C],
) -> [Sums; C] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums: [Sums; C] =
            std::array::from_fn(|c| Neon::<WIDEN>::start::<F>(columns[c].sums));
        for g in 0..8 {
            let codes = vld1q_s8(codes.add(16 * g).cast());
            for (sums, column) in sums.iter_mut().zip(columns) {
                let x = Neon::<WIDEN>::inputs(column.q.add(4 * g));
                Neon::<WIDEN>::step::<F>(sums, g, codes, x);
            }
        }
        sums
    }
}

/// The exact sums of one block of a tile; columns go in pairs, and a last odd one is its own
/// partner.
///
/// # Safety
/// The CPU has int8 matrix products; `codes` are eight groups of each part as `for_tile` leaves
/// them.
#[inline(always)]
unsafe fn matrix_sums<F: Format, const C: usize>(
    codes: *const u8,
    columns: &[ColumnBlock; C],
) -> [[Sums; C]; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let start: [Sums; C] = std::array::from_fn(|c| Neon::<MATRIX>::start::<F>(columns[c].sums));
        let mut sums = [start; 2];
        for half in 0..if F::HALVES { 2 } else { 1 } {
            // `[pair of columns][pair of rows]`; pairs beyond the last stay unused.
            let mut squares = [[vdupq_n_s32(0); 4]; C];
            for step in if F::HALVES { 2 * half..2 * half + 2 } else { 0..4 } {
                let rows = [0, 16, 128, 144].map(|at| vld1q_s8(codes.add(32 * step + at).cast()));
                for (pair, squares) in squares[..C.div_ceil(2)].iter_mut().enumerate() {
                    let (first, second) = (2 * pair, (2 * pair + 1).min(C - 1));
                    let x = [first, second].map(|c| vld1_s8(columns[c].q.add(8 * step)));
                    let x = vcombine_s8(x[0], x[1]);
                    for (square, rows) in squares.iter_mut().zip(rows) {
                        *square = smmla(*square, rows, x);
                    }
                }
            }
            for (c, squares) in (0..C).map(|c| (c, squares[c / 2])) {
                for (p, sums) in sums.iter_mut().enumerate() {
                    let (low, high) = (squares[2 * p], squares[2 * p + 1]);
                    let column = match c % 2 {
                        0 => vuzp1q_s32(low, high),
                        _ => vuzp2q_s32(low, high),
                    };
                    sums[c].wide[half] = vaddq_s32(sums[c].wide[half], column);
                }
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn half_floats(p: *const u8) -> float32x4_t {
    // SAFETY: 4 half floats are readable.
    unsafe { f32_of_f16(vld1_u16(p.cast())) }
}

/// Four bytes in the lower half of a register.
#[inline(always)]
unsafe fn four_bytes(p: *const u8) -> uint8x8_t {
    // SAFETY: 4 bytes are readable.
    unsafe { vcreate_u8(u64::from(p.cast::<u32>().read_unaligned())) }
}

#[inline(always)]
unsafe fn unsigned_words(p: *const u8) -> uint32x4_t {
    // SAFETY: 4 bytes are readable.
    unsafe { vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(p)))) }
}

#[inline(always)]
unsafe fn unsigned(p: *const u8) -> float32x4_t {
    // SAFETY: 4 bytes are readable.
    unsafe { vcvtq_f32_u32(unsigned_words(p)) }
}

#[inline(always)]
unsafe fn signed(p: *const u8) -> float32x4_t {
    // SAFETY: 4 bytes are readable.
    unsafe {
        let words = vmovl_s8(vreinterpret_s8_u8(four_bytes(p)));
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)))
    }
}

/// The low planes' codes: unsigned, or signed where whole bytes are stored.
#[inline(always)]
unsafe fn low_codes<F: Format>(low: *const u8) -> [uint8x16_t; 8] {
    // SAFETY: the part of the block lies in the plane.
    unsafe {
        let at = |i: usize| vld1q_u8(low.add(64 * i));
        match F::CODES {
            Codes::Bits8 => [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)],
            Codes::Bits4 | Codes::Bits5 | Codes::Bits5And3 | Codes::Bits6 => {
                let both = [at(0), at(1), at(2), at(3)];
                let [a, b, c, d] = both.map(|v| vandq_u8(v, vdupq_n_u8(15)));
                let [e, f, g, h] = both.map(|v| vshrq_n_u8::<4>(v));
                [a, b, c, d, e, f, g, h]
            }
            _ => {
                let pair = vdupq_n_u8(3);
                let unpacked = [at(0), at(1)].map(|four| {
                    [
                        vandq_u8(four, pair),
                        vandq_u8(vshrq_n_u8::<2>(four), pair),
                        vandq_u8(vshrq_n_u8::<4>(four), pair),
                        vshrq_n_u8::<6>(four),
                    ]
                });
                let [[a, b, c, d], [e, f, g, h]] = unpacked;
                [a, b, c, d, e, f, g, h]
            }
        }
    }
}

/// `codes[g] |= moved & mask` for each group.
macro_rules! or_bits {
    ($codes:ident, $mask:expr, { $($g:literal => $moved:expr),* $(,)? }) => {
        let mask = vdupq_n_u8($mask);
        $( $codes[$g] = vorrq_u8($codes[$g], vandq_u8($moved, mask)); )*
    };
}

/// Adds the high plane's bits to the codes.
#[inline(always)]
unsafe fn or_high<F: Format>(codes: &mut [uint8x16_t; 8], high: *const u8) {
    // SAFETY: the part of the block lies in the plane.
    unsafe {
        let at = |i: usize| vld1q_u8(high.add(64 * i));
        match F::CODES {
            Codes::Bits3 => {
                let bits = at(0);
                or_bits!(codes, 4, {
                    0 => vshlq_n_u8::<2>(bits), 1 => vshlq_n_u8::<1>(bits),
                    2 => bits, 3 => vshrq_n_u8::<1>(bits),
                    4 => vshrq_n_u8::<2>(bits), 5 => vshrq_n_u8::<3>(bits),
                    6 => vshrq_n_u8::<4>(bits), 7 => vshrq_n_u8::<5>(bits),
                });
            }
            Codes::Bits5 | Codes::Bits5And3 => {
                let bits = at(0);
                or_bits!(codes, 16, {
                    0 => vshlq_n_u8::<4>(bits), 1 => vshlq_n_u8::<3>(bits),
                    2 => vshlq_n_u8::<2>(bits), 3 => vshlq_n_u8::<1>(bits),
                    4 => bits, 5 => vshrq_n_u8::<1>(bits),
                    6 => vshrq_n_u8::<2>(bits), 7 => vshrq_n_u8::<3>(bits),
                });
            }
            Codes::Bits6 => {
                let (a, b) = (at(0), at(1));
                or_bits!(codes, 48, {
                    0 => vshlq_n_u8::<4>(a), 1 => vshlq_n_u8::<2>(a),
                    2 => a, 3 => vshrq_n_u8::<2>(a),
                    4 => vshlq_n_u8::<4>(b), 5 => vshlq_n_u8::<2>(b),
                    6 => b, 7 => vshrq_n_u8::<2>(b),
                });
            }
            _ => {}
        }
    }
}

/// Puts the three low bits below the five that split codes have in the panel, and makes signed bytes
/// of them.
#[inline(always)]
unsafe fn or_rest(codes: &mut [uint8x16_t; 8], rest: *const u8) {
    // SAFETY: the part of the block lies behind the panels.
    unsafe {
        let [r0, r1, r2] = [0, 64, 128].map(|i| vld1q_u8(rest.add(i)));
        let bit = |value: uint8x16_t, mask: u8| vandq_u8(value, vdupq_n_u8(mask));
        let three = |value: uint8x16_t| bit(value, 7);
        let sixth = vorrq_u8(bit(vshrq_n_u8::<6>(r0), 1), bit(vshrq_n_u8::<5>(r1), 2));
        let seventh = vorrq_u8(vshrq_n_u8::<7>(r0), bit(vshrq_n_u8::<6>(r1), 2));
        let low = [
            three(r0),
            three(vshrq_n_u8::<3>(r0)),
            three(r1),
            three(vshrq_n_u8::<3>(r1)),
            three(r2),
            three(vshrq_n_u8::<3>(r2)),
            vorrq_u8(sixth, bit(vshrq_n_u8::<4>(r2), 4)),
            vorrq_u8(seventh, bit(vshrq_n_u8::<5>(r2), 4)),
        ];
        for (code, low) in codes.iter_mut().zip(low) {
            let byte = vorrq_u8(vshlq_n_u8::<3>(*code), low);
            *code = veorq_u8(byte, vdupq_n_u8(128));
        }
    }
}

/// The block's scale of each row of a part.
#[inline(always)]
unsafe fn scale<F: Format>(planes: &Planes, b: usize, part: usize) -> float32x4_t {
    // SAFETY: block `b` and its super block lie in the planes.
    unsafe {
        let bytes = planes.scales.add(16 * b + 4 * part);
        let supers = |size: usize| half_floats(planes.supers.add(size * (b / 8) + 8 * part));
        match F::SCALES {
            Scales::Block | Scales::BlockMin => half_floats(planes.scales.add(32 * b + 8 * part)),
            Scales::Exponent => {
                let e = unsigned_words(bytes);
                let normal = vshlq_n_u32::<23>(vsubq_u32(e, vdupq_n_u32(1)));
                // Exponents 0 and 1 give subnormals: 2^-128 and 2^-127.
                let small = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(e));
                let is_normal = vcgtq_u32(e, vdupq_n_u32(1));
                vreinterpretq_f32_u32(vbslq_u32(is_normal, normal, small))
            }
            Scales::Super => vmulq_f32(supers(32), signed(bytes)),
            Scales::SuperMin => vmulq_f32(supers(64), unsigned(bytes)),
            Scales::SuperHalf => supers(32),
            Scales::SuperHalfMin => supers(64),
            Scales::None => unreachable!("float weights have no scales"),
        }
    }
}

/// The integer scales of the two half blocks.
#[inline(always)]
unsafe fn half_scales<F: Format>(planes: &Planes, b: usize, part: usize) -> [float32x4_t; 2] {
    // SAFETY: block `b` lies in the plane.
    unsafe {
        let at = planes.scales.wrapping_add(32 * b + 4 * part);
        match F::SCALES {
            Scales::SuperHalf => [signed(at), signed(at.add(16))],
            Scales::SuperHalfMin => [unsigned(at), unsigned(at.add(16))],
            _ => [vdupq_n_f32(0.0); 2],
        }
    }
}

/// Minimums, as [`Terms::mins`] says.
#[inline(always)]
unsafe fn mins<F: Format>(planes: &Planes, b: usize, part: usize) -> [float32x4_t; 3] {
    // SAFETY: block `b` and its super block lie in the planes.
    unsafe {
        let zero = vdupq_n_f32(0.0);
        let dmin = || half_floats(planes.supers.add(64 * (b / 8) + 32 + 8 * part));
        match F::SCALES {
            Scales::BlockMin => [half_floats(planes.mins.add(32 * b + 8 * part)), zero, zero],
            Scales::SuperMin => {
                let m = unsigned(planes.mins.add(16 * b + 4 * part));
                [vnegq_f32(vmulq_f32(dmin(), m)), zero, zero]
            }
            Scales::SuperHalfMin => {
                let at = planes.mins.add(32 * b + 4 * part);
                [vnegq_f32(dmin()), unsigned(at), unsigned(at.add(16))]
            }
            _ => [zero; 3],
        }
    }
}
