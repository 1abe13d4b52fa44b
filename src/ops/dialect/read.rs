//! What a key of another limiter says, in our words: its state is decided by our algorithms where
//! its limit is known; where it is not, what is counted is shown as it stands.

use super::pattern::OfKey;
use super::{Layout, Value};
use crate::engine::algo::{Backlog, FixedWindow, SlidingLog, SlidingWindow, State};
use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Decision, Limit, Span};
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Answered, Said, Words};
use crate::ops::bucket::{Bucket, Standing};

/// Members of a sorted set that are read: enough for nearly every limit, and soon done.
const MOST_MEMBERS: u64 = 5_000;

/// What a key holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    state: Told,
    limit: Option<Limit>,
    period: Option<Micros>,
}

#[derive(Clone, Debug, PartialEq)]
enum Told {
    /// All that our algorithm needs.
    State(State),
    /// A count that starts again when the key expires.
    CountUntilExpiry(u64),
    Left(f64),
    Used(u64),
}

impl Layout {
    /// What to ask about a key.
    pub fn questions(&self, key: &str) -> Vec<Words> {
        match &self.value {
            Value::TokenHash { tokens, last } => {
                vec![Words::of("HMGET").and(key).and(tokens).and(last)]
            }
            Value::Tokens | Value::Count => vec![Words::of("GET").and(key)],
            Value::Log => vec![
                Words::of("ZCARD").and(key),
                Words::of("ZRANGE")
                    .and(key)
                    .and("0")
                    .and((MOST_MEMBERS - 1).to_string())
                    .and("WITHSCORES"),
            ],
        }
    }

    /// What was answered to them. None: it is not there, or it is something else.
    pub fn read(
        &self,
        key: &str,
        answers: Vec<Answered>,
        now: Micros,
    ) -> Result<Option<Reading>, StoreError> {
        let mut said = Vec::with_capacity(answers.len());
        for answer in answers {
            match answer {
                Err(StoreError::Refused { code, .. }) if code == "WRONGTYPE" => return Ok(None),
                answer => said.push(answer?),
            }
        }
        let Some(of_key) = self.key.parse(key) else { return Ok(None) };
        let limit = self.limit(of_key.window);
        let period = of_key.window.or(limit.map(|limit| limit.period()));
        let told = match &self.value {
            Value::TokenHash { .. } => self.tokens_and_time(&said, limit.as_ref()),
            Value::Tokens => said.first().and_then(number).map(|tokens| match limit {
                // As of now: nobody says when they were counted.
                Some(limit) => bucket_of(&limit, tokens, now),
                None => Told::Left(tokens),
            }),
            Value::Count => said
                .first()
                .and_then(number)
                .map(|count| self.count(count.max(0.0) as u64, &of_key, limit.as_ref(), now)),
            Value::Log => self.log(said, period, limit.is_some(), now),
        };
        Ok(told.map(|state| Reading { state, limit, period }))
    }

    fn tokens_and_time(&self, said: &[Said], limit: Option<&Limit>) -> Option<Told> {
        let Some(Said::List(fields)) = said.first() else { return None };
        let tokens = number(fields.first()?)?;
        let last = fields.get(1).and_then(number).map(|time| self.moment(time));
        Some(match (limit, last) {
            (Some(limit), Some(last)) => bucket_of(limit, tokens, last),
            _ => Told::Left(tokens),
        })
    }

    fn count(&self, count: u64, of_key: &OfKey, limit: Option<&Limit>, now: Micros) -> Told {
        let (Some(limit), Some(start)) = (limit, of_key.start) else {
            return if limit.is_some() { Told::CountUntilExpiry(count) } else { Told::Used(count) };
        };
        let period = limit.period();
        // A small number counts windows, a large one is a time.
        let as_number = Micros(start.saturating_mul(period.0)).min(Micros::LAST);
        let is_number = as_number <= now + period && as_number + Micros::DAY > now;
        let start = if is_number { as_number } else { self.moment(start as f64) };
        Told::State(match limit.algorithm() {
            Algorithm::SlidingWindow => {
                State::SlidingWindow(SlidingWindow { last: start, current: count, previous: 0 })
            }
            _ => State::FixedWindow(FixedWindow { last: start, count }),
        })
    }

    fn log(
        &self,
        said: Vec<Said>,
        period: Option<Micros>,
        known: bool,
        now: Micros,
    ) -> Option<Told> {
        let mut said = said.into_iter();
        let members = said.next()?.number().filter(|count| *count > 0)? as u64;
        let scores = said.next()?.into_list().into_iter().skip(1).step_by(2);
        let times: Vec<Micros> = scores.filter_map(|s| Some(self.moment(number(&s)?))).collect();
        let newest = *times.last()?;
        // Those that were not read are newer than the others.
        let more = members.saturating_sub(times.len() as u64);
        if known {
            let charges =
                times.iter().map(|at| (*at, 1)).chain((more > 0).then_some((newest, more)));
            return Some(Told::State(State::SlidingLog(SlidingLog::of(charges, newest))));
        }
        let counts = |at: &&Micros| period.is_none_or(|period| **at + period > now);
        Some(Told::Used(times.iter().filter(counts).count() as u64 + more))
    }
}

/// What a bucket lacks is the time until it is whole.
fn bucket_of(limit: &Limit, tokens: f64, last: Micros) -> Told {
    let missing = (limit.capacity() as f64 - tokens).max(0.0);
    let us = missing * limit.micros() as f64 / limit.tokens().max(1) as f64;
    let held = Span { us: (us.ceil() as u64).min(1 << 52), part: 0 };
    Told::State(State::Backlog(Backlog { last, held }))
}

fn number(said: &Said) -> Option<f64> {
    match said {
        Said::Text(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
        Said::Number(number) => Some(*number as f64),
        _ => None,
    }
}

impl Reading {
    /// Two counts of one sliding window, which lie under two keys.
    pub fn join(&mut self, other: &Reading) -> bool {
        let (
            Told::State(State::SlidingWindow(a)),
            Told::State(State::SlidingWindow(b)),
            Some(limit),
        ) = (&self.state, &other.state, &self.limit)
        else {
            return false;
        };
        let (older, newer) = if a.last <= b.last { (a, b) } else { (b, a) };
        let follows = older.last + limit.period() == newer.last;
        let previous = if follows { older.current } else { 0 };
        let joined = SlidingWindow { previous, ..*newer };
        self.state = Told::State(State::SlidingWindow(joined));
        true
    }

    /// When the limit is whole again, if that is known.
    pub fn whole(&self, now: Micros) -> Option<Micros> {
        match (&self.state, &self.limit) {
            (Told::State(state), Some(limit)) => Some(state.whole_at(limit)),
            (Told::CountUntilExpiry(_), Some(limit)) => Some(now + limit.period()),
            _ => None,
        }
    }

    /// What it says, with `bucket` for where it was found.
    pub fn bucket(&self, layout: &Layout, now: Micros, bucket: Bucket) -> Bucket {
        let bucket = Bucket {
            rule: layout.name.clone(),
            algorithm: Some(layout.algorithm.name()),
            period_us: self.period.map(|period| period.0),
            source: format!("dialect {}", layout.name),
            ..bucket
        };
        match (&self.state, &self.limit) {
            (Told::State(state), Some(limit)) => bucket.standing(Standing::of(limit, state, now)),
            (Told::CountUntilExpiry(count), Some(limit)) => {
                let ends = bucket.ttl_us.map_or(limit.period(), Micros);
                bucket.standing(until_expiry(limit, *count, ends, now))
            }
            (Told::Left(tokens), _) => Bucket { remaining: Some(tokens.max(0.0) as u64), ..bucket },
            (Told::Used(used), _) => Bucket { used: Some(*used), ..bucket },
            _ => bucket,
        }
    }
}

/// A window that began with its first request and ends with its key.
fn until_expiry(limit: &Limit, count: u64, ends: Micros, now: Micros) -> Standing {
    let most = limit.requests();
    let whole = Decision {
        allowed: true,
        limit: most,
        capacity: limit.capacity(),
        remaining: most.saturating_sub(count),
        retry_after: None,
        reset_after: if count > 0 { ends } else { Micros::ZERO },
        next_after: if count > 0 { ends } else { Micros::ZERO },
        delay: Micros::ZERO,
        at: now,
        clock_jump: false,
    };
    let allowed = count < most;
    let of_one = Decision {
        allowed,
        remaining: most.saturating_sub(count + 1),
        retry_after: (!allowed && most > 0).then_some(ends),
        ..whole
    };
    Standing { limit: *limit, now: whole, of_one }
}
