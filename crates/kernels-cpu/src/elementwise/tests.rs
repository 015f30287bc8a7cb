//! Each function against a plain f64 version of it, and every instruction set against the scalar.

use super::*;
use crate::{CpuFeatures, Isa};
use dunlin_spec::{RopeScaling, RopeSpec};

const SEED: u64 = 20_260_730;

/// SplitMix64: small, seeded, and enough for test data.
struct Rng(u64);

impl Rng {
    fn new(salt: u64) -> Self {
        println!("seed {SEED}, salt {salt}");
        Rng(SEED ^ salt << 32)
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// Roughly normal, mean 0 and deviation 1.
    fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum();
        (sum - 6.0) as f32
    }
    fn vector(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * deviation).collect()
    }
}

fn scalar() -> CpuFeatures {
    CpuFeatures::for_isa(Isa::Scalar).unwrap()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// The largest error of `got`, relative to the largest true magnitude.
fn error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let top = want.iter().fold(f64::MIN_POSITIVE, |a, b| a.max(b.abs()));
    got.iter().zip(want).fold(0.0, |a, (g, w)| f64::max(a, (f64::from(*g) - w).abs())) / top
}

/// Lengths with every kind of tail.
const LENGTHS: [usize; 11] = [1, 7, 15, 16, 17, 63, 64, 65, 100, 576, 1031];

/// Runs an in-place function on every instruction set; all must agree to the bit.
fn everywhere(x: &[f32], f: impl Fn(CpuFeatures, &mut [f32])) -> Vec<f32> {
    let mut reference = x.to_vec();
    f(scalar(), &mut reference);
    for cpu in CpuFeatures::available() {
        let mut y = x.to_vec();
        f(cpu, &mut y);
        assert_eq!(bits(&y), bits(&reference), "{} with {} values", cpu.isa(), x.len());
    }
    reference
}

#[test]
fn rms_norm_matches_f64() {
    let mut rng = Rng::new(1);
    for n in LENGTHS {
        let (x, w) = (rng.vector(n, 3.0), rng.vector(n, 1.0));
        let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64;
        let r = 1.0 / (mean + 1e-5).sqrt();
        let want: Vec<f64> =
            x.iter().zip(&w).map(|(x, w)| f64::from(*x) * r * f64::from(*w)).collect();
        let got = everywhere(&x, |cpu, y| rms_norm_in_place(cpu, y, &w, 1e-5));
        // Sum: at most n/64 + 6 additions deep, halved by the root; then three roundings.
        let bound = (n as f64 / 64.0 + 12.0) * 6e-8;
        assert!(error(&got, &want) < bound, "{n}");
        for cpu in CpuFeatures::available() {
            let mut out = vec![0.0; n];
            rms_norm(cpu, &x, &w, 1e-5, &mut out);
            assert_eq!(bits(&out), bits(&got));
        }
    }
}

#[test]
fn activation_functions_match_f64() {
    let mut rng = Rng::new(2);
    for n in LENGTHS {
        let (x, u) = (rng.vector(n, 4.0), rng.vector(n, 1.0));
        let f = |g: fn(f64) -> f64| -> Vec<f64> {
            x.iter().zip(&u).map(|(x, u)| g(f64::from(*x)) * f64::from(*u)).collect()
        };
        let got = everywhere(&x, |cpu, y| silu_mul(cpu, y, &u));
        assert!(error(&got, &f(|x| x / (1.0 + (-x).exp()))) < 4e-7);
        let got = everywhere(&x, |cpu, y| gelu_tanh_mul(cpu, y, &u));
        let gelu =
            |x: f64| 0.5 * x * (1.0 + (0.7978845608028654 * (x + 0.044715 * x * x * x)).tanh());
        assert!(error(&got, &f(gelu)) < 4e-7);
        let got = everywhere(&x, |cpu, y| add(cpu, y, &u));
        assert!(got.iter().zip(x.iter().zip(&u)).all(|(g, (x, u))| *g == x + u));
        let got = everywhere(&x, |cpu, y| scale(cpu, y, 0.3));
        assert!(got.iter().zip(&x).all(|(g, x)| *g == x * 0.3));
        let got = everywhere(&x, |cpu, y| softcap(cpu, y, 3.0));
        let want: Vec<f64> = x.iter().map(|x| 3.0 * (f64::from(*x) / 3.0).tanh()).collect();
        assert!(error(&got, &want) < 4e-7);
    }
}

#[test]
fn softmax_and_log_sum_exp_match_f64() {
    let mut rng = Rng::new(3);
    for n in LENGTHS.into_iter().chain([49_152]) {
        let x = rng.vector(n, 5.0);
        let top = x.iter().fold(f64::MIN, |a, b| a.max(f64::from(*b)));
        let e: Vec<f64> = x.iter().map(|v| (f64::from(*v) - top).exp()).collect();
        let sum: f64 = e.iter().sum();
        let want: Vec<f64> = e.iter().map(|e| e / sum).collect();
        let got = everywhere(&x, softmax);
        assert!(error(&got, &want) < 2e-6, "{n}: {}", error(&got, &want));
        for cpu in CpuFeatures::available() {
            let got = log_sum_exp(cpu, &x);
            assert_eq!(got.to_bits(), log_sum_exp(scalar(), &x).to_bits());
            assert!((f64::from(got) - (top + sum.ln())).abs() < 3e-6, "{n}");
        }
    }
}

#[test]
fn reductions_define_the_odd_cases() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for cpu in CpuFeatures::available() {
        assert_eq!(argmax(cpu, &[]), None);
        assert_eq!(argmax(cpu, &[nan; 20]), None);
        assert_eq!(argmax(cpu, &[-inf; 20]), Some(0));
        assert_eq!(argmax(cpu, &[nan, -inf, nan]), Some(1));
        let mut x = vec![0.5; 50];
        (x[3], x[20], x[40], x[49]) = (nan, 2.0, 2.0, -inf);
        assert_eq!(argmax(cpu, &x), Some(20));
        x[49] = inf;
        assert_eq!(argmax(cpu, &x), Some(49));
        assert_eq!(log_sum_exp(cpu, &[]), -inf);
        assert_eq!(log_sum_exp(cpu, &[-inf; 3]), -inf);
        assert_eq!(log_sum_exp(cpu, &[1.0, inf]), inf);
        assert!(log_sum_exp(cpu, &x).is_nan());
        assert_eq!(log_sum_exp(cpu, &[100.0, -inf]), 100.0);
    }
}

struct Column {
    q: Vec<i8>,
    d: Vec<f32>,
    sums: Vec<i16>,
}

impl Column {
    fn new(n: usize) -> Self {
        let blocks = n.div_ceil(QUANT_BLOCK);
        // Stale contents must not matter.
        Column { q: vec![99; blocks * 32], d: vec![f32::NAN; blocks], sums: vec![7; 2 * blocks] }
    }
    fn out(&mut self) -> QuantizedMut<'_> {
        QuantizedMut { q: &mut self.q, d: &mut self.d, sums: &mut self.sums }
    }
    fn value(&self, i: usize) -> f64 {
        f64::from(self.d[i / 32]) * f64::from(self.q[i])
    }
}

fn same(a: &Column, b: &Column) {
    assert_eq!(a.q, b.q);
    assert_eq!(a.sums, b.sums);
    let clean = |d: &[f32]| -> Vec<u32> {
        d.iter().map(|v| if v.is_nan() { 1 } else { v.to_bits() }).collect()
    };
    assert_eq!(clean(&a.d), clean(&b.d));
}

#[test]
fn quantization_keeps_its_bounds() {
    let mut rng = Rng::new(4);
    for n in LENGTHS {
        for deviation in [1e-25, 1e-3, 1.0, 1e20] {
            let x = rng.vector(n, deviation);
            let (mut reference, mut high, mut low) =
                (Column::new(n), Column::new(n), Column::new(n));
            quantize(scalar(), &x, reference.out());
            quantize_split(scalar(), &x, high.out(), low.out());
            same(&reference, &high);
            for (i, x) in x.iter().enumerate() {
                let x = f64::from(*x);
                let d = f64::from(high.d[i / 32]);
                assert!((x - high.value(i)).abs() <= d * 0.50001);
                assert!((x - high.value(i) - low.value(i)).abs() <= d / 254.0 * 0.501);
            }
            for (g, sum) in high.sums.iter().enumerate() {
                let want: i16 = high.q[g * 16..(g + 1) * 16].iter().map(|q| i16::from(*q)).sum();
                assert_eq!(*sum, want);
            }
            assert!(high.q[n..].iter().all(|q| *q == 0), "padding is zero");
            for (block, x) in x.chunks(32).enumerate() {
                let top = x.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                assert_eq!(high.d[block], top / 127.0);
                assert!(high.q[block * 32..][..32].iter().any(|q| q.abs() == 127));
            }
            for cpu in CpuFeatures::available() {
                let (mut a, mut b, mut c) = (Column::new(n), Column::new(n), Column::new(n));
                quantize(cpu, &x, a.out());
                quantize_split(cpu, &x, b.out(), c.out());
                same(&a, &reference);
                same(&b, &reference);
                same(&c, &low);
            }
        }
    }
}

#[test]
fn quantization_survives_odd_values() {
    let mut x = vec![0.25f32; 160];
    x[..32].fill(0.0);
    x[40] = f32::NAN;
    x[70] = f32::NEG_INFINITY;
    x[96..128].fill(1e-40);
    x[130] = f32::MAX;
    for cpu in CpuFeatures::available() {
        let (mut high, mut low) = (Column::new(160), Column::new(160));
        quantize_split(cpu, &x, high.out(), low.out());
        assert!(high.d[0] == 0.0 && high.d[1].is_nan() && high.d[2].is_nan() && high.d[3] == 0.0);
        assert!(high.q[..128].iter().all(|q| *q == 0));
        assert_eq!(high.q[130], 127);
        assert!(low.d.iter().all(|d| d.is_finite()));
        let mut back = vec![0.0; 160];
        dequantize(&high.q, &high.d, &mut back);
        assert!(back[40].is_nan() && back[0] == 0.0);
    }
}

fn table(base: f64, dim: usize, scaling: RopeScaling) -> RopeTable {
    RopeTable::new(&RopeSpec { base, dim, scaling }).unwrap()
}

#[test]
fn rope_tables_are_f64_rounded_once() {
    let mut t = table(10_000.0, 64, RopeScaling::None);
    t.grow(10);
    t.grow(3000);
    assert_eq!(t.positions(), 3000);
    for p in [0usize, 1, 9, 10, 511, 2999] {
        let (cos, sin) = t.row(p);
        for i in 0..32 {
            let angle = p as f64 * 10_000f64.powf(-(i as f64) / 32.0);
            // Two f64 libraries may differ in the last bit, so the rounded values by one ulp.
            assert!((f64::from(cos[i]) - angle.cos()).abs() < 6.1e-8);
            assert!((f64::from(sin[i]) - angle.sin()).abs() < 6.1e-8);
        }
    }
}

#[test]
fn rope_scalings_match_closed_forms() {
    let plain = table(10_000.0, 64, RopeScaling::None).frequencies().to_vec();
    let linear = table(10_000.0, 64, RopeScaling::Linear { factor: 4.0 });
    assert!(plain.iter().zip(linear.frequencies()).all(|(a, b)| *b == a / 4.0));
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
    let spec = RopeScaling::Factors { factors, attn_factor: 1.5 };
    let mut by_pair = table(10_000.0, 64, spec);
    by_pair.grow(1);
    assert_eq!(by_pair.frequencies()[3], plain[3] / 4.0);
    assert_eq!(by_pair.row(0), (&[1.5f32; 32][..], &[0.0f32; 32][..]));
    let llama3 = table(
        500_000.0,
        128,
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        },
    );
    let plain = table(500_000.0, 128, RopeScaling::None).frequencies().to_vec();
    for (f, g) in plain.iter().zip(llama3.frequencies()) {
        let wavelength = 2.0 * std::f64::consts::PI / f;
        if wavelength < 8192.0 / 4.0 {
            assert_eq!(f, g);
        } else if wavelength > 8192.0 {
            assert_eq!(*g, f / 8.0);
        } else {
            assert!(g < f && *g > f / 8.0);
        }
    }
}

#[test]
fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
    let scaling = |attn_factor| RopeScaling::Yarn {
        factor: 4.0,
        original_context: 32_768,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attn_factor,
    };
    let plain = table(1_000_000.0, 128, RopeScaling::None).frequencies().to_vec();
    let mut yarn = table(1_000_000.0, 128, scaling(None));
    yarn.grow(1);
    let (cos, _) = yarn.row(0);
    assert_eq!(cos[0], (0.1 * 4f64.ln() + 1.0) as f32);
    // Borders by hand: 128 ln(32768 / (32 * 2 pi)) / (2 ln 10^6) = 23.596..., and with one turn
    // 39.65...: pairs up to 23 are left alone, from 40 on divided by four.
    for (i, (f, g)) in plain.iter().zip(yarn.frequencies()).enumerate() {
        match i {
            0..=23 => assert_eq!(f, g),
            40.. => assert_eq!(*g, f / 4.0),
            _ => {
                let ramp = (i as f64 - 23.0) / 17.0;
                let want = f / 4.0 * ramp + f * (1.0 - ramp);
                assert!((g - want).abs() < 1e-12 * want);
            }
        }
    }
    let mut given = table(1_000_000.0, 128, scaling(Some(1.25)));
    given.grow(1);
    assert_eq!(given.row(0).0[0], 1.25);
}

#[test]
fn rope_rejects_inconsistent_specs() {
    let t = |base, dim, scaling| RopeTable::new(&RopeSpec { base, dim, scaling });
    assert!(t(10_000.0, 63, RopeScaling::None).is_err());
    assert!(t(f64::NAN, 64, RopeScaling::None).is_err());
    assert!(t(10_000.0, 64, RopeScaling::Linear { factor: 0.0 }).is_err());
    let factors = RopeScaling::Factors { factors: vec![1.0; 31], attn_factor: 1.0 };
    assert!(t(10_000.0, 64, factors).is_err());
}

#[test]
fn rope_rotates_pairs_and_passes_the_rest() {
    let mut rng = Rng::new(5);
    for (dim, head_dim) in [(64, 64), (20, 80), (96, 96), (32, 128), (0, 16)] {
        let mut t = table(10_000.0, dim, RopeScaling::None);
        t.grow(101);
        let (cos, sin) = if dim == 0 { (&[][..], &[][..]) } else { t.row(100) };
        let x = rng.vector(head_dim, 1.0);
        let got = everywhere(&x, |cpu, y| rope_neox(cpu, y, cos, sin));
        let half = dim / 2;
        for i in 0..half {
            let (a, b) = (f64::from(x[i]), f64::from(x[i + half]));
            let (c, s) = (f64::from(cos[i]), f64::from(sin[i]));
            assert!((f64::from(got[i]) - (a * c - b * s)).abs() < 1e-6);
            assert!((f64::from(got[i + half]) - (b * c + a * s)).abs() < 1e-6);
        }
        assert_eq!(got[dim..], x[dim..]);
    }
}
