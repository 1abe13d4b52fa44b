//! How people write numbers and durations: `10k`, `2.5M`, `300us`, `1h30m`, `7d`.

use super::clock::Micros;

/// Units of time by the name people type; longer names first where one starts another.
const TIME_UNITS: [(&str, u64); 7] = [
    ("us", 1),
    ("ms", Micros::MILLISECOND.0),
    ("s", Micros::SECOND.0),
    ("m", Micros::MINUTE.0),
    ("h", Micros::HOUR.0),
    ("d", Micros::DAY.0),
    ("w", 7 * Micros::DAY.0),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error(
        "`{0}` is not a number; write digits, with k, M or G for thousands, e.g. 500, 10k, 2.5M"
    )]
    Count(String),
    #[error(
        "`{0}` is not a duration; write a number with us, ms, s, m, h, d or w, e.g. 300us, 5ms, 1h30m, 7d"
    )]
    Duration(String),
}

/// `500`, `10k`, `2.5M`, `1G`: a whole number, exactly.
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    let (digits, scale) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1_000),
        Some('M') => (&text[..text.len() - 1], 1_000_000),
        Some('G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    scaled_decimal(digits, scale).ok_or_else(|| UnitError::Count(text.into()))
}

/// `300us`, `1.5s`, `1h30m`: a sum of numbers with units, exact to the microsecond.
pub fn parse_duration(text: &str) -> Result<Micros, UnitError> {
    let wrong = || UnitError::Duration(text.into());
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(unit_at);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let part = scaled_decimal(number, time_unit(unit).ok_or_else(wrong)?).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Micros(total)) }
}

/// The period after the slash of a rate: `1m`, or a bare unit as in `10/s`.
pub fn parse_period(text: &str) -> Result<Micros, UnitError> {
    match time_unit(text) {
        Some(us) => Ok(Micros(us)),
        None => parse_duration(text),
    }
}

fn time_unit(name: &str) -> Option<u64> {
    TIME_UNITS.iter().find(|(unit, _)| *unit == name).map(|(_, us)| *us)
}

/// `digits × scale` where the digits may have a fraction, if that is a whole number below 2^63.
fn scaled_decimal(digits: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(fraction) || whole.len() > 18 || fraction.len() > 18 {
        return None;
    }
    let ten_to = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let number = whole.parse::<u128>().ok()? * ten_to + fraction.parse::<u128>().ok()?;
    let product = number * u128::from(scale);
    let exact = product.is_multiple_of(ten_to).then_some(product / ten_to)?;
    u64::try_from(exact).ok().filter(|n| *n < 1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_durations_read_as_written() {
        assert_eq!(parse_count("500"), Ok(500));
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert_eq!(parse_count("2.5M"), Ok(2_500_000));
        assert_eq!(parse_duration("300us"), Ok(Micros(300)));
        assert_eq!(parse_duration("1h30m"), Ok(Micros(5_400_000_000)));
        assert_eq!(parse_duration("1.5s"), Ok(Micros(1_500_000)));
        assert_eq!(parse_duration("1w"), Ok(Micros(604_800_000_000)));
        assert_eq!(parse_period("s"), Ok(Micros::SECOND));
        assert_eq!(parse_period("3s"), Ok(Micros(3_000_000)));
    }

    #[test]
    fn what_is_not_a_number_or_a_duration_is_refused() {
        for text in
            ["", "x", "-1", "1.", ".5", "1.5", "0.0001k", "1e3", " 1", "99999999999999999999"]
        {
            assert!(parse_count(text).is_err(), "{text}");
        }
        for text in ["", "5", "s", "1s5", "1 s", "1.5us", "-1s", "1y", "1Ms", "9999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_printed_duration_reads_back() {
        for us in [1, 999, 1_001, 59_999_999, 60_000_001, 3_661_000_001, 86_400_000_000 * 400 + 7] {
            assert_eq!(parse_duration(&Micros(us).to_string()), Ok(Micros(us)));
        }
    }
}
