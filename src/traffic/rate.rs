//! Requests per time, exactly: `120/s`, `600/m`, `10k/s`, `2.5/s`.

use std::fmt;
use std::str::FromStr;

use crate::engine::clock::Micros;
use crate::engine::limit::mul_div;
use crate::engine::units;

/// A thousand in each microsecond is more than any machine takes.
const MAX_PER_SECOND: u64 = 1_000_000_000;
const MAX_FRACTION: usize = 6;

/// So many requests in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub requests: u64,
    pub period: Micros,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    #[error("`{0}` is not a rate; write requests per time, e.g. 120/s, 600/m, 10k/s, 0.5/s")]
    Shape(String),
    #[error("a rate of `{0}` is too high; at most 1000000000/s")]
    TooHigh(String),
}

impl Rate {
    pub fn per_second(requests: u64) -> Rate {
        Rate { requests, period: Micros::SECOND }
    }

    pub fn hz(&self) -> f64 {
        self.requests as f64 * Micros::SECOND.0 as f64 / self.period.0 as f64
    }

    /// When number `n` (the first is 0) is due at a steady rate: no rounding adds up. None if never.
    #[inline]
    pub fn due(&self, n: u64) -> Option<Micros> {
        if self.requests == 0 {
            return None;
        }
        u64::try_from(mul_div(n, self.period.0, self.requests).0).ok().map(Micros)
    }

    /// How many are due before `end`, the one at 0 included.
    pub fn before(&self, end: Micros) -> u64 {
        let (whole, rest) = mul_div(end.0, self.requests, self.period.0);
        u64::try_from(whole).unwrap_or(u64::MAX).saturating_add(u64::from(rest > 0))
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        let shape = || RateError::Shape(text.into());
        let (requests, period) = text.split_once('/').ok_or_else(shape)?;
        let period = units::parse_period(period).ok().filter(|p| p.0 > 0).ok_or_else(shape)?;
        let rate = match units::parse_count(requests) {
            Ok(requests) => Rate { requests, period },
            // Half a request a second is one in two seconds.
            Err(_) => fractional(requests, period).ok_or_else(shape)?,
        };
        let per_second =
            u128::from(rate.requests) * u128::from(Micros::SECOND.0) / u128::from(rate.period.0);
        if per_second > u128::from(MAX_PER_SECOND) {
            return Err(RateError::TooHigh(text.into()));
        }
        Ok(rate)
    }
}

fn fractional(requests: &str, period: Micros) -> Option<Rate> {
    let (whole, fraction) = requests.split_once('.')?;
    if fraction.len() > MAX_FRACTION || whole.is_empty() {
        return None;
    }
    let scale = 10u64.pow(u32::try_from(fraction.len()).ok()?);
    let requests = units::parse_count(&format!("{whole}{fraction}")).ok()?;
    Some(Rate { requests, period: Micros(period.0.checked_mul(scale)?) })
}

impl fmt::Display for Rate {
    /// The shortest spelling that reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = [(Micros::SECOND, "s"), (Micros::MINUTE, "m"), (Micros::HOUR, "h")];
        match unit.into_iter().find(|(period, _)| *period == self.period) {
            Some((_, name)) => write!(f, "{}/{name}", self.requests),
            None => write!(f, "{}/{}", self.requests, self.period),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_as_written_and_back() {
        for (text, requests, period, shown) in [
            ("120/s", 120, Micros::SECOND, "120/s"),
            ("600/m", 600, Micros::MINUTE, "600/m"),
            ("10k/s", 10_000, Micros::SECOND, "10000/s"),
            ("0.5/s", 5, Micros(10 * Micros::SECOND.0), "5/10s"),
            ("0/s", 0, Micros::SECOND, "0/s"),
            ("3/10s", 3, Micros(10 * Micros::SECOND.0), "3/10s"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.requests, rate.period), (requests, period), "{text}");
            assert_eq!(rate.to_string(), shown);
            assert_eq!(shown.parse(), Ok(rate));
        }
        for text in ["", "5", "/s", "5/", "5/x", "-1/s", "5/0s", "1e3/s", ".5/s", "2G/s", "1.2.3/s"]
        {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_steady_rate_never_drifts() {
        let seven: Rate = "7/3s".parse().unwrap();
        assert_eq!(seven.due(7_000_000_000), Some(Micros(3_000_000_000_000_000)));
        assert_eq!(seven.before(Micros(3_000_000)), 7);
        assert_eq!(seven.before(Micros(3_000_001)), 8);
        assert_eq!(Rate::per_second(0).due(0), None);
        assert_eq!(Rate::per_second(0).before(Micros::DAY), 0);
    }
}
