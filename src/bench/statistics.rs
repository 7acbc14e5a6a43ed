//! Percentiles and medians.

/// Percentiles in milliseconds. There is no mean, because it hides the slow cases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    /// `None` if there are no times.
    pub fn of(mut times: Vec<f64>) -> Option<Percentiles> {
        times.sort_by(f64::total_cmp);
        let max = *times.last()?;
        let rank = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
        Some(Percentiles {
            p50: rank(0.50),
            p95: rank(0.95),
            p99: rank(0.99),
            max,
        })
    }

    /// The same for nanoseconds.
    pub fn of_nanoseconds(times: impl IntoIterator<Item = i64>) -> Option<Percentiles> {
        Percentiles::of(times.into_iter().map(|time| time as f64 / 1e6).collect())
    }
}

/// The median, or zero if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times = (1..=100).rev().map(f64::from).collect();

        let found = Percentiles::of(times).unwrap();

        assert_eq!((found.p50, found.p95, found.p99, found.max), (51.0, 96.0, 100.0, 100.0));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_ones() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![]), 0.0);
    }
}
