//! The times that logs are written with.

use crate::engine::clock::Micros;

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// `10/Oct/2000:13:55:36 -0700`. Most lines are of the same day as the one before, so that is
/// remembered.
#[derive(Debug, Default)]
pub(super) struct ClfTime {
    day: [u8; 11],
    zone: [u8; 5],
    /// Seconds since 1970 of that day's beginning there.
    midnight: i64,
}

impl ClfTime {
    pub(super) fn parse(&mut self, text: &[u8]) -> Option<Micros> {
        let day: &[u8; 11] = text.get(..11)?.try_into().ok()?;
        let zone: &[u8; 5] = match text.get(20..) {
            Some([b' ', zone @ ..]) => zone.try_into().ok()?,
            Some([]) => b"+0000",
            _ => return None,
        };
        if *day != self.day || *zone != self.zone {
            self.midnight = midnight(day)? - offset(zone)?;
            (self.day, self.zone) = (*day, *zone);
        }
        let [b':', h1, h2, b':', m1, m2, b':', s1, s2] = *text.get(11..20)? else { return None };
        let (hour, minute, second) = (two(h1, h2)?, two(m1, m2)?, two(s1, s2)?);
        // A leap second is the last of its minute once more.
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let seconds = self.midnight + hour * 3600 + minute * 60 + second.min(59);
        Some(Micros(u64::try_from(seconds).ok()? * Micros::SECOND.0))
    }
}

fn two(a: u8, b: u8) -> Option<i64> {
    (a.is_ascii_digit() && b.is_ascii_digit())
        .then(|| i64::from(a - b'0') * 10 + i64::from(b - b'0'))
}

fn midnight(day: &[u8; 11]) -> Option<i64> {
    let [d1, d2, b'/', m1, m2, m3, b'/', y1, y2, y3, y4] = *day else { return None };
    let month = MONTHS.iter().position(|month| **month == [m1, m2, m3])? as i64 + 1;
    let (day, year) = (two(d1, d2)?, two(y1, y2)? * 100 + two(y3, y4)?);
    let date = jiff::civil::Date::new(
        i16::try_from(year).ok()?,
        i8::try_from(month).ok()?,
        i8::try_from(day).ok()?,
    );
    let seconds = date.ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second();
    Some(seconds)
}

fn offset(zone: &[u8; 5]) -> Option<i64> {
    let [sign, h1, h2, m1, m2] = *zone;
    let seconds = two(h1, h2)? * 3600 + two(m1, m2)? * 60;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// A time as text: as in common logs, as RFC 3339, or a number.
pub(super) fn of_text(text: &str, clf: &mut ClfTime) -> Option<Micros> {
    if let Some(at) = clf.parse(text.trim_matches(['[', ']']).as_bytes()) {
        return Some(at);
    }
    if let Ok(number) = text.parse::<f64>() {
        return of_number(number, text.parse().ok());
    }
    let stamp: jiff::Timestamp = match text.parse() {
        Ok(stamp) => stamp,
        // `2026-11-18 10:00:00`, without a zone, is UTC.
        Err(_) => text
            .parse::<jiff::civil::DateTime>()
            .ok()?
            .to_zoned(jiff::tz::TimeZone::UTC)
            .ok()?
            .timestamp(),
    };
    u64::try_from(stamp.as_microsecond()).ok().map(Micros)
}

/// Since 1970, in seconds, milliseconds, microseconds or nanoseconds: by its size, of which only
/// one means a year of ours. Whole numbers are read exactly.
pub(super) fn of_number(number: f64, whole: Option<u64>) -> Option<Micros> {
    if !(0.0..1e20).contains(&number) {
        return None;
    }
    let scaled = |times: u64, by: u64| match whole {
        Some(whole) => Some(whole.checked_mul(times)? / by),
        None => Some((number * times as f64 / by as f64).round() as u64),
    };
    let micros = match number {
        n if n < 1e11 => scaled(Micros::SECOND.0, 1),
        n if n < 1e14 => scaled(1_000, 1),
        n if n < 1e17 => scaled(1, 1),
        _ => scaled(1, 1_000),
    };
    micros.map(Micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_logs_are_read() {
        let mut clf = ClfTime::default();
        let second = |text: &str, clf: &mut ClfTime| of_text(text, clf).map(|at| at.0 / 1_000_000);
        for (text, seconds) in [
            ("10/Oct/2000:13:55:36 -0700", Some(971_211_336)),
            ("10/Oct/2000:13:55:37 -0700", Some(971_211_337)),
            ("10/Oct/2000:13:55:37 +0000", Some(971_186_137)),
            ("[01/Aug/1995:00:00:01 -0400]", Some(807_249_601)),
            ("29/Feb/2024:00:00:00 +0000", Some(1_709_164_800)),
            ("30/Feb/2024:00:00:00 +0000", None),
            ("10/Xct/2000:13:55:36 -0700", None),
            ("10/Oct/2000:24:00:00 +0000", None),
            ("2026-11-18T10:00:00Z", Some(1_794_996_000)),
            ("2026-11-18T10:00:00.25+01:00", Some(1_794_992_400)),
            ("2026-11-18 10:00:00", Some(1_794_996_000)),
            ("1794996000", Some(1_794_996_000)),
            ("1794996000.5", Some(1_794_996_000)),
            ("1794996000123", Some(1_794_996_000)),
            ("1794996000123456", Some(1_794_996_000)),
            ("1794996000123456789", Some(1_794_996_000)),
            ("-5", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(second(text, &mut clf), seconds, "{text}");
        }
        assert_eq!(of_text("1794996000.25", &mut clf), Some(Micros(1_794_996_000_250_000)));
    }
}
