//! One way in which requests come: `constant:120/s`, `poisson:120/s`, `ramp:0..500/s`,
//! `sine:100..500/s:60s`, `burst:500@30s`, `onoff:500/s:10s:20s`. All but Poisson can say when
//! request number `n` is due without knowing those before it.

use std::fmt;
use std::str::FromStr;

use super::rate::{Rate, RateError};
use crate::engine::clock::Micros;
use crate::engine::units::{self, UnitError};

const KINDS: [(&str, &str); 6] = [
    ("constant", "constant:120/s"),
    ("poisson", "poisson:120/s"),
    ("ramp", "ramp:0..500/s"),
    ("sine", "sine:100..500/s:60s"),
    ("burst", "burst:500@30s"),
    ("onoff", "onoff:500/s:10s:20s"),
];

/// As many at once as any machine could hold.
const MAX_BURST: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Evenly spaced; the first comes at once.
    Constant(Rate),
    /// Independent of each other, as from many clients.
    Poisson(Rate),
    /// The rate rises (or falls) evenly over the whole run.
    Ramp { from: Rate, to: Rate },
    /// The rate swings between two, once in `period`; it starts at the first.
    Sine { low: Rate, high: Rate, period: Micros },
    /// All at one moment.
    Burst { requests: u64, at: Micros },
    /// A steady rate for a while, then silence for a while, again and again.
    OnOff { rate: Rate, on: Micros, off: Micros },
}

/// Why a description of traffic or keys was refused, and how to write it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("`{text}` is not {what}{hint}; write one of {forms}", hint = did_you_mean(*.meant))]
    Unknown { text: String, what: &'static str, meant: Option<&'static str>, forms: String },
    #[error("`{text}` is incomplete; write it like {form}")]
    Form { text: String, form: &'static str },
    #[error(transparent)]
    Rate(#[from] RateError),
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("{0}")]
    Range(String),
}

fn did_you_mean(name: Option<&str>) -> String {
    name.map(|n| format!("; did you mean {n}?")).unwrap_or_default()
}

/// That none of `kinds` begins the text.
pub(super) fn unknown(
    text: &str,
    what: &'static str,
    kinds: &[(&'static str, &'static str)],
) -> SpecError {
    let word = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let near = kinds.iter().map(|(kind, _)| (strsim::damerau_levenshtein(&word, kind), *kind));
    let meant = near.min().filter(|(far, kind)| *far <= kind.len().div_ceil(3)).map(|(_, k)| k);
    let forms: Vec<&str> = kinds.iter().map(|(_, form)| *form).collect();
    SpecError::Unknown { text: text.into(), what, meant, forms: forms.join(", ") }
}

impl FromStr for Shape {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Shape, SpecError> {
        let unknown = || unknown(text, "traffic", &KINDS);
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let (kind, form) = *KINDS.iter().find(|(name, _)| *name == kind).ok_or_else(unknown)?;
        let incomplete = || SpecError::Form { text: text.into(), form };
        let parts: Vec<&str> = rest.split(':').collect();
        match (kind, parts.as_slice()) {
            ("constant", [rate]) => Ok(Shape::Constant(rate.parse()?)),
            ("poisson", [rate]) => Ok(Shape::Poisson(rate.parse()?)),
            ("ramp", [range]) => {
                let (from, to) = rates(range).ok_or_else(incomplete)??;
                Ok(Shape::Ramp { from, to })
            }
            ("sine", [range, period]) => {
                let (low, high) = rates(range).ok_or_else(incomplete)??;
                Ok(Shape::Sine { low, high, period: duration(period)? })
            }
            ("burst", [burst]) => {
                let (requests, at) = burst.split_once('@').ok_or_else(incomplete)?;
                let requests = units::parse_count(requests)?;
                if requests > MAX_BURST {
                    let why = format!("a burst of {requests} is too large; at most {MAX_BURST}");
                    return Err(SpecError::Range(why));
                }
                Ok(Shape::Burst { requests, at: units::parse_duration(at)? })
            }
            ("onoff", [rate, on, off]) => {
                Ok(Shape::OnOff { rate: rate.parse()?, on: duration(on)?, off: duration(off)? })
            }
            _ => Err(incomplete()),
        }
    }
}

/// `0..500/s`: both ends have the period of the last.
fn rates(range: &str) -> Option<Result<(Rate, Rate), RateError>> {
    let (from, to) = range.split_once("..")?;
    let (_, period) = to.split_once('/')?;
    let first = if from.contains('/') { from.to_string() } else { format!("{from}/{period}") };
    Some(first.parse().and_then(|first| Ok((first, to.parse()?))))
}

fn duration(text: &str) -> Result<Micros, SpecError> {
    match units::parse_duration(text)? {
        Micros(0) => Err(SpecError::Range(format!("`{text}` is no time at all; at least 1us"))),
        duration => Ok(duration),
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Constant(rate) => write!(f, "constant:{rate}"),
            Shape::Poisson(rate) => write!(f, "poisson:{rate}"),
            Shape::Ramp { from, to } => write!(f, "ramp:{from}..{to}"),
            Shape::Sine { low, high, period } => write!(f, "sine:{low}..{high}:{period}"),
            Shape::Burst { requests, at } => write!(f, "burst:{requests}@{at}"),
            Shape::OnOff { rate, on, off } => write!(f, "onoff:{rate}:{on}:{off}"),
        }
    }
}

impl Shape {
    /// When request number `n` (the first is 0) of a run of that length is due; none when it is not
    /// within it, and for Poisson, which only knows its next.
    pub fn due(&self, n: u64, run: Micros) -> Option<Micros> {
        let due = match self {
            Shape::Constant(rate) => rate.due(n)?,
            Shape::Poisson(_) => return None,
            Shape::Ramp { from, to } => ramp_due(from.hz(), to.hz(), n, run)?,
            Shape::Sine { low, high, period } => sine_due(low.hz(), high.hz(), *period, n, run)?,
            Shape::Burst { requests, at } => (n < *requests).then_some(*at)?,
            Shape::OnOff { rate, on, off } => {
                let each = rate.before(*on);
                let cycle = n.checked_div(each)?;
                Micros((on.0 + off.0).checked_mul(cycle)?) + rate.due(n % each)?
            }
        };
        (due < run).then_some(due)
    }

    /// How many come in a run of that length: exactly, for Poisson on average.
    pub fn expected(&self, run: Micros) -> u64 {
        let seconds = run.0 as f64 / Micros::SECOND.0 as f64;
        match self {
            Shape::Constant(rate) | Shape::Poisson(rate) => rate.before(run),
            Shape::Ramp { from, to } => ((from.hz() + to.hz()) / 2.0 * seconds) as u64,
            Shape::Sine { low, high, period } => {
                sine_count(low.hz(), high.hz(), *period, run.0 as f64) as u64
            }
            Shape::Burst { requests, at } => {
                if *at < run {
                    *requests
                } else {
                    0
                }
            }
            Shape::OnOff { rate, on, off } => {
                let (cycles, rest) = (run.0 / (on.0 + off.0), run.0 % (on.0 + off.0));
                cycles * rate.before(*on) + rate.before(Micros(rest.min(on.0)))
            }
        }
    }
}

/// The moment `t` at which `from·t + (to − from)·t²/(2·run)` requests have come, solved so that
/// nothing cancels out.
fn ramp_due(from: f64, to: f64, n: u64, run: Micros) -> Option<Micros> {
    let per_us = 1.0 / Micros::SECOND.0 as f64;
    let (from, to, n) = (from * per_us, to * per_us, n as f64);
    if n == 0.0 {
        return (from > 0.0 || to > 0.0).then_some(Micros::ZERO);
    }
    let under = from * from + 2.0 * (to - from) * n / run.0 as f64;
    // The rate of a falling ramp is used up before it reaches `n`.
    (under >= 0.0).then(|| Micros((2.0 * n / (from + under.sqrt())) as u64))
}

/// Requests that have come by `t`, where the rate is `low` at 0 and `high` half a period later.
fn sine_count(low: f64, high: f64, period: Micros, t: f64) -> f64 {
    let (mean, swing) = ((low + high) / 2.0, (high - low) / 2.0);
    let turns = std::f64::consts::TAU / period.0 as f64;
    // Whole turns are taken off first: they add nothing, and would cost digits.
    let into = t % period.0 as f64;
    (mean * t - swing * libm::sin(turns * into) / turns) / Micros::SECOND.0 as f64
}

/// The first microsecond by which `n` have come. The count only rises, so halving finds it.
fn sine_due(low: f64, high: f64, period: Micros, n: u64, run: Micros) -> Option<Micros> {
    let count = |t: u64| sine_count(low, high, period, t as f64);
    if count(run.0) < n as f64 || low + high <= 0.0 {
        return None;
    }
    // In a whole period as many come as at the mean rate, so the moment is less than one away.
    let at_mean = (n as f64 * 2.0 / (low + high) * Micros::SECOND.0 as f64) as u64;
    let mut first = at_mean.saturating_sub(period.0);
    let mut last = (at_mean + period.0).min(run.0);
    while first < last {
        let middle = first + (last - first) / 2;
        if count(middle) >= n as f64 { last = middle } else { first = middle + 1 }
    }
    Some(Micros(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Micros = Micros::MINUTE;

    fn all(text: &str, run: Micros) -> Vec<u64> {
        let shape: Shape = text.parse().unwrap();
        (0..).map_while(|n| shape.due(n, run)).map(|at| at.0).collect()
    }

    #[test]
    fn every_form_reads_as_written_and_back() {
        for text in KINDS.map(|(_, form)| form) {
            let shape: Shape = text.parse().unwrap();
            assert_eq!(shape.to_string().parse(), Ok(shape), "{text}");
        }
    }

    #[test]
    fn a_wrong_word_says_what_was_meant() {
        let error = |text: &str| text.parse::<Shape>().unwrap_err().to_string();
        assert!(error("posson:5/s").contains("did you mean poisson?"));
        assert!(error("120/s").contains("write one of constant:120/s"));
        assert_eq!(error("burst:5"), "`burst:5` is incomplete; write it like burst:500@30s");
        assert_eq!(error("ramp:5/s"), "`ramp:5/s` is incomplete; write it like ramp:0..500/s");
        assert!(error("constant:5").contains("not a rate"));
        assert!(error("onoff:5/s:0s:1s").contains("at least 1us"));
        assert!(error("sine:1..2/s").contains("sine:100..500/s:60s"));
        assert!(error("burst:x@1s").contains("not a number"));
        assert!(error("burst:2G@1s").contains("too large"));
    }

    #[test]
    fn the_count_is_the_area_under_the_rate() {
        for (text, count) in [
            ("constant:120/s", 7_200),
            ("ramp:0..500/s", 15_000),
            ("ramp:500..0/s", 15_000),
            ("sine:100..500/s:20s", 18_000),
            ("sine:0..10/s:60s", 300),
            ("burst:500@30s", 500),
            ("burst:500@60s", 0),
            ("onoff:500/s:10s:20s", 10_000),
        ] {
            let due = all(text, MINUTE);
            let shape: Shape = text.parse().unwrap();
            assert!(due.len().abs_diff(count) <= 1, "{text}: {}", due.len());
            assert!(shape.expected(MINUTE).abs_diff(count as u64) <= 1, "{text}");
            assert!(due.is_sorted() && due.iter().all(|at| *at < MINUTE.0), "{text}");
        }
    }

    #[test]
    fn shapes_look_as_they_are_called() {
        let within = |due: &[u64], from: u64, to: u64| {
            due.iter().filter(|at| (from * 1_000_000..to * 1_000_000).contains(*at)).count()
        };
        let ramp = all("ramp:0..600/s", MINUTE);
        assert!(within(&ramp, 0, 30).abs_diff(4_500) <= 1);
        let sine = all("sine:0..100/s:60s", MINUTE);
        assert!(within(&sine, 0, 5) < 30 && within(&sine, 28, 32) > 380);
        let onoff = all("onoff:500/s:10s:20s", MINUTE);
        assert_eq!((within(&onoff, 0, 10), within(&onoff, 10, 30)), (5_000, 0));
        assert_eq!(within(&onoff, 30, 40), 5_000);
        assert_eq!(all("constant:3/s", Micros::SECOND), [0, 333_333, 666_666]);
        assert!(all("constant:0/s", MINUTE).is_empty() && all("ramp:0..0/s", MINUTE).is_empty());
    }
}
