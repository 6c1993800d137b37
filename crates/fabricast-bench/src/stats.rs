//! Medians, quantiles, and the 95 % interval of a median.

/// The widest interval of a ratio that decides anything.
pub const DECIDED: f64 = 0.06;

/// The median; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The value that a share of the sorted ones does not exceed.
pub fn quantile(sorted: &[u32], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let rank = (share * sorted.len() as f64).ceil() as usize;
    f64::from(sorted[rank.saturating_sub(1).min(last)])
}

/// The 95 % interval of the median, from the order of the values alone: the k-th smallest to the
/// k-th largest, with the greatest k for which a fair coin, tossed for each value, falls on one
/// side fewer than k times in 2.5 % of cases. Fewer than six values can't give it: then it is from
/// the least to the greatest.
pub fn median_interval(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 {
        return (f64::NAN, f64::NAN);
    }
    let (mut k, mut below) = (0, 0.0);
    let mut term = 0.5f64.powi(n as i32);
    while k < n / 2 {
        below += term;
        if below > 0.025 {
            break;
        }
        term *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    let k = k.max(1);
    (sorted[k - 1], sorted[n - k])
}
