//! Choices among some tokens, against the plainest definition.

use super::*;

/// Bits of a random mask; about one in `one_in` is set.
fn random_mask(random: &mut dunlin_units::Stream, n: usize, one_in: u64) -> Vec<u32> {
    let mut mask = vec![0u32; n.div_ceil(32)];
    for token in 0..n {
        if random.next_below(one_in) == 0 {
            mask[token / 32] |= 1 << (token % 32);
        }
    }
    // Whole words, and a mask that is shorter than the vocabulary or has bits beyond it.
    let words = mask.len() as u64;
    match random.next_below(4) {
        0 => mask[random.next_below(words) as usize] = u32::MAX,
        1 => mask.truncate(random.next_below(words + 1) as usize),
        2 => *mask.last_mut().unwrap() |= !0 << 20,
        _ => {}
    }
    mask
}

/// The allowed token with the largest value, each computed for itself.
fn plainly(
    params: &SamplingParams,
    place: SamplePlace<'_>,
    z: &[f32],
    mask: &[u32],
) -> Option<u32> {
    let base = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let noise = place.noise(params.seed);
    let mut best: Option<(f64, u32)> = None;
    for (token, &z) in (0..).zip(z) {
        let word = mask.get(token as usize / 32).copied().unwrap_or(0);
        if word >> (token % 32) & 1 == 0 || z == f32::NEG_INFINITY {
            continue;
        }
        let value = if params.temperature == 0.0 {
            f64::from(z)
        } else {
            (f64::from(z) - f64::from(base)) / f64::from(params.temperature)
                + gumbel::gumbel(noise.u64_at(token))
        };
        if best.is_none_or(|(best, _)| value > best) {
            best = Some((value, token));
        }
    }
    best.map(|(_, token)| token)
}

#[test]
fn choices_among_some_are_those_of_the_plain_definition() {
    let mut sampler = Sampler::new();
    let mut random = SeedTree::root(SEED).child("masks").stream();
    let mut chosen = 0;
    for seed in 0..600 {
        let n = 1 + random.next_below(if seed % 5 == 0 { 3000 } else { 150 }) as usize;
        // Few distinct values: ties.
        let step = [0.0, 0.5, 3.0][random.next_below(3) as usize];
        let mut logits = random_logits(n, 8.0, seed);
        if step > 0.0 {
            logits.iter_mut().for_each(|x| *x = (*x / step).round() * step);
        }
        let one_in = [1, 2, 20, 300][random.next_below(4) as usize];
        let mask = random_mask(&mut random, n, one_in);
        let tokens = vec![0; random.next_below(50) as usize];
        let place = SamplePlace { tokens: &tokens, prompt_len: 0, choice: seed as u32 % 3 };
        let bias = [f32::NEG_INFINITY, 40.0, -3.0][random.next_below(3) as usize];
        let logit_bias = vec![(random.next_below(n as u64) as u32, bias)];
        let mut edited = logits.clone();
        edited[logit_bias[0].0 as usize] += bias;
        for temperature in [0.0, 1e-9, 0.3, 1.0, 20.0] {
            let params = SamplingParams {
                temperature,
                seed,
                logit_bias: logit_bias.clone(),
                ..SamplingParams::default()
            };
            let found = sampler.sample_allowed(&params, place, &mut logits, None, Some(&mask));
            let wanted = plainly(&params, place, &edited, &mask);
            assert_eq!(found.ok().map(|s| s.token), wanted, "seed {seed}, {params:?}, {n} tokens");
            chosen += u32::from(wanted.is_some());
        }
    }
    assert!(chosen > 1500, "{chosen}");
}

#[test]
fn truncation_is_that_of_the_allowed_tokens_alone() {
    let mut sampler = Sampler::new();
    let mut random = SeedTree::root(SEED).child("truncated").stream();
    for seed in 0..200 {
        let n = 2 + random.next_below(400) as usize;
        let mut logits = random_logits(n, 8.0, seed);
        let mut mask = random_mask(&mut random, n, 3);
        mask.resize(n.div_ceil(32), 0);
        mask[0] |= 1;
        let mut alone: Vec<f32> = (0..n)
            .map(|t| if mask[t / 32] >> (t % 32) & 1 == 1 { logits[t] } else { f32::NEG_INFINITY })
            .collect();
        let tokens: Vec<u32> = (0..20).map(|_| random.next_below(n as u64) as u32).collect();
        let place = SamplePlace { tokens: &tokens, prompt_len: 5, choice: 0 };
        let base = SamplingParams { seed, repetition_penalty: 1.3, ..SamplingParams::default() };
        for params in [
            SamplingParams { top_k: 5, ..base.clone() },
            SamplingParams { top_p: 0.8, ..base.clone() },
            SamplingParams { min_p: 0.1, temperature: 0.5, ..base.clone() },
            SamplingParams { typical_p: 0.6, top_k: 40, ..base },
        ] {
            let wanted = sampler.sample(&params, place, &mut alone, None).unwrap();
            let found = sampler.sample_allowed(&params, place, &mut logits, None, Some(&mask));
            assert_eq!(found.unwrap(), wanted, "seed {seed}, {params:?}");
        }
    }
}
