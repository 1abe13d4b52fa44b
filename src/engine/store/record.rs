//! What Redis holds of an identity's quota, read without any rules: the records of docs/keys.md,
//! and the state that each stands for. Pure; the scripts write what is read here.

use crate::engine::algo::{Backlog, FixedWindow, SlidingLog, SlidingWindow, State};
use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Limit, Quota, Span};

/// After the name: algorithm, `L`, capacity, `P`, `last`, `whole` and three numbers.
const REST_BYTES: usize = 1 + 4 + 4 + 6 * 8;

/// What was used of one limit, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// `rule#index`.
    pub name: String,
    pub limit: Limit,
    /// The time of the last charge.
    pub last: Micros,
    /// When this limit is whole again.
    pub whole: Micros,
    /// The algorithm's own numbers.
    pub numbers: [f64; 3],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("it ends in the middle of a record")]
    Cut,
    #[error("the name of a limit is not text")]
    Name,
    #[error("algorithm {0} is not known to this version")]
    Algorithm(u8),
    #[error("it describes a limit that cannot be: {0}")]
    Limit(String),
    #[error("it holds a number that is none of ours")]
    Number,
    #[error("it is not a string")]
    Type,
}

/// All records of a value.
pub fn records(mut value: &[u8]) -> Result<Vec<Record>, RecordError> {
    let mut found = Vec::with_capacity(1);
    while let Some((length, rest)) = value.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(*length)).ok_or(RecordError::Cut)?;
        let (fields, rest) = rest.split_at_checked(REST_BYTES).ok_or(RecordError::Cut)?;
        let name = std::str::from_utf8(name).map_err(|_| RecordError::Name)?;
        found.push(record(name, fields)?);
        value = rest;
    }
    if found.is_empty() { Err(RecordError::Cut) } else { Ok(found) }
}

fn record(name: &str, fields: &[u8]) -> Result<Record, RecordError> {
    let code = fields[0];
    let algorithm = Algorithm::ALL.into_iter().find(|a| a.code() == code);
    let algorithm = algorithm.ok_or(RecordError::Algorithm(code))?;
    let small = |at: usize| {
        u64::from(u32::from_le_bytes(fields[at..at + 4].try_into().expect("four bytes")))
    };
    let double = |index: usize| double(fields, 9 + 8 * index);
    let (requests, capacity) = (small(1), small(5));
    let burst = (algorithm.is_bucket() && capacity != requests).then_some(capacity);
    let quota = Quota { requests, period: whole_number(double(0))?, burst };
    let limit = Limit::new(algorithm, quota).map_err(|e| RecordError::Limit(e.to_string()))?;
    Ok(Record {
        name: name.into(),
        limit,
        last: whole_number(double(1))?,
        whole: whole_number(double(2))?,
        numbers: [double(3), double(4), double(5)],
    })
}

impl Record {
    pub fn rule(&self) -> &str {
        self.name.rsplit_once('#').map_or(&self.name, |(rule, _)| rule)
    }

    /// The fields of the hash that hold the charges of a sliding log; none of the others.
    pub fn chunks(&self) -> Vec<String> {
        let [_, first, last] = self.numbers;
        if self.limit.algorithm() != Algorithm::SlidingLog || first < 0.0 || last < first {
            return Vec::new();
        }
        // One chunk holds at least one charge, and the oldest and newest may be nearly empty.
        let most = self.limit.requests().saturating_mul(2) + 2;
        let last = (last as u64).min(first as u64 + most);
        (first as u64..=last).map(|number| format!("{}/{number}", self.name)).collect()
    }

    /// What the record stands for; `chunk` gives a field of the hash, if it is there.
    pub fn state<'a>(
        &self,
        chunk: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<State, RecordError> {
        let [a, b, _] = self.numbers;
        let count = |number: f64| whole_number(number).map(|n| n.0);
        Ok(match self.limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
                let held = Span { us: count(a)?, part: count(b)? };
                State::Backlog(Backlog { last: self.last, held })
            }
            Algorithm::FixedWindow => {
                State::FixedWindow(FixedWindow { last: self.last, count: count(a)? })
            }
            Algorithm::SlidingWindow => {
                let (current, previous) = (count(a)?, count(b)?);
                State::SlidingWindow(SlidingWindow { last: self.last, current, previous })
            }
            Algorithm::SlidingLog => {
                let mut charges = Vec::new();
                for field in self.chunks() {
                    // Somebody removed the charges and left the record: the quota is whole.
                    let Some(bytes) = chunk(&field) else {
                        return Ok(State::fresh(Algorithm::SlidingLog));
                    };
                    charges.extend(charges_of(bytes)?);
                }
                State::SlidingLog(SlidingLog::of(charges, self.last))
            }
        })
    }
}

/// Of a chunk: its sum, then pairs of time and cost.
fn charges_of(chunk: &[u8]) -> Result<Vec<(Micros, u64)>, RecordError> {
    let (_sum, pairs) = chunk.split_at_checked(8).ok_or(RecordError::Cut)?;
    if pairs.len() % 16 != 0 {
        return Err(RecordError::Cut);
    }
    let each = |pair: &[u8]| Ok((whole_number(double(pair, 0))?, whole_number(double(pair, 8))?.0));
    pairs.chunks_exact(16).map(each).collect()
}

fn double(bytes: &[u8], at: usize) -> f64 {
    f64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Everything stored is whole, not negative, and exact as a double.
fn whole_number(number: f64) -> Result<Micros, RecordError> {
    let fits = number >= 0.0 && number <= (1u64 << 53) as f64 && number.fract() == 0.0;
    if fits { Ok(Micros(number as u64)) } else { Err(RecordError::Number) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(name: &str, code: u8, numbers: [f64; 6]) -> Vec<u8> {
        let mut bytes = vec![name.len() as u8];
        bytes.extend(name.as_bytes());
        bytes.push(code);
        bytes.extend(10u32.to_le_bytes());
        bytes.extend(10u32.to_le_bytes());
        numbers.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_value_is_read_record_by_record() {
        let mut both = value("per-user#0", 2, [6e7, 1e15, 1e15 + 6e6, 6e6, 0.0, 0.0]);
        both.extend(value("b#1", 4, [6e7, 1e15, 1e15 + 9.0, 3.0, 0.0, 0.0]));
        let read = records(&both).unwrap();
        assert_eq!((read[0].rule(), read[0].limit.to_string().as_str()), ("per-user", "10/1m"));
        let window = FixedWindow { last: Micros(1_000_000_000_000_000), count: 3 };
        assert_eq!(read[1].state(|_| None), Ok(State::FixedWindow(window)));
    }

    #[test]
    fn what_is_not_ours_is_said_so() {
        assert_eq!(records(b""), Err(RecordError::Cut));
        assert_eq!(records(b"42"), Err(RecordError::Cut));
        assert_eq!(records(&value("x#0", 9, [1e6; 6])), Err(RecordError::Algorithm(9)));
        assert_eq!(
            records(&value("x#0", 1, [1e6, 0.5, 1.0, 0.0, 0.0, 0.0])),
            Err(RecordError::Number)
        );
        assert!(matches!(records(&value("x#0", 1, [1.0; 6])), Err(RecordError::Limit(_))));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), code in 0u8..8, numbers in prop::array::uniform6(any::<f64>())) {
            let _ = records(&bytes);
            if let Ok(read) = records(&value("r#0", code, numbers)) {
                let _ = read[0].state(|_| Some(&bytes));
            }
        }
    }
}
