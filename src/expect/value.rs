//! Values as they are written, each in the unit of its metric.

use super::ast::{Span, Unit, Value};
use super::parse::ExpectError;
use crate::engine::clock::Micros;
use crate::engine::units;

pub(super) fn length(text: &str, at: Span) -> Result<Micros, ExpectError> {
    units::parse_duration(text).map_err(|_| {
        let what = match text {
            "" => "a duration is missing here".to_owned(),
            _ => format!("`{text}` is not a duration"),
        };
        ExpectError::new(at, what, "e.g. 300us, 5ms, 1s, 1h30m")
    })
}

/// A decimal number, not negative.
pub(super) fn number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if plain { text.parse().ok().filter(|n: &f64| n.is_finite()) } else { None }
}

pub(super) fn value(text: &str, at: Span, unit: Unit) -> Result<Value, ExpectError> {
    let counted = |text: &str| {
        units::parse_count(text).map(|count| count as f64).ok().or_else(|| number(text))
    };
    // Nothing is nothing in every unit.
    let zero = (text == "0").then_some(0.0);
    let (read, hint) = match unit {
        Unit::Word => {
            let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            let word = !text.is_empty() && text.chars().all(plain);
            return if word {
                Ok(Value::Word(text.into()))
            } else {
                Err(ExpectError::new(at, "a word is missing here", "e.g. open, closed, throttled"))
            };
        }
        Unit::Count => (counted(text), "write a number, e.g. 500, 10k"),
        Unit::Index => {
            (number(text).filter(|n| *n <= 1.0), "write a number from 0 to 1, e.g. 0.95")
        }
        Unit::Share => {
            let share = text.strip_suffix('%').and_then(number).map(|percent| percent / 100.0);
            (share.or(zero), "write percent, e.g. 1%")
        }
        Unit::Duration => {
            let micros = units::parse_duration(text).ok().map(|length| length.0 as f64);
            (micros.or(zero), "write a duration, e.g. 300us, 5ms, 1s")
        }
        Unit::PerSecond => {
            let rate = text
                .split_once('/')
                .and_then(|(count, period)| Some(counted(count)? * times_per_second(period)?));
            (rate.or(zero), "write a rate, e.g. 100/s, 600/m")
        }
    };
    read.map(Value::Number).ok_or_else(|| {
        let what = match text {
            "" => "a value is missing here".to_owned(),
            _ => format!("`{text}` does not fit this metric"),
        };
        ExpectError::new(at, what, hint)
    })
}

/// How often a period is in a second.
fn times_per_second(period: &str) -> Option<f64> {
    let period = units::parse_period(period).ok().filter(|p| *p > Micros::ZERO)?;
    Some(Micros::SECOND.0 as f64 / period.0 as f64)
}

/// A bare number behind a rate, in the period of that rate, per second: `+-5` of `600/m`.
pub(super) fn by_the_period_of(rate: &str, by: &str) -> Option<f64> {
    let per_second = match rate.split_once('/') {
        Some((_, period)) => times_per_second(period)?,
        None => 1.0,
    };
    Some(number(by)? * per_second)
}
