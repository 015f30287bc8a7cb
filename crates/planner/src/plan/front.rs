//! Who is better than whom.

/// Whether `a` is at least as good as `b` in everything and better in something; less is better.
pub fn dominates(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b) && a.iter().zip(b).any(|(a, b)| a < b)
}

/// The places of those points that no other dominates, in order.
pub fn front(points: &[Vec<f64>]) -> Vec<usize> {
    let beaten = |i: usize| points.iter().any(|other| dominates(other, &points[i]));
    (0..points.len()).filter(|&i| !beaten(i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_is_those_that_nobody_beats() {
        let points = [[1.0, 5.0], [2.0, 2.0], [2.0, 3.0], [5.0, 1.0], [1.0, 5.0], [6.0, 6.0]];
        let points: Vec<Vec<f64>> = points.iter().map(|p| p.to_vec()).collect();
        // Equal points both stay.
        assert_eq!(front(&points), [0, 1, 3, 4]);
        assert!(front(&[]).is_empty());
        assert!(!dominates(&[1.0], &[1.0]) && dominates(&[1.0, 1.0], &[1.0, 2.0]));
    }
}
