//! Graphs made of characters, with blocks or in ASCII.

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '#', '@'];

/// The last values in so many columns, each column the highest of its share of time. `most` is what
/// fills a column; the highest that is shown where none is given.
pub(super) fn spark(values: &[f64], columns: usize, most: Option<f64>, ascii: bool) -> String {
    if columns == 0 {
        return String::new();
    }
    let columns_of = columns_of(values, columns);
    let most = most.unwrap_or_else(|| columns_of.iter().copied().fold(0.0, f64::max));
    let signs = if ascii { ASCII } else { BLOCKS };
    let sign = |value: &f64| {
        if *value <= 0.0 || most <= 0.0 {
            return signs[0];
        }
        // Something is never shown as nothing.
        signs[((value / most * 8.0).round() as usize).clamp(1, 8)]
    };
    let drawn: String = columns_of.iter().map(sign).collect();
    format!("{drawn:>columns$}")
}

/// Values by column: what does not fit is put together.
fn columns_of(values: &[f64], columns: usize) -> Vec<f64> {
    let each = values.len().div_ceil(columns).max(1);
    // The newest column is whole; the oldest may lack some.
    let mut taken: Vec<f64> =
        values.rchunks(each).map(|chunk| chunk.iter().copied().fold(0.0, f64::max)).collect();
    taken.truncate(columns);
    taken.reverse();
    taken
}

/// `[######....]`
pub(super) fn gauge(share: f64, columns: usize, ascii: bool) -> String {
    let inside = columns.saturating_sub(2);
    let full = ((share.clamp(0.0, 1.0) * inside as f64).round() as usize).min(inside);
    // Something used is never shown as nothing, something left never as full.
    let full = if share > 0.0 { full.max(1.min(inside)) } else { full };
    let full = if share < 1.0 { full.min(inside.saturating_sub(1)) } else { full };
    let (on, off) = if ascii { ("#", ".") } else { ("█", "░") };
    format!("[{}{}]", on.repeat(full), off.repeat(inside - full))
}

/// A curve of several rows, highest first, on a logarithmic scale: latencies differ by orders.
pub(super) fn curve(values: &[f64], columns: usize, rows: usize, ascii: bool) -> Vec<String> {
    let by_column = columns_of(values, columns);
    let low = by_column.iter().copied().filter(|v| *v > 0.0).fold(f64::MAX, f64::min);
    let high = by_column.iter().copied().fold(0.0, f64::max);
    if high <= 0.0 || rows == 0 {
        return vec![String::new(); rows];
    }
    let (low, high) = ((low / 2.0).ln(), (high * 1.05).ln());
    let level = |value: f64| ((value.ln() - low) / (high - low).max(1e-9)) * rows as f64;
    let signs = if ascii { ASCII } else { BLOCKS };
    let row = |row: usize| -> String {
        let above = (rows - 1 - row) as f64;
        let sign = |value: &f64| {
            if *value <= 0.0 {
                return ' ';
            }
            let part = ((level(*value) - above) * 8.0).round().clamp(0.0, 8.0);
            signs[part as usize]
        };
        let drawn: String = by_column.iter().map(sign).collect();
        format!("{drawn:>columns$}")
    };
    (0..rows).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_at_the_right_and_nothing_is_lost() {
        assert_eq!(spark(&[0.0, 1.0, 2.0, 4.0, 8.0], 7, None, true), "   .:=@");
        assert_eq!(spark(&[0.0, 9.0, 0.0, 0.0], 2, None, true), "@ ");
        assert_eq!(spark(&[0.001, 8.0], 2, None, true), ".@");
        assert_eq!(spark(&[], 3, None, false), "   ");
        assert_eq!(spark(&[1.0], 0, None, false), "");
    }

    #[test]
    fn a_gauge_is_empty_or_full_only_when_it_is() {
        assert_eq!(gauge(0.0, 12, true), "[..........]");
        assert_eq!(gauge(0.001, 12, true), "[#.........]");
        assert_eq!(gauge(0.999, 12, true), "[#########.]");
        assert_eq!(gauge(7.0, 12, true), "[##########]");
        assert_eq!(gauge(0.5, 1, true), "[]");
    }

    #[test]
    fn a_curve_has_its_rows() {
        let rows = curve(&[1.0, 1.0, 100.0], 3, 3, true);
        assert_eq!(rows.len(), 3);
        assert!(rows[0].starts_with("  ") && !rows[0].trim().is_empty(), "{rows:?}");
        assert_eq!(curve(&[], 4, 2, false), ["", ""]);
    }
}
