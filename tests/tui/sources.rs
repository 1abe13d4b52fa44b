//! Real gateways and a real Redis as sources; recordings.

use std::sync::Arc;
use std::time::Duration;

use rlctl::engine::store::keys::Prefix;
use rlctl::engine::store::redis::RedisAddress;
use rlctl::gateway::PolicySource;
use rlctl::gateway::access::Access;
use rlctl::ops::admin::Admin;
use rlctl::ops::local_redis::Kind;
use rlctl::tui::act::Act;
use rlctl::tui::data::{Detail, Shard, Snapshot};
use rlctl::tui::feed::{Ask, Live, Store};
use rlctl::tui::model::Message;
use rlctl::tui::record::{Recorder, Recording};
use rlctl::tui::verdict::{Alarm, Cause};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{judged, told};
use crate::support::api::{POLICY, Served};
use crate::support::redis::RedisServer;
use crate::support::servers::Servers;

struct Watching {
    news: Receiver<Message>,
    asks: Sender<Ask>,
}

impl Watching {
    fn start(gateways: &[&Served], redis: Option<&RedisServer>) -> Watching {
        let urls: Vec<String> = gateways.iter().map(|g| format!("http://{}", g.address)).collect();
        Watching::at(&urls, redis.map(RedisServer::url))
    }

    fn at(gateways: &[String], redis: Option<String>) -> Watching {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let admin = |url: &String| Arc::new(Admin::new(url, None).unwrap());
        let redis = redis.map(|url| Store {
            address: RedisAddress::parse(&url, None).unwrap(),
            prefix: Prefix::default(),
        });
        let live = Live { gateways: gateways.iter().map(admin).collect(), redis };
        let (to, news) = channel(64);
        let (asks, asked) = channel(4);
        tokio::spawn(live.run(to, asked));
        Watching { news, asks }
    }

    async fn message<T>(&mut self, what: &str, mut is: impl FnMut(Message) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = is(self.news.recv().await.expect("it goes on")) {
                    return found;
                }
            }
        };
        let late = || panic!("never: {what}");
        tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| late())
    }

    async fn until(&mut self, what: &str, is: impl Fn(&Snapshot) -> bool) -> Snapshot {
        self.message(what, |message| match message {
            Message::Moment(snapshot) if is(&snapshot) => Some(*snapshot),
            _ => None,
        })
        .await
    }

    async fn detail(&mut self, who: &str) -> Detail {
        self.asks.send(Ask::Look(who.into())).await.unwrap();
        self.message("the detail", |message| match message {
            Message::Detail(detail) => Some(*detail),
            _ => None,
        })
        .await
    }

    async fn act(&mut self, act: Act) -> Result<String, String> {
        self.asks.send(Ask::Act(act)).await.unwrap();
        self.message("the end of the act", |message| match message {
            Message::Done(done) => Some(done),
            _ => None,
        })
        .await
    }
}

pub(super) async fn gateway(server: &RedisServer) -> Served {
    let source = PolicySource::Given { name: "given".into(), text: POLICY.into() };
    let served = Served::start(source, Some(server), Access::local()).await;
    served.gateway.keep_up();
    served
}

async fn ask(served: &Served, identity: &str, times: usize) {
    let body = serde_json::json!({ "identity": identity });
    for _ in 0..times {
        served.check(body.clone()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_and_their_redis_make_one_picture() {
    let server = RedisServer::start();
    let (one, two) = (gateway(&server).await, gateway(&server).await);
    let mut watching = Watching::start(&[&one, &two], Some(&server));
    ask(&one, "user:1", 4).await;
    ask(&two, "user:1", 4).await;
    let now = watching
        .until("both have refused user:1", |now| {
            now.gateways.len() == 2 && now.rejected.iter().any(|who| who.weight > 3.0)
        })
        .await;
    let who = &now.rejected[0];
    assert_eq!((who.identity.as_str(), who.rule.as_str()), ("user:1", "per-user"));
    assert!(who.retry_after_us.is_some() && who.since_us.is_some(), "{who:?}");
    let rule = now.rules.iter().find(|rule| rule.name == "per-user").unwrap();
    assert_eq!((rule.on_store_error.is_some(), rule.limits.len()), (true, 1), "{rule:?}");
    let now = watching
        .until("redis was asked too", |now| now.shards.iter().any(|s| s.ping_us.is_some()))
        .await;
    assert_eq!(now.shards.len(), 1, "one server, however many tell of it: {:?}", now.shards);
    assert_eq!(now.shards[0].breakers.len(), 2);
    assert_eq!(now.shards[0].role.as_deref(), Some("primary"));
    let detail = watching.detail("user:1").await;
    let limit = detail.limits.iter().find(|limit| limit.rule == "per-user").unwrap();
    assert_eq!((limit.used, limit.remaining), (Some(3), Some(0)));
    let done = watching.act(Act::Reset { identity: "user:1".into(), rule: None }).await;
    assert!(done.is_ok(), "{done:?}");
    let detail = watching.detail("user:1").await;
    assert_eq!(detail.limits[0].used, Some(0));
    let done = watching.act(Act::Block { identity: "user:1".into() }).await;
    assert!(done.is_ok(), "{done:?}");
    let blocked = watching.detail("user:1").await.blocked;
    assert_eq!(blocked.as_deref(), Some("from the dashboard"));
}

/// A gateway that says one thing and is gone.
async fn says_once(stats: String) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(listener);
        crate::support::gateway::read_head(&mut stream).await;
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let text = format!("{head}: hello\n\nevent: stats\ndata: {stats}\n\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_source_is_told_with_its_age_and_its_figures_are_not_shown_as_now() {
    let server = RedisServer::start();
    let one = gateway(&server).await;
    let rates = r#"{"last_second": {"allowed": 777}}"#;
    let other = says_once(format!(r#"{{"gateway": "other", "rates": {rates}}}"#)).await;
    let mut watching = Watching::at(&[format!("http://{}", one.address), other], None);
    let now = watching.until("both are heard", |now| now.gateways.len() == 2).await;
    assert!(now.rates.allowed >= 777.0, "{:?}", now.rates);
    let now = watching
        .until("one is silent", |now| now.gateways.iter().any(|gateway| !gateway.live))
        .await;
    assert!(now.sources[0].is_live(now.at_us));
    let lost = &now.sources[1];
    assert!(lost.trouble.is_some() && lost.stale_for(now.at_us).is_some(), "{lost:?}");
    assert!(now.rates.allowed < 777.0, "what was is not what is: {:?}", now.rates);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_alone_is_watched_and_its_loss_noticed() {
    let mut server = RedisServer::start();
    let one = gateway(&server).await;
    ask(&one, "user:1", 2).await;
    let mut watching = Watching::start(&[], Some(&server));
    let now = watching.until("it answers", |now| !now.shards.is_empty()).await;
    assert!(now.shards[0].ping_us.is_some() && now.shards[0].clock_us.is_some());
    let detail = watching.detail("user:1").await;
    assert_eq!(detail.limits.len(), 1, "{detail:?}");
    assert_eq!(detail.limits[0].used, Some(2));
    server.kill();
    let now = watching.until("it is away", |now| now.shards.iter().any(|s| s.is_down)).await;
    assert!(now.shards[0].down_since_us.is_some() && now.shards[0].trouble.is_some());
}

fn port(server: &str) -> u16 {
    server.rsplit_once(':').unwrap().1.parse().unwrap()
}

fn primaries(now: &Snapshot) -> Vec<&str> {
    let is_primary = |shard: &&Shard| shard.role.as_deref() == Some("primary");
    now.shards.iter().filter(is_primary).map(|shard| shard.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_followed_when_the_only_server_that_was_named_is_replaced() {
    let mut servers = Servers::start(Kind::Cluster, 3, 1).await;
    let killed = servers.local.master(None).await.unwrap();
    let name = format!("127.0.0.1:{killed}");
    for scheme in ["redis-cluster", "redis"] {
        let mut watching = Watching::at(&[], Some(format!("{scheme}://{name}")));
        let is_whole =
            |now: &Snapshot| now.shards.len() == 6 && now.shards.iter().all(|s| !s.is_down);
        watching.until("all six answer", is_whole).await;
        servers.local.kill(killed).await.unwrap();
        let mut most = 0;
        let now = watching
            .message("another has taken over", |message| {
                let Message::Moment(now) = message else { return None };
                most = most.max(primaries(&now).len());
                let is_over = now.shards.iter().any(|s| s.role.as_deref() == Some("gone"));
                is_over.then_some(now)
            })
            .await;
        assert_eq!(most, 3, "the dead and the one in its place are one primary, not two");
        assert!(!primaries(&now).contains(&name.as_str()), "{:?}", now.shards);
        let now = watching.until("three lead again", |now| primaries(now).len() == 3).await;
        assert!(now.shards.iter().all(|s| s.is_down == (s.name == name)), "{:?}", now.shards);
        // Nor is who is looked at asked of the one that was named only.
        for n in 0..10 {
            assert_eq!(watching.detail(&format!("user:{n}")).await.trouble, None);
        }
        servers.local.start_again(killed).await.unwrap();
        let now = watching.until("it is back, as a replica", is_whole).await;
        let back = now.shards.iter().find(|shard| shard.name == name).unwrap();
        let successor = port(back.replica_of.as_deref().expect("it follows who took over"));
        servers.local.fail_over(Some(successor)).await.unwrap();
        watching.until("it leads again", |now| primaries(now).contains(&name.as_str())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_away_is_known_to_be_one() {
    let servers = Servers::start(Kind::Cluster, 3, 1).await;
    let url = servers.local.url();
    let mut watching = Watching::at(&[], Some(url));
    let now = watching.until("all six answer", |now| now.shards.len() == 6).await;
    let replica = now.shards.iter().find(|s| s.role.as_deref() == Some("replica")).unwrap();
    servers.local.kill(port(&replica.name)).await.unwrap();
    let is_away = |now: &Snapshot| now.shards.iter().any(|s| s.is_down && s.name == replica.name);
    watching.until("it is away", is_away).await;
    // Long after the cluster has ceased to name it.
    let wait = tokio::time::Instant::now() + Duration::from_secs(8);
    let now = watching
        .message("some time has passed", |message| match message {
            Message::Moment(now) if tokio::time::Instant::now() > wait => Some(now),
            _ => None,
        })
        .await;
    let away = now.shards.iter().find(|s| s.name == replica.name).unwrap();
    assert_eq!((away.role.as_deref(), away.is_down), (Some("replica"), true));
    let verdict = judged(&now);
    assert_eq!((verdict.cause, verdict.alarm), (Cause::NothingWrong, Alarm::Watch));
    let primary = away.replica_of.as_deref().unwrap();
    let said = &verdict.because[0];
    assert!(said.contains(&replica.name) && said.contains(primary), "{said}");
}

#[test]
fn what_is_recorded_is_read_again_also_when_its_end_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rlrec");
    let (_, past, moments) = told("incident", 5);
    let mut recorder = Recorder::create(&path, "test").unwrap();
    recorder.past(&past).unwrap();
    moments.iter().for_each(|moment| recorder.moment(moment).unwrap());
    let recording = Recording::read(&path).unwrap();
    let times = |moments: &[Snapshot]| moments.iter().map(|m| m.at_us).collect::<Vec<_>>();
    assert_eq!(times(&recording.moments), times(&moments));
    assert_eq!(recording.moments[4].rules, moments[4].rules);
    assert_eq!((recording.past.len(), recording.of.as_str()), (past.len(), "test"));
    assert!(Recorder::create(&path, "test").is_err(), "what is there stays");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 100]).unwrap();
    let cut = Recording::read(&path).unwrap();
    assert_eq!((cut.moments.len(), cut.is_cut), (4, true));
    std::fs::write(&path, "{\"hello\": 1}\n").unwrap();
    let error = Recording::read(&path).unwrap_err().to_string();
    assert!(error.contains("a.rlrec:1: this is not a recording"), "{error}");
}
