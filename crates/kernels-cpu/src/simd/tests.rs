//! Each operation against its definition, and every instruction set against the scalar one.

use super::*;
use crate::CpuFeatures;

fn exp_kernel<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    map(s, x, out, |v| math::exp(s, v));
}
fn ln_kernel<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    map(s, x, out, |v| math::ln(s, v));
}
fn tanh_kernel<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    map(s, x, out, |v| math::tanh(s, v));
}
fn sigmoid_kernel<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    map(s, x, out, |v| math::sigmoid(s, v));
}
fn map<S: Simd>(s: S, x: &[f32], out: &mut [f32], f: impl Fn(S::F32) -> S::F32) {
    for (x, out) in x.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
        s.store(f(s.load(x)), out);
    }
}

simd_dispatch! { fn exp_all(x: &[f32], out: &mut [f32]) = exp_kernel; }
fn exp_weight_kernel<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    map(s, x, out, |v| math::exp_weight(s, s.neg(s.abs(v))));
}

simd_dispatch! { fn exp_weight_all(x: &[f32], out: &mut [f32]) = exp_weight_kernel; }
simd_dispatch! { fn ln_all(x: &[f32], out: &mut [f32]) = ln_kernel; }
simd_dispatch! { fn tanh_all(x: &[f32], out: &mut [f32]) = tanh_kernel; }
simd_dispatch! { fn sigmoid_all(x: &[f32], out: &mut [f32]) = sigmoid_kernel; }

type All = fn(CpuFeatures, &[f32], &mut [f32]);

/// NaNs count as equal whatever their payload.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn ulp(x: f64) -> f64 {
    let x = (x.abs() as f32).max(f32::MIN_POSITIVE);
    f64::from(f32::from_bits(x.to_bits() + 1)) - f64::from(x)
}

/// Every 1009th float (all exponents, both signs, NaNs and infinities), and the special ones.
fn floats() -> Vec<f32> {
    let mut v: Vec<f32> = (0..=u32::MAX).step_by(1009).map(f32::from_bits).collect();
    v.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN]);
    v.extend([f32::MIN_POSITIVE, 88.72284, 88.722_83, -87.33655, -103.97, -103.973, 1.0]);
    v.resize(v.len().next_multiple_of(LANES), 1.5);
    v
}

fn check(name: &str, all: All, exact: fn(f64) -> f64, max_ulp: f64) {
    let x = floats();
    let mut reference = vec![0.0; x.len()];
    all(CpuFeatures::for_isa(crate::Isa::Scalar).unwrap(), &x, &mut reference);
    let mut worst = (0.0, 0.0);
    for (&x, &y) in x.iter().zip(&reference) {
        let e = exact(f64::from(x));
        if e.is_nan() {
            assert!(y.is_nan(), "{name}({x}) = {y}");
        } else if (e as f32).is_infinite() || y.is_infinite() {
            assert_eq!(y, e as f32, "{name}({x})");
        } else {
            let error = (f64::from(y) - e).abs() / ulp(e);
            if error > worst.0 {
                worst = (error, x);
            }
        }
    }
    println!("{name}: worst {:.3} ulp at {}", worst.0, worst.1);
    assert!(worst.0 <= max_ulp, "{name}: {} ulp at {}", worst.0, worst.1);
    for cpu in CpuFeatures::available() {
        let mut y = vec![0.0; x.len()];
        all(cpu, &x, &mut y);
        for i in 0..x.len() {
            assert!(same(y[i], reference[i]), "{name}({}) on {}", x[i], cpu.isa());
        }
    }
}

#[test]
fn exp_is_accurate_and_the_same_everywhere() {
    check("exp", exp_all, libm::exp, 1.0);
}

#[test]
fn softmax_weights_are_accurate_and_the_same_everywhere() {
    let exact = |x: f64| {
        let x = -x.abs();
        if x * std::f64::consts::LOG2_E < -126.5 { 0.0 } else { libm::exp(x) }
    };
    check("exp_weight", exp_weight_all, exact, 5.0);
}

#[test]
fn ln_is_accurate_and_the_same_everywhere() {
    check("ln", ln_all, libm::log, 1.0);
}

#[test]
fn tanh_is_accurate_and_the_same_everywhere() {
    check("tanh", tanh_all, libm::tanh, 2.5);
}

#[test]
fn sigmoid_is_accurate_and_the_same_everywhere() {
    // Very negative x give zero a little earlier than a subnormal would end.
    let exact = |x: f64| match x {
        _ if x * std::f64::consts::LOG2_E < -126.5 => 0.0,
        _ if x < 0.0 => libm::exp(x) / (1.0 + libm::exp(x)),
        _ => 1.0 / (1.0 + libm::exp(-x)),
    };
    check("sigmoid", sigmoid_all, exact, 2.5);
}

#[test]
fn half_floats_agree_with_the_half_crate() {
    for h in 0..=u16::MAX {
        assert!(same(f16_to_f32(h), half::f16::from_bits(h).to_f32()), "{h:#x}");
    }
    for bits in (0..=u32::MAX).step_by(1009) {
        let x = f32::from_bits(bits);
        assert_eq!(f16_from_f32(x), half::f16::from_f32(x).to_bits(), "{x}");
    }
}

/// Runs every operation on one pair of vectors and writes all results as bits.
fn every_op_kernel<S: Simd>(s: S, a: &[f32], b: &[f32], out: &mut Vec<u32>) {
    let (x, y) = (s.load(a), s.load(b));
    let float = |out: &mut Vec<u32>, v: S::F32| {
        let mut lanes = [0.0f32; LANES];
        s.store(v, &mut lanes);
        out.extend(lanes.map(|l| if l.is_nan() { f32::NAN.to_bits() } else { l.to_bits() }));
    };
    float(out, s.add(x, y));
    float(out, s.sub(x, y));
    float(out, s.mul(x, y));
    float(out, s.div(x, y));
    float(out, s.fma(x, y, x));
    float(out, s.sqrt(x));
    float(out, s.max(x, y));
    float(out, s.min(x, y));
    float(out, s.neg(x));
    float(out, s.abs(x));
    float(out, s.with_sign(s.abs(x), y));
    float(out, s.select(s.lt(x, y), x, y));
    for n in 0..=LANES {
        float(out, s.select(s.first_lanes(n), x, y));
        float(out, s.load_partial(&a[..n]));
        let mut part = [7.0; LANES];
        s.store_partial(x, &mut part[..n]);
        float(out, s.load(&part));
    }
    let int = |out: &mut Vec<u32>, v: S::I32| float(out, s.bits_to_f32(v));
    let (i, j) = (s.to_bits(x), s.to_bits(y));
    int(out, s.i32_add(i, j));
    int(out, s.i32_sub(i, j));
    int(out, s.i32_and(i, j));
    int(out, s.i32_or(i, j));
    int(out, s.i32_max(i, j));
    int(out, s.i32_shl::<3>(i));
    int(out, s.i32_sra::<5>(i));
    float(out, s.i32_to_f32(i));
    int(out, s.round_i32(x));
    out.push(s.i32_sum(i) as u32);
    out.push(s.i32_max_lane(i) as u32);
    for v in [s.sum(x), s.max_lane(x)] {
        out.push(if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() });
    }
    let clamped = s.round_i32(s.max(s.min(x, s.splat(127.0)), s.splat(-127.0)));
    let (mut bytes, mut halves) = ([0i8; LANES], [0u16; LANES]);
    // SAFETY: the arrays hold 16 values each.
    unsafe {
        s.store_i8_ptr(clamped, bytes.as_mut_ptr());
        int(out, s.load_i8_ptr(bytes.as_ptr()));
        let mut pair = [0i8; 2 * LANES];
        let other = s.round_i32(s.max(s.min(y, s.splat(127.0)), s.splat(-127.0)));
        out.extend(s.store_i8_sums(clamped, other, pair.as_mut_ptr()).map(|sum| sum as u32));
        out.extend(pair.map(|b| b as u32));
        s.store_f16_ptr(x, halves.as_mut_ptr());
        float(out, s.load_f16_ptr(halves.as_ptr()));
    }
    out.extend(bytes.map(|b| b as u32));
    out.extend(halves.map(|h| if h & 0x7fff > 0x7c00 { 0x7e00 } else { u32::from(h) }));
}

simd_dispatch! {
    fn every_op(a: &[f32], b: &[f32], out: &mut Vec<u32>) = every_op_kernel;
}

#[test]
fn every_operation_is_the_same_everywhere() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MIN_POSITIVE,
        1e-41,
        -1e-45,
        65504.0,
        65520.0,
        6e-8,
        2.9e-8,
        3.1e-8,
        1e-5,
        127.5,
        -126.5,
        3e9,
        -3e9,
        1e30,
        3.3,
        -7.7,
        100.25,
        8388609.0,
        f32::MAX,
        1e-30,
        -65519.996,
    ];
    for shift in 0..special.len() {
        let a: Vec<f32> = (0..LANES).map(|i| special[(i + shift) % special.len()]).collect();
        for other in 0..special.len() {
            let b: Vec<f32> =
                (0..LANES).map(|i| special[(3 * i + other) % special.len()]).collect();
            let mut reference = Vec::new();
            every_op(CpuFeatures::for_isa(crate::Isa::Scalar).unwrap(), &a, &b, &mut reference);
            for cpu in CpuFeatures::available() {
                let mut out = Vec::new();
                every_op(cpu, &a, &b, &mut out);
                for (i, (x, y)) in out.iter().zip(&reference).enumerate() {
                    assert_eq!(x, y, "{} differs at word {i}: {a:?} {b:?}", cpu.isa());
                }
            }
        }
    }
}

#[test]
fn definitions_hold() {
    let s = Scalar;
    let nan = s.splat(f32::NAN);
    let one = s.splat(1.0);
    assert_eq!(s.max(nan, one)[0], 1.0);
    assert!(s.max(one, nan)[0].is_nan());
    assert_eq!(s.max(s.splat(0.0), s.splat(-0.0))[0].to_bits(), (-0.0f32).to_bits());
    assert_eq!(s.round_i32([2.5; LANES])[0], 2);
    assert_eq!(s.round_i32([f32::NAN; LANES])[0], i32::MIN);
    let lanes: [f32; LANES] = std::array::from_fn(|i| (1 << i) as f32);
    assert_eq!(s.sum(lanes), 65535.0);
    // The tree: 2^24 + 1 is lost where the two meet, kept where they cancel first.
    let mut v = [0.0; LANES];
    (v[0], v[8], v[1]) = (16_777_216.0, -16_777_216.0, 1.0);
    assert_eq!(s.sum(v), 1.0);
}
