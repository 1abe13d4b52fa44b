//! Gateways and a Redis as they are now, put together once a second.

use std::sync::Arc;

use reqwest::{Method, StatusCode};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};

use super::Ask;
use super::gateway::{News, listen};
use super::redis::{Redis, Servers, Store, detail, watch};
use crate::engine::clock::Micros;
use crate::ops::admin::Admin;
use crate::tui::act::{Act, Request};
use crate::tui::data::{Detail, Shard, Source};
use crate::tui::merge::{Heard, merge, merge_past};
use crate::tui::model::Message;
use crate::tui::wire::read_detail;

/// How often it is looked whether there is something to show.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// News is shown at once, but not more often than this, unless something has broken.
const AT_MOST_EVERY: Duration = Duration::from_millis(900);
/// Without news the age of the old is shown.
const AT_LEAST_EVERY: Duration = Duration::from_millis(1_100);
/// The past is asked for once all gateways have spoken, or after this long.
const PAST_AFTER: Duration = Duration::from_secs(3);

/// What is watched.
#[derive(Debug)]
pub struct Live {
    pub gateways: Vec<Arc<Admin>>,
    pub redis: Option<Store>,
}

struct Collector {
    heard: Vec<Heard>,
    /// The Redis that is asked itself, and what its servers said last.
    redis: Option<Source>,
    servers: Vec<Shard>,
    has_news: bool,
    /// Something has just broken: nobody shall wait for that.
    is_urgent: bool,
    shown_at: Instant,
    started: Instant,
    past_told: bool,
}

impl Live {
    pub async fn run(self, to: Sender<Message>, mut asks: Receiver<Ask>) {
        let (news_to, mut news) = channel::<News>(64);
        for (number, admin) in self.gateways.iter().enumerate() {
            tokio::spawn(listen(number, admin.clone(), news_to.clone()));
        }
        let (servers_to, mut servers) = channel::<Servers>(4);
        let redis = self.redis.map(|store| Arc::new(Redis::new(store)));
        if let Some(redis) = &redis {
            tokio::spawn(watch(redis.clone(), servers_to));
        }
        let unheard = |admin: &Arc<Admin>| Heard {
            source: Source { name: format!("gateway {}", admin.at()), ..Source::default() },
            told: None,
        };
        let now = Instant::now();
        let mut collector = Collector {
            heard: self.gateways.iter().map(unheard).collect(),
            redis: redis.as_ref().map(|redis| Source {
                name: format!("redis {}", redis.store.address),
                ..Source::default()
            }),
            servers: Vec::new(),
            has_news: false,
            is_urgent: false,
            shown_at: now,
            started: now,
            past_told: false,
        };
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(news) = news.recv() => collector.hear(news),
                Some(servers) = servers.recv() => collector.hear_servers(servers),
                _ = ticks.tick() => {
                    for message in collector.messages() {
                        if to.send(message).await.is_err() {
                            return;
                        }
                    }
                }
                ask = asks.recv() => {
                    let Some(ask) = ask else { return };
                    // Whoever is slow to answer must not hold up the picture.
                    let (gateways, redis) = (self.gateways.clone(), redis.clone());
                    let to = to.clone();
                    tokio::spawn(async move {
                        let _ = to.send(answer(&gateways, redis.as_deref(), ask).await).await;
                    });
                }
            }
        }
    }
}

impl Collector {
    fn hear(&mut self, (number, told): News) {
        let Some(heard) = self.heard.get_mut(number) else { return };
        match told {
            Ok(told) => {
                self.is_urgent |= heard.told.as_ref().is_some_and(|was| {
                    let began = was.gateway.rates.degraded() <= 0.0;
                    (began && told.gateway.rates.degraded() > 0.0)
                        || has_lost_one(&was.shards, &told.shards)
                });
                heard.source.heard_us = Some(Micros::now().0);
                heard.source.trouble = None;
                heard.told = Some(*told);
            }
            Err(why) => heard.source.trouble = Some(why),
        }
        self.has_news = true;
    }

    fn hear_servers(&mut self, servers: Servers) {
        let Some(redis) = &mut self.redis else { return };
        match servers {
            Ok(servers) => {
                redis.heard_us = Some(Micros::now().0);
                redis.trouble = None;
                self.is_urgent |= has_lost_one(&self.servers, &servers);
                self.servers = servers;
            }
            Err(why) => redis.trouble = Some(why),
        }
        self.has_news = true;
    }

    fn messages(&mut self) -> Vec<Message> {
        let since = self.shown_at.elapsed();
        let is_time = (self.has_news && since >= AT_MOST_EVERY) || since >= AT_LEAST_EVERY;
        // The very first is shown at once.
        let is_first = self.has_news && !self.past_told;
        if !is_time && !is_first && !self.is_urgent {
            return Vec::new();
        }
        (self.shown_at, self.has_news, self.is_urgent) = (Instant::now(), false, false);
        let mut messages = Vec::new();
        let all_heard = self.heard.iter().all(|heard| heard.told.is_some());
        if !self.past_told && (all_heard || self.started.elapsed() >= PAST_AFTER) {
            self.past_told = true;
            let pasts = self.heard.iter().filter_map(|heard| heard.told.as_ref());
            let past = merge_past(pasts.map(|told| told.past.as_slice()));
            messages.push(Message::Past(past));
        }
        let snapshot = merge(&self.heard, &self.servers, self.redis.as_ref(), Micros::now().0);
        messages.push(Message::Moment(Box::new(snapshot)));
        messages
    }
}

/// Whether somebody is away now who was there before.
fn has_lost_one(before: &[Shard], now: &[Shard]) -> bool {
    let is_away = |shard: &Shard| shard.is_down || shard.open_breakers() > 0;
    let was_there = |name: &str| before.iter().any(|shard| shard.name == name && !is_away(shard));
    now.iter().any(|shard| is_away(shard) && was_there(&shard.name))
}

async fn answer(gateways: &[Arc<Admin>], redis: Option<&Redis>, ask: Ask) -> Message {
    match ask {
        Ask::Look(who) if gateways.is_empty() => match redis {
            Some(redis) => Message::Detail(Box::new(detail(redis, &who).await)),
            None => Message::Note("there is nobody to ask".into()),
        },
        Ask::Look(who) => Message::Detail(Box::new(look(gateways, who).await)),
        Ask::Act(act) => Message::Done(act_on(gateways, &act).await),
    }
}

/// The first gateway that answers knows as much as any: limits are the store's.
async fn look(gateways: &[Arc<Admin>], identity: String) -> Detail {
    let coded =
        percent_encoding::utf8_percent_encode(&identity, percent_encoding::NON_ALPHANUMERIC);
    let path = format!("/api/v1/users/{coded}/limits");
    let mut trouble = "no gateway is watched that could be asked".to_string();
    for admin in gateways {
        match admin.ask(Method::GET, &path, None, &[StatusCode::OK]).await {
            Ok((_, value)) => {
                return Detail { identity, ..read_detail(&value, Micros::now().0) };
            }
            Err(error) => trouble = error.to_string(),
        }
    }
    Detail { identity, at_us: Micros::now().0, trouble: Some(trouble), ..Detail::default() }
}

/// Changes are the store's too; only a reset has to reach what each gateway counts by itself.
async fn act_on(gateways: &[Arc<Admin>], act: &Act) -> Result<String, String> {
    let Request { path, body } = act.request();
    let expected = [StatusCode::OK, StatusCode::CREATED];
    let (mut done, mut trouble) = (0, None);
    for admin in gateways {
        match admin.ask(Method::POST, &path, Some(&body), &expected).await {
            Ok(_) => done += 1,
            Err(error) => trouble = Some(error.to_string()),
        }
        if done > 0 && !matches!(act, Act::Reset { .. }) {
            break;
        }
    }
    match (done, trouble) {
        (0, why) => Err(why.unwrap_or_else(|| {
            "changes are made through a gateway: give --gateway URL, or copy the command".into()
        })),
        (1, None) => Ok("told a gateway".into()),
        (done, None) => Ok(format!("told {done} gateways")),
        (done, Some(why)) => Err(format!("{done} of {} gateways did: {why}", gateways.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(down: &[bool]) -> Vec<Shard> {
        let of = |(n, is_down): (usize, &bool)| Shard {
            name: format!("s:{n}"),
            is_down: *is_down,
            ..Shard::default()
        };
        down.iter().enumerate().map(of).collect()
    }

    #[test]
    fn news_waits_for_its_second_but_not_when_something_breaks() {
        let now = Instant::now();
        let mut collector = Collector {
            heard: Vec::new(),
            redis: Some(Source::default()),
            servers: Vec::new(),
            has_news: false,
            is_urgent: false,
            shown_at: now,
            started: now,
            past_told: false,
        };
        let mut shown_after = |news: &[bool]| {
            // However slow this machine is, the second is not over.
            collector.shown_at = Instant::now();
            collector.hear_servers(Ok(servers(news)));
            collector.messages().iter().any(|message| matches!(message, Message::Moment(_)))
        };
        assert!(shown_after(&[false, false]), "the first is shown at once");
        assert!(!shown_after(&[false, false]), "the next has time");
        assert!(shown_after(&[false, true]), "one is away");
        assert!(!shown_after(&[false, true]), "and still is");
        assert!(!shown_after(&[false, false]), "it is back");
        assert!(shown_after(&[true, false]), "the other is away");
    }
}
