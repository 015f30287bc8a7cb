//! Least squares whose coefficients must not be negative, by the active set method of Lawson and
//! Hanson ("Solving Least Squares Problems", 1974, chapter 23).

/// The `x >= 0` that makes the sum over rows of `weight * (row . x - y)^2` smallest.
///
/// `rows` holds the terms of each row; `weights` are not negative. Terms that are combinations of
/// others get 0. The arithmetic is IEEE 754 in a fixed order, so equal data gives equal bits.
///
/// # Panics
/// Where the lengths differ.
pub fn nnls<const N: usize>(rows: &[[f64; N]], y: &[f64], weights: &[f64]) -> [f64; N] {
    assert!(rows.len() == y.len() && rows.len() == weights.len(), "one value and weight a row");
    // Columns of one length, so that thresholds mean the same for each.
    let mut scale = [0.0f64; N];
    for (row, w) in rows.iter().zip(weights) {
        (0..N).for_each(|j| scale[j] += w * row[j] * row[j]);
    }
    let scale = scale.map(|s| if s > 0.0 { 1.0 / s.sqrt() } else { 0.0 });
    let (mut gram, mut moment) = ([[0.0f64; N]; N], [0.0f64; N]);
    for ((row, y), w) in rows.iter().zip(y).zip(weights) {
        for i in 0..N {
            let wi = w * row[i] * scale[i];
            (0..N).for_each(|j| gram[i][j] += wi * row[j] * scale[j]);
            moment[i] += wi * y;
        }
    }
    let x = active_set(&gram, &moment);
    std::array::from_fn(|j| x[j] * scale[j])
}

/// Of a descent direction, what is taken for none, of the largest moment.
const FLAT: f64 = 1e-10;

fn active_set<const N: usize>(gram: &[[f64; N]; N], moment: &[f64; N]) -> [f64; N] {
    let (mut x, mut used, mut barred) = ([0.0; N], [false; N], [false; N]);
    let flat = FLAT * moment.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    // Each round lowers the sum, so no set of terms comes twice; the bound is for rounding alone.
    for _ in 0..20 * (N + 1) {
        let slope = |j: usize| moment[j] - (0..N).map(|k| gram[j][k] * x[k]).sum::<f64>();
        let candidates = (0..N).filter(|&j| !used[j] && !barred[j] && slope(j) > flat);
        let Some(enter) = candidates.max_by(|&a, &b| slope(a).total_cmp(&slope(b))) else { break };
        used[enter] = true;
        let Some(mut solution) = solve(gram, moment, &used) else {
            (used[enter], barred[enter]) = (false, true);
            continue;
        };
        if solution[enter] <= 0.0 {
            (used[enter], barred[enter]) = (false, true);
            continue;
        }
        barred = [false; N];
        while (0..N).any(|j| used[j] && solution[j] <= 0.0) {
            // As far as all stay positive; whoever reaches zero first leaves.
            let leaving = (0..N).filter(|&j| used[j] && solution[j] <= 0.0);
            let step = leaving.map(|j| x[j] / (x[j] - solution[j])).fold(1.0, f64::min);
            let before = used;
            for j in (0..N).filter(|&j| before[j]) {
                x[j] += step * (solution[j] - x[j]);
                if x[j] <= 1e-15 && solution[j] <= 0.0 {
                    (x[j], used[j]) = (0.0, false);
                }
            }
            match solve(gram, moment, &used) {
                Some(next) => solution = next,
                None => return x,
            }
        }
        x = solution;
    }
    x
}

/// The least squares solution with the terms in use, the others zero; `None` where they are not
/// independent.
fn solve<const N: usize>(
    gram: &[[f64; N]; N],
    moment: &[f64; N],
    used: &[bool; N],
) -> Option<[f64; N]> {
    // Cholesky of the part in use; the diagonal is 1 by scaling.
    let mut l = [[0.0f64; N]; N];
    for i in (0..N).filter(|&i| used[i]) {
        for j in (0..=i).filter(|&j| used[j]) {
            let known: f64 = (0..j).filter(|&k| used[k]).map(|k| l[i][k] * l[j][k]).sum();
            let rest = gram[i][j] - known;
            if i == j {
                if rest < 1e-11 {
                    return None;
                }
                l[i][i] = rest.sqrt();
            } else {
                l[i][j] = rest / l[j][j];
            }
        }
    }
    let mut x = [0.0; N];
    for i in (0..N).filter(|&i| used[i]) {
        let known: f64 = (0..i).filter(|&k| used[k]).map(|k| l[i][k] * x[k]).sum();
        x[i] = (moment[i] - known) / l[i][i];
    }
    for i in (0..N).rev().filter(|&i| used[i]) {
        let known: f64 = (i + 1..N).filter(|&k| used[k]).map(|k| l[k][i] * x[k]).sum();
        x[i] = (x[i] - known) / l[i][i];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::{SeedTree, Stream};

    fn cost<const N: usize>(rows: &[[f64; N]], y: &[f64], w: &[f64], x: &[f64; N]) -> f64 {
        let fitted = |row: &[f64; N]| -> f64 { (0..N).map(|j| row[j] * x[j]).sum() };
        rows.iter().zip(y).zip(w).map(|((r, y), w)| w * (fitted(r) - y).powi(2)).sum()
    }

    /// Every set of terms, solved by Gauss with pivots; the best whose solution is not negative.
    fn enumerate<const N: usize>(rows: &[[f64; N]], y: &[f64], w: &[f64]) -> f64 {
        let mut best = f64::INFINITY;
        for set in 0u32..1 << N {
            let terms: Vec<usize> = (0..N).filter(|j| set >> j & 1 == 1).collect();
            let m = terms.len();
            let mut a = vec![vec![0.0; m + 1]; m];
            for ((row, y), w) in rows.iter().zip(y).zip(w) {
                for (i, &p) in terms.iter().enumerate() {
                    for (j, &q) in terms.iter().enumerate() {
                        a[i][j] += w * row[p] * row[q];
                    }
                    a[i][m] += w * row[p] * y;
                }
            }
            let mut singular = false;
            for i in 0..m {
                let pivot = (i..m).max_by(|&p, &q| a[p][i].abs().total_cmp(&a[q][i].abs()));
                a.swap(i, pivot.unwrap());
                singular |= a[i][i].abs() < 1e-12;
                if singular {
                    break;
                }
                let pivot = a[i].clone();
                for (k, row) in a.iter_mut().enumerate().filter(|(k, _)| *k != i) {
                    let factor = row[i] / pivot[i];
                    assert!(k != i);
                    row.iter_mut().zip(&pivot).for_each(|(to, from)| *to -= factor * from);
                }
            }
            if singular {
                continue;
            }
            let mut x = [0.0; N];
            terms.iter().enumerate().for_each(|(i, &p)| x[p] = a[i][m] / a[i][i]);
            if x.iter().all(|&v| v >= -1e-12) {
                best = best.min(cost(rows, y, w, &x));
            }
        }
        best
    }

    fn unit(dice: &mut Stream) -> f64 {
        dice.next_unit()
    }

    #[test]
    fn as_good_as_the_best_of_all_sets_of_terms() {
        for seed in 0..300 {
            let mut dice = SeedTree::root(seed).child("nnls").stream();
            let n = 6 + (unit(&mut dice) * 30.0) as usize;
            let rows: Vec<[f64; 5]> = (0..n)
                .map(|_| std::array::from_fn(|j| unit(&mut dice) * 10f64.powi(j as i32)))
                .collect();
            let truth: [f64; 5] = std::array::from_fn(|_| unit(&mut dice) - 0.5);
            let y: Vec<f64> = rows
                .iter()
                .map(|r| (0..5).map(|j| r[j] * truth[j]).sum::<f64>() + unit(&mut dice) * 50.0)
                .collect();
            let w: Vec<f64> = (0..n).map(|_| unit(&mut dice)).collect();
            let x = nnls(&rows, &y, &w);
            assert!(x.iter().all(|&v| v >= 0.0), "seed {seed}: {x:?}");
            let (own, best) = (cost(&rows, &y, &w, &x), enumerate(&rows, &y, &w));
            assert!(own <= best * (1.0 + 1e-7) + 1e-9, "seed {seed}: {own} {best}");
        }
    }

    #[test]
    fn terms_that_say_the_same_are_no_trouble() {
        let rows: Vec<[f64; 3]> =
            (1..20).map(|i| [1.0, f64::from(i), 2.0 * f64::from(i)]).collect();
        let y: Vec<f64> = rows.iter().map(|r| 3.0 + 4.0 * r[1]).collect();
        let x = nnls(&rows, &y, &vec![1.0; rows.len()]);
        assert!((x[0] - 3.0).abs() < 1e-6 && (x[1] + 2.0 * x[2] - 4.0).abs() < 1e-7, "{x:?}");
        assert_eq!(nnls::<2>(&[[0.0, 0.0]], &[1.0], &[1.0]), [0.0, 0.0]);
    }
}
