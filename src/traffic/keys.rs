//! Whom requests are for: `one:user:1`, `uniform:1000`, `zipf:1.1:100k`, `hot:5%:1000`,
//! `file:PATH`. A draw gives a number, which is all that a simulation needs; its name is made when
//! somebody wants to read it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::str::FromStr;

use super::rng::Rng;
use super::shape::{SpecError, unknown};
use crate::engine::identity::Identity;
use crate::engine::units;

/// Each has its place in every table, so their number bounds the memory.
pub const MAX_KEYS: u64 = 10_000_000;

const KINDS: [(&str, &str); 5] = [
    ("one", "one:user:1"),
    ("uniform", "uniform:1000"),
    ("zipf", "zipf:1.1:100k"),
    ("hot", "hot:5%:1000"),
    ("file", "file:PATH"),
];

/// A description of keys; [`KeySpec::load`] makes them.
#[derive(Clone, Debug, PartialEq)]
pub enum KeySpec {
    One(Identity),
    /// All of so many are as likely.
    Uniform(u64),
    /// Number `n` of so many is `n^s` times less likely than the first.
    Zipf {
        s: f64,
        count: u64,
    },
    /// One key gets a share, the rest are spread over `others`.
    Hot {
        share: f64,
        others: u64,
    },
    /// A key a line; one that stands there twice is twice as likely.
    File(String),
}

impl FromStr for KeySpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<KeySpec, SpecError> {
        let unknown = || unknown(text, "a choice of keys", &KINDS);
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let (kind, form) = *KINDS.iter().find(|(name, _)| *name == kind).ok_or_else(unknown)?;
        let incomplete = || SpecError::Form { text: text.into(), form };
        match kind {
            "one" => {
                let identity = Identity::opaque(rest);
                Ok(KeySpec::One(identity.map_err(|why| SpecError::Range(why.to_string()))?))
            }
            "uniform" => Ok(KeySpec::Uniform(count(rest)?)),
            "zipf" => {
                let (s, keys) = rest.split_once(':').ok_or_else(incomplete)?;
                Ok(KeySpec::Zipf { s: exponent(s)?, count: count(keys)? })
            }
            "hot" => {
                let (share, others) = rest.split_once(':').ok_or_else(incomplete)?;
                Ok(KeySpec::Hot { share: parse_share(share)?, others: count(others)? })
            }
            _ if rest.is_empty() => Err(incomplete()),
            _ => Ok(KeySpec::File(rest.into())),
        }
    }
}

fn count(text: &str) -> Result<u64, SpecError> {
    match units::parse_count(text)? {
        0 => Err(SpecError::Range("0 keys are too few; at least 1".into())),
        count if count > MAX_KEYS => {
            Err(SpecError::Range(format!("{count} keys are too many; at most {MAX_KEYS}")))
        }
        count => Ok(count),
    }
}

fn exponent(text: &str) -> Result<f64, SpecError> {
    let exponent = text.parse().ok().filter(|s| (0.0..=10.0).contains(s));
    exponent.ok_or_else(|| {
        SpecError::Range(format!(
            "`{text}` is not an exponent of Zipf; a number from 0 (all alike) to 10, mostly near 1"
        ))
    })
}

/// `5%`, `0.1%` or `0.05`, as a share of 1.
pub fn parse_share(text: &str) -> Result<f64, SpecError> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok().map(|percent| percent / 100.0),
        None => text.parse().ok(),
    };
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| {
        SpecError::Range(format!("`{text}` is not a share; write it like 5% or 0.05, at most 100%"))
    })
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySpec::One(identity) => write!(f, "one:{}", identity.as_str()),
            KeySpec::Uniform(count) => write!(f, "uniform:{count}"),
            KeySpec::Zipf { s, count } => write!(f, "zipf:{s}:{count}"),
            KeySpec::Hot { share, others } => write!(f, "hot:{}%:{others}", share * 100.0),
            KeySpec::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl KeySpec {
    /// Reads the file or makes the table.
    pub fn load(&self, seed: u64) -> Result<Keys, SpecError> {
        let (draw, names) = match self {
            KeySpec::One(identity) => (Draw::First, Names::Listed(vec![identity.clone()])),
            KeySpec::Uniform(count) => (Draw::Uniform(*count), Names::Numbered),
            KeySpec::Zipf { s, count } => (Draw::Alias(Alias::zipf(*s, *count)), Names::Numbered),
            KeySpec::Hot { share, others } => {
                let threshold = (share * u64::MAX as f64) as u64;
                (Draw::Hot { threshold, others: *others }, Names::Numbered)
            }
            KeySpec::File(path) => {
                let (drawn, listed) = read_keys(path)?;
                (Draw::Listed(drawn), Names::Listed(listed))
            }
        };
        Ok(Keys { draw, names, rng: Rng::new(seed, KEYS) })
    }
}

/// What the seed's first stream of numbers is for.
const KEYS: u64 = 0;

/// The number of each line's key, and each key once.
fn read_keys(path: &str) -> Result<(Vec<u32>, Vec<Identity>), SpecError> {
    let wrong = |why: String| SpecError::Range(format!("{path}: {why}"));
    let file = File::open(path).map_err(|e| wrong(format!("cannot open the keys: {e}")))?;
    let (mut drawn, mut known) = (Vec::new(), HashMap::new());
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|e| wrong(format!("line {}: {e}", number + 1)))?;
        if line.trim().is_empty() {
            continue;
        }
        let key = Identity::opaque(line.trim());
        let key = key.map_err(|e| wrong(format!("line {}: {e}", number + 1)))?;
        let next = known.len() as u32;
        drawn.push(*known.entry(key).or_insert(next));
        if drawn.len() as u64 > MAX_KEYS {
            return Err(wrong(format!("more than {MAX_KEYS} keys")));
        }
    }
    if drawn.is_empty() {
        return Err(wrong("no keys in it; write one a line".into()));
    }
    let mut listed: Vec<(Identity, u32)> = known.into_iter().collect();
    listed.sort_unstable_by_key(|(_, number)| *number);
    Ok((drawn, listed.into_iter().map(|(key, _)| key).collect()))
}

/// Draws keys by number, and knows their names.
#[derive(Clone, Debug)]
pub struct Keys {
    draw: Draw,
    names: Names,
    rng: Rng,
}

#[derive(Clone, Debug)]
enum Draw {
    First,
    Uniform(u64),
    Hot {
        threshold: u64,
        others: u64,
    },
    Alias(Alias),
    /// Any of these numbers.
    Listed(Vec<u32>),
}

#[derive(Clone, Debug)]
enum Names {
    /// `user:1`, `user:2`, …
    Numbered,
    Listed(Vec<Identity>),
}

impl Keys {
    /// Keys that somebody else chooses from, by their place in the list.
    pub fn listed(listed: Vec<Identity>) -> Keys {
        Keys { draw: Draw::First, names: Names::Listed(listed), rng: Rng::new(0, KEYS) }
    }

    /// The number of the next key, below [`Keys::count`].
    #[inline]
    pub fn draw(&mut self) -> u32 {
        let number = match &self.draw {
            Draw::First => 0,
            Draw::Uniform(count) => self.rng.below(*count),
            Draw::Hot { threshold, others } => {
                if self.rng.next_u64() < *threshold {
                    0
                } else {
                    1 + self.rng.below(*others)
                }
            }
            Draw::Alias(table) => return table.draw(&mut self.rng),
            Draw::Listed(drawn) => return drawn[self.rng.below(drawn.len() as u64) as usize],
        };
        number as u32
    }

    /// How many different keys there are.
    pub fn count(&self) -> usize {
        match (&self.draw, &self.names) {
            (_, Names::Listed(listed)) => listed.len(),
            (Draw::Uniform(count), _) => *count as usize,
            (Draw::Hot { others, .. }, _) => *others as usize + 1,
            (Draw::Alias(table), _) => table.columns.len(),
            (Draw::First | Draw::Listed(_), _) => 1,
        }
    }

    pub fn name(&self, number: u32) -> Cow<'_, str> {
        match &self.names {
            Names::Numbered => Cow::Owned(format!("user:{}", u64::from(number) + 1)),
            Names::Listed(listed) => {
                Cow::Borrowed(listed.get(number as usize).map_or("", Identity::as_str))
            }
        }
    }
}

/// Draws from any distribution with one number and one look (Walker, Vose): every key has a column
/// of the same height, filled up by one other key.
#[derive(Clone, Debug)]
struct Alias {
    columns: Vec<Column>,
}

#[derive(Clone, Copy, Debug)]
struct Column {
    /// Up to here, as a share of 2^32, it is the key itself, above it the other.
    own: u32,
    other: u32,
}

impl Alias {
    fn zipf(s: f64, count: u64) -> Alias {
        Alias::new((1..=count).map(|n| libm::pow(n as f64, -s)).collect())
    }

    fn new(mut heights: Vec<f64>) -> Alias {
        let mean = heights.iter().sum::<f64>() / heights.len() as f64;
        heights.iter_mut().for_each(|height| *height /= mean);
        let mut columns: Vec<Column> =
            (0..heights.len() as u32).map(|n| Column { own: u32::MAX, other: n }).collect();
        let (mut low, mut high): (Vec<u32>, Vec<u32>) =
            (0..heights.len() as u32).partition(|n| heights[*n as usize] < 1.0);
        while let (Some(small), Some(&large)) = (low.pop(), high.last()) {
            let missing = 1.0 - heights[small as usize];
            let own = (heights[small as usize] * (1u64 << 32) as f64) as u32;
            columns[small as usize] = Column { own, other: large };
            heights[large as usize] -= missing;
            if heights[large as usize] < 1.0 {
                high.pop();
                low.push(large);
            }
        }
        Alias { columns }
    }

    #[inline]
    fn draw(&self, rng: &mut Rng) -> u32 {
        let (number, height) = rng.place(self.columns.len() as u64);
        let column = self.columns[number as usize];
        if (height >> 32) as u32 <= column.own { number as u32 } else { column.other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 400_000;

    fn shares(text: &str) -> Vec<f64> {
        let mut keys = text.parse::<KeySpec>().unwrap().load(1).unwrap();
        let mut seen = vec![0u32; keys.count()];
        (0..DRAWS).for_each(|_| seen[keys.draw() as usize] += 1);
        seen.into_iter().map(|n| f64::from(n) / f64::from(DRAWS)).collect()
    }

    #[test]
    fn keys_are_drawn_as_often_as_they_should() {
        let zipf = shares("zipf:1.1:1000");
        let weights: Vec<f64> = (1..=1_000).map(|n| f64::from(n).powf(-1.1)).collect();
        let sum: f64 = weights.iter().sum();
        for (share, weight) in zipf.iter().zip(&weights) {
            assert!((share - weight / sum).abs() < 0.003, "{share} {}", weight / sum);
        }
        let hot = shares("hot:5%:1000");
        assert_eq!(hot.len(), 1_001);
        assert!((hot[0] - 0.05).abs() < 0.002 && hot[1..].iter().all(|s| *s < 0.002));
        let uniform = shares("uniform:10");
        assert!(uniform.iter().all(|s| (s - 0.1).abs() < 0.005), "{uniform:?}");
        assert_eq!(shares("one:user:1"), [1.0]);
    }

    #[test]
    fn a_seed_gives_the_same_keys_for_ever() {
        let draw = |text: &str, seed| {
            let mut keys = text.parse::<KeySpec>().unwrap().load(seed).unwrap();
            [keys.draw(), keys.draw(), keys.draw(), keys.draw()]
        };
        assert_eq!(draw("zipf:1.1:100k", 42), ZIPF_OF_SEED_42);
        assert_eq!(draw("uniform:1000", 42), UNIFORM_OF_SEED_42);
        assert_ne!(draw("uniform:1000", 43), UNIFORM_OF_SEED_42);
    }

    const ZIPF_OF_SEED_42: [u32; 4] = [184, 31_882, 2_593, 51];
    const UNIFORM_OF_SEED_42: [u32; 4] = [814, 318, 983, 701];

    #[test]
    fn names_are_those_of_the_file_or_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "acme\n\n  globex \nacme\n").unwrap();
        let spec: KeySpec = format!("file:{}", path.display()).parse().unwrap();
        let keys = spec.load(1).unwrap();
        assert_eq!((keys.count(), keys.name(1)), (2, "globex".into()));
        std::fs::write(&path, "ok\na\u{1b}b\n").unwrap();
        assert!(spec.load(1).unwrap_err().to_string().contains("line 2: "));
        std::fs::write(&path, "\n").unwrap();
        assert!(spec.load(1).unwrap_err().to_string().contains("no keys in it"));
        let zipf = "zipf:1:10".parse::<KeySpec>().unwrap().load(1).unwrap();
        assert_eq!(zipf.name(9), "user:10");
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        let error = |text: &str| text.parse::<KeySpec>().unwrap_err().to_string();
        assert!(error("zip:1.1:10").contains("did you mean zipf?"));
        assert_eq!(error("zipf:1.1"), "`zipf:1.1` is incomplete; write it like zipf:1.1:100k");
        assert!(error("uniform:0").contains("at least 1"));
        assert!(error("uniform:11M").contains("at most 10000000"));
        assert!(error("hot:120%:5").contains("not a share"));
        assert!(error("zipf:x:5").contains("not an exponent"));
        assert!(error("one:").contains("cannot be empty") && error("file:").contains("file:PATH"));
        for text in ["one:user:1", "uniform:1000", "zipf:1.1:100000", "hot:5%:1000", "file:x"] {
            assert_eq!(text.parse::<KeySpec>().unwrap().to_string(), text);
        }
    }
}
