//! Distributions against closed forms: moments within four standard errors, distribution functions
//! by Kolmogorov's test, tables by chi-square.
#![allow(clippy::disallowed_macros, reason = "random tests print their seed")]

mod common;

use common::{KOLMOGOROV_LIMIT, kolmogorov, seed};
use dunlin_units::SeedTree;
use dunlin_workload::{CountSpec, DistSpec, LengthStreams, LengthsSpec, Part};

/// Draws of a sample.
const DRAWS: usize = 100_000;

fn draws(spec: &DistSpec, seed: u64) -> Vec<f64> {
    let dist = spec.build().unwrap();
    let mut random = SeedTree::root(seed).child("distributions").stream();
    (0..DRAWS).map(|_| dist.draw(&mut random)).collect()
}

fn phi(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

struct Case {
    spec: DistSpec,
    mean: f64,
    /// None where it has no variance to speak of.
    deviation: Option<f64>,
    cdf: Box<dyn Fn(f64) -> f64>,
}

fn case(
    spec: DistSpec,
    mean: f64,
    deviation: impl Into<Option<f64>>,
    cdf: impl Fn(f64) -> f64 + 'static,
) -> Case {
    Case { spec, mean, deviation: deviation.into(), cdf: Box::new(cdf) }
}

fn cases() -> Vec<Case> {
    let pi = std::f64::consts::PI;
    vec![
        case(DistSpec::Uniform { low: 2.0, high: 5.0 }, 3.5, 3.0 / 12f64.sqrt(), |x| {
            (x - 2.0) / 3.0
        }),
        case(DistSpec::Exponential { mean: 40.0 }, 40.0, 40.0, |x| 1.0 - (-x / 40.0).exp()),
        case(
            DistSpec::LogNormal { median: 100.0, sigma: 0.8 },
            100.0 * 0.32f64.exp(),
            100.0 * 0.32f64.exp() * (0.64f64.exp() - 1.0).sqrt(),
            |x| phi((x / 100.0).ln() / 0.8),
        ),
        case(
            DistSpec::Pareto { scale: 10.0, alpha: 4.5 },
            10.0 * 4.5 / 3.5,
            10.0 / 3.5 * (4.5f64 / 2.5).sqrt(),
            |x| 1.0 - (10.0 / x).powf(4.5),
        ),
        // Without a mean: only the distribution function can be compared.
        case(DistSpec::Pareto { scale: 1.0, alpha: 0.9 }, f64::INFINITY, None, |x| {
            1.0 - x.powf(-0.9)
        }),
        // Shape 4 (Erlang), 1 (exponential) and 1/2 (a squared normal) have closed forms.
        case(DistSpec::Gamma { mean: 8.0, cv: 0.5 }, 8.0, 4.0, |x| {
            let t = x / 2.0;
            1.0 - (-t).exp() * (1.0 + t + t * t / 2.0 + t * t * t / 6.0)
        }),
        case(DistSpec::Gamma { mean: 3.0, cv: 1.0 }, 3.0, 3.0, |x| 1.0 - (-x / 3.0).exp()),
        case(
            DistSpec::Gamma { mean: 5.0, cv: std::f64::consts::SQRT_2 },
            5.0,
            5.0 * std::f64::consts::SQRT_2,
            |x| libm::erf((x / 10.0).sqrt()),
        ),
        // Shapes 2 (Rayleigh), 1 and 1/2 have closed forms of both moments.
        case(
            DistSpec::Weibull { mean: 7.0, cv: (4.0 / pi - 1.0).sqrt() },
            7.0,
            7.0 * (4.0 / pi - 1.0).sqrt(),
            move |x| 1.0 - (-(x * x) * pi / (4.0 * 49.0)).exp(),
        ),
        case(DistSpec::Weibull { mean: 7.0, cv: 1.0 }, 7.0, 7.0, |x| 1.0 - (-x / 7.0).exp()),
        case(DistSpec::Weibull { mean: 6.0, cv: 5f64.sqrt() }, 6.0, 6.0 * 5f64.sqrt(), |x| {
            1.0 - (-(x / 3.0).sqrt()).exp()
        }),
        case(
            DistSpec::Mixture {
                parts: vec![
                    Part { weight: 3.0, of: DistSpec::Uniform { low: 0.0, high: 1.0 } },
                    Part { weight: 1.0, of: DistSpec::Exponential { mean: 2.0 } },
                ],
            },
            0.75 * 0.5 + 0.25 * 2.0,
            // E[X^2] = 0.75 / 3 + 0.25 * 8.
            (0.25f64 + 2.0 - 0.875 * 0.875).sqrt(),
            |x| 0.75 * x.min(1.0) + 0.25 * (1.0 - (-x / 2.0).exp()),
        ),
        // Quantiles at 0, 1/3, 2/3 and 1, straight between them.
        case(
            DistSpec::Empirical { values: [9.0, 1.0, 3.0, 2.0].into() },
            (1.5 + 2.5 + 6.0) / 3.0,
            // The mean of the second moments of three uniform parts: (a^2 + ab + b^2) / 3.
            ((7.0f64 + 19.0 + 117.0) / 9.0 - (10.0f64 / 3.0).powi(2)).sqrt(),
            |x| match x {
                ..2.0 => (x - 1.0) / 3.0,
                ..3.0 => (x - 1.0) / 3.0,
                _ => 2.0 / 3.0 + (x - 3.0) / 18.0,
            },
        ),
    ]
}

#[test]
fn distributions_are_what_they_say() {
    let seed = seed(1);
    for (i, mut case) in cases().into_iter().enumerate() {
        let mut sample = draws(&case.spec, seed + i as u64);
        let name = format!("seed {seed}, {:?}", case.spec);
        let stated = case.spec.build().unwrap().mean();
        assert!((stated - case.mean).abs() <= 1e-9 * case.mean || stated == case.mean, "{name}");
        if let Some(deviation) = case.deviation.take() {
            let n = sample.len() as f64;
            let mean = sample.iter().sum::<f64>() / n;
            let error = (mean - case.mean).abs() / (deviation / n.sqrt());
            assert!(error < 4.0, "{name}: mean {mean} is {error} standard errors off");
            let variance = sample.iter().map(|x| (x - case.mean).powi(2)).sum::<f64>() / n;
            let ratio = variance.sqrt() / deviation;
            // Heavy tails move the variance more than they move the mean.
            assert!((ratio - 1.0).abs() < 0.1, "{name}: deviation {ratio} of the closed form's");
        }
        let distance = kolmogorov(&mut sample, case.cdf);
        println!("{name}: Kolmogorov {distance:.3}");
        assert!(distance < KOLMOGOROV_LIMIT, "{name}: {distance}");
    }
}

/// A gamma distribution of shape 1/16, whose distribution function has no closed form, by moments.
#[test]
fn bursts_have_the_burstiness_asked_for() {
    let seed = seed(3);
    for spec in [DistSpec::Gamma { mean: 1.0, cv: 4.0 }, DistSpec::Weibull { mean: 1.0, cv: 4.0 }] {
        let sample = draws(&spec, seed);
        let n = sample.len() as f64;
        let mean = sample.iter().sum::<f64>() / n;
        let cv = (sample.iter().map(|x| x * x).sum::<f64>() / n - mean * mean).sqrt() / mean;
        println!("seed {seed}, {spec:?}: mean {mean}, cv {cv}");
        assert!((mean - 1.0).abs() < 4.0 * 4.0 / n.sqrt(), "seed {seed}, {spec:?}: mean {mean}");
        assert!((cv / 4.0 - 1.0).abs() < 0.08, "seed {seed}, {spec:?}: cv {cv}");
    }
}

#[test]
fn whole_numbers_have_their_weights() {
    let seed = seed(4);
    for (spec, weights) in [
        (DistSpec::Integers { low: 3, high: 12 }, [0.1; 10].to_vec()),
        (DistSpec::Zipf { n: 10, exponent: 0.0 }, [0.1; 10].to_vec()),
        (
            DistSpec::Zipf { n: 10, exponent: 1.1 },
            (1..=10).map(|k| f64::from(k).powf(-1.1)).collect(),
        ),
    ] {
        let first = if matches!(spec, DistSpec::Integers { .. }) { 3.0 } else { 1.0 };
        let mut counts = [0u32; 10];
        let sample = draws(&spec, seed);
        sample.iter().for_each(|x| counts[(x - first) as usize] += 1);
        let sum: f64 = weights.iter().sum();
        let expected = |k: usize| DRAWS as f64 * weights[k] / sum;
        let chi2: f64 = counts
            .iter()
            .enumerate()
            .map(|(k, c)| (f64::from(*c) - expected(k)).powi(2) / expected(k))
            .sum();
        // 9 degrees of freedom: 27.9 is exceeded with a probability of 0.001.
        println!("seed {seed}, {spec:?}: chi-square {chi2:.1}");
        assert!(chi2 < 27.9, "seed {seed}, {spec:?}: {chi2}");
        let mean =
            weights.iter().enumerate().map(|(k, w)| (k as f64 + first) * w).sum::<f64>() / sum;
        assert!((spec.build().unwrap().mean() - mean).abs() < 1e-9);
    }
}

#[test]
fn counts_are_rounded_and_stay_within_limits() {
    let spec = CountSpec { dist: DistSpec::Uniform { low: 0.0, high: 10.0 }, min: 2, max: 8 };
    let (count, mut random) = (spec.build().unwrap(), SeedTree::root(5).stream());
    let mut counts = [0u32; 11];
    (0..DRAWS).for_each(|_| counts[count.draw(&mut random) as usize] += 1);
    assert_eq!((counts[0], counts[1], counts[9], counts[10]), (0, 0, 0, 0));
    // 2 gathers all below 2.5 and 8 all above 7.5; the others are a tenth each.
    for (k, share) in [(2, 0.25), (3, 0.1), (5, 0.1), (7, 0.1), (8, 0.25)] {
        let found = f64::from(counts[k]) / DRAWS as f64;
        assert!((found - share).abs() < 0.005, "{k}: {found}");
    }
    let huge = CountSpec::new(DistSpec::Pareto { scale: 1e9, alpha: 0.01 });
    assert_eq!(huge.build().unwrap().draw(&mut random), dunlin_workload::MAX_TOKENS);
}

#[test]
fn rows_keep_what_ties_prompts_to_answers() {
    let rows = [(10, 100), (20, 200), (30, 300)];
    let spec = LengthsSpec::Rows { rows: rows.into() };
    let (lengths, mut streams) = (spec.build().unwrap(), LengthStreams::new(SeedTree::root(6)));
    let mut counts = [0u32; 3];
    for _ in 0..30_000 {
        let row = lengths.draw(&mut streams);
        counts[rows.iter().position(|r| *r == row).expect("a row as recorded")] += 1;
    }
    // Two degrees of freedom: 13.8.
    let chi2: f64 = counts.iter().map(|c| (f64::from(*c) - 1e4).powi(2) / 1e4).sum();
    assert!(chi2 < 13.8, "{counts:?}");
}

/// Longer answers leave the prompts of the same seed as they were.
#[test]
fn prompts_and_answers_draw_from_streams_of_their_own() {
    let spec = |output| LengthsSpec::Independent {
        prompt: CountSpec::new(DistSpec::LogNormal { median: 500.0, sigma: 1.0 }),
        output: CountSpec::new(output),
    };
    let draw = |spec: LengthsSpec| -> Vec<(u32, u32)> {
        let (lengths, mut streams) = (spec.build().unwrap(), LengthStreams::new(SeedTree::root(7)));
        (0..1000).map(|_| lengths.draw(&mut streams)).collect()
    };
    // The gamma distribution takes as many numbers as it needs.
    let short = draw(spec(DistSpec::Gamma { mean: 50.0, cv: 2.0 }));
    let long = draw(spec(DistSpec::Exponential { mean: 400.0 }));
    assert!(short.iter().zip(&long).all(|(a, b)| a.0 == b.0));
}

#[test]
fn parameters_outside_their_range_are_named() {
    let rows = |rows: &[(u32, u32)]| LengthsSpec::Rows { rows: rows.into() };
    for (spec, at) in [
        (DistSpec::Constant { value: f64::NAN }, "value"),
        (DistSpec::Uniform { low: 3.0, high: 2.0 }, "high less low"),
        (DistSpec::Integers { low: 3, high: 2 }, "high"),
        (DistSpec::Exponential { mean: 0.0 }, "mean"),
        (DistSpec::LogNormal { median: -1.0, sigma: 1.0 }, "median"),
        (DistSpec::LogNormal { median: 1.0, sigma: f64::INFINITY }, "sigma"),
        (DistSpec::Pareto { scale: 1.0, alpha: 0.0 }, "alpha"),
        (DistSpec::Gamma { mean: 1.0, cv: 0.0 }, "cv"),
        (DistSpec::Weibull { mean: 1.0, cv: 1e9 }, "cv"),
        (DistSpec::Zipf { n: 0, exponent: 1.0 }, "n"),
        (DistSpec::Zipf { n: 5, exponent: -1.0 }, "exponent"),
        (DistSpec::Mixture { parts: vec![] }, "parts.weight"),
        (
            DistSpec::Mixture {
                parts: vec![Part { weight: 1.0, of: DistSpec::Exponential { mean: f64::NAN } }],
            },
            "parts[0].mean",
        ),
        (DistSpec::Empirical { values: [].into() }, "values"),
        (DistSpec::Empirical { values: [1.0, f64::NAN].into() }, "values"),
    ] {
        assert_eq!(spec.build().unwrap_err().at, at, "{spec:?}");
    }
    assert_eq!(rows(&[]).build().unwrap_err().at, "rows");
    assert_eq!(rows(&[(0, 5)]).build().unwrap_err().at, "rows");
    assert_eq!(rows(&[(5, u32::MAX)]).build().unwrap_err().at, "rows");
    let zero = LengthsSpec::Independent {
        prompt: CountSpec { min: 0, ..CountSpec::constant(1) },
        output: CountSpec::constant(1),
    };
    assert_eq!(zero.build().unwrap_err().at, "prompt.min");
}
