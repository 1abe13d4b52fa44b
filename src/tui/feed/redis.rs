//! A Redis asked itself, once a second: is it there, how fast, what role, how far behind, what time
//! it has. Nothing that grows with what it holds: no SCAN, no KEYS, no MONITOR.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tokio::sync::OnceCell;
use tokio::sync::mpsc::Sender;
use tokio::time::{Duration, MissedTickBehavior, interval};

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::store::StoreError;
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::{Console, Deployment, Place, RedisAddress, Said, Words};
use crate::ops::bucket::Bucket;
use crate::ops::look::{look, server_time};
use crate::tui::data::{Detail, LimitUse, Shard};

const EVERY: Duration = Duration::from_secs(1);
/// A server that takes longer is away, as far as limits go.
const PATIENCE: Micros = Micros(800 * Micros::MILLISECOND.0);
/// Who is who is asked anew this often, and at once when somebody is away.
const MAP_EVERY: Duration = Duration::from_secs(5);
/// A server that is no longer named by anybody is shown as away for this long.
const FORGOTTEN_AFTER_US: u64 = 120_000_000;
const MAX_SERVERS: usize = 200;

/// All servers, or why none is known.
pub(super) type Servers = Result<Vec<Shard>, String>;

/// Where a Redis is, and how its keys begin.
#[derive(Clone, Debug)]
pub struct Store {
    pub address: RedisAddress,
    pub prefix: Prefix,
}

/// The Redis that is watched. It is connected to once: later it is found through every server that
/// was seen, for the one that the address names may be the one that is away.
#[derive(Debug)]
pub(super) struct Redis {
    pub(super) store: Store,
    deployment: OnceCell<Deployment>,
}

impl Redis {
    pub(super) fn new(store: Store) -> Redis {
        Redis { store, deployment: OnceCell::new() }
    }

    async fn deployment(&self) -> Result<&Deployment, StoreError> {
        let connect = || Deployment::connect(&self.store.address, PATIENCE);
        self.deployment.get_or_try_init(connect).await
    }

    /// The same with who is who at this moment.
    async fn surveyed(&self) -> Result<&Deployment, StoreError> {
        let was_known = self.deployment.initialized();
        let deployment = self.deployment().await?;
        if was_known {
            deployment.look_again().await?;
        }
        Ok(deployment)
    }
}

struct Known {
    console: Option<Console>,
    shard: Shard,
    named_us: u64,
    /// How far those are behind that follow it.
    lags: Vec<(String, u64)>,
}

/// Those that were seen so far, by name.
#[derive(Default)]
struct Watch {
    known: BTreeMap<String, Known>,
    mapped: Option<Instant>,
}

pub(super) async fn watch(redis: Arc<Redis>, to: Sender<Servers>) {
    let mut watch = Watch::default();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let servers = watch.look(&redis).await;
        if to.send(servers).await.is_err() {
            return;
        }
    }
}

impl Watch {
    async fn look(&mut self, redis: &Redis) -> Servers {
        let somebody_is_away = self.known.values().any(|known| known.shard.is_down);
        let is_old = self.mapped.is_none_or(|at| at.elapsed() >= MAP_EVERY);
        let mut trouble = None;
        if is_old || somebody_is_away {
            match redis.surveyed().await {
                Ok(deployment) => self.take_in(deployment).await,
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        if self.known.is_empty() {
            return Err(trouble.unwrap_or_else(|| "it names no server".into()));
        }
        let asked = self.known.values_mut().map(Known::ask);
        join_all(asked).await;
        let now_us = Micros::now().0;
        self.known.retain(|_, known| {
            !known.shard.is_down || now_us.saturating_sub(known.named_us) < FORGOTTEN_AFTER_US
        });
        self.lags();
        self.replaced();
        Ok(self.known.values().map(|known| known.shard.clone()).collect())
    }

    /// Who is named now, with a connection to each.
    async fn take_in(&mut self, deployment: &Deployment) {
        self.mapped = Some(Instant::now());
        let map = deployment.map();
        // A primary that is named no more has been replaced; a cluster does not name replicas that are
        // away.
        for known in self.known.values_mut() {
            if known.shard.role.as_deref() != Some("replica") {
                known.shard.role = Some("gone".into());
            }
        }
        let mut replicas: Vec<(Place, String)> = Vec::new();
        for node in &map.primaries {
            let name = node.place().to_string();
            self.named(&name, Some(node.console.clone()), None);
            replicas.extend(node.replicas.iter().map(|place| (place.clone(), name.clone())));
        }
        for (place, primary) in replicas {
            let name = place.to_string();
            let is_connected = self.known.get(&name).is_some_and(|known| known.console.is_some());
            let console =
                if is_connected { None } else { deployment.console_at(&place).await.ok() };
            self.named(&name, console, Some(primary));
        }
        for (name, error) in &map.missing {
            self.named(name, None, None);
            if let Some(known) = self.known.get_mut(name) {
                known.away(error.to_string());
            }
        }
    }

    fn named(&mut self, name: &str, console: Option<Console>, replica_of: Option<String>) {
        if self.known.len() >= MAX_SERVERS && !self.known.contains_key(name) {
            return;
        }
        let known = self.known.entry(name.into()).or_insert_with(|| Known {
            console: None,
            shard: Shard { name: name.into(), ..Shard::default() },
            named_us: 0,
            lags: Vec::new(),
        });
        known.named_us = Micros::now().0;
        known.console = console.or_else(|| known.console.take());
        let role = if replica_of.is_some() { "replica" } else { "primary" };
        known.shard.role = Some(role.into());
        known.shard.replica_of = replica_of;
    }

    /// Whoever takes over says so before all others have heard of it: then the server that it followed
    /// is a primary no more, and the two are not counted twice.
    fn replaced(&mut self) {
        let known = self.known.values().map(|known| &known.shard);
        let leads = |shard: &&Shard| !shard.is_down && shard.role.as_deref() == Some("primary");
        let replaced: Vec<String> =
            known.filter(leads).filter_map(|shard| shard.replica_of.clone()).collect();
        for name in replaced {
            if let Some(known) = self.known.get_mut(&name).filter(|known| known.shard.is_down) {
                known.shard.role = Some("gone".into());
            }
        }
    }

    /// How far replicas are behind is what their primaries say.
    fn lags(&mut self) {
        let lags: Vec<(String, u64)> =
            self.known.values_mut().flat_map(|known| std::mem::take(&mut known.lags)).collect();
        for (name, lag) in lags {
            if let Some(known) = self.known.get_mut(&name) {
                known.shard.lag_us = Some(lag);
            }
        }
    }
}

impl Known {
    fn away(&mut self, why: String) {
        self.console = None;
        let since = self.shard.down_since_us.unwrap_or_else(|| Micros::now().0);
        self.shard = Shard {
            name: std::mem::take(&mut self.shard.name),
            role: self.shard.role.take(),
            replica_of: self.shard.replica_of.take(),
            is_down: true,
            down_since_us: Some(since),
            trouble: Some(why),
            ..Shard::default()
        };
    }

    async fn ask(&mut self) {
        let Some(console) = self.console.clone() else {
            let why = self.shard.trouble.clone();
            return self.away(why.unwrap_or_else(|| "it cannot be reached".into()));
        };
        let began = Instant::now();
        if let Err(error) = console.ask(&["PING"]).await {
            return self.away(error.to_string());
        }
        let ping = began.elapsed();
        let infos = ["INFO replication", "INFO stats", "INFO memory", "TIME"].map(Words::of);
        let before = Micros::now();
        let said = match console.ask_all(&infos).await {
            Ok(said) => said,
            Err(error) => return self.away(error.to_string()),
        };
        let after = Micros::now();
        let mut said = said.into_iter().map(|answer| answer.unwrap_or(Said::Nothing));
        let mut next = || said.next().unwrap_or(Said::Nothing);
        let info: Vec<String> = (0..3).map(|_| next().into_text()).collect();
        let info = info.join("\n");
        let time = server_time(&next());
        let middle = before.0 + after.saturating_sub(before).0 / 2;
        let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
        self.shard = Shard {
            name: std::mem::take(&mut self.shard.name),
            role: role(&info).or_else(|| self.shard.role.take()),
            replica_of: self.shard.replica_of.take(),
            ping_us: u64::try_from(ping.as_micros()).ok(),
            ops: number(&info, "instantaneous_ops_per_sec"),
            scripts: number(&info, "number_of_cached_scripts"),
            memory_bytes: number(&info, "used_memory"),
            evicted: number(&info, "evicted_keys"),
            clock_us: (time.0 > 0).then(|| signed(time.0) - signed(middle)),
            ..Shard::default()
        };
        self.lags = read_lags(&info);
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

fn number(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

fn role(info: &str) -> Option<String> {
    match field(info, "role")? {
        "master" => Some("primary".into()),
        "slave" => Some("replica".into()),
        _ => None,
    }
}

/// `slave0:ip=10.0.0.6,port=6379,state=online,offset=1,lag=0` of each.
fn read_lags(info: &str) -> Vec<(String, u64)> {
    let of = |line: &str| {
        let rest = line.trim_end().strip_prefix("slave")?.split_once(':')?.1;
        let part = |name: &str| {
            rest.split(',').find_map(|part| part.split_once('=').filter(|(k, _)| *k == name))
        };
        let place = format!("{}:{}", part("ip")?.1, part("port")?.1);
        Some((place, part("lag")?.1.parse::<u64>().ok()? * Micros::SECOND.0))
    };
    info.lines().filter_map(of).collect()
}

/// All that is stored about an identity.
pub(super) async fn detail(redis: &Redis, name: &str) -> Detail {
    let at_us = Micros::now().0;
    let told = |trouble: String| Detail {
        identity: name.into(),
        at_us,
        trouble: Some(trouble),
        ..Detail::default()
    };
    let identity: Identity = match name.parse() {
        Ok(identity) => identity,
        Err(error) => return told(format!("{error}")),
    };
    let deployment = match redis.deployment().await {
        Ok(deployment) => deployment,
        Err(error) => return told(error.to_string()),
    };
    match look(deployment, &redis.store.prefix, &identity).await {
        Ok(looked) => Detail {
            identity: name.into(),
            at_us,
            tier: looked.subject.tier_at(looked.now).map(String::from),
            blocked: looked.subject.block_at(looked.now).map(|terms| terms.reason.clone()),
            exempt: looked.subject.exempt_at(looked.now).map(|terms| terms.reason.clone()),
            limits: looked.buckets(&[]).into_iter().map(in_use).collect(),
            trouble: None,
        },
        Err(error) => told(error.to_string()),
    }
}

fn in_use(bucket: Bucket) -> LimitUse {
    let limit = bucket.limit.unwrap_or(0);
    LimitUse {
        rule: bucket.rule,
        endpoint: None,
        algorithm: bucket.algorithm.unwrap_or("not known").into(),
        limit,
        period_us: bucket.period_us.unwrap_or(0),
        capacity: bucket.burst.unwrap_or(limit),
        shadow: false,
        from: Some(format!("{}, key {}", bucket.source, bucket.key)),
        used: bucket.used,
        remaining: bucket.remaining,
        reset_after_us: bucket.reset_after_us,
        state: bucket.state.map(String::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_itself_is_read() {
        let info = "# Replication\r\nrole:master\r\nslave0:ip=10.0.0.6,port=6379,state=online,offset=9,lag=2\r\n# Stats\r\ninstantaneous_ops_per_sec:31\r\nused_memory:1024\r\nused_memory_human:1K\r\n";
        assert_eq!(role(info).as_deref(), Some("primary"));
        assert_eq!(number(info, "instantaneous_ops_per_sec"), Some(31));
        assert_eq!(number(info, "used_memory"), Some(1024));
        assert_eq!(read_lags(info), [("10.0.0.6:6379".to_string(), 2_000_000)]);
        assert!(read_lags("slave0:nonsense\nslaves:1").is_empty());
    }
}
