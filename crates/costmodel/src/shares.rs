//! A whole dealt out in parts that sum to it exactly.

/// `total` dealt out in proportion to `weights`, in whole units: each part is its exact share rounded
/// down or up, and all of them sum to `total`. What rounding leaves goes to the largest remainders,
/// and of equal ones to the first (the method of largest remainders). Where all weights are 0, parts
/// are equal but for one unit. No weights, no parts.
pub fn shares(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|&w| u128::from(w)).sum();
    if weights.is_empty() {
        return Vec::new();
    }
    if sum == 0 {
        let n = weights.len() as u64;
        return (0..n).map(|i| total / n + u64::from(i < total % n)).collect();
    }
    let exact = |w: u64| u128::from(total) * u128::from(w);
    let mut parts: Vec<u64> = weights.iter().map(|&w| (exact(w) / sum) as u64).collect();
    let left = total - parts.iter().sum::<u64>();
    if left > 0 {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(exact(weights[i]) % sum), i));
        order.iter().take(left as usize).for_each(|&i| parts[i] += 1);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    #[test]
    fn parts_sum_to_the_whole_and_are_off_by_less_than_one() {
        for seed in 0..500 {
            let mut dice = SeedTree::root(seed).child("shares").stream();
            let mut below = |n: u64| (dice.next_unit() * n as f64) as u64;
            let most = [1, 10, u64::MAX / 2][below(3) as usize];
            let weights: Vec<u64> = (0..below(30) + 1).map(|_| below(most)).collect();
            let scale = [5, 1000, u64::MAX / 2][below(3) as usize];
            let total = below(scale);
            let parts = shares(total, &weights);
            assert_eq!(parts.iter().sum::<u64>(), total, "seed {seed}");
            let sum: u128 = weights.iter().map(|&w| u128::from(w)).sum();
            if sum == 0 {
                continue;
            }
            for (part, weight) in parts.iter().zip(&weights) {
                let exact = u128::from(total) * u128::from(*weight);
                let (low, high) = (exact / sum, exact.div_ceil(sum));
                assert!((low..=high).contains(&u128::from(*part)), "seed {seed}");
            }
        }
    }

    #[test]
    fn largest_remainders_come_first() {
        // 10 in thirds of unequal weight: 5.0, 3.33, 1.67.
        assert_eq!(shares(10, &[3, 2, 1]), [5, 3, 2]);
        assert_eq!(shares(7, &[0, 0, 0]), [3, 2, 2]);
        assert_eq!(shares(2, &[1, 1, 1]), [1, 1, 0]);
        assert!(shares(5, &[]).is_empty());
    }
}
