//! Text → [`Assertion`], with the place of what cannot be read.

use super::ast::{
    Assertion, Bound, Claim, Comparison, Counted, During, Gauge, Labels, Metric, PerKey, Quantile,
    Span, Timed, Tolerance, Unit, Value, Window,
};
use super::value::{self, by_the_period_of, length, number};
use super::words;
use crate::engine::clock::Micros;

/// Nobody writes longer ones; whatever is longer is something else.
const MAX_BYTES: usize = 4 * 1024;

/// What is wrong, where in the text, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}{}", hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct ExpectError {
    pub at: Span,
    pub what: String,
    pub hint: Option<String>,
}

impl ExpectError {
    pub(super) fn new(at: Span, what: impl Into<String>, hint: impl Into<String>) -> ExpectError {
        ExpectError { at, what: what.into(), hint: Some(hint.into()) }
    }

    /// The column of the first character at fault, counted from 1.
    pub fn column(&self, text: &str) -> usize {
        text.get(..self.at.start).map_or(1, |before| before.chars().count() + 1)
    }
}

/// Reads one assertion.
pub fn parse(text: &str) -> Result<Assertion, ExpectError> {
    if text.len() > MAX_BYTES {
        let what = format!("{} bytes are too many for an assertion", text.len());
        return Err(ExpectError::new(0..0, what, format!("at most {MAX_BYTES}")));
    }
    let mut cursor = Cursor { text, at: 0, states: None };
    let limiter = cursor.limiter()?;
    let always = cursor.takes_word("always");
    cursor.space();
    let start = cursor.at;
    let metric = cursor.metric()?;
    cursor.states = match metric {
        Metric::Gauge(Gauge::Breaker) => Some(&words::BREAKER),
        Metric::Gauge(Gauge::State(_)) => Some(&words::QUOTA),
        _ => None,
    };
    let labels = cursor.labels()?;
    let metric_at = start..cursor.at;
    let window = cursor.window()?;
    let during = cursor.during()?;
    let claim = cursor.claim(metric.unit())?;
    cursor.space();
    if cursor.at < text.len() {
        let at = cursor.at..text.len();
        let what = format!("`{}` is too much", &text[at.clone()]);
        return Err(ExpectError::new(at, what, "an assertion ends after its value"));
    }
    Ok(Assertion {
        text: text.trim().into(),
        limiter,
        always,
        metric,
        metric_at,
        labels,
        window,
        during,
        claim,
    })
}

struct Cursor<'t> {
    text: &'t str,
    at: usize,
    /// What the value is one of, where that is a state.
    states: Option<&'static [&'static str; 3]>,
}

impl<'t> Cursor<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// Takes characters while they fit.
    fn run(&mut self, fits: impl Fn(char) -> bool) -> (&'t str, Span) {
        self.space();
        let rest = self.rest();
        let length = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        let span = self.at..self.at + length;
        self.at = span.end;
        (&rest[..length], span)
    }

    fn name(&mut self) -> (&'t str, Span) {
        self.run(|c| c.is_alphanumeric() || c == '_' || c == '-')
    }

    fn takes(&mut self, sign: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(sign);
        if found {
            self.at += sign.len();
        }
        found
    }

    /// Takes a word if it stands here by itself.
    fn takes_word(&mut self, word: &str) -> bool {
        let before = self.at;
        let found = self.name().0 == word;
        if !found {
            self.at = before;
        }
        found
    }

    fn needs(&mut self, sign: &str, hint: &str) -> Result<(), ExpectError> {
        if self.takes(sign) {
            return Ok(());
        }
        Err(ExpectError::new(self.here(), format!("`{sign}` is missing here"), hint))
    }

    /// The next word, or the end.
    fn here(&self) -> Span {
        let rest = self.rest();
        let space = rest.len() - rest.trim_start().len();
        let word = rest.trim_start().find(char::is_whitespace);
        self.at + space..word.map_or(self.text.len(), |word| self.at + space + word)
    }

    fn limiter(&mut self) -> Result<Option<String>, ExpectError> {
        let (name, at) = self.name();
        if !self.takes(":") {
            self.at = at.start;
            return Ok(None);
        }
        if name.is_empty() {
            let what = "the limiter's name is missing before `:`";
            return Err(ExpectError::new(at.start..at.start + 1, what, "write NAME: METRIC …"));
        }
        Ok(Some(name.into()))
    }

    fn metric(&mut self) -> Result<Metric, ExpectError> {
        let (name, at) = self.name();
        if name.is_empty() {
            let known = words::metrics().collect::<Vec<_>>().join(", ");
            return Err(ExpectError::new(self.here(), "a metric is missing here", known));
        }
        if let Some(counted) = words::counted(name) {
            return Ok(Metric::Count(counted));
        }
        if let Some((_, share)) = words::QUANTILES.iter().find(|(known, _)| *known == name) {
            return Ok(Metric::Latency(Quantile::Share(*share), self.timed(name)?));
        }
        Ok(match name {
            "max" => Metric::Latency(Quantile::Max, self.timed(name)?),
            "rate" => Metric::Rate(self.counted(name)?),
            "share" => Metric::Share(self.counted(name)?),
            "worst_window" => Metric::PerKey(PerKey::WorstWindow(self.length_argument(name)?)),
            "over_admitted" => Metric::PerKey(PerKey::OverAdmitted),
            "fairness" => Metric::PerKey(PerKey::Fairness),
            "retry_after" => Metric::RetryAfter,
            "hot_keys" => Metric::Gauge(Gauge::HotKeys),
            "breaker" => Metric::Gauge(Gauge::Breaker),
            "state" => Metric::Gauge(Gauge::State(self.argument(name, "KEY")?.0.into())),
            "policy_version" => Metric::Gauge(Gauge::PolicyVersion),
            "sync_lag" => Metric::Gauge(Gauge::SyncLag),
            "drift" => {
                let (both, at) = self.argument(name, "a,b")?;
                let (a, b) = both.split_once(',').ok_or_else(|| {
                    ExpectError::new(at, "drift is between two regions", "write drift(eu,us)")
                })?;
                Metric::Gauge(Gauge::Drift(a.trim().into(), b.trim().into()))
            }
            _ => {
                let hint = words::hint(name, words::metrics());
                return Err(ExpectError::new(at, format!("unknown metric `{name}`"), hint));
            }
        })
    }

    /// What stands in parentheses.
    fn argument(&mut self, metric: &str, kind: &str) -> Result<(&'t str, Span), ExpectError> {
        let hint = format!("write {metric}({kind})");
        self.needs("(", &hint)?;
        let (inner, at) = self.run(|c| c != ')');
        self.needs(")", &hint)?;
        let trimmed = inner.trim_end();
        if trimmed.is_empty() {
            return Err(ExpectError::new(at, "there is nothing between the parentheses", hint));
        }
        Ok((trimmed, at.start..at.start + trimmed.len()))
    }

    fn counted(&mut self, metric: &str) -> Result<Counted, ExpectError> {
        let (name, at) = self.argument(metric, "allowed")?;
        let known = words::COUNTED.iter().map(|(name, _)| *name);
        words::counted(name).ok_or_else(|| {
            let what = format!("`{name}` is nothing that is counted");
            if let Some((counted, labels)) = name.split_once('{') {
                let hint = format!("labels stand behind: {metric}({counted}){{{labels}");
                return ExpectError::new(at, what, hint);
            }
            ExpectError::new(at, what, words::hint(name, known))
        })
    }

    fn timed(&mut self, metric: &str) -> Result<Timed, ExpectError> {
        let (name, at) = self.argument(metric, "response")?;
        let known = words::TIMED.iter().map(|(name, _)| *name);
        words::timed(name).ok_or_else(|| {
            let what = format!("`{name}` is nothing that takes time");
            ExpectError::new(at, what, words::hint(name, known))
        })
    }

    fn length_argument(&mut self, metric: &str) -> Result<Micros, ExpectError> {
        let (text, at) = self.argument(metric, "1m")?;
        length(text, at)
    }

    fn labels(&mut self) -> Result<Labels, ExpectError> {
        let mut labels = Labels::default();
        if !self.takes("{") {
            return Ok(labels);
        }
        loop {
            self.label(&mut labels)?;
            if self.takes("}") {
                return Ok(labels);
            }
            self.needs(",", "labels are written {outcome=allowed,key=user:1}")?;
        }
    }

    fn label(&mut self, labels: &mut Labels) -> Result<(), ExpectError> {
        let (name, at) = self.name();
        let slot = match name {
            "traffic" => &mut labels.traffic,
            "key" => &mut labels.key,
            "rule" => &mut labels.rule,
            "outcome" => &mut labels.outcome,
            "region" => &mut labels.region,
            "node" => &mut labels.node,
            "shard" => &mut labels.shard,
            _ => {
                let hint = words::hint(name, words::LABELS.into_iter());
                return Err(ExpectError::new(at, format!("unknown label `{name}`"), hint));
            }
        };
        self.needs("=", "labels are written {outcome=allowed,key=user:1}")?;
        let (value, value_at) = match self.quoted()? {
            Some(quoted) => quoted,
            None => self.run(|c| c != ',' && c != '}'),
        };
        let value = value.trim_end();
        if name == "outcome" && !words::OUTCOMES.contains(&value) {
            let hint = words::hint(value, words::OUTCOMES.into_iter());
            return Err(ExpectError::new(value_at, format!("unknown outcome `{value}`"), hint));
        }
        if slot.replace(value.into()).is_some() {
            return Err(ExpectError::new(at, format!("`{name}` is given twice"), "once is enough"));
        }
        Ok(())
    }

    /// `'words'` or `"words"`, if that stands here.
    fn quoted(&mut self) -> Result<Option<(&'t str, Span)>, ExpectError> {
        self.space();
        let Some(mark) = self.rest().chars().next().filter(|c| matches!(c, '\'' | '"')) else {
            return Ok(None);
        };
        let start = self.at + 1;
        let Some(length) = self.text[start..].find(mark) else {
            let what = format!("the closing {mark} is missing");
            return Err(ExpectError::new(self.at..self.text.len(), what, "quote the whole name"));
        };
        self.at = start + length + 1;
        Ok(Some((&self.text[start..start + length], start..start + length)))
    }

    fn needs_quoted(&mut self, what: &str) -> Result<(String, Span), ExpectError> {
        match self.quoted()? {
            Some((name, at)) => Ok((name.into(), at)),
            None => {
                let hint = format!("write its name in quotes, e.g. '{what}'");
                Err(ExpectError::new(self.here(), "a name in quotes is missing here", hint))
            }
        }
    }

    fn window(&mut self) -> Result<Option<Window>, ExpectError> {
        let per = self.takes_word("per");
        if !per && !self.takes_word("over") {
            return Ok(None);
        }
        let (text, at) = self.number();
        let length = length(text, at.clone())?;
        if length < Micros::MILLISECOND {
            return Err(ExpectError::new(at, "a window has at least 1ms", "e.g. over 1s"));
        }
        Ok(Some(if per { Window::Per(length) } else { Window::Over(length) }))
    }

    fn during(&mut self) -> Result<Option<During>, ExpectError> {
        if !self.takes_word("during") {
            return Ok(None);
        }
        if let Some((name, at)) = self.quoted()? {
            return Ok(Some(During::Phase(name.into(), at)));
        }
        let (low, low_at, high, high_at) = self.range()?;
        let whole = low_at.start..high_at.end;
        let (from, to) = (length(low, low_at)?, length(high, high_at)?);
        if from >= to {
            let what = format!("{from} is not before {to}");
            return Err(ExpectError::new(whole, what, "write the earlier time first"));
        }
        Ok(Some(During::Range(from, to)))
    }

    /// `A..B`, as it stands there.
    fn range(&mut self) -> Result<(&'t str, Span, &'t str, Span), ExpectError> {
        let (low, low_at) = self.number();
        self.needs("..", "a range is written A..B")?;
        let (high, high_at) = self.number();
        Ok((low, low_at, high, high_at))
    }

    /// Everything up to a space, a tolerance or the middle of a range.
    fn number(&mut self) -> (&'t str, Span) {
        self.space();
        let rest = self.rest();
        let ends = [rest.find(char::is_whitespace), rest.find(".."), rest.find("+-")];
        let length = ends.into_iter().flatten().min().unwrap_or(rest.len());
        let span = self.at..self.at + length;
        self.at = span.end;
        (&rest[..length], span)
    }

    fn claim(&mut self, unit: Unit) -> Result<Claim, ExpectError> {
        let signs = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("<", Comparison::Less),
            (">", Comparison::More),
        ];
        for (sign, comparison) in signs {
            if self.takes(sign) {
                let ordered = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
                if unit == Unit::Word && ordered {
                    let at = self.at - sign.len()..self.at;
                    let hint = "words are compared by == and !=";
                    return Err(ExpectError::new(at, "a word is not more or less", hint));
                }
                return Ok(Claim::Compare(comparison, self.bound(unit)?));
            }
        }
        if self.takes_word("in") {
            let (low, low_at, high, high_at) = self.range()?;
            let whole = low_at.start..high_at.end;
            let (low, high) =
                (value::value(low, low_at, unit)?, value::value(high, high_at, unit)?);
            if let (Value::Number(from), Value::Number(to)) = (&low, &high)
                && from <= to
            {
                return Ok(Claim::In(low, high));
            }
            return Err(ExpectError::new(whole, "this range is empty", "write in LOW..HIGH"));
        }
        if self.takes_word("becomes") {
            return self.becomes(unit);
        }
        let what = match &self.text[self.here()] {
            "" => "it is not said what must be true".to_owned(),
            found => format!("`{found}` is not understood here"),
        };
        let hint =
            "go on with == != < <= > >= VALUE, in A..B, or becomes VALUE within D of 'EVENT'";
        Err(ExpectError::new(self.here(), what, hint))
    }

    fn becomes(&mut self, unit: Unit) -> Result<Claim, ExpectError> {
        let hint = "write becomes VALUE within 5s of 'EVENT'";
        let bound = self.bound(unit)?;
        let word = |cursor: &mut Cursor<'t>, word: &str| {
            let missing = format!("`{word}` is missing here");
            if cursor.takes_word(word) {
                Ok(())
            } else {
                Err(ExpectError::new(cursor.here(), missing, hint))
            }
        };
        word(self, "within")?;
        let (text, at) = self.number();
        let within = length(text, at)?;
        word(self, "of")?;
        let end_of = self.takes_word("end");
        if end_of {
            word(self, "of")?;
        }
        let (event, event_at) = self.needs_quoted("primary dies")?;
        Ok(Claim::Becomes { bound, within, end_of, event, event_at })
    }

    fn bound(&mut self, unit: Unit) -> Result<Bound, ExpectError> {
        let (written, at) = self.number();
        let value = match (value::value(written, at.clone(), unit)?, self.states) {
            (Value::Word(word), Some(states)) => {
                let unknown = || {
                    let hint = words::hint(&word, states.iter().copied());
                    ExpectError::new(at, format!("there is no state `{word}`"), hint)
                };
                Value::Word(words::state(states, &word).ok_or_else(unknown)?.into())
            }
            (value, _) => value,
        };
        if !self.takes("+-") {
            return Ok(Bound { value, tolerance: None });
        }
        let (text, at) = self.number();
        if unit == Unit::Word {
            return Err(ExpectError::new(at, "a word has no tolerance", "leave it out"));
        }
        let percent = text.strip_suffix('%').and_then(number);
        let tolerance = match percent {
            // Of a share: so many points of it.
            Some(points) if unit == Unit::Share => Tolerance::Absolute(points / 100.0),
            Some(percent) => Tolerance::Relative(percent / 100.0),
            // The value before it has said per what.
            None if unit == Unit::PerSecond && !text.contains('/') => {
                let hint = "write +-2% or +-5";
                let what = format!("`{text}` is no tolerance");
                let by = by_the_period_of(written, text);
                Tolerance::Absolute(by.ok_or_else(|| ExpectError::new(at, what, hint))?)
            }
            None => match value::value(text, at.clone(), unit)? {
                Value::Number(by) => Tolerance::Absolute(by),
                Value::Word(_) => {
                    let hint = "write +-2% or +-5";
                    return Err(ExpectError::new(at, format!("`{text}` is no tolerance"), hint));
                }
            },
        };
        Ok(Bound { value, tolerance: Some(tolerance) })
    }
}
