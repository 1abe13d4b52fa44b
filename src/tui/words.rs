//! Figures and names as they stand on the screen: short, and harmless whoever chose them.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::engine::clock::Micros;
use crate::output::{Untrusted, moment};

/// `0`, `0.4`, `12`, `3.7k`, `41k`, `1.2M`.
pub fn count(n: f64) -> String {
    match n {
        n if n <= 0.0 || !n.is_finite() => "0".into(),
        n if n < 9.95 => format!("{n:.1}").trim_end_matches(".0").to_string(),
        n if n < 999.5 => format!("{n:.0}"),
        n if n < 9_950.0 => format!("{:.1}k", n / 1e3),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n if n < 9_950_000.0 => format!("{:.1}M", n / 1e6),
        n if n < 999.5e6 => format!("{:.0}M", n / 1e6),
        n => format!("{:.1}G", n / 1e9),
    }
}

/// `0%`, `0.4%`, `91%`.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p <= 0.0 || !p.is_finite() => "0%".into(),
        p if p < 0.1 => "<0.1%".into(),
        p if p < 9.95 => format!("{p:.1}%"),
        p => format!("{p:.0}%"),
    }
}

/// How long something takes: `240us`, `1.1ms`, `23ms`, `1.4s`.
pub fn took(us: Option<u64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1_000 => format!("{us}us"),
        Some(us) if us < 9_950 => format!("{:.1}ms", us as f64 / 1e3),
        Some(us) if us < 999_500 => format!("{:.0}ms", us as f64 / 1e3),
        Some(us) => format!("{:.1}s", us as f64 / 1e6),
    }
}

/// How long something lasts or is ago: `0s`, `22s`, `3m01s`, `2h05m`, `12d`.
pub fn lasts(us: u64) -> String {
    let seconds = us / 1_000_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A time of day, UTC: `14:02:11`.
pub fn time(us: u64) -> String {
    let text = moment(Micros(us));
    text.get(11..19).map_or(text.clone(), String::from)
}

/// A clock against another: `+2ms`, `-1.4s`.
pub fn offset(us: Option<i64>) -> String {
    let Some(us) = us else { return "-".into() };
    let sign = if us < 0 { "-" } else { "+" };
    format!("{sign}{}", took(Some(us.unsigned_abs())))
}

/// Text that others chose, harmless.
pub fn shown(text: &str) -> String {
    Untrusted(text).to_string()
}

/// The beginning of a text, in so many columns; what is left out is marked.
pub fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.into();
    }
    let mark = if columns < 4 { "" } else { ".." };
    let room = columns.saturating_sub(mark.len());
    let (mut kept, mut used) = (String::new(), 0);
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if used + width > room {
            break;
        }
        used += width;
        kept.push(c);
    }
    kept + mark
}

/// A word for a shell, that means itself whatever is in it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":._@/-+=,%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    if shown(word) == word {
        return format!("'{}'", word.replace('\'', "'\\''"));
    }
    // What a terminal might act upon is spelled out, byte by byte.
    let byte = |b: u8| match b {
        b'\'' | b'\\' => format!("\\{}", char::from(b)),
        b' '..=b'~' => char::from(b).to_string(),
        _ => format!("\\x{b:02x}"),
    };
    format!("$'{}'", word.bytes().map(byte).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let counts = [0.0, 0.04, 0.44, 3.0, 12.3, 999.0, 3_700.0, 41_200.0, 1_250_000.0];
        let shown = ["0", "0", "0.4", "3", "12", "999", "3.7k", "41k", "1.2M"];
        assert_eq!(counts.map(count), shown);
        assert_eq!(
            [0.0, 0.0004, 0.004, 0.91, 1.0].map(percent),
            ["0%", "<0.1%", "0.4%", "91%", "100%"]
        );
        assert_eq!(
            [240, 1_100, 23_400, 1_400_000].map(|us| took(Some(us))),
            ["240us", "1.1ms", "23ms", "1.4s"]
        );
        assert_eq!(
            [22, 181, 7_500, 1_036_800].map(|s| lasts(s * 1_000_000)),
            ["22s", "3m01s", "2h05m", "12d"]
        );
        assert_eq!(time(1_796_083_331_000_000), "00:02:11");
        assert_eq!(offset(Some(-1_400_000)), "-1.4s");
    }

    #[test]
    fn names_fit_and_cannot_leave_their_place() {
        assert_eq!(fit("apikey:ak_7f3", 9), "apikey:..");
        assert_eq!(fit("日本語", 4), "日..");
        assert_eq!(fit("abc", 0), "");
        assert_eq!(quoted("user:1"), "user:1");
        assert_eq!(quoted("user:a b'c;$(x)"), "'user:a b'\\''c;$(x)'");
        assert_eq!(quoted("user:\u{1b}]0;x\u{7}'"), "$'user:\\x1b]0;x\\x07\\''");
        assert_eq!(quoted(""), "''");
    }
}
