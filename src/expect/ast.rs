//! An assertion, understood.

use std::fmt;
use std::ops::Range;

use crate::engine::clock::Micros;
use crate::output::about;

/// From where to where in the text, in bytes.
pub type Span = Range<usize>;

#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    /// As it was written.
    pub text: String,
    /// For which limiter; none for each of them.
    pub limiter: Option<String>,
    pub always: bool,
    pub metric: Metric,
    /// Where the metric stands, with its argument and labels.
    pub metric_at: Span,
    pub labels: Labels,
    pub window: Option<Window>,
    pub during: Option<During>,
    pub claim: Claim,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    Count(Counted),
    /// Per second.
    Rate(Counted),
    /// Of all requests.
    Share(Counted),
    Latency(Quantile, Timed),
    /// Every wait that a rejection named.
    RetryAfter,
    PerKey(PerKey),
    Gauge(Gauge),
}

/// What is counted, by its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counted {
    Allowed,
    Rejected,
    ShadowRejected,
    Degraded,
    Errors,
    StoreCalls,
    DenyCacheHits,
    LeaseHits,
}

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timed {
    Decision,
    /// From the moment a request was meant to start.
    Response,
    /// From the moment it was sent.
    Service,
    Store,
    RetryAfter,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantile {
    Share(f64),
    Max,
}

impl Quantile {
    pub fn share(self) -> f64 {
        match self {
            Quantile::Share(share) => share,
            Quantile::Max => 1.0,
        }
    }
}

/// What is known only by looking at every key by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerKey {
    /// Most cost admitted on one key in any half-open interval of this length.
    WorstWindow(Micros),
    /// By how much intervals exceeded the algorithm's bound, summed over keys.
    OverAdmitted,
    /// Jain's index of allowed/offered.
    Fairness,
}

/// What has a value at every moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gauge {
    HotKeys,
    Breaker,
    State(String),
    PolicyVersion,
    Drift(String, String),
    SyncLag,
}

/// Which requests; all that are given must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    pub traffic: Option<String>,
    pub key: Option<String>,
    pub rule: Option<String>,
    pub outcome: Option<String>,
    pub region: Option<String>,
    pub node: Option<String>,
    pub shard: Option<String>,
}

impl Labels {
    /// The labels that are given, by name.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("traffic", &self.traffic),
            ("key", &self.key),
            ("rule", &self.rule),
            ("outcome", &self.outcome),
            ("region", &self.region),
            ("node", &self.node),
            ("shard", &self.shard),
        ];
        all.into_iter().filter_map(|(name, value)| value.as_deref().map(|value| (name, value)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Tumbling: one begins where the last one ended.
    Per(Micros),
    /// Sliding by a millisecond.
    Over(Micros),
}

impl Window {
    pub fn length(self) -> Micros {
        match self {
            Window::Per(length) | Window::Over(length) => length,
        }
    }
}

/// Half-open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum During {
    Range(Micros, Micros),
    Phase(String, Span),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    Compare(Comparison, Bound),
    /// Both ends belong to it.
    In(Value, Value),
    Becomes {
        bound: Bound,
        within: Micros,
        end_of: bool,
        event: String,
        event_at: Span,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    More,
    AtLeast,
}

impl Comparison {
    /// What is true just when this is not.
    pub fn opposite(self) -> Comparison {
        match self {
            Comparison::Equal => Comparison::NotEqual,
            Comparison::NotEqual => Comparison::Equal,
            Comparison::Less => Comparison::AtLeast,
            Comparison::AtMost => Comparison::More,
            Comparison::More => Comparison::AtMost,
            Comparison::AtLeast => Comparison::Less,
        }
    }

    pub fn sign(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Less => "<",
            Comparison::AtMost => "<=",
            Comparison::More => ">",
            Comparison::AtLeast => ">=",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub value: Value,
    pub tolerance: Option<Tolerance>,
}

/// How far from a value still is that value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// A share of the value itself.
    Relative(f64),
    /// In the unit of the value.
    Absolute(f64),
}

/// A number in the unit of its metric (microseconds, per second, a share of 1), or a word.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Word(String),
}

/// What the numbers of a metric mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    PerSecond,
    /// Of 1; written in percent.
    Share,
    /// Of 1; written as a fraction.
    Index,
    Duration,
    /// Words such as `open`.
    Word,
}

impl Metric {
    pub fn unit(&self) -> Unit {
        match self {
            Metric::Count(_) => Unit::Count,
            Metric::Rate(_) => Unit::PerSecond,
            Metric::Share(_) => Unit::Share,
            Metric::Latency(..) | Metric::RetryAfter => Unit::Duration,
            Metric::PerKey(PerKey::Fairness) => Unit::Index,
            Metric::PerKey(_) => Unit::Count,
            Metric::Gauge(Gauge::HotKeys | Gauge::PolicyVersion | Gauge::Drift(..)) => Unit::Count,
            Metric::Gauge(Gauge::SyncLag) => Unit::Duration,
            Metric::Gauge(Gauge::Breaker | Gauge::State(_)) => Unit::Word,
        }
    }
}

impl Unit {
    /// The number as people write it.
    pub fn show(self, number: f64) -> String {
        match self {
            Unit::Count | Unit::Word => decimal(number, 2),
            Unit::PerSecond => format!("{}/s", decimal(number, 1)),
            Unit::Share => format!("{}%", decimal(number * 100.0, 2)),
            Unit::Index => decimal(number, 4),
            Unit::Duration => about(Micros(number.max(0.0).round() as u64)),
        }
    }
}

/// As many digits after the point as say something.
fn decimal(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

impl Value {
    pub fn show(&self, unit: Unit) -> String {
        match self {
            Value::Number(number) => unit.show(*number),
            Value::Word(word) => word.clone(),
        }
    }
}

impl Bound {
    fn show(&self, unit: Unit) -> String {
        let value = self.value.show(unit);
        match self.tolerance {
            None => value,
            Some(Tolerance::Relative(share)) => format!("{value} +-{}", Unit::Share.show(share)),
            Some(Tolerance::Absolute(by)) => format!("{value} +-{}", unit.show(by)),
        }
    }
}

impl Claim {
    /// What was wanted, in the words of the grammar.
    pub fn show(&self, unit: Unit) -> String {
        match self {
            Claim::Compare(comparison, bound) => {
                format!("{} {}", comparison.sign(), bound.show(unit))
            }
            Claim::In(low, high) => format!("in {}..{}", low.show(unit), high.show(unit)),
            Claim::Becomes { bound, within, end_of, event, .. } => {
                let end = if *end_of { "end of " } else { "" };
                format!("becomes {} within {within} of {end}'{event}'", bound.show(unit))
            }
        }
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
