// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Medians with their spread, and a line through points.

use serde::Serialize;

/// The median of some figures and their spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    /// First quartile.
    pub q1: f64,
    /// Third quartile.
    pub q3: f64,
    pub n: usize,
}

impl Spread {
    /// The spread of at least one figure; none may be NaN.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        assert!(!sorted.is_empty(), "a median needs a figure");
        // Between the two nearest, in proportion.
        let at = |part: f64| {
            let place = part * (sorted.len() - 1) as f64;
            let below = sorted[place.floor() as usize];
            below + (sorted[place.ceil() as usize] - below) * place.fract()
        };
        Spread { median: at(0.5), q1: at(0.25), q3: at(0.75), n: sorted.len() }
    }
}

/// The straight line nearest to some points (least squares).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Line {
    pub slope: f64,
    pub intercept: f64,
    /// How much of the variation the line explains; 1 is all.
    pub r_squared: f64,
}

impl Line {
    /// Through at least two points with different x.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x0, y0) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        let (xx, xy, yy) =
            (sum(&|p| (p.0 - x0).powi(2)), sum(&|p| (p.0 - x0) * (p.1 - y0)), sum(&|p| (p.1 - y0).powi(2)));
        if points.len() < 2 || xx == 0.0 {
            return None;
        }
        let r_squared = if yy == 0.0 { 1.0 } else { xy * xy / (xx * yy) };
        Some(Line { slope: xy / xx, intercept: y0 - xy / xx * x0, r_squared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles() {
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0, 5.0]), Spread { median: 3.0, q1: 2.0, q3: 4.0, n: 5 });
        assert_eq!(Spread::of([1.0, 2.0]).median, 1.5);
    }

    #[test]
    fn lines() {
        let line = Line::through(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).unwrap();
        assert!((line.slope - 2.0).abs() < 1e-9 && (line.intercept - 3.0).abs() < 1e-9);
        assert!((line.r_squared - 1.0).abs() < 1e-9);
        assert!(Line::through(&[(1.0, 0.0), (2.0, 9.0), (3.0, 0.0)]).unwrap().r_squared < 0.1);
        assert_eq!(Line::through(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
