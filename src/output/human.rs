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

/// A moment to the second, in UTC: `2026-12-01T00:00:00Z`.
pub fn moment(at: Micros) -> String {
    let seconds = i64::try_from(at.0 / Micros::SECOND.0).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_second(seconds) {
        Ok(moment) => moment.to_string(),
        Err(_) => "the end of time".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
