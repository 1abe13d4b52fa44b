//! `--limit`, `--algorithm` and `--burst`, as every command that takes limits spells them.

use crate::engine::limit::{Algorithm, Limit, LimitError, Quota};
use crate::engine::units;

use super::{Context, Failure};

/// Far more than anybody means; a bucket's place in the list is one byte.
const MAX_LIMITS: usize = 100;

#[derive(Debug, clap::Args)]
pub(super) struct LimitArgs {
    /// Requests per period, e.g. 100/1m, 10/s, "5000/1h burst 200"; repeat for several
    #[arg(long = "limit", value_name = "L/P")]
    limits: Vec<Quota>,
    /// token-bucket, gcra, leaky-bucket, fixed-window, sliding-window, sliding-log; a list, or all
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "token-bucket")]
    algorithm: Vec<Algorithms>,
    /// Most that may pass at once (buckets only; default: the limit)
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    burst: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Algorithms {
    All,
    One(Algorithm),
}

impl std::str::FromStr for Algorithms {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Algorithms, LimitError> {
        if text == "all" { Ok(Algorithms::All) } else { text.parse().map(Algorithms::One) }
    }
}

impl LimitArgs {
    pub(super) fn are_given(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Every limit under every algorithm.
    pub(super) fn limits(&self, context: &Context) -> Result<Vec<Limit>, Failure> {
        let algorithms = self.algorithms();
        let mixed = algorithms.len() > 1;
        let mut limits = Vec::new();
        let mut without_burst = Vec::new();
        for quota in &self.limits {
            for algorithm in &algorithms {
                let mut quota = *quota;
                quota.burst = self.burst.or(quota.burst);
                // With several algorithms a burst is for those that have one.
                if mixed && quota.burst.is_some() && !algorithm.is_bucket() {
                    quota.burst = None;
                    without_burst.push(algorithm.name());
                }
                limits.push(Limit::new(*algorithm, quota).map_err(Failure::usage)?);
            }
        }
        if limits.len() > MAX_LIMITS {
            return Err(Failure::usage(format!(
                "{} limits are too many; at most {MAX_LIMITS}",
                limits.len()
            )));
        }
        if !without_burst.is_empty() {
            without_burst.dedup();
            context.note(format!(
                "the burst applies to the buckets only, not to {}",
                without_burst.join(", ")
            ));
        }
        Ok(limits)
    }

    fn algorithms(&self) -> Vec<Algorithm> {
        let mut chosen = Vec::new();
        for choice in &self.algorithm {
            let named = match choice {
                Algorithms::All => Algorithm::ALL.to_vec(),
                Algorithms::One(algorithm) => vec![*algorithm],
            };
            chosen.extend(named.into_iter().filter(|a| !chosen.contains(a)).collect::<Vec<_>>());
        }
        chosen
    }
}
