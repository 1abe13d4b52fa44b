//! Whether an assertion holds, what was measured, and where.

use std::ops::Range;

use super::ast::{
    Assertion, Bound, Claim, Comparison, During, Metric, Timed, Tolerance, Unit, Value, Window,
};
use super::measured::{Measured, NotMeasured};
use super::windows::{values, windows};
use crate::engine::clock::Micros;

/// More windows than this in one assertion are not looked at: days, millisecond by millisecond.
const MAX_WINDOWS: u64 = 50_000_000;

/// What became of an assertion.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub holds: bool,
    /// Only because of what the measurement may be off: see [`Measured::give`].
    pub is_given: bool,
    /// The value that decided: the worst one, or with `becomes` how long it took, in microseconds.
    pub measured: Option<Value>,
    pub unit: Unit,
    /// Where that was.
    pub at: Option<Range<Micros>>,
    /// The same for people, without the assertion itself.
    pub words: String,
}

/// Judges one assertion by what one limiter did.
pub fn judge(assertion: &Assertion, of: &dyn Measured) -> Result<Verdict, NotMeasured> {
    let range = match &assertion.during {
        None => Micros::ZERO..of.end(),
        Some(During::Range(from, to)) => *from..*to,
        Some(During::Phase(name, _)) => named(name, of)?,
    };
    if let Some(window) = assertion.window {
        let count = (range.end.saturating_sub(range.start)).0 / of.step().0.max(1);
        if matches!(window, Window::Over(_)) && count > MAX_WINDOWS {
            let what = format!("{count} windows are too many to slide over");
            return Err(NotMeasured::new(what, "write per instead of over, or a shorter during"));
        }
    }
    match &assertion.claim {
        Claim::Becomes { bound, within, end_of, event, .. } => {
            let event = named(event, of)?;
            let moment = if *end_of { event.end } else { event.start };
            becomes(assertion, bound, *within, moment, of)
        }
        claim => holds_everywhere(assertion, claim, range, of),
    }
}

fn named(name: &str, of: &dyn Measured) -> Result<Range<Micros>, NotMeasured> {
    of.event(name).ok_or_else(|| {
        let known = of.events();
        let hint = if known.is_empty() {
            "nothing here has a name; write during 5s..20s".to_owned()
        } else {
            format!("there are '{}'", known.join("', '"))
        };
        NotMeasured::new(format!("there is nothing called '{name}'"), hint)
    })
}

/// A value and the time it was measured in.
type Sample = (Value, Range<Micros>);

/// Everything that has to fulfil the claim.
fn samples(
    assertion: &Assertion,
    range: &Range<Micros>,
    of: &dyn Measured,
) -> Result<Vec<Sample>, NotMeasured> {
    match &assertion.metric {
        Metric::Gauge(gauge) => {
            let all = of.gauge(gauge, &assertion.labels)?;
            Ok(in_force(&all, range))
        }
        // Each of them, and not the largest in a window: a lower end counts as well.
        Metric::RetryAfter => {
            let all = of.lasting(Timed::RetryAfter, &assertion.labels)?;
            let within = all.iter().filter(|one| range.contains(&one.at));
            Ok(within.map(|one| (Value::Number(one.took.0 as f64), one.at..one.at)).collect())
        }
        metric => {
            let windows = windows(range, assertion.window, of.step());
            let values = values(metric, &assertion.labels, &windows, of)?;
            let some = values.into_iter().zip(windows);
            Ok(some.filter_map(|(v, w)| v.map(|v| (Value::Number(v), w))).collect())
        }
    }
}

/// The values that held at some moment of `range`.
fn in_force(all: &[(Micros, Value)], range: &Range<Micros>) -> Vec<Sample> {
    let ends = all.iter().skip(1).map(|(at, _)| *at).chain([Micros(u64::MAX)]);
    let each =
        all.iter().zip(ends).filter(|((from, _), to)| *from < range.end && *to > range.start);
    each.map(|((from, value), to)| {
        let held = (*from).max(range.start)..to.min(range.end);
        (value.clone(), held)
    })
    .collect()
}

fn holds_everywhere(
    assertion: &Assertion,
    claim: &Claim,
    range: Range<Micros>,
    of: &dyn Measured,
) -> Result<Verdict, NotMeasured> {
    let unit = assertion.metric.unit();
    let looked_at = samples(assertion, &range, of)?.into_iter().map(|(value, at)| {
        let give = match fulfils(claim, &value, 0.0) {
            true => 0.0,
            false => of.give(&assertion.metric, &assertion.labels, &at),
        };
        (!fulfils(claim, &value, give), give, value, at)
    });
    // What fails is worse than what is further off and may be.
    let worst = looked_at
        .max_by(|a, b| a.0.cmp(&b.0).then(miss(claim, &a.2).total_cmp(&miss(claim, &b.2))));
    let Some((fails, give, value, at)) = worst else {
        return Ok(nothing(assertion, range, of.end()));
    };
    let windowed = assertion.window.is_some() || at != range;
    let place = match at.end == at.start {
        true => format!(" at {}", at.start),
        false => format!(" in {}..{}", at.start, at.end),
    };
    let where_ = if windowed { place } else { String::new() };
    let extreme = if assertion.window.is_some() { " at worst" } else { "" };
    let (shown, wanted) = (value.show(unit), claim.show(unit));
    let words = format!("{shown}{extreme}{where_}; wanted {wanted}{}", off_by(give, unit));
    let (holds, is_given) = (!fails, !fails && give > 0.0);
    Ok(Verdict { holds, is_given, measured: Some(value), unit, at: Some(at), words })
}

fn off_by(give: f64, unit: Unit) -> String {
    if give > 0.0 { format!(", give or take {}", unit.show(give)) } else { String::new() }
}

/// There was nothing to judge: no request of the kind, or no whole window.
fn nothing(assertion: &Assertion, range: Range<Micros>, end: Micros) -> Verdict {
    let unit = assertion.metric.unit();
    // Nothing was refused: then no refusal named a wrong wait.
    let holds = assertion.metric == Metric::RetryAfter;
    let length = range.end.min(end).saturating_sub(range.start);
    let words = match assertion.window {
        Some(window) if window.length() > length => {
            format!("nothing was measured: {length} hold no window of {}", window.length())
        }
        _ if holds => "no rejection named a wait".into(),
        _ => "nothing was measured".into(),
    };
    Verdict { holds, is_given: false, measured: None, unit, at: None, words }
}

/// `more` is given beside what the claim gives.
fn fulfils(claim: &Claim, value: &Value, more: f64) -> bool {
    match (claim, value) {
        (Claim::In(Value::Number(low), Value::Number(high)), Value::Number(v)) => {
            (*low - more..=*high + more).contains(v)
        }
        (Claim::Compare(comparison, bound), value) => compares(*comparison, bound, value, more),
        (Claim::Becomes { bound, .. }, value) => compares(Comparison::Equal, bound, value, more),
        _ => false,
    }
}

fn compares(comparison: Comparison, bound: &Bound, value: &Value, more: f64) -> bool {
    let (Value::Number(value), Value::Number(wanted)) = (value, &bound.value) else {
        let equal = *value == bound.value;
        return if comparison == Comparison::NotEqual { !equal } else { equal };
    };
    // What a division leaves in the last digits is no difference.
    let own = tolerance(bound);
    let give = own + more + wanted.abs() * 1e-12;
    match comparison {
        Comparison::Equal => (value - wanted).abs() <= give,
        Comparison::NotEqual => (value - wanted).abs() > give - more,
        Comparison::Less => *value < wanted + own + more,
        Comparison::AtMost => *value <= wanted + give,
        Comparison::More => *value > wanted - own - more,
        Comparison::AtLeast => *value >= wanted - give,
    }
}

/// In the unit of the value.
fn tolerance(bound: &Bound) -> f64 {
    match (bound.tolerance, &bound.value) {
        (Some(Tolerance::Relative(share)), Value::Number(value)) => value * share,
        (Some(Tolerance::Absolute(by)), _) => by,
        _ => 0.0,
    }
}

/// How far a value is from fulfilling a claim; the more, the worse.
fn miss(claim: &Claim, value: &Value) -> f64 {
    let Value::Number(value) = value else {
        return if fulfils(claim, value, 0.0) { 0.0 } else { 1.0 };
    };
    match claim {
        Claim::In(Value::Number(low), Value::Number(high)) => (low - value).max(value - high),
        Claim::Compare(comparison, Bound { value: Value::Number(wanted), .. }) => {
            match comparison {
                Comparison::Equal => (value - wanted).abs(),
                Comparison::NotEqual => -(value - wanted).abs(),
                Comparison::Less | Comparison::AtMost => value - wanted,
                Comparison::More | Comparison::AtLeast => wanted - value,
            }
        }
        Claim::Becomes { bound: Bound { value: Value::Number(wanted), .. }, .. } => {
            (value - wanted).abs()
        }
        _ => 0.0,
    }
}

/// First true at or after `moment`, and still true one window later.
fn becomes(
    assertion: &Assertion,
    bound: &Bound,
    within: Micros,
    moment: Micros,
    of: &dyn Measured,
) -> Result<Verdict, NotMeasured> {
    let unit = assertion.metric.unit();
    let samples = match (&assertion.metric, assertion.window) {
        (Metric::Gauge(gauge), _) => {
            let all = of.gauge(gauge, &assertion.labels)?;
            // Also what was true at that very moment, and no longer.
            let passing = all.windows(2).filter(|two| two[0].0 == moment && two[1].0 == moment);
            let passing = passing.map(|two| (two[0].1.clone(), moment..moment));
            passing.chain(in_force(&all, &(moment..of.end()))).collect()
        }
        (_, Some(_)) => samples(assertion, &(moment..of.end()), of)?,
        (_, None) => {
            let what = "becomes looks at one window after the other, and none is given";
            return Err(NotMeasured::new(what, "write e.g. over 1s before becomes"));
        }
    };
    let is_exact = |sample: &Sample| compares(Comparison::Equal, bound, &sample.0, 0.0);
    let is_true = |sample: &Sample| {
        is_exact(sample) || {
            let give = of.give(&assertion.metric, &assertion.labels, &sample.1);
            give > 0.0 && compares(Comparison::Equal, bound, &sample.0, give)
        }
    };
    let lasts = |(_, at): &Sample| {
        let Some(window) = assertion.window else { return true };
        // What was not recorded any more speaks neither for nor against it.
        let later = at.start + window.length();
        let next = samples.partition_point(|(_, other)| other.start < later);
        samples.get(next).is_none_or(is_true)
    };
    let later = of.later(&(moment..moment + within));
    let in_time = |sample: &&Sample| sample.1.start <= moment + within + later;
    let tried = || samples.iter().take_while(in_time);
    if let Some(sample) = tried().find(|sample| is_true(sample) && lasts(sample)) {
        let at = &sample.1;
        let took = at.start.saturating_sub(moment);
        return Ok(Verdict {
            holds: true,
            is_given: took > within || !is_exact(sample),
            measured: Some(Value::Number(took.0 as f64)),
            unit: Unit::Duration,
            at: Some(at.clone()),
            words: format!("true {took} after it; wanted {}", assertion.claim.show(unit)),
        });
    }
    let claim = &assertion.claim;
    let nearest = tried().min_by(|(a, _), (b, _)| miss(claim, a).total_cmp(&miss(claim, b)));
    let came = match nearest {
        None => "nothing was measured after it".to_owned(),
        Some((value, at)) => format!("it came as near as {} at {}", value.show(unit), at.start),
    };
    let words = format!("not within {within}; {came}; wanted {}", claim.show(unit));
    let at = nearest.map(|(_, at)| at.clone());
    Ok(Verdict { holds: false, is_given: false, measured: None, unit: Unit::Duration, at, words })
}
