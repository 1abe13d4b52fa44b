//! Who stands out among any number of identities, in bounded memory: a space-saving sketch. It keeps
//! a fixed number of places; a newcomer takes the place, and the weight, of the least. So nobody
//! whose true weight is above `total / places` is missed, and a weight is too high by at most the
//! weight that was inherited, which is told with it. Weights fade, half within a minute.
//!
//! Worst case, with every identity at its longest: `max_bytes(places)`, about 1.2 kB each.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::engine::clock::Micros;
use crate::engine::identity::{Identity, MAX_IDENTITY_BYTES};
use crate::engine::store::RuleLimit;
use crate::gateway::answer::Outcome;

/// Weights are multiplied by this once a second: 0.5 to the power of 1/60.
const FADES: f64 = 0.988_514_020_352_896_1;
/// How much the last second weighs in a rate, against all before it.
const LAST_SECOND: f64 = 0.5;
/// Of what somebody asked for, so much is remembered.
pub const MAX_ENDPOINT_BYTES: usize = 120;
/// What has faded to this is forgotten: one request, after about five minutes.
const FORGOTTEN_AT: f64 = 0.03;

#[derive(Debug)]
pub struct Sketch {
    places: usize,
    hasher: RandomState,
    /// In step with each other; apart, so that looking through them is quick.
    hashes: Vec<u64>,
    weights: Vec<f64>,
    entries: Vec<Entry>,
    total: f64,
}

#[derive(Clone, Debug)]
struct Entry {
    identity: Identity,
    too_high_by: f64,
    /// When it got its place.
    since: Micros,
    /// In this second, and by the second before it.
    counted: f64,
    rate: Option<f64>,
    last: Last,
}

/// What is added to somebody's place.
struct Known {
    too_high_by: f64,
    since: Micros,
    counted: f64,
    rate: Option<f64>,
}

/// The latest decision about somebody.
#[derive(Clone, Debug)]
pub struct Last {
    pub rule: Arc<str>,
    pub outcome: Outcome,
    pub limit: Option<Arc<RuleLimit>>,
    pub used: Option<u64>,
    /// What it was told to wait, if it was refused.
    pub retry_after: Option<Micros>,
    /// What it asked for; the beginning, where that is long.
    pub endpoint: Option<Box<str>>,
    pub at: Micros,
}

/// Somebody who stands out.
#[derive(Clone, Debug)]
pub struct Ranked {
    pub identity: Identity,
    pub weight: f64,
    /// The true weight may be lower by up to this.
    pub too_high_by: f64,
    /// Of the weight of all.
    pub share: f64,
    /// Since when it has stood out without being forgotten in between.
    pub since: Micros,
    /// Requests a second of late: what is older than a few seconds hardly counts.
    pub per_second: f64,
    pub last: Last,
}

impl Sketch {
    pub fn new(places: usize) -> Sketch {
        Sketch {
            places,
            hasher: RandomState::default(),
            hashes: Vec::new(),
            weights: Vec::new(),
            entries: Vec::new(),
            total: 0.0,
        }
    }

    /// What a sketch takes at worst.
    pub const fn max_bytes(places: usize) -> usize {
        // Vectors grow by doubling.
        2 * places * (16 + size_of::<Entry>()) + places * (MAX_IDENTITY_BYTES + MAX_ENDPOINT_BYTES)
    }

    pub fn record(&mut self, identity: &Identity, weight: f64, last: Last) {
        self.total += weight;
        let since = last.at;
        let known = Known { too_high_by: 0.0, since, counted: weight, rate: None };
        self.put(identity, weight, known, last);
    }

    fn put(&mut self, identity: &Identity, weight: f64, known: Known, last: Last) {
        let Known { too_high_by, since, counted, rate } = known;
        let hash = self.hasher.hash_one(identity.as_str());
        let same = |n: &usize| self.hashes[*n] == hash && self.entries[*n].identity == *identity;
        if let Some(n) = (0..self.hashes.len()).find(same) {
            self.weights[n] += weight;
            let entry = &mut self.entries[n];
            entry.too_high_by += too_high_by;
            entry.since = entry.since.min(since);
            entry.counted += counted;
            entry.rate = match (entry.rate, rate) {
                (Some(own), Some(other)) => Some(own + other),
                (own, other) => own.or(other),
            };
            if last.at >= entry.last.at {
                entry.last = last;
            }
            return;
        }
        let identity = identity.clone();
        if self.hashes.len() < self.places {
            self.hashes.push(hash);
            self.weights.push(weight);
            self.entries.push(Entry { identity, too_high_by, since, counted, rate, last });
            return;
        }
        let least =
            (0..self.weights.len()).min_by(|a, b| self.weights[*a].total_cmp(&self.weights[*b]));
        let Some(n) = least else { return };
        let inherited = self.weights[n];
        self.hashes[n] = hash;
        self.weights[n] += weight;
        self.entries[n] =
            Entry { identity, too_high_by: inherited + too_high_by, since, counted, rate, last };
    }

    /// Takes in what another one has seen.
    pub fn merge(&mut self, other: &Sketch) {
        self.total += other.total;
        for (entry, weight) in other.entries.iter().zip(&other.weights) {
            let Entry { too_high_by, since, counted, rate, .. } = *entry;
            let known = Known { too_high_by, since, counted, rate };
            self.put(&entry.identity, *weight, known, entry.last.clone());
        }
    }

    /// A second has passed.
    pub fn fade(&mut self) {
        self.total *= FADES;
        for n in (0..self.weights.len()).rev() {
            self.weights[n] *= FADES;
            let entry = &mut self.entries[n];
            entry.too_high_by *= FADES;
            let counted = std::mem::take(&mut entry.counted);
            let rate = entry.rate.unwrap_or(counted);
            entry.rate = Some(rate + (counted - rate) * LAST_SECOND);
            if self.weights[n] < FORGOTTEN_AT {
                self.hashes.swap_remove(n);
                self.weights.swap_remove(n);
                self.entries.swap_remove(n);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first `n`, heaviest first.
    pub fn top(&self, n: usize) -> Vec<Ranked> {
        let total = self.total.max(f64::MIN_POSITIVE);
        let mut all: Vec<(usize, f64)> = self.weights.iter().copied().enumerate().collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(n);
        let of = |(place, weight): (usize, f64)| {
            let Entry { identity, too_high_by, since, counted, rate, last } =
                self.entries[place].clone();
            let (share, per_second) = ((weight / total).min(1.0), rate.unwrap_or(counted));
            Ranked { identity, weight, too_high_by, share, since, per_second, last }
        };
        all.into_iter().map(of).collect()
    }

    /// The share that the heaviest surely has.
    pub fn top_share(&self) -> f64 {
        let sure = self.weights.iter().zip(&self.entries).map(|(w, entry)| w - entry.too_high_by);
        let most = sure.fold(0.0, f64::max);
        if self.total > 0.0 { (most / self.total).min(1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(at: u64) -> Last {
        let (rule, outcome) = ("r".into(), Outcome::Limited);
        Last {
            rule,
            outcome,
            limit: None,
            used: None,
            retry_after: None,
            endpoint: None,
            at: Micros(at),
        }
    }

    fn record(sketch: &mut Sketch, who: &str, times: u64) {
        (0..times).for_each(|_| sketch.record(&who.parse().unwrap(), 1.0, last(1)));
    }

    #[test]
    fn heavy_hitters_are_found_among_many_newcomers() {
        let mut sketch = Sketch::new(64);
        for n in 0..100_000u64 {
            record(&mut sketch, &format!("user:random-{n}"), 1);
            if n % 10 == 0 {
                record(&mut sketch, "user:heavy", 1);
            }
            if n % 20 == 0 {
                record(&mut sketch, "user:second", 1);
            }
        }
        assert_eq!(sketch.len(), 64);
        let top = sketch.top(2);
        assert_eq!(top[0].identity.as_str(), "user:heavy");
        assert_eq!(top[1].identity.as_str(), "user:second");
        let (low, high) = (top[0].weight - top[0].too_high_by, top[0].weight);
        assert!(low <= 10_000.0 && 10_000.0 <= high, "{low} {high}");
        assert!((0.08..=0.1).contains(&sketch.top_share()), "{}", sketch.top_share());
    }

    #[test]
    fn what_is_past_fades_and_is_forgotten() {
        let mut sketch = Sketch::new(8);
        record(&mut sketch, "user:1", 100);
        (0..60).for_each(|_| sketch.fade());
        assert!((sketch.top(1)[0].weight - 50.0).abs() < 0.01);
        (0..640).for_each(|_| sketch.fade());
        assert!(!sketch.is_empty());
        (0..60).for_each(|_| sketch.fade());
        assert!(sketch.is_empty());
    }

    #[test]
    fn an_even_rate_is_told_as_such() {
        let mut sketch = Sketch::new(8);
        for _ in 0..600 {
            record(&mut sketch, "user:1", 50);
            sketch.fade();
        }
        let told = sketch.top(1)[0].per_second;
        assert!((48.0..52.0).contains(&told), "{told}");
        // A burst is told within seconds, and so is its end.
        (0..3).for_each(|_| {
            record(&mut sketch, "user:2", 1_000);
            sketch.fade();
        });
        let rate = |sketch: &Sketch| {
            sketch.top(2).into_iter().find(|r| r.identity.as_str() == "user:2").unwrap().per_second
        };
        assert!(rate(&sketch) > 950.0);
        (0..5).for_each(|_| sketch.fade());
        assert!(rate(&sketch) < 50.0);
    }

    #[test]
    fn since_when_somebody_stands_out_is_known() {
        let mut sketch = Sketch::new(8);
        let who = "user:1".parse().unwrap();
        (5..9).for_each(|at| sketch.record(&who, 1.0, last(at)));
        assert_eq!(sketch.top(1)[0].since, Micros(5));
        let mut other = Sketch::new(8);
        other.record(&who, 1.0, last(3));
        sketch.merge(&other);
        assert_eq!(sketch.top(1)[0].since, Micros(3));
    }

    #[test]
    fn two_sketches_make_one() {
        let (mut one, mut two) = (Sketch::new(4), Sketch::new(4));
        record(&mut one, "user:a", 5);
        record(&mut two, "user:a", 6);
        record(&mut two, "user:b", 7);
        one.merge(&two);
        let top: Vec<_> =
            one.top(9).into_iter().map(|r| (r.identity.to_string(), r.weight)).collect();
        assert_eq!(top, [("user:a".into(), 11.0), ("user:b".into(), 7.0)]);
        assert_eq!(one.top(1)[0].share, 11.0 / 18.0);
    }
}
