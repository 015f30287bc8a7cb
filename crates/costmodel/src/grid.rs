//! Functions known at the points of a rectangular grid, linear along each axis between them.
//!
//! Beyond the last point of an axis the last two go on in a straight line; before the first, its
//! value stays. Either is told ([`Point::outside`]).

use crate::error::CostError;

/// Points of one axis, rising.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis(Vec<f64>);

/// A place on an axis: the point below, and the share of the one above.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// The index of the point below.
    pub low: usize,
    /// The weight of the point above; more than 1 beyond the end.
    pub share: f64,
    /// Whether the value asked for lies outside the axis.
    pub outside: bool,
}

impl Axis {
    /// An axis of these points.
    pub fn new(field: &str, points: &[f64]) -> Result<Self, CostError> {
        if points.is_empty() {
            return Err(CostError::new(field, "it has no points; one is needed at least"));
        }
        if let Some(bad) = points.iter().find(|p| !p.is_finite() || **p < 0.0) {
            return Err(CostError::new(field, format!("{bad} must be finite and not negative")));
        }
        if let Some(pair) = points.windows(2).find(|w| w[0] >= w[1]) {
            let problem = format!("{} comes before {}; points must rise", pair[0], pair[1]);
            return Err(CostError::new(field, problem));
        }
        Ok(Self(points.to_vec()))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where `value` lies.
    pub fn at(&self, value: f64) -> Point {
        let points = &self.0;
        let (first, last) = (points[0], points[points.len() - 1]);
        if value <= first || points.len() == 1 {
            return Point { low: 0, share: 0.0, outside: value < first || value > last };
        }
        let above = points.partition_point(|p| *p < value).min(points.len() - 1);
        let (a, b) = (points[above - 1], points[above]);
        Point { low: above - 1, share: (value - a) / (b - a), outside: value > last }
    }
}

/// Values at the points of `N` axes, the last axis running fastest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Grid<const N: usize> {
    axes: [Axis; N],
    values: Vec<f64>,
}

impl<const N: usize> Grid<N> {
    /// A grid of `values`, finite and not negative, as many as there are points.
    pub fn new(field: &str, axes: [Axis; N], values: &[f64]) -> Result<Self, CostError> {
        let points: usize = axes.iter().map(Axis::len).product();
        if values.len() != points {
            let problem = format!("{} values for {points} points of its axes", values.len());
            return Err(CostError::new(field, problem));
        }
        if let Some(i) = values.iter().position(|v| !v.is_finite() || *v < 0.0) {
            let problem = format!("value {i} is {}: it must be finite and not negative", values[i]);
            return Err(CostError::new(field, problem));
        }
        Ok(Self { axes, values: values.to_vec() })
    }

    /// Where `value` lies on an axis.
    pub fn on(&self, axis: usize, value: f64) -> Point {
        self.axes[axis].at(value)
    }

    /// The value at a place.
    pub fn value(&self, at: &[Point; N]) -> f64 {
        self.part(at, 0, 0)
    }

    /// The value of the axes from `axis` on, of the part of the grid numbered `base`.
    fn part(&self, at: &[Point; N], axis: usize, base: usize) -> f64 {
        if axis == N {
            return self.values[base];
        }
        let point = at[axis];
        let base = base * self.axes[axis].len() + point.low;
        let low = self.part(at, axis + 1, base);
        if point.share == 0.0 {
            return low;
        }
        low + (self.part(at, axis + 1, base + 1) - low) * point.share
    }
}

/// A function of one number, linear between its points.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve(Grid<1>);

impl Curve {
    pub fn new(field: &str, points: &[f64], values: &[f64]) -> Result<Self, CostError> {
        Ok(Self(Grid::new(field, [Axis::new(field, points)?], values)?))
    }

    /// The value at `x`, and whether that lies outside. Never negative.
    pub fn at(&self, x: f64) -> (f64, bool) {
        let point = self.0.on(0, x);
        (self.0.value(&[point]).max(0.0), point.outside)
    }

    /// Its last point.
    pub fn end(&self) -> f64 {
        let points = &self.0.axes[0].0;
        points[points.len() - 1]
    }

    /// The sum of some curves, exact: its points are all of theirs. Where one ends before another,
    /// the sum ends there, too, so that what lies outside any lies outside the sum.
    pub fn sum(curves: &[Self]) -> Option<Self> {
        let axes = || curves.iter().map(|c| &c.0.axes[0].0);
        let first = axes().map(|a| a[0]).fold(f64::NEG_INFINITY, f64::max);
        let last = axes().map(|a| a[a.len() - 1]).fold(f64::INFINITY, f64::min);
        let mut points: Vec<f64> =
            axes().flatten().copied().filter(|p| (first..=last).contains(p)).collect();
        points.sort_by(f64::total_cmp);
        points.dedup();
        if points.is_empty() {
            return None;
        }
        let values = points.iter().map(|&p| curves.iter().map(|c| c.at(p).0).sum());
        let values: Vec<f64> = values.collect();
        Some(Self(Grid { axes: [Axis(points)], values }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multilinear_functions_are_met_exactly() {
        let axes = || {
            [
                Axis::new("a", &[0.0, 1.0, 4.0]).unwrap(),
                Axis::new("b", &[2.0, 3.0]).unwrap(),
                Axis::new("c", &[1.0, 2.0, 4.0, 8.0]).unwrap(),
            ]
        };
        // Linear in each, with all products.
        let f = |a: f64, b: f64, c: f64| 3.0 + a + 2.0 * b + 0.5 * c + a * b * c + b * c;
        let mut values = Vec::new();
        for a in [0.0, 1.0, 4.0] {
            for b in [2.0, 3.0] {
                values.extend([1.0, 2.0, 4.0, 8.0].map(|c| f(a, b, c)));
            }
        }
        let grid = Grid::new("g", axes(), &values).unwrap();
        for (a, b, c) in [(0.0, 2.0, 1.0), (0.3, 2.5, 3.0), (4.0, 3.0, 8.0), (2.0, 2.1, 7.9)] {
            let at = [grid.on(0, a), grid.on(1, b), grid.on(2, c)];
            assert!((grid.value(&at) - f(a, b, c)).abs() < 1e-9);
            assert!(at.iter().all(|p| !p.outside));
        }
        // Beyond the end the line goes on; before the beginning the first value stays.
        let at = [grid.on(0, 6.0), grid.on(1, 2.0), grid.on(2, 0.5)];
        assert!((grid.value(&at) - f(6.0, 2.0, 1.0)).abs() < 1e-9);
        assert_eq!(at.map(|p| p.outside), [true, false, true]);
    }

    #[test]
    fn a_sum_of_curves_is_their_sum() {
        let a = Curve::new("a", &[1.0, 3.0, 9.0], &[1.0, 5.0, 6.0]).unwrap();
        let b = Curve::new("b", &[0.0, 4.0, 8.0], &[2.0, 2.0, 10.0]).unwrap();
        let sum = Curve::sum(&[a.clone(), b.clone()]).unwrap();
        for x in [1.0, 2.0, 3.5, 4.0, 7.0, 8.0] {
            assert!((sum.at(x).0 - a.at(x).0 - b.at(x).0).abs() < 1e-12, "{x}");
        }
        assert!(sum.at(8.5).1 && sum.at(0.5).1 && !sum.at(8.0).1);
    }

    #[test]
    fn bad_axes_and_values_are_refused() {
        for points in [&[][..], &[2.0, 1.0], &[1.0, 1.0], &[f64::NAN], &[-1.0, 2.0]] {
            assert!(Axis::new("x", points).is_err(), "{points:?}");
        }
        for values in [&[1.0][..], &[1.0, f64::NAN], &[1.0, -2.0], &[1.0, f64::INFINITY]] {
            assert!(Curve::new("x", &[1.0, 2.0], values).is_err(), "{values:?}");
        }
    }
}
