//! `rlctl keys`: every bucket there is, as it comes, or the first of an order.

use std::collections::BTreeMap;
use std::io::{BufWriter, Stdout};

use clap::ValueEnum;
use serde::Serialize;

use super::operate_args::{DialectArgs, Progress, most_rows};
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::identity::Pattern;
use crate::ops::bucket::Bucket;
use crate::ops::layout::{Held, Layout};
use crate::ops::site::Site;
use crate::ops::walk::{Walk, Wish};
use crate::output::{Column, Format, Row, Rows, Tone, about};

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
    "store",
];

/// List buckets: whose, how much is used and left, for how long
///
/// Streams what SCAN finds on every primary, never KEYS, in bounded memory; the server is asked in
/// small steps. With --sort the first rows of all. A bucket may come twice while a server's table
/// grows or a slot moves. With --rules also those of the stores that the rules name. Exit 7 when
/// there is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl keys --sort used --rows 20                   who used most
  rlctl keys --match 'user:12*' -o csv > buckets.csv
  rlctl keys --match ip:10.0.0.0/8 --rule per-ip
  rlctl keys --sort memory -o wide
  rlctl keys --rules store                           also on the stores that rules name
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
    #[arg(long, value_name = "N", value_parser = most_rows)]
    rows: Option<usize>,
    #[command(flatten)]
    dialect: DialectArgs,
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
            Column::wide("STORE", |item| item.bucket.store.clone().unwrap_or_else(|| "-".into())),
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
    /// By rank, then by store, key, rule and limit: a bucket that comes twice comes to the same
    /// place.
    kept: BTreeMap<(u64, Option<String>, String, String, String), Item>,
}

impl First {
    fn offer(&mut self, identity: &str, bucket: Bucket) {
        let rank = self.sort.rank(&bucket);
        let is_full = self.kept.len() >= self.most;
        if is_full && self.kept.last_key_value().is_none_or(|((last, ..), _)| rank > *last) {
            return;
        }
        let (key, rule) = (bucket.key.clone(), bucket.rule.clone());
        let place = (rank, bucket.store.clone(), key, rule, bucket.limit_text());
        self.kept.insert(place, Item { identity: identity.into(), bucket });
        if self.kept.len() > self.most {
            self.kept.pop_last();
        }
    }
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let layouts = args.dialect.layouts(context)?;
    let named = args.dialect.named_stores(context).await?;
    let sites = context.sites(&named).await?;
    let first = args.sort.map(|sort| First {
        sort,
        most: args.rows.unwrap_or(DEFAULT_ROWS),
        kept: BTreeMap::new(),
    });
    let most = if first.is_some() { usize::MAX } else { args.rows.unwrap_or(usize::MAX) };
    let (rows, progress) = (context.rows::<Item>()?, Progress::new(context));
    let mut list = List {
        args: &args,
        context,
        with_parts: named.most_parts > 0,
        rows,
        first,
        most,
        progress,
        keys: 0,
        unreadable: 0,
    };
    for site in &sites.open {
        if list.first.is_none() && list.most == 0 {
            break;
        }
        let layouts = match site.store {
            None => layouts.clone(),
            Some(_) => vec![Layout::Own(site.prefix.clone())],
        };
        list.walk(site, layouts).await?;
    }
    let List { first, mut rows, unreadable, progress, .. } = list;
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
    if let Some(away) = sites.away.first() {
        return Err(away.failure("what it counts is not listed"));
    }
    if written == 0 {
        let strangers = args.dialect.strangers(sites.main()).await;
        context.note(format!(
            "no bucket is stored that fits: nobody has used anything, or all is whole{strangers}"
        ));
    }
    Ok(if written == 0 { Exit::NothingMatched } else { Exit::Fine })
}

/// What is listed, on its way.
struct List<'a> {
    args: &'a Args,
    context: &'a Context,
    /// Rules divide some identities.
    with_parts: bool,
    rows: Rows<Item, BufWriter<Stdout>>,
    first: Option<First>,
    most: usize,
    progress: Progress<'a>,
    keys: u64,
    unreadable: u64,
}

impl List<'_> {
    async fn walk(&mut self, site: &Site, layouts: Vec<Layout>) -> Result<(), Failure> {
        let wish = Wish {
            layouts,
            pattern: self.args.pattern.clone(),
            with_parts: self.with_parts,
            // It costs the server as much again as the rest; where nobody sees it, it is not asked
            // for.
            with_memory: self.context.look.format != Format::Table
                || self.args.sort == Some(Sort::Memory),
        };
        let is_shown_at_once = self.first.is_none() && self.context.look.format == Format::Table;
        let mut walk = Walk::new(&site.deployment, wish)?;
        while let Some(batch) = walk.next().await? {
            for seen in batch {
                self.keys += 1;
                self.unreadable += u64::from(matches!(seen.held, Held::Unreadable(_)));
                for bucket in seen.buckets {
                    let bucket = Bucket { store: site.store.clone(), ..bucket };
                    if !self.add(&seen.found.identity, bucket)? {
                        return Ok(());
                    }
                }
            }
            if !is_shown_at_once {
                let (done, of) = walk.primaries();
                let keys = self.keys;
                let of_store =
                    site.store.as_ref().map_or(String::new(), |name| format!(" of {name}"));
                let tell = || format!("{keys} keys read, {done} of {of} servers{of_store} done");
                self.progress.tell(tell);
            }
        }
        Ok(())
    }

    /// False when there is no room for it.
    fn add(&mut self, identity: &str, bucket: Bucket) -> Result<bool, Failure> {
        if self.args.rule.as_ref().is_some_and(|rule| *rule != bucket.rule) {
            return Ok(true);
        }
        match &mut self.first {
            Some(first) => first.offer(identity, bucket),
            None if self.most == 0 => return Ok(false),
            None => {
                self.rows.push(&Item { identity: identity.into(), bucket })?;
                self.most -= 1;
            }
        }
        Ok(true)
    }
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
