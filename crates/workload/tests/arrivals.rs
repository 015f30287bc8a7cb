//! Arrival processes against closed forms and against thinning.
#![allow(clippy::disallowed_macros, reason = "random tests print their seed")]

mod common;

use common::{KOLMOGOROV_LIMIT, kolmogorov, seed, smirnov};
use dunlin_units::{SeedTree, Stream, Time};
use dunlin_workload::stats::Windows;
use dunlin_workload::{ArrivalSpec, GapSpec, MarkovState, RateSpec, Shape};

fn arrivals(spec: &ArrivalSpec, seed: u64, count: usize) -> Vec<f64> {
    let arrivals = spec.build(Time(0), SeedTree::root(seed).child("arrivals")).unwrap();
    arrivals.take(count).map(|t| t.0 as f64 / 1e9).collect()
}

fn gaps(times: &[f64]) -> Vec<f64> {
    times.windows(2).map(|w| w[1] - w[0]).collect()
}

fn exponential(rate: f64) -> impl Fn(f64) -> f64 {
    move |x| 1.0 - (-rate * x).exp()
}

fn open(gaps: GapSpec, rate: RateSpec) -> ArrivalSpec {
    ArrivalSpec::Open { gaps, rate }
}

/// Dispersion over windows of `seconds`, and how many there were.
fn dispersion(times: &[f64], seconds: f64) -> (f64, f64) {
    let mut windows = Windows::new((seconds * 1e9) as u64);
    times.iter().for_each(|t| windows.add((t * 1e9) as u64));
    let stats = windows.stats();
    (stats.dispersion.unwrap(), stats.windows as f64)
}

#[test]
fn poisson_arrivals_have_exponential_gaps_and_no_dispersion() {
    let seed = seed(21);
    let times = arrivals(&ArrivalSpec::poisson(25.0), seed, 200_000);
    let distance = kolmogorov(&mut gaps(&times), exponential(25.0));
    assert!(distance < KOLMOGOROV_LIMIT, "seed {seed}: {distance}");
    for seconds in [0.1, 1.0, 10.0] {
        let (found, windows) = dispersion(&times, seconds);
        println!("seed {seed}: dispersion {found:.4} over {windows} windows of {seconds} s");
        assert!((found - 1.0).abs() < 4.0 * (2.0 / windows).sqrt(), "seed {seed}: {found}");
    }
}

/// A part of a Poisson process chosen by chance is one, and so is the sum of several.
#[test]
fn poisson_processes_thin_and_add() {
    let seed = seed(22);
    let mut coin = SeedTree::root(seed).child("coin").stream();
    let times = arrivals(&ArrivalSpec::poisson(50.0), seed, 200_000);
    let kept: Vec<f64> = times.into_iter().filter(|_| coin.next_unit() < 0.2).collect();
    let distance = kolmogorov(&mut gaps(&kept), exponential(10.0));
    assert!(distance < KOLMOGOROV_LIMIT, "seed {seed}: {distance}");

    let mut sum: Vec<f64> = (0..3)
        .flat_map(|i| {
            arrivals(&ArrivalSpec::poisson(f64::from(i + 1)), seed + 1 + i as u64, 90_000)
        })
        .collect();
    sum.sort_by(f64::total_cmp);
    // Beyond the first stream's end the sum has fewer.
    sum.retain(|t| *t < 25_000.0);
    let distance = kolmogorov(&mut gaps(&sum), exponential(6.0));
    assert!(distance < KOLMOGOROV_LIMIT, "seed {seed}: {distance}");
}

const POINTS: [(f64, f64); 4] = [(0.0, 5.0), (30.0, 40.0), (50.0, 0.0), (80.0, 10.0)];
const PERIOD: f64 = 100.0;

/// The rate of the profile above, as one reads it.
fn rate_at(t: f64, shape: Shape) -> f64 {
    let t = t % PERIOD;
    let i = POINTS.iter().rposition(|p| p.0 <= t).unwrap();
    let (from, rate) = POINTS[i];
    let (to, next) = POINTS.get(i + 1).copied().unwrap_or((PERIOD, POINTS[0].1));
    match shape {
        Shape::Steps => rate,
        Shape::Linear => rate + (next - rate) * (t - from) / (to - from),
    }
}

#[test]
fn a_profile_is_followed_as_by_thinning() {
    let seed = seed(23);
    for shape in [Shape::Steps, Shape::Linear] {
        let rate = RateSpec::Profile { points: POINTS.to_vec(), shape, period_s: Some(PERIOD) };
        let times = arrivals(&open(GapSpec::Exponential, rate), seed, 100_000);
        // Lewis and Shedler: arrivals at the highest rate, each kept with the rate's share of it.
        let mut random: Stream = SeedTree::root(seed).child("thinning").stream();
        let (mut thinned, mut t) = (Vec::new(), 0.0);
        while thinned.len() < 100_000 {
            t -= (1.0 - random.next_unit()).ln() / 40.0;
            if random.next_unit() * 40.0 < rate_at(t, shape) {
                thinned.push(t);
            }
        }
        let place = |times: &[f64]| times.iter().map(|t| t % PERIOD).collect::<Vec<_>>();
        let distance = smirnov(&mut place(&times), &mut place(&thinned));
        println!("seed {seed}, {shape:?}: places differ by {distance:.3}");
        assert!(distance < KOLMOGOROV_LIMIT, "seed {seed}, {shape:?}: {distance}");
        let distance = smirnov(&mut gaps(&times), &mut gaps(&thinned));
        assert!(distance < KOLMOGOROV_LIMIT, "seed {seed}, {shape:?}: gaps {distance}");
        // As many in the same time: both counts are Poisson.
        let (a, b) = (times[99_999], thinned[99_999]);
        let spread = 4.0 * (2.0f64 / 1e5).sqrt();
        assert!((a / b - 1.0).abs() < spread, "seed {seed}, {shape:?}: {a} s and {b} s");
    }
}

#[test]
fn constant_gaps_come_at_their_moments() {
    let rate = RateSpec::Constant { per_s: 3.0 };
    let spec = open(GapSpec::Constant, rate);
    let times: Vec<Time> = spec.build(Time(7), SeedTree::root(1)).unwrap().take(300_000).collect();
    for (k, time) in times.iter().enumerate() {
        let exact = 7 + (k as u128 + 1) * 1_000_000_000 / 3;
        assert!(u128::from(time.0).abs_diff(exact) <= 1, "arrival {k}: {time:?} for {exact}");
    }
    // Through steps of a profile: 2 per second for 10 s, 4 per second for 10 s, and again.
    let points = vec![(0.0, 2.0), (10.0, 4.0)];
    let rate = RateSpec::Profile { points, shape: Shape::Steps, period_s: Some(20.0) };
    let times = arrivals(&open(GapSpec::Constant, rate), 1, 600);
    for (k, time) in times.iter().enumerate() {
        let (periods, rest) = ((k + 1) / 60, ((k + 1) % 60) as f64);
        let within = if rest <= 20.0 { rest / 2.0 } else { 10.0 + (rest - 20.0) / 4.0 };
        let exact = periods as f64 * 20.0 + within;
        assert!((time - exact).abs() < 1e-8, "arrival {k}: {time} for {exact}");
    }
}

#[test]
fn bursty_gaps_keep_rate_and_cv() {
    let seed = seed(24);
    for (spec, cv) in [
        (GapSpec::Gamma { cv: 3.0 }, 3.0),
        (GapSpec::Gamma { cv: 0.3 }, 0.3),
        (GapSpec::Weibull { cv: 2.0 }, 2.0),
    ] {
        let n = 200_000;
        let times = arrivals(&open(spec, RateSpec::Constant { per_s: 8.0 }), seed, n);
        let rate = n as f64 / times[n - 1];
        let error = 4.0 * cv / (n as f64).sqrt();
        assert!((rate / 8.0 - 1.0).abs() < error, "seed {seed}, {spec:?}: {rate}");
        let gaps = gaps(&times);
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let found = variance.sqrt() / mean;
        assert!((found / cv - 1.0).abs() < 0.05, "seed {seed}, {spec:?}: {found}");
        // The dispersion of a renewal process goes to the squared cv (Cox, "Renewal theory").
        let (found, windows) = dispersion(&times, 100.0);
        println!("seed {seed}, {spec:?}: dispersion {found:.3}");
        let slack = 5.0 * (2.0 / windows).sqrt();
        assert!((found / (cv * cv) - 1.0).abs() < slack, "seed {seed}, {spec:?}: {found}");
    }
}

/// Two states: the closed form of Heffes and Lucantoni (IEEE JSAC 4, 1986).
#[test]
fn markov_modulated_arrivals_have_the_closed_forms_dispersion() {
    let seed = seed(25);
    let (rates, means) = ([40.0, 4.0], [2.0, 6.0]);
    let states =
        (0..2).map(|i| MarkovState { per_s: rates[i], mean_s: means[i], next: vec![] }).collect();
    let times = arrivals(&open(GapSpec::Exponential, RateSpec::Markov { states }), seed, 1_000_000);
    // Shares of time 1/4 and 3/4.
    let rate = times.len() as f64 / times[times.len() - 1];
    assert!((rate / 13.0 - 1.0).abs() < 0.03, "seed {seed}: {rate} per second");
    let (s1, s2) = (1.0 / means[0], 1.0 / means[1]);
    let (l1, l2): (f64, f64) = (rates[0], rates[1]);
    let limit = 2.0 * s1 * s2 * (l1 - l2).powi(2) / ((s1 + s2).powi(2) * (l1 * s2 + l2 * s1));
    for seconds in [0.2, 1.0, 5.0, 20.0] {
        let x = (s1 + s2) * seconds;
        let exact = 1.0 + limit * (1.0 - (1.0 - (-x).exp()) / x);
        let (found, _) = dispersion(&times, seconds);
        println!("seed {seed}: windows of {seconds} s: {found:.3} for {exact:.3}");
        assert!(
            (found / exact - 1.0).abs() < 0.06,
            "seed {seed}, {seconds} s: {found} for {exact}"
        );
    }
}

#[test]
fn states_follow_by_their_weights() {
    let seed = seed(26);
    // From the first state to the third three times in four, and back to the first.
    let state = |per_s, next: &[f64]| MarkovState { per_s, mean_s: 1.0, next: next.to_vec() };
    let states = vec![
        state(0.0, &[0.0, 1.0, 3.0]),
        state(10.0, &[1.0, 0.0, 0.0]),
        state(30.0, &[1.0, 0.0, 0.0]),
    ];
    let times = arrivals(&open(GapSpec::Exponential, RateSpec::Markov { states }), seed, 400_000);
    // Half of the time in the first, an eighth in the second: 10 / 8 + 30 * 3 / 8.
    let rate = times.len() as f64 / times[times.len() - 1];
    assert!((rate / 12.5 - 1.0).abs() < 0.03, "seed {seed}: {rate}");
}

#[test]
fn closed_loops_start_at_once_and_idle_profiles_end() {
    let spec = ArrivalSpec::ClosedLoop { users: 5 };
    let times: Vec<Time> = spec.build(Time(9), SeedTree::root(1)).unwrap().collect();
    assert_eq!(times, [Time(9); 5]);
    let points = vec![(0.0, 100.0), (1.0, 0.0)];
    let rate = RateSpec::Profile { points, shape: Shape::Steps, period_s: None };
    let spec = open(GapSpec::Exponential, rate);
    let times: Vec<Time> = spec.build(Time(0), SeedTree::root(1)).unwrap().collect();
    assert!((50..150).contains(&times.len()), "{}", times.len());
    assert!(times.iter().all(|t| t.0 < 1_000_000_000));
}

#[test]
fn rates_outside_their_range_are_named() {
    let profile = |points: &[(f64, f64)], period_s| RateSpec::Profile {
        points: points.to_vec(),
        shape: Shape::Linear,
        period_s,
    };
    let markov = |states: &[(f64, f64, &[f64])]| RateSpec::Markov {
        states: states
            .iter()
            .map(|s| MarkovState { per_s: s.0, mean_s: s.1, next: s.2.to_vec() })
            .collect(),
    };
    for (rate, at) in [
        (RateSpec::Constant { per_s: 0.0 }, "rate.per_s"),
        (RateSpec::Constant { per_s: f64::NAN }, "rate.per_s"),
        (profile(&[], None), "rate.points"),
        (profile(&[(1.0, 1.0)], None), "rate.points"),
        (profile(&[(0.0, 1.0), (0.0, 2.0)], None), "rate.points"),
        (profile(&[(0.0, 1.0), (f64::NAN, 2.0)], None), "rate.points"),
        (profile(&[(0.0, 1.0), (5.0, -2.0)], None), "rate.points"),
        (profile(&[(0.0, 0.0)], Some(10.0)), "rate.points"),
        (profile(&[(0.0, 1.0), (5.0, 2.0)], Some(4.0)), "rate.points"),
        (profile(&[(0.0, 1.0)], Some(f64::NAN)), "rate.period_s"),
        (markov(&[]), "rate.states"),
        (markov(&[(0.0, 1.0, &[])]), "rate.states"),
        (markov(&[(1.0, 0.0, &[])]), "rate.states"),
        (markov(&[(1.0, 1.0, &[]), (-1.0, 1.0, &[])]), "rate.states[1].per_s"),
        (markov(&[(1.0, 1.0, &[1.0]), (1.0, 1.0, &[])]), "rate.states[0].next"),
        (markov(&[(1.0, 1.0, &[]), (0.0, 1.0, &[0.0, 1.0])]), "rate.states[1]"),
    ] {
        let spec = open(GapSpec::Exponential, rate);
        let error = spec.build(Time(0), SeedTree::root(0)).unwrap_err();
        assert_eq!(error.at, at, "{error}: {spec:?}");
    }
    let spec = open(GapSpec::Gamma { cv: -1.0 }, RateSpec::Constant { per_s: 1.0 });
    assert_eq!(spec.build(Time(0), SeedTree::root(0)).unwrap_err().at, "gaps.cv");
}
