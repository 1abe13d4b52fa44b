//! Numbers as people like to read them.

use crate::engine::clock::Micros;

/// A duration to about three digits: `1.23s`, `58s`, `5m12s`. For eyes; scripts get `_us` fields.
pub fn about(duration: Micros) -> String {
    let keep = match duration {
        d if d < Micros(10_000) => 1,
        d if d < Micros::SECOND => 1_000,
        d if d < Micros(10 * Micros::SECOND.0) => 10_000,
        d if d < Micros::MINUTE => 100_000,
        d if d < Micros::DAY => Micros::SECOND.0,
        _ => Micros::MINUTE.0,
    };
    // Up, like everything that says how long to wait.
    Micros(duration.0.div_ceil(keep) * keep).to_string()
}

/// `1 key`, `2 keys`, `0 identities`.
pub fn counted(number: u64, one: &str) -> String {
    match (number, one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) if !one.ends_with("ey") => format!("{number} {stem}ies"),
        _ => format!("{number} {one}s"),
    }
}

/// A moment to the second, in UTC: `2026-12-01T00:00:00Z`.
pub fn moment(at: Micros) -> String {
    let seconds = i64::try_from(at.0 / Micros::SECOND.0).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_second(seconds) {
        Ok(moment) => moment.to_string(),
        Err(_) => "the end of time".into(),
    }
}

/// A number with its thousands apart: `9999`, `12 345`, `1 234 567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10 000"),
            (123_456, "123 456"),
            (1_234_567, "1 234 567"),
        ] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn things_are_counted() {
        for (number, one, text) in
            [(1, "key", "1 key"), (2, "key", "2 keys"), (0, "identity", "0 identities")]
        {
            assert_eq!(counted(number, one), text);
        }
    }

    #[test]
    fn moments_are_spelled_in_utc() {
        assert_eq!(moment(Micros(1_796_083_200_999_999)), "2026-12-01T00:00:00Z");
        assert_eq!(moment(Micros(0)), "1970-01-01T00:00:00Z");
        assert_eq!(moment(Micros((1 << 53) - 1)), "2255-06-05T23:47:34Z");
        assert_eq!(moment(Micros(u64::MAX)), "the end of time");
    }

    #[test]
    fn three_digits_are_enough_and_never_too_early() {
        for (us, text) in [
            (0, "0us"),
            (1_234, "1.234ms"),
            (123_456, "124ms"),
            (1_234_567, "1.24s"),
            (58_000_001, "58.1s"),
            (312_000_001, "5m13s"),
            (90_061_000_001, "1d1h2m"),
        ] {
            assert_eq!(about(Micros(us)), text);
        }
    }
}
