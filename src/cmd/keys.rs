//! `rlctl keys`: every bucket there is, as it comes, or the first of an order.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Serialize;

use super::operate_args::{DialectArgs, Progress};
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::identity::Pattern;
use crate::engine::units;
use crate::ops::bucket::Bucket;
use crate::ops::layout::Held;
use crate::ops::walk::{Walk, Wish};
use crate::output::{Column, Format, Row, Tone, about};

const DEFAULT_ROWS: usize = 1_000;

/// The columns of a bucket in CSV.
pub(super) const BUCKET_FIELDS: &[&str] = &[
    "identity",
    "rule",
    "algorithm",
    "limit",
    "period_us",
    "burst",
    "used",
    "remaining",
    "retry_after_us",
    "reset_after_us",
    "ttl_us",
    "key",
    "slot",
    "node",
    "memory_bytes",
    "state",
    "source",
];

/// List buckets: whose, how much is used and left, for how long
///
/// Streams what SCAN finds on every primary, never KEYS, in bounded memory; the server is asked in
/// small steps. With --sort the first rows of all. A bucket may come twice while a server's table
/// grows or a slot moves. Exit 7 when there is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl keys --sort used --rows 20                   who used most
  rlctl keys --match 'user:12*' -o csv > buckets.csv
  rlctl keys --match ip:10.0.0.0/8 --rule per-ip
  rlctl keys --sort memory -o wide
  rlctl keys --dialect zset-window --limit 100/1m")]
pub(super) struct Args {
    /// Only those of an identity, a family (user:12*) or a network (ip:10.0.0.0/8)
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<Pattern>,
    /// Only those of one rule
    #[arg(long, value_name = "R")]
    rule: Option<String>,
    /// Most used, least remaining, longest to live or largest first
    #[arg(long, value_enum, value_name = "BY")]
    sort: Option<Sort>,
    /// Most rows; with --sort 1000 if not said
    #[arg(long, value_name = "N", value_parser = rows)]
    rows: Option<usize>,
    #[command(flatten)]
    dialect: DialectArgs,
}

fn rows(text: &str) -> Result<usize, String> {
    let rows = units::parse_count(text).map_err(|error| error.to_string())?;
    usize::try_from(rows).map_err(|error| error.to_string())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Used,
    Remaining,
    Ttl,
    Memory,
}

impl Sort {
    /// What comes first is least.
    fn rank(self, bucket: &Bucket) -> u64 {
        let most_first = |number: Option<u64>| u64::MAX - number.unwrap_or(0);
        match self {
            Sort::Used => most_first(bucket.used),
            Sort::Remaining => bucket.remaining.unwrap_or(u64::MAX),
            // What never expires lives longest.
            Sort::Ttl => bucket.ttl_us.map_or(0, |ttl| u64::MAX - ttl),
            Sort::Memory => most_first(bucket.memory_bytes),
        }
    }
}

#[derive(Debug, Serialize)]
struct Item {
    identity: String,
    #[serde(flatten)]
    bucket: Bucket,
}

impl Row for Item {
    fn columns() -> Vec<Column<Item>> {
        vec![
            Column::new("IDENTITY", |item: &Item| item.identity.clone()),
            Column::new("RULE", |item| item.bucket.rule.clone()),
            Column::new("LIMIT", |item| item.bucket.limit_text()),
            Column::number("USED", |item| shown(item.bucket.used)),
            Column::number("LEFT", |item| shown(item.bucket.remaining)),
            Column::new("STATE", |item: &Item| item.bucket.state.unwrap_or("?").into()).tone(tone),
            Column::new("TTL", |item| {
                item.bucket.ttl_us.map_or("never".into(), |us| about(Micros(us)))
            }),
            Column::wide("ALGORITHM", |item| item.bucket.algorithm.unwrap_or("?").into()),
            Column::wide("BYTES", |item| shown(item.bucket.memory_bytes)),
            Column::wide("NODE", |item| item.bucket.node.clone().unwrap_or_default()),
            Column::wide("SLOT", |item| item.bucket.slot.map_or("-".into(), |s| s.to_string())),
            Column::wide("KEY", |item| item.bucket.key.clone()),
        ]
    }

    const FIELDS: &'static [&'static str] = BUCKET_FIELDS;
}

fn shown(number: Option<u64>) -> String {
    number.map_or("?".into(), |number| number.to_string())
}

fn tone(item: &Item) -> Tone {
    match item.bucket.state {
        Some("throttled") => Tone::Bad,
        Some("warning") => Tone::Warning,
        _ => Tone::Plain,
    }
}

/// The first so many in an order, each bucket once.
struct First {
    sort: Sort,
    most: usize,
    /// By rank, then by key, rule and limit: a bucket that comes twice comes to the same place.
    kept: BTreeMap<(u64, String, String, String), Item>,
}

impl First {
    fn offer(&mut self, identity: &str, bucket: Bucket) {
        let rank = self.sort.rank(&bucket);
        let is_full = self.kept.len() >= self.most;
        if is_full && self.kept.last_key_value().is_none_or(|((last, ..), _)| rank > *last) {
            return;
        }
        let (key, rule) = (bucket.key.clone(), bucket.rule.clone());
        let place = (rank, key, rule, bucket.limit_text());
        self.kept.insert(place, Item { identity: identity.into(), bucket });
        if self.kept.len() > self.most {
            self.kept.pop_last();
        }
    }
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let wish = Wish {
        layouts: args.dialect.layouts(context)?,
        pattern: args.pattern.clone(),
        // It costs the server as much again as the rest; where nobody sees it, it is not asked for.
        with_memory: context.look.format != Format::Table || args.sort == Some(Sort::Memory),
    };
    let deployment = context.deployment().await?;
    let mut walk = Walk::new(&deployment, wish)?;
    let mut first = args.sort.map(|sort| First {
        sort,
        most: args.rows.unwrap_or(DEFAULT_ROWS),
        kept: BTreeMap::new(),
    });
    let most = if first.is_some() { usize::MAX } else { args.rows.unwrap_or(usize::MAX) };
    let mut rows = context.rows::<Item>()?;
    let mut progress = Progress::new(context);
    let (mut keys, mut unreadable, mut written) = (0u64, 0u64, 0);
    'walk: while let Some(batch) = walk.next().await? {
        for seen in batch {
            keys += 1;
            unreadable += u64::from(matches!(seen.held, Held::Unreadable(_)));
            let is_meant = |b: &Bucket| args.rule.as_ref().is_none_or(|rule| *rule == b.rule);
            for bucket in seen.buckets.into_iter().filter(is_meant) {
                if written == most {
                    break 'walk;
                }
                match &mut first {
                    Some(first) => first.offer(&seen.found.identity, bucket),
                    None => {
                        rows.push(&Item { identity: seen.found.identity.clone(), bucket })?;
                        written += 1;
                    }
                }
            }
        }
        if first.is_some() || context.look.format != Format::Table {
            let (done, of) = walk.primaries();
            progress.tell(|| format!("{keys} keys read, {done} of {of} servers done"));
        }
    }
    drop(progress);
    for item in first.map(|first| first.kept).into_iter().flat_map(BTreeMap::into_values) {
        rows.push(&item)?;
    }
    let written = rows.end()?;
    if unreadable > 0 {
        context.note(format!(
            "{unreadable} keys under {} hold no quota of ours; rlctl doctor names them",
            context.prefix.as_str()
        ));
    }
    if written == 0 {
        context.note("no bucket is stored that fits: nobody has used anything, or all is whole");
    }
    Ok(if written == 0 { Exit::NothingMatched } else { Exit::Fine })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_kept_whatever_the_order_they_come_in() {
        let bucket = |used: u64| Bucket {
            key: format!("k{used}"),
            used: Some(used),
            remaining: Some(1000 - used),
            ..Bucket::default()
        };
        let mut numbers: Vec<u64> = (0..500).map(|n| n * 7919 % 500).collect();
        numbers.extend(numbers.clone());
        for (sort, expected) in [(Sort::Used, [499, 498, 497]), (Sort::Remaining, [499, 498, 497])]
        {
            let mut first = First { sort, most: 3, kept: BTreeMap::new() };
            numbers.iter().for_each(|used| first.offer("x", bucket(*used)));
            let kept: Vec<u64> = first.kept.values().filter_map(|i| i.bucket.used).collect();
            assert_eq!(kept, expected);
        }
        assert!(
            Sort::Ttl.rank(&Bucket::default())
                < Sort::Ttl.rank(&Bucket { ttl_us: Some(9), ..Bucket::default() })
        );
    }
}
