//! The sampler against naive references and exact probabilities.

use super::*;
use dunlin_units::SeedTree;

mod allowed;

const SEED: u64 = 20_261_130;

fn place(tokens: &[u32], prompt_len: usize) -> SamplePlace<'_> {
    SamplePlace { tokens, prompt_len, choice: 0 }
}

fn random_logits(n: usize, spread: f64, label: u64) -> Vec<f32> {
    let mut random = SeedTree::root(SEED).child_at(label).stream();
    // A sum of uniforms is near enough to normal.
    (0..n)
        .map(|_| {
            let sum: f64 = (0..6).map(|_| random.next_unit() - 0.5).sum();
            (sum * spread) as f32
        })
        .collect()
}

/// The distribution that the documented chain describes, in the most direct way.
fn exact_distribution(
    params: &SamplingParams,
    tokens: &[u32],
    prompt_len: usize,
    logits: &[f32],
) -> Vec<f64> {
    let mut z: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    for &(token, bias) in &params.logit_bias {
        z[token as usize] += f64::from(bias);
    }
    let start = tokens.len() - params.penalty_window.unwrap_or(tokens.len()).min(tokens.len());
    for (id, z) in z.iter_mut().enumerate() {
        let seen = tokens[start..].iter().any(|&t| t as usize == id);
        let output = (start..tokens.len())
            .filter(|&p| p >= prompt_len && tokens[p] as usize == id)
            .count() as f64;
        let r = f64::from(params.repetition_penalty);
        if seen {
            *z = if *z > 0.0 { *z / r } else { *z * r };
        }
        if output > 0.0 {
            *z -= f64::from(params.presence_penalty) + f64::from(params.frequency_penalty) * output;
        }
    }
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut p: Vec<f64> =
        z.iter().map(|z| ((z - max) / f64::from(params.temperature)).exp()).collect();
    let normalize = |p: &mut Vec<f64>| {
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
    };
    normalize(&mut p);
    let best = p.iter().copied().fold(0.0, f64::max);
    p.iter_mut().for_each(|p| {
        if *p < f64::from(params.min_p) * best * (1.0 - 1e-12) {
            *p = 0.0;
        }
    });
    normalize(&mut p);
    let by_probability = |p: &[f64]| {
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|&a, &b| p[b].total_cmp(&p[a]).then(a.cmp(&b)));
        order
    };
    let keep = |p: &mut Vec<f64>, order: &[usize], mass: f64| {
        let mut sum = 0.0;
        let mut done = false;
        for &id in order {
            if done {
                p[id] = 0.0;
            }
            sum += p[id];
            done |= sum >= mass * (1.0 - 1e-12);
        }
    };
    if params.top_k > 0 {
        for &id in by_probability(&p).iter().skip(params.top_k) {
            p[id] = 0.0;
        }
        normalize(&mut p);
    }
    if params.typical_p < 1.0 {
        let entropy: f64 = p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
        let mut order: Vec<usize> = (0..p.len()).filter(|&i| p[i] > 0.0).collect();
        order.sort_by(|&a, &b| {
            (-p[a].ln() - entropy).abs().total_cmp(&(-p[b].ln() - entropy).abs())
        });
        keep(&mut p, &order, f64::from(params.typical_p));
        normalize(&mut p);
    }
    if params.top_p < 1.0 {
        let order = by_probability(&p);
        keep(&mut p, &order, f64::from(params.top_p));
        normalize(&mut p);
    }
    p
}

/// Compares frequencies over many choices with exact probabilities by a chi-square test at a level
/// of e^-7, below 1e-3: the statistic exceeds `df + 2 sqrt(7 df) + 14` with at most that probability
/// (Laurent and Massart 2000, lemma 1).
fn assert_distributed(params: &SamplingParams, tokens: &[u32], prompt_len: usize, logits: &[f32]) {
    let exact = exact_distribution(params, tokens, prompt_len, logits);
    let draws = 20_000u32;
    let mut counts = vec![0u32; logits.len()];
    let mut sampler = Sampler::new();
    let mut row = logits.to_vec();
    for choice in 0..draws {
        let at = SamplePlace { tokens, prompt_len, choice };
        let sampled = sampler.sample(params, at, &mut row, None).unwrap();
        counts[sampled.token as usize] += 1;
    }
    assert_eq!(row, logits, "the logits must be restored");
    let (mut chi2, mut df, mut rest) = (0.0, 0.0, (0.0, 0.0));
    for (&count, &p) in counts.iter().zip(&exact) {
        let (count, expected) = (f64::from(count), p * f64::from(draws));
        assert!(p > 0.0 || count == 0.0, "a removed token was chosen");
        if expected >= 5.0 {
            chi2 += (count - expected).powi(2) / expected;
            df += 1.0;
        } else {
            rest = (rest.0 + count, rest.1 + expected);
        }
    }
    if rest.1 > 0.5 {
        chi2 += (rest.0 - rest.1).powi(2) / rest.1;
        df += 1.0;
    }
    let df: f64 = df - 1.0;
    let bound = df + 2.0 * (7.0 * df).sqrt() + 14.0;
    assert!(chi2 <= bound, "chi-square {chi2} above {bound} (df {df}, seed {SEED}) of {params:?}");
}

#[test]
fn every_parameter_gives_its_exact_distribution() {
    let base = SamplingParams { seed: SEED, ..SamplingParams::default() };
    let cases = [
        base.clone(),
        SamplingParams { temperature: 0.5, ..base.clone() },
        SamplingParams { temperature: 1.7, ..base.clone() },
        SamplingParams { top_k: 5, ..base.clone() },
        SamplingParams { top_p: 0.7, ..base.clone() },
        SamplingParams { top_p: 0.7, temperature: 1.5, ..base.clone() },
        SamplingParams { min_p: 0.2, ..base.clone() },
        SamplingParams { typical_p: 0.5, ..base.clone() },
        SamplingParams { repetition_penalty: 1.5, ..base.clone() },
        SamplingParams { repetition_penalty: 1.5, penalty_window: Some(2), ..base.clone() },
        SamplingParams { presence_penalty: 1.0, ..base.clone() },
        SamplingParams { frequency_penalty: 0.7, ..base.clone() },
        SamplingParams { frequency_penalty: -0.7, penalty_window: Some(3), ..base.clone() },
        SamplingParams {
            logit_bias: vec![(3, 2.0), (5, f32::NEG_INFINITY), (7, -1.0)],
            ..base.clone()
        },
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            typical_p: 0.95,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            logit_bias: vec![(0, 1.0)],
            ..base.clone()
        },
    ];
    let tokens = [3, 7, 7, 1, 3, 9, 9, 9];
    for (label, params) in cases.iter().enumerate() {
        for n in [10usize, 150] {
            let logits = random_logits(n, 3.0, label as u64);
            assert_distributed(params, &tokens, 3, &logits);
        }
    }
}

#[test]
fn survivors_are_those_of_the_direct_definition() {
    // With a temperature so high that every survivor is chosen some time, what is never chosen has
    // been removed; here the survivors themselves are compared.
    for label in 0..40u64 {
        let logits = random_logits(300, 4.0, 1000 + label);
        let params = SamplingParams {
            temperature: 0.5 + label as f32 / 20.0,
            top_k: [0, 1, 7, 100][label as usize % 4],
            top_p: [1.0, 0.95, 0.3, 0.0][label as usize / 4 % 4],
            min_p: [0.0, 0.01, 0.3][label as usize % 3],
            typical_p: [1.0, 0.9, 0.2][label as usize / 3 % 3],
            ..SamplingParams::default()
        };
        let exact = exact_distribution(&params, &[], 0, &logits);
        let expected: Vec<u32> = (0..300u32).filter(|&id| exact[id as usize] > 0.0).collect();
        let mut maxima = BlockMaxima::default();
        maxima.scan(&logits).unwrap();
        let max = maxima.max();
        let mut truncation = Truncation::default();
        let mut left: Vec<u32> = if truncate::truncates(&params, 300) {
            let left = truncation.candidates(&params, &logits, max, &mut maxima);
            left.iter().map(|c| c.rank.token()).collect()
        } else {
            (0..300).collect()
        };
        left.sort_unstable();
        assert_eq!(left, expected, "{params:?}");
    }
}

#[test]
fn truncation_changes_a_choice_only_by_removing_it() {
    let logits = random_logits(1000, 6.0, 77);
    let all = SamplingParams { seed: 3, ..SamplingParams::default() };
    let barely = SamplingParams { top_k: 999, ..all.clone() };
    let mut sampler = Sampler::new();
    for choice in 0..500 {
        let at = SamplePlace { tokens: &[], prompt_len: 0, choice };
        let mut row = logits.clone();
        let a = sampler.sample(&all, at, &mut row, None).unwrap();
        let b = sampler.sample(&barely, at, &mut row, None).unwrap();
        assert_eq!(a, b, "the pruned pass over the vocabulary must equal the plain one");
    }
}

#[test]
fn greedy_takes_the_lowest_id_among_the_best() {
    let mut sampler = Sampler::new();
    for n in [1usize, 2, 64, 65, 200] {
        for at in 0..n {
            let mut logits = vec![-1.0f32; n];
            logits[at..].fill(2.5);
            let sampled = sampler
                .sample(&SamplingParams::greedy(), place(&[], 0), &mut logits, None)
                .unwrap();
            assert_eq!(sampled.token as usize, at);
        }
    }
    let mut zeros = [-0.0f32, 0.0];
    let sampled = sampler.sample(&SamplingParams::greedy(), place(&[], 0), &mut zeros, None);
    assert_eq!(sampled.unwrap().token, 0);
}

#[test]
fn greedy_is_what_a_vanishing_temperature_gives() {
    let logits = random_logits(500, 4.0, 5);
    let mut sampler = Sampler::new();
    let cold = SamplingParams { temperature: f32::MIN_POSITIVE, ..SamplingParams::default() };
    for params in [cold.clone(), SamplingParams { top_p: 0.5, ..cold }] {
        let mut row = logits.clone();
        let a = sampler.sample(&SamplingParams::greedy(), place(&[], 0), &mut row, None);
        let b = sampler.sample(&params, place(&[], 0), &mut row, None);
        assert_eq!(a, b);
    }
}

#[test]
fn logprobs_are_of_the_untouched_distribution() {
    let logits = random_logits(3000, 5.0, 8);
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    let params = SamplingParams {
        temperature: 0.7,
        top_k: 20,
        repetition_penalty: 1.3,
        logit_bias: vec![(17, 30.0)],
        seed: 1,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new();
    let mut row = logits.clone();
    let sampled = sampler.sample(&params, place(&[1, 17, 5], 2), &mut row, Some(5)).unwrap();
    assert_eq!(sampled.token, 17, "the bias decides");
    assert!((sampled.logprob.unwrap() - (f64::from(logits[17]) - log_sum)).abs() < 4e-6);
    let mut order: Vec<u32> = (0..3000).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let top = sampler.top_logprobs();
    assert_eq!(top.iter().map(|t| t.token).collect::<Vec<_>>(), order[..5]);
    for t in top {
        assert!((t.logprob - (f64::from(logits[t.token as usize]) - log_sum)).abs() < 4e-6);
    }
    let none = sampler.sample(&params, place(&[], 0), &mut row, Some(0)).unwrap();
    assert!(none.logprob.is_some() && sampler.top_logprobs().is_empty());
}

#[test]
fn bad_logits_and_total_bans_are_errors() {
    let mut sampler = Sampler::new();
    let greedy = SamplingParams::greedy();
    let mut nan = [0.0, f32::NAN, 1.0];
    let error = sampler.sample(&greedy, place(&[1, 2], 1), &mut nan, None).unwrap_err();
    assert_eq!(error, SampleError::NotANumber { position: 2 });
    assert!(error.to_string().starts_with("the model produced NaN logits at position 2"));
    let mut infinite = [0.0, f32::INFINITY];
    let error = sampler.sample(&greedy, place(&[], 0), &mut infinite, None).unwrap_err();
    assert_eq!(error, SampleError::Infinite { position: 0 });
    let mut lowest = [f32::NEG_INFINITY; 2];
    let error = sampler.sample(&greedy, place(&[], 0), &mut lowest, None).unwrap_err();
    assert_eq!(error, SampleError::Infinite { position: 0 });
    let ban = SamplingParams {
        logit_bias: vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)],
        ..SamplingParams::default()
    };
    let mut logits = [1.0, 2.0];
    for top_k in [0, 1] {
        let params = SamplingParams { top_k, ..ban.clone() };
        let error = sampler.sample(&params, place(&[], 0), &mut logits, None).unwrap_err();
        assert_eq!(error, SampleError::NothingLeft { position: 0 });
        assert_eq!(logits, [1.0, 2.0]);
    }
}

#[test]
fn a_banned_token_is_never_chosen() {
    let ban = SamplingParams {
        logit_bias: vec![(1, f32::NEG_INFINITY)],
        temperature: 50.0,
        seed: 4,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new();
    for (top_k, top_p) in [(0, 1.0), (3, 1.0), (0, 0.999)] {
        let params = SamplingParams { top_k, top_p, ..ban.clone() };
        for choice in 0..300 {
            let at = SamplePlace { tokens: &[1, 2], prompt_len: 1, choice };
            let mut logits = [0.0, 9.0, 0.1];
            let sampled = sampler.sample(&params, at, &mut logits, None).unwrap();
            assert_ne!(sampled.token, 1);
        }
    }
}

#[test]
fn noise_belongs_to_seed_choice_and_position() {
    let logits = random_logits(200, 0.5, 12);
    let pick = |seed: u64, choice: u32, tokens: &[u32]| {
        let params = SamplingParams { seed, ..SamplingParams::default() };
        let at = SamplePlace { tokens, prompt_len: 0, choice };
        Sampler::new().sample(&params, at, &mut logits.clone(), None).unwrap().token
    };
    let many = |f: &dyn Fn(u32) -> u32| (0..40).map(f).collect::<Vec<_>>();
    let base = many(&|i| pick(1, i, &[0; 3]));
    assert_eq!(base, many(&|i| pick(1, i, &[5; 3])), "only the number of tokens matters");
    assert_ne!(base, many(&|i| pick(2, i, &[0; 3])));
    assert_ne!(base, many(&|i| pick(1, i + 100, &[0; 3])));
    assert_ne!(base, many(&|i| pick(1, i, &[0; 4])));
}
