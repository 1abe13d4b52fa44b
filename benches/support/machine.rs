//! What benches need to know about the machine, so that they compare fairly on a shared one.

use std::fs;

pub(crate) struct Settings {
    /// Pairs of rounds per line.
    pub(crate) rounds: usize,
}

/// `--quick` for a look, otherwise enough rounds for a median.
pub(crate) fn settings() -> Settings {
    let quick = std::env::args().any(|a| a == "--quick");
    Settings { rounds: if quick { 3 } else { 11 } }
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs `work` and says which share of all cores' time the hypervisor gave to others meanwhile
/// (0 where the system does not tell).
pub(crate) fn stolen_share<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let before = cpu_times();
    let result = work();
    let after = cpu_times();
    let share = match (before, after) {
        (Some((steal_before, all_before)), Some((steal, all))) if all > all_before => {
            (steal - steal_before) as f64 / (all - all_before) as f64
        }
        _ => 0.0,
    };
    (result, share)
}

fn cpu_times() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let times: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    Some((*times.get(7)?, times.iter().take(8).sum()))
}
