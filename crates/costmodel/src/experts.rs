//! How many experts a step's tokens use.

/// The expected number of distinct experts, of `n_experts`, that `tokens` tokens use, each choosing
/// `n_used` different ones evenly: `n (1 - (1 - k/n)^t)`.
pub fn expected_distinct(n_experts: u32, n_used: u32, tokens: f64) -> f64 {
    if n_experts == 0 {
        return 0.0;
    }
    let n = f64::from(n_experts);
    let missed = 1.0 - f64::from(n_used.min(n_experts)) / n;
    n * (1.0 - libm::pow(missed, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against all choices that there are, one by one.
    #[test]
    fn the_mean_over_all_choices() {
        let (n, k) = (5u32, 2u32);
        let choices: Vec<u32> = (0..1 << n).filter(|m: &u32| m.count_ones() == k).collect();
        let mut sets = vec![0u32];
        for tokens in 1..=4 {
            sets = sets.iter().flat_map(|s| choices.iter().map(move |c| s | c)).collect();
            let sum: u64 = sets.iter().map(|s| u64::from(s.count_ones())).sum();
            let mean = sum as f64 / sets.len() as f64;
            assert!((expected_distinct(n, k, f64::from(tokens)) - mean).abs() < 1e-9);
        }
    }
}
